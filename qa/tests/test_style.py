"""``python -m qa style``: which phrases it finds where."""

from __future__ import annotations

from pathlib import Path

import pytest
from qa_commands import run

from qa import style


def test_phrases_are_found_across_lines_and_may_be_allowed() -> None:
    text = (
        "# The file that was\n# asked for; there is no other.\n"
        "What it IS, it is no longer.\n"
        'say("the row is " "told, are told apart")\n'
        "x = None  # so many; style: ok\n"
    )
    assert sorted(found[:2] for found in style.findings(text)) == [
        (1, "that was asked for"),
        (3, "What it IS"),
        (4, "is told"),
    ]


def test_files_of_folders_and_named_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "tests").mkdir(parents=True)
    for name in ("docs/a.md", "docs/tests/b.md", "docs/c.png"):
        (tmp_path / name).write_text("N tokens.\nSo many tokens.\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(style, "ROOT", tmp_path)
    monkeypatch.setattr(style, "ROOMS", ("docs",))
    assert run(["style"]) == 1
    assert capsys.readouterr().out == "docs/a.md:2: So many -> name the number: N tokens, at most N\n"
    (tmp_path / "docs" / "a.md").write_text("N tokens.\n")
    assert run(["style"]) == 0
    assert run(["style", "docs/tests/b.md"]) == 1
    assert capsys.readouterr().out.startswith("docs/tests/b.md:2: So many -> ")
