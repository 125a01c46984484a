"""The file of results: one run at a time, and half a line is cut off in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glinfer.batch.index import LineIndex
from glinfer.batch.places import Target
from glinfer.batch.prompts import PromptForm, PromptLine
from glinfer.batch.results import FinishedLines, ResultFile, read_finished
from glinfer.errors import InputError

WHOLE = b'{"id": 1, "prompt_sha": "%s"}\n'
MADE_WITH = ("model",)
LINES = [PromptLine(1, 1, "a", {}, MADE_WITH), PromptLine(2, 2, "b", {}, MADE_WITH)]


class Given(PromptForm):
    def read(self, path: object) -> Iterator[PromptLine]:
        yield from LINES


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Results of the first prompt, and half of those of the second."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(WHOLE % LINES[0].digest.encode() + b'{"id": 2, "te')
    return path


def found_in(out: Path) -> FinishedLines:
    with LineIndex(Given({}), "prompts.jsonl") as index:
        index.scan()
        return read_finished(Target(out), index)


def test_half_a_line_is_cut_off_in_place(out: Path) -> None:
    before, place = out.read_bytes(), out.stat().st_ino
    with ResultFile(Target(out), found_in(out)) as results:
        results.open()
    assert out.read_bytes() == before[: before.index(b"\n") + 1]
    assert out.stat().st_ino == place, "the file was replaced, which needs as much room again"
    assert [path.name for path in out.parent.iterdir()] == ["out.jsonl"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
@pytest.mark.parametrize("restart", [False, True])
def test_two_runs_at_once(out: Path, restart: bool) -> None:
    found = found_in(out)
    with ResultFile(Target(out), found) as first:
        first.open()
        before = out.read_bytes()
        second = ResultFile(Target(out), FinishedLines() if restart else found_in(out))
        with second, pytest.raises(InputError, match=r"out\.jsonl: another run writes to it; wait for its end"):
            second.open()
        assert out.read_bytes() == before
    with ResultFile(Target(out), found_in(out)) as third:
        third.open()


def test_a_run_that_came_and_went_in_between(out: Path) -> None:
    found = found_in(out)
    with out.open("ab") as file:
        file.write(b"x")
    before = out.read_bytes()
    with ResultFile(Target(out), found) as results, pytest.raises(InputError, match="another run"):
        results.open()
    assert out.read_bytes() == before
