"""``python -m qa soak``: what stays passes, and answers that are planted to differ are found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from qa_commands import run

import glinfer
from qa.objects import driver_objects
from qa.serve_load import AnswerError
from qa.soak import command
from qa.soak.answers import Answer, Answers, Load, ask
from qa.soak.checks import Sample, SoakCheck, judge, judge_answers, judge_beside
from qa.soak.command import SoakReport, soak_server
from qa.soak.models import ADAPTER, CHATS
from qa.soak.requests import KINDS, WRITES, Asked, draw_requests, fingerprint, first_requests, joined
from qa.soak.served import texture_bytes

pytest.importorskip("starlette", reason="starlette is not installed (pip install 'glinfer[server]')")
pytest.importorskip("llguidance", reason="llguidance is not installed (pip install 'glinfer[structured]')")

STREAM = Asked("streams", "/v1/completions", {"prompt": "a", "stream": True})
WHOLE = Asked("completions", "/v1/completions", {"prompt": "a"})
USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
USUAL = {
    **{"process memory": 100_000_000, "texture bytes": 1_000_000, "Python's memory blocks": 200_000, "threads": 3},
    **{"Python's objects": 50_000, "texture": 20, "driver: texture": 20, "open files": 6, "child processes": 0},
}


def choice(text: str, reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": reason}]}


def failed(*series: Sample) -> list[str]:
    """What does not stay in eight samples: those given at the end, the others as usual."""
    checks = judge([*[USUAL] * (8 - len(series)), *[{**USUAL, **changes} for changes in series]])
    return [check.name for check in checks if not check.passed]


class TestJudge:
    def test_quarters_are_compared_within_a_limit(self) -> None:
        assert failed() == []
        for name, kept, grown in (
            ("process memory", 100_900_000, 101_100_000),
            ("process memory", 50_000_000, 101_100_000),
            ("texture bytes", 1_009_000, 1_011_000),
            ("Python's memory blocks", 209_000, 211_000),
            ("Python's objects", 52_000, 53_000),
        ):
            assert failed({name: kept}, {name: kept}) == []
            assert failed({name: grown}, {name: grown}) == [name]

    def test_only_what_lasts_counts(self) -> None:
        bump = {"process memory": 200_000_000}
        assert failed(bump, bump, {}, {}) == []
        assert failed({"process memory": 150_000_000}, {}) == [], "memory that is given back late"
        low_at_first = [{**USUAL, "process memory": 90_000_000}, *[USUAL] * 11]
        assert all(check.passed for check in judge(low_at_first))

    def test_some_are_the_same_in_every_sample(self) -> None:
        for name, number in {"texture": 21, "driver: texture": 21, "program": 1, "open files": 7, "threads": 4}.items():
            assert failed({name: number}, {}, {}, {}) == [name]

    def test_a_server_is_as_fast_as_a_new_one(self) -> None:
        """By pairs: a machine that becomes twice as fast meanwhile, or is slow in one turn, says nothing."""
        for aged, passed in ((97.5, True), (102.5, True), (96.5, False), (103.5, False)):
            rates = [(aged * speed, 100.0 * speed) for speed in (1.0, 1.1, 1.5, 2.0)] + [(10.0, 100.0)]
            check = judge_beside(rates, 0.03)
            assert check.passed is passed
            assert (check.first, check.last) == pytest.approx((110.0, aged * 1.1))
            assert f"{aged / 100 - 1:+.1%} by 5 pairs" in check.detail


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
        for asked in [*first_requests(), *draw_requests(3, 600)]:
            body = bodies[asked.path]
            assert body is not None
            try:
                body.read(json.dumps(asked.body).encode())
            except ApiError:
                assert asked.refused, asked
                refused += 1
        assert refused > 3


class TestAnswers:
    def answers(self, *texts: str, asked: Asked = STREAM, left: bool = False) -> Answers:
        """What came of one request that was sent so many times."""
        found = Answers([asked])
        for text in texts:
            found.add(0, Answer(f"[200, {text}]", text, 2), left=left)
        return found

    def test_what_is_the_same_alone(self) -> None:
        found = self.answers("ab", "ab")
        assert (found.tokens, found.whole, found.counts) == (4, [{"[200, ab]": "ab"}], {"streams": 2})
        assert found.differing(self.answers("ab")) == []
        assert all(check.passed for check in judge_answers(found, self.answers("ab")))

    def test_one_that_differs_is_found(self) -> None:
        for texts, alone in ((("ab", "ab"), ("ac",)), (("ab", "ac"), ("ab",)), (("ac", "ab"), ("ab",)), (("ab",), ())):
            found = self.answers(*texts)
            assert found.differing(self.answers(*alone)) == [0]
            check, _ = judge_answers(found, self.answers(*alone))
            assert (check.passed, check.detail) == (False, json.dumps(dict(STREAM.body)))

    def test_who_went_away_had_the_beginning(self) -> None:
        for had, same in (("a", True), ("ab", True), ("", True), ("b", False), ("abc", False)):
            found = self.answers("", had, asked=replace(STREAM, leaves_after=1), left=True)
            assert found.whole == [{}]
            assert found.differing(self.answers("ab")) == ([] if same else [0]), had

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
        assert found == Answer(fingerprint(200, body), "ab", 5)

    def test_a_stream_and_one_that_is_left(self) -> None:
        server = self.streamed(choice("a"), choice("b"), choice("c", "stop"), {"choices": [], "usage": USAGE})
        whole = self.asked_of(server, STREAM)
        assert (whole.text, whole.tokens) == ("abc", 5)
        leaves = replace(STREAM, leaves_after=2)
        assert self.asked_of(server, leaves) == Answer(fingerprint(200, joined([choice("a"), choice("b")])), "ab", 2)
        assert self.asked_of(server, leaves, stays=True) == whole

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

    def test_a_stream_that_breaks(self) -> None:
        for events in ([{"error": {"code": "broken_numbers"}}], []):
            with pytest.raises(AnswerError, match="broken_numbers" if events else "cut off"):
                self.asked_of(self.streamed(*events, done=False), STREAM)

    def test_every_request_is_sent_so_many_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[int] = []

        async def answer(http: Any, asked: Asked, **_: Any) -> Answer:
            sent.append(int(asked.body["number"]))
            return Answer("", "", 1)

        monkeypatch.setattr("qa.soak.answers.ask", answer)
        answers = Answers([replace(WHOLE, body={"number": number}) for number in range(7)])
        load = Load("http://localhost", answers, 3, seed=1)
        load.each(2)
        load.until(lambda: answers.tokens >= 40)
        assert answers.tokens == 42, "each as often as the others"
        load.until(lambda: True)
        assert sorted(sent) == sorted([*range(7)] * 7), "between two samples there is something to be seen"


@pytest.mark.gl
def test_textures_are_counted_as_they_are_in_the_driver(small: Path) -> None:
    with glinfer.load(small) as model:

        def counts() -> tuple[int, int, int]:
            return (
                texture_bytes(model.device),
                driver_objects(model.device)["texture"],
                model.device.live_objects()["texture"],
            )

        before = counts()
        assert before[1] == before[2] > 0
        with model.session() as session:
            during = counts()
            caches = session._bound.plan.of_kind("cache")  # type: ignore[attr-defined]
            edge = model.device.limits.max_texture_size
            assert during[0] - before[0] >= sum(tensor.layout_within(edge).nbytes for tensor in caches)
            assert during[1] == during[2] > before[1]
        assert counts() == before


def test_the_command_gives_its_options_and_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def scripted(model: str, **options: Any) -> SoakReport:
        seen.append((model, options))
        return SoakReport("GL", Answers([]), (), [SoakCheck("threads", 3, 4, False, "planted")], "a fault", 2.0)

    monkeypatch.setattr(command, "soak_server", scripted)
    assert run(["soak", "--seconds", "9", "--tokens", "1000", "--clients", "2", "--seed", "4"]) == 1
    said = capsys.readouterr().out
    assert "DID NOT STAY: planted" in said
    assert "ENDED EARLY a fault" in said
    ((model, options),) = seen
    del options["on_progress"]
    assert (model, options) == ("shakespeare", {"tokens": 1000, "seconds": 9, "clients": 2, "slots": 8, "seed": 4})


@pytest.mark.slow
@pytest.mark.gl
def test_a_server_stays_as_it_was() -> None:
    report = soak_server("shakespeare", 100, 60, clients=4, slots=3, requests=13, samples=4, pairs=1)
    bad = {check.name for check in report.checks if not check.passed}
    # A short run does not fill what is made once, and a busy machine has no steady speed.
    made_later = {"framebuffer", "texture", "program", "vertex array"}
    made_later |= {f"driver: {name}" for name in made_later}
    assert bad <= made_later | {"speed beside a new server, tok/s", "threads", "process memory"}
    checks = {check.name: check for check in report.checks}
    assert checks["answers as alone"].first == checks["answers as alone"].last > 9
    assert {"connections", "sequences of requests", "requests that failed"} <= checks.keys()
    assert report.answers.counts.keys() == {*KINDS}
    assert report.answers.tokens >= 100
    assert (report.stopped, len(report.samples)) == ("", 4)
