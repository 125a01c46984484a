"""Options of ``glinfer generate``: short names, prompts from files, and the prompt before the text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from glinfer.cli.app import run

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
COMMON = ["-n", "6", "-t", "0", "-q"]


def said(capsys: Capture, *arguments: str | Path) -> str:
    assert run(["generate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_short_names_and_files_say_the_same(small: Path, tmp_path: Path, capsys: Capture) -> None:
    text = said(capsys, small, "Once upon", "--max-tokens", "6", "--temperature", "0", "-q")
    (tmp_path / "prompt.txt").write_text("Once upon\n")
    assert said(capsys, "-m", small, "-p", "Once upon", *COMMON) == text
    assert said(capsys, "--model", small, "-f", tmp_path / "prompt.txt", *COMMON) == text
    (tmp_path / "prompt.txt").write_bytes(b"a\r\nb \n\n")
    assert said(capsys, small, "-f", tmp_path / "prompt.txt", "--echo", *COMMON).startswith("a\r\nb \n")
    assert said(capsys, small, "-f", tmp_path / "prompt.txt", *COMMON) == said(capsys, small, "a\r\nb \n", *COMMON)


def test_the_prompt_is_shown_on_a_terminal_and_not_in_a_pipe(
    small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(capsys, small, "Once upon", *COMMON)
    assert not text.startswith("Once upon")
    assert said(capsys, small, "Once upon", "--echo", *COMMON) == f"Once upon{text}"
    ids = said(capsys, small, "--ids", "1,2", *COMMON)
    assert said(capsys, small, "--ids", "1,2", "--echo", *COMMON) == ids

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for options, expected in (([], f"Once upon{text}"), (["--no-echo"], text)):
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", terminal := Terminal())
            assert run(["generate", str(small), "Once upon", *COMMON, *options]) == 0
        assert terminal.getvalue() == expected
