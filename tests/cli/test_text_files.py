"""Files as Windows writes them: a byte-order mark and CR LF are no part of a text; UTF-16 is refused in one line."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import pipe, ran

from glinfer.cli.app import run
from glinfer.cli.common import read_text
from glinfer.errors import InputError
from glinfer.formats.files import decode_text
from glinfer.inspect import importance
from glinfer.jobs.prompts import PromptForm
from glinfer.jobs.texts import read_texts
from glinfer.tensors import own

Capture = pytest.CaptureFixture[str]
Reader = Callable[[Path], object]
MARK = codecs.BOM_UTF8
DEFAULTS: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DEFAULTS |= {"repetition_penalty": 1.0, "seed": None, "stop": (), "stop_ids": None}
SHADER = b"precision highp float;\r\nout float y;\r\nvoid main() { y = 1.0; }\r\n"


def texts(path: Path) -> list[str]:
    return list(read_texts(path))


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Reader]:
    """Every reader of a text that a user wrote, by the name of its file."""
    monkeypatch.setattr(importance, "importance_of_text", lambda _, text: text)
    return {
        "prompt.md": lambda path: read_text(str(path)),
        "texts.txt": texts,
        "texts.jsonl": texts,
        "texts.csv": texts,
        "prompts.jsonl": lambda path: [line.body["prompt"] for line in PromptForm(DEFAULTS, ()).read(path)],
        "importance.md": lambda path: importance.importance_from(path, "m", None),
        "own.frag": lambda path: own._read(path, None, "float").text,
    }


CASES = {
    "prompt.md": (MARK + b"a\r\nb\r\n", "a\nb\n"),
    "importance.md": (MARK + b"a\r\nb", "a\nb"),
    "texts.txt": (MARK + b"a\r\n\r\nb", ["a", "", "b"]),
    "texts.jsonl": (MARK + b'\r\n{"text": "a"}\r\n{"text": "b"}\r\n', ["a", "b"]),
    "texts.csv": (MARK + b'text,n\r\n"a\r\nb",1\r\nc,2\r\n', ["a\nb", "c"]),
    "prompts.jsonl": (MARK + b'\r\n{"prompt": "a"}\r\n{"prompt": "b"}\r\n', ["a", "b"]),
    "own.frag": (MARK + SHADER, SHADER.decode().replace("\r\n", "\n")),
}


def test_every_reader(readers: dict[str, Reader], tmp_path: Path) -> None:
    assert readers.keys() == CASES.keys()
    for name, (data, expected) in CASES.items():
        (tmp_path / name).write_bytes(data)
        assert readers[name](tmp_path / name) == expected, name
        for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
            (tmp_path / name).write_bytes(data.decode("utf-8-sig").lstrip().encode(encoding))
            with pytest.raises(InputError, match=r"is UTF-16, as .* of Windows PowerShell"):
                readers[name](tmp_path / name)


def test_what_stays() -> None:
    assert decode_text(b"a\rb\xef\xbb\xbf\n\0", "it") == "a\rb\ufeff\n\0"
    for text in ("a\0b", "\0ab", "\0", "a\0bc\0", "a\0\0\0"):  # NUL is a character of UTF-8
        assert decode_text(text.encode(), "it") == text
    with pytest.raises(InputError, match=r"it is not UTF-8 \(byte 4\); expected text"):
        decode_text(MARK + b"a\xff", "it")


@pytest.mark.gl
def test_commands(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Prompts of ``generate`` from a file and from standard input, with or without ``-``; a script of ``chat``."""
    prompt = MARK + b"Once\r\nupon\r\n"
    (tmp_path / "prompt.txt").write_bytes(prompt)
    usual = ["-n", "3", "-t", "0", "-q", "--echo"]
    expected = ran(capsys, "generate", small, "Once\nupon", *usual)[0]
    for arguments in ([], ["-"], ["-p", "-"], ["-f", "-"], ["-f", str(tmp_path / "prompt.txt")]):
        pipe(monkeypatch, prompt)
        assert run(["generate", str(small), *arguments, *usual]) == 0
        assert capsys.readouterr().out == expected, arguments
    for script, status, said in (
        (MARK + b"/max-tokens 7\r\n/quit\r\n", 0, "  max_tokens is 7\n"),
        ("/quit\r\n".encode("utf-16"), 2, "glinfer: standard input is UTF-16, as"),
    ):
        pipe(monkeypatch, script)
        assert run(["chat", str(small)]) == status
        assert said in "".join(capsys.readouterr())
