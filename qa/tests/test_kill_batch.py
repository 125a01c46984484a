"""``python -m qa kill-batch`` on a small scale: what stops a batch roughly loses nothing, and a loss would be told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from qa_commands import run

from qa import kill_batch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills and limits as Linux has them")


@pytest.mark.slow
def test_four_signals_and_a_full_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_batch, "STARTING", 0.5)
    done = kill_batch.torment(tmp_path, prompts=60, kills=4, full=1, seed=2)
    assert sum(count for name, count in done.stops.items() if name.startswith("SIG")) == 4
    assert done.stops["file limit"] == 1
    assert done.stops["torn line"] >= 1
    assert done.runs >= 7
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    source, expected, results = (tmp_path / name for name in ("prompts.jsonl", "expected.jsonl", "results.jsonl"))
    kill_batch.PROMPTS.write(source, 20, 0)
    keys = [json.loads(line).get("id", number) for number, line in enumerate(source.read_text().splitlines(), 1)]
    lines = [json.dumps({"id": key, "text": f"text {key}"}) + "\n" for key in keys]
    expected.write_text("".join(lines))
    data = "".join(reversed(lines)).encode()
    results.write_bytes(data)
    kill_batch.check_same(results, expected)
    kill_batch.check_keys(results, source, kill_batch.PROMPTS)
    for old, new, words, key in (
        (b'{"id": 7, "text": "text 7"}\n', b"", '1 results are lost or changed, such as .*"text 7"', 7),
        (b'"text 7"}\n', b'"text 7"}\n{"id": 9, "text": "text 9"}\n', '1 results are doubled .*"text 9"', 9),
        (b'"id": 7, "text": "text 7"', b'"id": 99, "text": "text 8"', '1 results are lost or changed.*"text 7"', 7),
    ):
        assert data.count(old) == 1
        results.write_bytes(data.replace(old, new))
        with pytest.raises(kill_batch.BrokenPromiseError, match=words):
            kill_batch.check_same(results, expected)
        with pytest.raises(kill_batch.BrokenPromiseError, match=f"none or several results, such as {key}$"):
            kill_batch.check_keys(results, source, kill_batch.PROMPTS)
    results.write_bytes(data[:-1])
    with pytest.raises(kill_batch.BrokenPromiseError, match="the last line has no end"):
        kill_batch.check_same(results, expected)
    results.write_bytes(data)
    with pytest.raises(kill_batch.BrokenPromiseError, match=r"a line of results\.jsonl is not a result"):
        kill_batch.check_same(results, expected, kill_batch.REQUESTS)


def test_lines_that_vanish_are_found(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    command = kill_batch.BatchCommand(out)
    out.write_bytes(b"one\ntwo\nthr")
    command.look()
    assert (command.kept, command.torn) == (b"one\ntwo\n", 1)
    out.write_bytes(b"one\ntwo\nthree\n")
    command.look()
    out.write_bytes(b"one\nthree\n")
    with pytest.raises(kill_batch.BrokenPromiseError, match="14 bytes of whole lines were there"):
        command.look()


def test_a_broken_promise_exits_1_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise kill_batch.BrokenPromiseError("planted")

    monkeypatch.setattr(kill_batch, "torment", broken)
    monkeypatch.setattr(kill_batch.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    assert run(["kill-batch", "--seed", "5"]) == 1
    assert capsys.readouterr().err == f"WRONG (seed 5, files in {tmp_path}): planted\n"


def test_bad_input_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in ((["--prompts", "0"], "Invalid value for '--prompts'"), (["--devices", "0"], "give both")):
        assert run(["kill-batch", *words]) == 2
        assert said in capsys.readouterr().err
