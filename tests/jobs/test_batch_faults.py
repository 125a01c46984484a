"""A disk that breaks at each call of a batch in turn: one line, nothing lost or doubled, the same command goes on."""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="pydantic is not installed")

from broken_files import BrokenFiles
from json_lines import write_lines
from tiers import tiered

from glinfer.cli.app import run
from glinfer.errors import FormatError
from glinfer.jobs import local
from glinfer.jobs.index import LineIndex
from glinfer.jobs.lines import LineResult, RequestLine
from glinfer.jobs.requests import RequestForm, answered

COUNT = 5


class Server:
    """Answers with the id, every second line with an error."""

    window, renderer, draws = 2, "renderer", 0

    def __init__(self, setup: object) -> None:
        pass

    async def start(self) -> None:
        pass

    async def answer(self, line: RequestLine) -> LineResult:
        await asyncio.sleep(0)
        body = {"id": line.key, "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
        return answered(line, 400 if line.number % 2 else 200, f"req-{line.key}", body)

    async def stop(self) -> None:
        pass


def lines_of(path: Path) -> list[bytes]:
    """Whole lines; what is compressed is whole."""
    if not path.exists():
        return []
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]


class TestRunBatch:
    @tiered(("ending", "begun"), [("", True), (".gz", False)], keep=1)
    def test_a_disk_that_breaks_at_any_call(
        self,
        small: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        ending: str,
        begun: bool,
    ) -> None:
        monkeypatch.setattr(local, "LocalServer", Server)
        folder = tmp_path / "batch"
        folder.mkdir()
        source, out, errors = folder / "in.jsonl", folder / f"out.jsonl{ending}", folder / f"err.jsonl{ending}"
        rows = [
            {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": {"model": "m"}}
            for number in range(1, COUNT + 1)
        ]
        write_lines(source, *rows)
        command = ["run-batch", "-i", str(source), "-o", str(out), "--errors", str(errors), f"m={small}", "-q"]

        def start() -> int:
            status = run(command)
            said = capsys.readouterr()
            assert said.out == ""
            assert said.err.count("\n") == (status == 2), (files.failed, said.err)
            assert status in (0, 2), files.failed
            return status

        def begin() -> None:
            for path in (out, errors):
                for each in folder.glob(f"{path.name}*"):
                    each.unlink()
            if begun:
                monkeypatch.setattr(Server, "answer", until(3))
                assert start() == 2
                monkeypatch.setattr(Server, "answer", answer)

        def until(count: int) -> Any:
            left = [count]

            async def answering(self: Server, line: RequestLine) -> LineResult:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(5, "planted")
                return await answer(self, line)

            return answering

        files, answer = BrokenFiles(monkeypatch, folder), Server.answer
        begin()
        files.fail_at(0)
        assert start() == 0
        expected = {path: sorted(lines_of(path)) for path in (out, errors)}
        assert [len(each) for each in expected.values()] == [COUNT // 2, COUNT - COUNT // 2]
        names, calls = {each.name for each in folder.iterdir()}, len(files.calls)
        assert calls >= 20
        refused = 0
        for at in range(1, calls + 1):
            files.fail_at(0)
            begin()
            files.fail_at(at)
            refused += start() == 2
            failed = files.failed
            files.fail_at(0)
            assert not list(folder.glob(".*")), failed
            assert start() == 0, failed
            assert {path: sorted(lines_of(path)) for path in (out, errors)} == expected, failed
            assert {each.name for each in folder.iterdir()} == names, failed
        assert refused >= 15


class TestIndex:
    """The database of the ids of an input, on a disk that is full or breaks."""

    def test_one_that_is_forgotten_is_closed(self, tmp_path: Path) -> None:
        """Of others Python 3.13 warns, where nobody hears an error."""
        base = LineIndex(RequestForm(), tmp_path / "in.jsonl")._base
        base.__del__()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            base.execute("SELECT 1")

    def test_any_statement_that_fails_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source, connect = tmp_path / "in.jsonl", sqlite3.connect
        rows = [{"custom_id": f"r{number}", "method": "POST", "url": "/v1/score", "body": {}} for number in (1, 2)]
        write_lines(source, *rows)
        left = [0]

        class Base:
            def __init__(self, *given: Any, **named: Any) -> None:
                self.real = connect(*given, **named)

            def __getattr__(self, name: str) -> Any:
                if name in ("execute", "executemany"):
                    left[0] -= 1
                    if left[0] == 0:
                        raise sqlite3.OperationalError("database or disk is full")
                return getattr(self.real, name)

        monkeypatch.setattr(sqlite3, "connect", Base)
        form, refused = RequestForm(), list[str]()

        def used() -> None:
            with LineIndex(form, source) as index:
                index.scan()
                line = next(form.read(source))
                assert index.finish(line.key, line.digest) == ""
                assert [line.key for line in index.todo()] == ["r2"]

        for at in range(1, 30):
            left[0] = at
            try:
                used()
            except FormatError as error:
                refused.append(str(error))
            else:
                break
        assert 8 <= len(refused) < 29
        assert all("cannot be kept on the disk: database or disk is full" in each for each in refused)
