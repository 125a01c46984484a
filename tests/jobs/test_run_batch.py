"""``glinfer run-batch``: the server's answers to the requests of a file, in any order, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from commands import ran

pytest.importorskip("pydantic", reason="pydantic is not installed")

from json_lines import results_in, write_lines
from own_process import interrupted
from running_server import running
from template_models import write_other
from tiers import tiered
from worker_here import answered_here

from glinfer.cli.app import run
from glinfer.errors import InputError
from glinfer.gl.faults import ContextLostError
from glinfer.jobs.lines import RequestLine, seed_of
from glinfer.jobs.local import LocalRunner, LocalSetup
from glinfer.jobs.pool import MAX_RETRIES
from glinfer.server.worker import Worker
from glinfer.text import templates
from glinfer.text.tokenizer import Tokenizer
from qa.kill_batch import comparable

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
CHAT, TEXT, SCORE = "/v1/chat/completions", "/v1/completions", "/v1/score"
KIND, RUDE = ({"role": "system", "content": f"Be {how}."} for how in ("kind", "unkind"))


def request(key: str, url: str = TEXT, model: str = "m", **body: Any) -> dict[str, Any]:
    return {"custom_id": key, "method": "POST", "url": url, "body": {"model": model, **body}}


def chat(key: str, *words: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": word} for word in words]
    return request(key, CHAT, messages=messages, **body)


GOOD = [
    # The example of OpenAI's guide: two chats, the second with other instructions.
    request("request-1", CHAT, "gpt-4o-mini", messages=[KIND, {"role": "user", "content": "hi"}], max_tokens=1000),
    request("request-2", CHAT, "gpt-4o-mini", messages=[RUDE, {"role": "user", "content": "hi"}], max_tokens=7),
    # And the other forms that requests have.
    chat("parts", "hi", n=2, logprobs=True, top_logprobs=2, max_completion_tokens=4),
    chat("bias", "ho", temperature=0, logit_bias={"13": 5}, presence_penalty=0.5, max_tokens=4),
    request("text", prompt="Once", max_tokens=6),
    request("ids", prompt=[13, 132, 251], max_tokens=6, top_k=20, seed=9),
    request("several", prompt=["a", "bc"], n=2, max_tokens=3, temperature=0.7),
    request("echo", prompt="Once upon", echo=True, logprobs=1, max_tokens=0),
    request("stopped", prompt="Once", stop=["e", "\n"], max_tokens=20, min_p=0.01, user="me"),
    request("scores", SCORE, input=["Once upon", "a time"]),
]
BAD: list[tuple[dict[str, Any], int, str | None]] = [
    (request("no-model", prompt="x", model="gpt-4"), 404, "model_not_found"),
    ({**request("empty"), "body": {}}, 400, "missing_parameter"),
    (request("stream", prompt="x", stream=True), 400, "unsupported_parameter"),
    (request("stream-3", prompt="x", stream="yes"), 400, "invalid_value"),
    (request("no-prompt"), 400, "missing_parameter"),
    (request("hot", prompt="x", temperature=1000), 400, "invalid_value"),
    (request("unknown", prompt="x", temprature=1), 400, "unknown_parameter"),
    (request("long", prompt="x" * 100), 400, "context_length_exceeded"),
    (chat("stream-2", "x", stream=True, stream_options={"include_usage": True}), 400, "unsupported_parameter"),
    (request("bias-key", prompt="x", logit_bias={"a": 1}), 400, None),
    (request("role", CHAT, messages=[{"role": "robot", "content": "x"}]), 400, "invalid_value"),
    (request("score-one", SCORE, input="x"), 400, None),
]


def batch(capsys: Capture, *arguments: object, status: int = 0) -> tuple[str, str]:
    return ran(capsys, "run-batch", *arguments, status=status)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered in this process."""
    monkeypatch.setattr(templates, "answer_of", answered_here)


