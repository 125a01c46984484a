"""Run commands in this process, with input, and return what they print or the line that they refuse with."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from glinfer.cli.app import run

Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    """A standard stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def pipe(monkeypatch: pytest.MonkeyPatch, data: str | bytes) -> None:
    """Make this the standard input, a pipe whose own encoding is of no use."""
    data = data.encode() if isinstance(data, str) else data
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


def ran(capsys: Capture, *arguments: object, status: int = 0) -> tuple[str, str]:
    """Run a command that should end with ``status``; returns what it wrote to standard output and error."""
    found = run([*map(str, arguments)])
    said = capsys.readouterr()
    assert found == status, said.err
    return said.out, said.err


def ran_json(capsys: Capture, *arguments: object, status: int = 0) -> Any:
    """The same with ``--json``: exactly one document, strict JSON, and nothing on standard error."""
    out, err = ran(capsys, *arguments, "--json", status=status)
    assert err == ""
    return json.loads(out, parse_constant=refuse_constant)


def refuse_constant(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def refused(capsys: Capture, *arguments: object) -> str:
    """The one line of a command that refuses its input, and writes nothing else."""
    out, err = ran(capsys, *arguments, status=2)
    assert out == ""
    assert err.startswith("glinfer: ")
    assert err.count("\n") == 1, err
    return err
