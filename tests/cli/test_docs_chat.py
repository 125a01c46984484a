"""The conversation of docs/models.md is what the model says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glinfer.cli.app import run
from tests.goldens import smollm2_file

pytestmark = [pytest.mark.gl, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
BLOCK = re.compile(r"```console\n\$ \.venv/bin/(glinfer chat smollm2[^\n]*)\n(.*?)```", re.DOTALL)
SPEED = re.compile(r"(draws/token · \d+ tokens) · [\d.]+ tok/s")


def test_the_conversation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Word by word, with the header and the counts; only the speed and the renderer may be others."""
    smollm2_file()
    (command, printed), *_ = BLOCK.findall(PAGE.read_text("utf-8"))
    typed = re.findall(r"^> (.*)$", printed, re.MULTILINE)
    assert len(typed) == 4
    waiting = iter(typed)

    def answer(prompt: str) -> str:
        line = next(waiting)
        print(f"{prompt}{line}")
        return line

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert run(command.split()[1:]) == 0
    said, printed = (SPEED.sub(r"\1", text) for text in (capsys.readouterr().out, printed))
    (header, said), (first, printed) = (text.split("\n", 1) for text in (said, printed))
    assert said == printed
    assert header.split(" · ")[:3] == first.split(" · ")[:3]