@pytest.fixture(scope="module")
def templated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chats have system prompts."""
    return write_other(tmp_path_factory.mktemp("templated"), {}, context=64)[0]


class TestAnswers:
    @pytest.mark.usefixtures("no_processes")
    @tiered(("good", "bad"), [(GOOD[:4], BAD[:8]), (GOOD, BAD)], ids=["some", "all"])
    def test_they_are_those_of_the_server(
        self, small: Path, templated: Path, tmp_path: Path, capsys: Capture, good: list[Any], bad: list[Any]
    ) -> None:
        source, out, errors = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "err.jsonl"
        models = f"m={small}", f"gpt-4o-mini={templated}"
        lines = [*good, *(line for line, *_ in bad)]
        write_lines(source, *lines)
        _, err = batch(capsys, "-i", source, "-o", out, "--errors", errors, "--slots", 2, *models)
        assert err.startswith(f"{len(lines)} lines done · {len(bad)} failed, see {errors} · ")
        done, failed = results_in(out), results_in(errors)
        assert set(done) == {line["custom_id"] for line in good}
        assert set(failed) == {line["custom_id"] for line, *_ in bad}
        for line, status, code in bad:
            response = failed[line["custom_id"]]["response"]
            assert response["status_code"] == status, response
            assert response["body"]["error"]["code"] == code, response
            assert response["request_id"].startswith("req-")
            assert failed[line["custom_id"]]["error"] is None
        with running(("m", small), ("gpt-4o-mini", templated), slots=2) as served:
            for line in lines:
                key, url, body = line["custom_id"], line["url"], dict(line["body"])
                if url != SCORE and body.get("seed") is None and body.get("stream") is not True:
                    body["seed"] = seed_of(key)
                if body.get("stream") is True:
                    continue
                answer = served.post(url, body)
                found = {**done, **failed}[key]
                report = {"status_code": answer.status_code, "request_id": "", "body": answer.json()}
                assert comparable(found) == comparable({**found, "response": report}), key

    @pytest.mark.slow
    @pytest.mark.usefixtures("no_processes")
    def test_any_order_any_shard_and_any_number_of_places_give_the_same(
        self, small: Path, templated: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        first, models = tmp_path / "first.jsonl", (f"m={small}", f"gpt-4o-mini={templated}")
        batch(capsys, "--in", write_lines(tmp_path / "a.jsonl", *GOOD), "-o", first, *models, "-q")
        mixed = list(GOOD)
        random.Random(1).shuffle(mixed)
        source = write_lines(tmp_path / "b.jsonl", *mixed)
        parts = [tmp_path / "second-1.jsonl", tmp_path / "second-2.jsonl"]
        for number, part in enumerate(parts, start=1):
            shard = ["--shard", f"{number}/2", "--slots", number]
            assert batch(capsys, "-i", source, "-o", part, *shard, *models, "-q") == ("", "")
        wanted = {key: comparable(line) for key, line in results_in(first).items()}
        assert {key: comparable(line) for key, line in results_in(*parts).items()} == wanted
        texts = {json.dumps(line["response"]["body"].get("choices")) for line in wanted.values()}
        assert len(texts) == len(GOOD)  # of which the scores have none

    def test_json_and_nothing_to_do(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        source, out = write_lines(tmp_path / "in.jsonl", GOOD[4], BAD[0][0]), tmp_path / "out.jsonl"
        report = json.loads(batch(capsys, "--input", source, "-o", out, f"m={small}", "--slots", 2, "--json")[0])
        assert report.pop("seconds") > 0
        assert report.pop("tokens_per_second") > 0
        assert report.pop("draws") > 0
        assert report.pop("renderer").startswith("OpenGL ES 3.")
        counts = {"finished_before": 0, "lines": 2, "failed": 1, "prompt_tokens": 4, "tokens": 6}
        assert report == {"input": str(source), "out": str(out), "errors": None, "shard": "1/1", **counts}
        assert set(results_in(out)) == {"text", "no-model"}
        _, err = batch(capsys, "-i", source, "-o", out, f"m={small}")
        assert err == f"nothing to do: {out} has all results; --restart starts over\n"


class TestRefused:
    REFUSED = (
        (["-i", "IN", "MODEL"], "Missing option '-o'"),
        (["-o", "OUT", "MODEL"], "Missing option '-i'"),
        (["-i", "IN", "-o", "OUT"], "Missing argument"),
        (["-i", "-", "-o", "OUT", "MODEL"], "--in needs a file, not standard input"),
        (["-i", "IN", "-o", "-", "MODEL"], "--out needs a file, not standard input or output"),
        (["-i", "IN", "-o", "OUT", "--errors", "-", "MODEL"], "--errors needs a file"),
        (["-i", "IN", "-o", "OUT", "--shard", "3/2", "MODEL"], 'the shard is "3/2"'),
        (["-i", "IN", "-o", "OUT", "--slots", "0", "MODEL"], "Invalid value for '--slots'"),
        (["-i", "IN", "-o", "OUT", "none.gab"], "none.gab: cannot read it"),
        (["-i", "IN", "-o", "OUT", "MODEL", "MODEL"], "two models with the name small"),
        (
            ["-i", "IN", "-o", "OUT", "--tokenizer", "t.bpe", "MODEL", "b=MODEL"],
            "--tokenizer needs a single MODEL, found 2",
        ),
        (["-i", "IN", "-o", "IN", "MODEL"], "this is the input itself"),
        (["-i", "IN", "-o", "out.parquet.gz", "MODEL"], "out.parquet.gz: results are lines of JSON"),
        (["-i", "none", "-o", "OUT", "MODEL"], "none: cannot read it: No such file"),
    )

    def test_in_one_line_and_nothing_written(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        source = write_lines(tmp_path / "in.jsonl", *GOOD[:1])
        places = {"IN": source, "OUT": tmp_path / "out.jsonl", "MODEL": small}
        for arguments, words in self.REFUSED:
            out, err = batch(capsys, *[places.get(each, each) for each in arguments], status=2)
            assert out == ""
            assert words in err
            assert err.count("\n") == 1
            assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"], arguments
        broken = tmp_path / "broken.gab"
        broken.write_bytes(small.read_bytes()[:-4])
        _, err = batch(capsys, "-i", source, "-o", tmp_path / "out.jsonl", f"m={broken}", status=2)
        assert "broken.gab: truncated" in err
        assert not (tmp_path / "out.jsonl").exists()


class TestFaults:
    @tiered("losses", [MAX_RETRIES, MAX_RETRIES + 1])
    def test_a_lost_context_is_opened_again_and_its_requests_are_run_again(
        self, small: Path, monkeypatch: pytest.MonkeyPatch, losses: int
    ) -> None:
        left, real = losses, Worker._step_scheduler

        def lost(self: Worker, runner: Any) -> None:
            nonlocal left
            if left and runner.requests:
                left -= 1
                raise ContextLostError("the context was lost, planted")
            real(self, runner)

        monkeypatch.setattr(Worker, "_step_scheduler", lost)
        line = RequestLine(1, "a", TEXT, {"model": "m", "prompt": "Once", "max_tokens": 4})
        with LocalRunner(LocalSetup([("m", str(small), {})], {"slots": 2})) as runner:
            (found,) = runner.run(iter([line]))
        assert found.failed == (losses > MAX_RETRIES)
        if found.failed:
            assert found.data["response"]["body"]["error"]["code"] == "context_lost"
        else:
            assert found.tokens == 4

    def test_memory_is_given_in_mib(
        self, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def setup(models: Any, scheduler: dict[str, Any], *others: Any) -> None:
            raise InputError(f"{scheduler['memory']} bytes")

        monkeypatch.setattr("glinfer.jobs.local.LocalSetup", setup)
        source = write_lines(tmp_path / "in.jsonl", request("a", model="m", prompt="a"))
        given = ["run-batch", "-i", str(source), "-o", str(tmp_path / "out.jsonl"), "--memory", "3", f"m={small}"]
        assert run(given) == 2
        assert f"{3 * 2**20} bytes" in capsys.readouterr().err

    @pytest.mark.slow
    def test_ctrl_c(self, tmp_path: Path) -> None:
        lines = [request("short", model="shakespeare", prompt="ROMEO:", max_tokens=1)]
        lines += [request(f"long {n}", model="shakespeare", prompt="To be", max_tokens=240) for n in range(8)]
        source, out = write_lines(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
        arguments = ["run-batch", "-i", source, "-o", out, "shakespeare"]
        status, errors = interrupted(*arguments, when=lambda _: out.exists() and out.read_bytes().endswith(b"\n"))
        assert status == 130
        found = results_in(out)
        assert 0 < len(found) < 9
        assert errors.strip() == f"interrupted: {out} has {len(found)} of 9 results; the same command resumes"


def test_a_line_whose_work_fails_ends_too(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A message of all marks that conversations are told apart by, and what a future cannot carry."""
    (tmp_path / "chatty").mkdir()
    chatty, _ = write_other(tmp_path / "chatty", {}, context=64)
    monkeypatch.setattr(templates, "answer_of", answered_here)
    encode = Tokenizer.encode

    def stopping(tokenizer: Tokenizer, text: str, **options: Any) -> list[int]:
        if text == "stop":
            raise StopIteration
        return encode(tokenizer, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", stopping)
    marks = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    lines = [
        request("marks", CHAT, "chatty", messages=[{"role": "user", "content": marks}], max_tokens=1),
        request("stop", prompt="stop"), request("good", prompt="x", max_tokens=1),
    ]  # fmt: skip
    out = tmp_path / "out.jsonl"
    source = write_lines(tmp_path / "in.jsonl", *lines)
    assert run(["run-batch", "-i", str(source), "-o", str(out), f"m={small}", f"chatty={chatty}"]) in (0, 1)
    statuses = {key: each["response"]["status_code"] for key, each in results_in(out).items()}
    assert statuses == {"marks": 400, "stop": 500, "good": 200}
    capsys.readouterr()
