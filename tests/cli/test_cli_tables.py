"""Tables on narrow terminals: no name is broken, no number wrapped; columns that matter less go first."""

from __future__ import annotations

from operator import itemgetter

import pytest

from glinfer.cli.common import show, show_table
from glinfer.inspect.tables import Column, Table

Capture = pytest.CaptureFixture[str]
NAMES = ["h.0.attn.out_proj.weight", "cached_scores", "matmul, matvec, finish", "interleaved", "2,048 B"]


@pytest.fixture(params=[80, 60, 40])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def check_whole(printed: str, cells: list[str]) -> None:
    words = printed.split()
    for cell in cells:
        for word in cell.split():
            assert word in words, f"{word} is broken"


def test_no_word_is_broken(width: int, capsys: Capture) -> None:
    show(("pass", "shader", "of what", "form", "read"), [NAMES], numbers=("read",))
    printed = capsys.readouterr().out
    check_whole(printed, NAMES)
    assert "2,048 B" in printed, "a number is not wrapped"
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= max(width, 73)


def test_columns_are_dropped_in_their_order(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def headings(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        names = ("name", "second", "third", "written")
        items = [[letter * 20 for letter in "abcd"]]
        made = Table("t", [Column(name, itemgetter(place)) for place, name in enumerate(names)], items)
        show_table(made, drop=("written", "third"))
        return capsys.readouterr().out.splitlines()[0].split()

    assert headings(90) == ["name", "second", "third", "written"]
    assert headings(80) == ["name", "second", "third"]
    assert headings(50) == headings(20) == ["name", "second"]


def test_the_table_of_a_profile(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("pass", "shader", "draws", "ms", "share", "read", "written", "GB/s", "of ceiling")
    row = ["attn.out_proj", "cached_values", "30", "10.137", "65.0%", "114.7 MB", "0.4 MB", "10.5", "262%"]
    columns = [Column(name, itemgetter(place), str if place > 1 else None) for place, name in enumerate(names)]
    made = Table("t", columns, [row], row)
    show_table(made, drop=("written",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pass", "shader", "draws", "ms", "share", "read", "GB/s", "of", "ceiling"]
    assert max(map(len, lines)) <= 80
    assert len(lines) == 3
    markdown = made.markdown().splitlines()
    assert markdown[:2] == [f"| {' | '.join(names)} |", "|---|---|---|---|---|---|---|---|---|"]
    assert markdown[2] == markdown[3] == f"| {' | '.join(row)} |"
