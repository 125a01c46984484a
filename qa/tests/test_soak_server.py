"""``python -m qa soak-server``: what stays passes, and answers that are planted to differ are found."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from qa_commands import run
from test_soak import sample

from glinfer.errors import InputError
from qa.serve_load import AnswerError
from qa.soak import command
from qa.soak import requests as soak_requests
from qa.soak.models import ADAPTER, CHATS
from qa.soak.requests import WRITES, Asked, draw_requests, fingerprint, first_requests, joined, steady, tokens_of
from qa.soak.run import SoakReport, judge
from qa.soak.served import Settings
from qa.soak.server import Answer, Answers, Load, Rates, _counts, ask, judge_answers, judge_beside, soak_server, turns

pytest.importorskip("starlette", reason="starlette is not installed (pip install 'glinfer[server]')")
pytest.importorskip("llguidance", reason="llguidance is not installed (pip install 'glinfer[structured]')")

KINDS = [*soak_requests._KINDS]
STREAM = Asked("streams", "/v1/completions", {"prompt": "a", "stream": True})
WHOLE = Asked("completions", "/v1/completions", {"prompt": "a"})
USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def choice(text: str, reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": reason}]}


class TestRequests:
    def test_each_kind_comes_before_one_comes_again(self) -> None:
        drawn = draw_requests(0, 100)
        assert {each.kind for each in drawn[: len(KINDS)]} == {*KINDS}
        assert len({json.dumps(each.body, sort_keys=True) for each in drawn}) > 95
        assert draw_requests(0, 100) == drawn != draw_requests(1, 100)

    def test_they_are_what_the_server_takes(self) -> None:
        """And mistakes are what it does not, or not of this model."""
        from glinfer.server.errors import ApiError
        from glinfer.server.routes import ROUTES

        bodies = {route.path: route.body for route in ROUTES}
        refused = 0
        assert {each.body["model"] for each in first_requests()} == {WRITES, CHATS, ADAPTER}
        for asked in [*first_requests(), *draw_requests(3, 300)]:
            body = bodies[asked.path]
            assert body is not None
            try:
                body.read(json.dumps(asked.body).encode())
            except ApiError:
                assert asked.refused, asked
                refused += 1
        assert refused > 3

    def test_what_differs_from_time_to_time_is_left_out(self) -> None:
        told = {"id": "cmpl-1", "created": 7, "choices": [{"text": "a", "id": "x"}]}
        usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 1}}
        assert steady({**told, "usage": usage}) == {"choices": [{"text": "a"}], "usage": USAGE}
        assert fingerprint(200, {**told, "id": "cmpl-2"}) == fingerprint(200, told)
        assert fingerprint(400, told) != fingerprint(200, told)
        assert fingerprint(200, [0.1 + 0.2]) != fingerprint(200, [0.3])

    def test_pieces_are_joined(self) -> None:
        chat = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        more = {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]}
        assert joined([chat, more, {"choices": [], "usage": USAGE}]) == {
            "texts": {0: "b"},
            "reasons": {0: "stop"},
            "usage": USAGE,
        }
        whole = joined([choice("a"), choice("x", index=1), choice("b", "length")])
        assert whole == {"texts": {0: "ab", 1: "x"}, "reasons": {0: "length"}, "usage": None}

    def test_tokens_are_counted_as_the_server_does(self) -> None:
        assert tokens_of({"usage": USAGE}) == 5
        assert [tokens_of(each) for each in ({}, {"usage": None}, [])] == [0, 0, 0]


class TestAnswers:
    def answers(self, *texts: str, asked: Asked = STREAM, left: bool = False) -> Answers:
        """What came of one request that was sent so many times."""
        found = Answers.to([asked])
        for text in texts:
            found.add(0, Answer(f"[200, {text}]", {0: text}, 2), left=left)
        return found

    def test_what_is_the_same_alone(self) -> None:
        found = self.answers("ab", "ab")
        assert (found.total, found.tokens, found.other, found.counts) == (2, 4, {}, {"streams": 2})
        assert found.differing(self.answers("ab")) == []
        assert all(check.passed for check in judge_answers(found, self.answers("ab")))

    @pytest.mark.parametrize(
        ("texts", "alone"), [(("ab", "ab"), ("ac",)), (("ab", "ac"), ("ab",)), (("ac", "ab"), ("ab",)), (("ab",), ())]
    )
    def test_one_that_differs_is_found(self, texts: tuple[str, ...], alone: tuple[str, ...]) -> None:
        found = self.answers(*texts)
        assert found.differing(self.answers(*alone)) == [0]
        check, _ = judge_answers(found, self.answers(*alone))
        assert (check.passed, check.detail) == (False, json.dumps(dict(STREAM.body)))

    @pytest.mark.parametrize(("had", "same"), [("a", True), ("ab", True), ("", True), ("b", False), ("abc", False)])
    def test_who_went_away_had_the_beginning(self, had: str, same: bool) -> None:
        found = self.answers("", had, asked=replace(STREAM, leaves_after=1), left=True)
        assert found.first == [None]
        assert found.differing(self.answers("ab")) == ([] if same else [0])

    def test_what_failed_is_told(self) -> None:
        found = self.answers("a")
        found.failed["chats: AnswerError 500"] += 3
        _, check = judge_answers(found, self.answers("a"))
        assert (check.passed, check.last, check.detail) == (False, 3, "3 × chats: AnswerError 500")


class TestClients:
    def asked_of(self, answer: Callable[[httpx.Request], httpx.Response], asked: Asked, **options: Any) -> Answer:
        async def run_one() -> Answer:
            transport = httpx.MockTransport(answer)
            async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as http:
                return await ask(http, asked, **options)

        return asyncio.run(run_one())

    def streamed(self, *events: Any, done: bool = True) -> Callable[[httpx.Request], httpx.Response]:
        lines = [f"data: {json.dumps(each)}\n\n" for each in events] + ["data: [DONE]\n\n"] * done
        return lambda request: httpx.Response(200, text="".join(lines))

    def test_a_whole_answer(self) -> None:
        body = {**choice("ab", "stop"), "usage": USAGE}
        found = self.asked_of(lambda request: httpx.Response(200, json=body), WHOLE)
        assert found == Answer(fingerprint(200, body), {0: "ab"}, 5)

    def test_a_stream_and_one_that_is_left(self) -> None:
        server = self.streamed(choice("a"), choice("b"), choice("c", "stop"), {"choices": [], "usage": USAGE})
        whole = self.asked_of(server, STREAM)
        assert (whole.texts, whole.tokens) == ({0: "abc"}, 5)
        leaves = replace(STREAM, leaves_after=2)
        assert self.asked_of(server, leaves) == Answer(
            fingerprint(200, joined([choice("a"), choice("b")])), {0: "ab"}, 2
        )
        assert self.asked_of(server, leaves, stays=True) == whole

    def test_who_does_not_wait_at_all(self) -> None:
        leaves = replace(STREAM, leaves_after=0)
        assert self.asked_of(self.streamed(choice("a")), leaves) == Answer("", {}, 0)

    def test_refusals_are_due_or_not(self) -> None:
        def refuse(request: httpx.Request) -> httpx.Response:
            return httpx.Response(400, json={"error": {"message": "no"}})

        assert self.asked_of(refuse, replace(WHOLE, refused=True)).tokens == 0
        with pytest.raises(AnswerError, match=r'400 \{"error": \{"message": "no"\}\}'):
            self.asked_of(refuse, WHOLE)
        with pytest.raises(AnswerError, match="200"):
            self.asked_of(lambda request: httpx.Response(200, json={}), replace(WHOLE, refused=True))
        with pytest.raises(AnswerError, match="500"):
            self.asked_of(lambda request: httpx.Response(500, json={}), replace(WHOLE, refused=True))

    @pytest.mark.parametrize("events", [[{"error": {"code": "broken_numbers"}}], []])
    def test_a_stream_that_breaks(self, events: list[Any]) -> None:
        with pytest.raises(AnswerError, match="broken_numbers" if events else "cut off"):
            self.asked_of(self.streamed(*events, done=False), STREAM)

    def test_a_key_is_brought(self) -> None:
        seen: list[str | None] = []

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append(request.headers.get("authorization"))
            return httpx.Response(200, json={})

        self.asked_of(answer, WHOLE, key="one")
        self.asked_of(answer, WHOLE)
        assert seen == ["Bearer one", None]

    def test_every_request_is_sent_so_many_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[int] = []

        async def answer(http: Any, asked: Asked) -> Answer:
            sent.append(int(asked.body["number"]))
            return Answer("", {}, 1)

        monkeypatch.setattr("qa.soak.server.ask", answer)
        answers = Answers.to([replace(WHOLE, body={"number": number}) for number in range(7)])
        load = Load("http://localhost", answers, 3, seed=1)
        load.each(2)
        assert sorted(sent) == sorted([*range(7)] * 2)
        load.until(lambda: answers.tokens >= 40)
        assert answers.tokens == 42, "each as often as the others"
        load.until(lambda: True)
        assert answers.tokens == 49, "between two samples there is something to be seen"
        assert sorted(sent) == sorted([*range(7)] * 7)

    def test_only_the_time_of_the_load_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, seen = 100.0, list[float]()

        async def answer(http: Any, asked: Asked) -> Answer:
            nonlocal now
            now += 2.0
            seen.append(load.seconds)
            return Answer("", {}, 1)

        monkeypatch.setattr("qa.soak.server.ask", answer)
        monkeypatch.setattr("qa.soak.server.time", SimpleNamespace(perf_counter=lambda: now))
        load = Load("http://localhost", Answers.to([WHOLE]), 1, seed=1)
        assert load.seconds == 0.0
        load.each(2)
        now += 50.0
        assert load.seconds == 4.0
        load.each(1)
        assert seen == [2.0, 4.0, 6.0]
        assert load.rate() == 0.5
        now += 50.0
        load.each(2)
        assert load.rate() == 0.5

    def test_two_servers_have_the_same_requests_in_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, sent = 100.0, list[tuple[str, int]]()

        async def answer(http: Any, asked: Asked) -> Answer:
            nonlocal now
            now += 2.5 if "aged" in str(http.base_url) else 2.0
            sent.append((http.base_url.host, int(asked.body["number"])))
            return Answer("", {}, 4)

        monkeypatch.setattr("qa.soak.server.ask", answer)
        monkeypatch.setattr("qa.soak.server.time", SimpleNamespace(perf_counter=lambda: now))
        answers, done = Answers.to([replace(WHOLE, body={"number": number}) for number in range(5)]), list[int]()
        told = turns(*(Load(f"http://{host}", answers, 1, seed=3) for host in ("aged", "new")), 3, done.append)
        assert (told, done) == ([Rates(1.6, 2.0)] * 3, [1, 2, 3])
        assert [host for host, _ in sent[::5]] == ["new", "aged", "aged", "new", "new", "aged"]
        by_host = {name: [number for host, number in sent if host == name] for name in ("aged", "new")}
        assert by_host["aged"] == by_host["new"]
        assert sorted(by_host["new"][:5]) == [*range(5)]

    def test_an_error_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def fail(http: Any, asked: Asked) -> Answer:
            raise AnswerError("503")

        monkeypatch.setattr("qa.soak.server.ask", fail)
        answers = Answers.to([WHOLE])
        Load("http://localhost", answers, 1, seed=1).each(1)
        assert answers.failed == {"completions: AnswerError 503": 1}


@pytest.mark.parametrize(("aged", "passed"), [(97.5, True), (102.5, True), (96.5, False), (103.5, False)])
def test_a_server_is_as_fast_as_a_new_one(aged: float, passed: bool) -> None:
    """By pairs: a machine that becomes twice as fast meanwhile, or is slow in one turn, says nothing."""
    told = [Rates(aged * speed, 100.0 * speed) for speed in (1.0, 1.1, 1.5, 2.0)] + [Rates(10.0, 100.0)]
    check = judge_beside(told, 0.03)
    assert check.passed is passed
    assert check.change == pytest.approx(aged / 100 - 1)
    assert (check.first, check.last) == pytest.approx((110.0, aged * 1.1))
    assert "5 pairs" in check.detail


def test_speed_over_the_run_is_told_and_not_judged() -> None:
    samples = [sample()] * 6 + [sample(tokens_per_second=416.0)] * 2
    assert [check.name for check in judge(samples, speed_drift=0.03) if not check.passed] == ["speed"]
    (told,) = (check for check in judge(samples, speed_drift=None) if check.name == "speed")
    assert told.passed is None
    assert told.change == pytest.approx(0.04)


def test_a_server_that_has_ended_is_told() -> None:
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.exit(3)"], stdin=pipe, stdout=pipe, text=True
        ) as ended,
        pytest.raises(InputError, match="the server has ended with status 3"),
    ):
        _counts(ended)


@pytest.mark.parametrize("name", ["tokens", "seconds", "clients", "requests", "samples", "pairs"])
def test_bad_numbers(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is 0; expected at least"):
        soak_server("shakespeare", **{name: 0})  # type: ignore[arg-type]


def test_the_command_gives_its_options_and_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def scripted(model: str, **options: Any) -> SoakReport:
        seen.append((model, options))
        checks = judge_answers(Answers.to([]), Answers.to([]))
        return SoakReport("GL", "server", "f32", "f32", 4, 1000, 40, {}, 2.0, 100, (), checks, 0.0, "a fault")

    monkeypatch.setattr(command, "soak_server", scripted)
    assert run(["soak-server", "--seconds", "9", "--tokens", "1000", "--clients", "2", "--seed", "4"]) == 1
    assert "ENDED EARLY a fault" in capsys.readouterr().out
    ((model, options),) = seen
    del options["on_progress"]
    assert (model, options.pop("device"), options.pop("speed_drift")) == ("shakespeare", None, 0.03)
    given = {"tokens": 1000, "seconds": 9.0, "clients": 2, "slots": 8, "requests": 240, "seed": 4, "samples": 40}
    assert options == {**given, "pairs": 20}


@pytest.mark.slow
@pytest.mark.gl
def test_a_server_stays_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        "--tokens",
        "2000",
        "--seconds",
        "200",
        "--samples",
        "4",
        "--requests",
        "26",
        "--clients",
        "4",
        "--slots",
        "3",
        "--pairs",
        "2",
    ]
    status = run(["soak-server", *few, "--json"])
    told = json.loads(capsys.readouterr().out)
    bad = {check["name"]: check["detail"] for check in told["checks"] if check["passed"] is False}
    # A short run does not fill what is made once, and a busy machine has no steady speed.
    made_later = {
        "speed beside a new server",
        "framebuffer",
        "driver: framebuffer",
        "texture",
        "driver: texture",
        "program",
        "threads",
    }
    assert set(bad) <= made_later | {"driver: program", "vertex array", "driver: vertex array", "memory of the process"}
    assert status == (1 if bad else 0)
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["answers as alone"]["first"] == checks["answers as alone"]["last"] > 9
    assert checks["connections"]["passed"]
    assert checks["sequences of requests"]["passed"]
    assert checks["requests that failed"]["passed"]
    assert told["uses"].keys() == {*KINDS}
    assert told["tokens"] >= 1000
    assert (told["plan"], told["stopped"], len(told["samples"])) == ("server", "", 4)


@pytest.mark.slow
@pytest.mark.gl
def test_a_server_that_answers_otherwise_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The last server, which replays, has another seed for every answer."""
    usual, calls = Settings.command, list[Settings]()

    def planted(self: Settings) -> list[str]:
        calls.append(self)
        if len(calls) < 3:
            return usual(self)
        changing = tmp_path / "changing.py"
        changing.write_text(
            "import runpy\n"
            "from glinfer.server import protocol\n"
            "sampling = protocol.SamplingBody.sampling\n"
            "protocol.SamplingBody.sampling = lambda self, index=0: {**sampling(self, index=index), 'seed': 5}\n"
            "runpy.run_module('qa.soak.served', run_name='__main__')\n"
        )
        return [sys.executable, str(changing), *usual(self)[3:]]

    monkeypatch.setattr(Settings, "command", planted)
    monkeypatch.setenv("PYTHONPATH", str(Path(command.__file__).parents[2]))
    few = ["--tokens", "500", "--seconds", "60", "--samples", "4", "--requests", "13", "--clients", "4", "--slots", "3"]
    assert run(["soak-server", *few, "--pairs", "1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (check,) = (check for check in told["checks"] if check["name"] == "answers as alone")
    assert check["last"] < check["first"]
    assert "seed" in check["detail"]
    assert calls[0].slots == calls[1].slots == 3
    assert (calls[2].slots, len(set(calls[2].keys))) == (1, 13), "alone, and nobody that it has seen"
