"""What a model, a file or a name brings is shown on a terminal as text; a pipe gets a model's text as it is."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from io import StringIO
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Terminal
from each_case import each_case
from rich.console import Console
from rich.progress import Progress

from glinfer import notebook
from glinfer.cli import app
from glinfer.cli.app import run
from glinfer.cli.chat import _Chat
from glinfer.cli.common import bar_columns, json_text, progress, say, show, show_table, stage_bars
from glinfer.cli.generate import print_stream
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import GlinferWarning
from glinfer.inspect.tables import Column, Table
from glinfer.terminal import PrintableStream, emit, printable

HARM = "\x1b]0;pwned\x07\x9b31m\x9d8;;x\x9c\u202e\r\x7f\udc9b"
SHOWN = "⟨1B⟩]0;pwned⟨7⟩⟨9B⟩31m⟨9D⟩8;;x⟨9C⟩⟨202E⟩⟨D⟩⟨7F⟩⟨DC9B⟩"
PIECES = ("a", *HARM[:-1], "\n\tb é 日本 👩\u200d🚀", "")
"""Pieces of a stream, which cut every sequence."""


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What is printed from here on; no fixture, since pytest sets standard output again before the test."""
    monkeypatch.setattr(sys, "stdout", found := Terminal())
    return found


def harmless(text: str) -> bool:
    return printable(text) == text and "\x1b" not in text


class TestTheFunction:
    def test_all_that_a_terminal_obeys(self) -> None:
        codes = [code for code in range(0xA0) if not 0x20 <= code < 0x7F and chr(code) not in "\n\t"]
        codes += [0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
        for code in [*codes, 0xD800, 0xDC80, 0xDFFF]:
            assert printable(f"a{chr(code)}b") == f"a⟨{code:X}⟩b"
        assert printable(HARM) == SHOWN == printable(SHOWN)

    @each_case("text", ["", "\n\t plain", "é日本", "👩\u200d🚀", "می\u200cخواهم", "\ufffd", "⟨1B⟩", "\xa0\xad"])
    def test_text_stays_as_it_is(self, text: str) -> None:
        assert printable(text) == text

    def test_standard_output_is_looked_at_on_a_terminal(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        emit(HARM[:-1], nl=False)
        emit(HARM, err=True)
        assert capsys.readouterr() == (HARM[:-1], f"{SHOWN}\n")
        terminal = on_a_terminal(monkeypatch)
        emit(HARM, nl=False, fg="red")
        assert terminal.getvalue() == f"\x1b[31m{SHOWN}\x1b[0m"

    def test_standard_error_of_all_others(self) -> None:
        stream = PrintableStream(plain := Terminal())
        print(HARM, file=stream)  # type: ignore[call-overload]
        assert plain.getvalue() == f"{SHOWN}\n"
        assert stream.isatty()
        console = Console(file=stream, force_terminal=True)  # type: ignore[arg-type]
        console.print("bar", style="red")
        assert plain.getvalue().endswith("\x1b[31mbar\x1b[0m\n"), "bars and their colours are rich's own"


class TestModels:
    def test_a_stream_of_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = on_a_terminal(monkeypatch)
        print_stream(PIECES)
        assert terminal.getvalue() == f"a{printable(HARM[:-1])}\n\tb é 日本 👩\u200d🚀\n"

    def test_a_pipe_gets_the_bytes(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_stream(PIECES)
        assert capsys.readouterr().out == "".join(PIECES) + "\n"

    @pytest.mark.gl
    def test_the_prompt_that_is_shown(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = on_a_terminal(monkeypatch)
        assert run(["generate", str(small), "\x1b[31mhi", "--max-tokens", "1", "-q", "--seed", "1"]) == 0
        assert terminal.getvalue().startswith("⟨1B⟩[31mhi")

    def test_the_parts_of_a_reply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = on_a_terminal(monkeypatch)
        chat = _Chat(SimpleNamespace(), "m", SimpleNamespace(), SamplingOptions(), 8, {}, [])  # type: ignore[arg-type]
        before = None
        for kind in ("thinking", "answer"):
            for piece in PIECES:
                before = chat.show_part(kind, piece, before)
        assert harmless(terminal.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", ""))
        assert "⟨1B⟩" in terminal.getvalue()


class TestReports:
    def test_tables_and_their_columns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = on_a_terminal(monkeypatch)
        show(("name", "size"), [(f"{HARM}[bold]", "1")], numbers=("size",))
        assert f"{SHOWN}[bold]" in terminal.getvalue().replace("\n", "")
        assert "\x1b]" not in terminal.getvalue()

    def test_json_has_its_own_escapes(self) -> None:
        value = {f"k{HARM}": [HARM, "é\n\t👩\u200d🚀"]}
        text = json_text(value)
        assert json.loads(text) == value
        assert harmless(text)
        assert "é" in text

    def test_cells_of_notebooks(self) -> None:
        assert SHOWN in notebook.table(("a",), [(HARM,)])

    def test_stages_of_bars(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = Terminal()
        monkeypatch.setattr(sys, "stderr", PrintableStream(found))
        monkeypatch.setenv("TERM", "xterm")
        with stage_bars() as advance:
            advance(f"loading {HARM}[/red]", 1, 2)
            print(HARM, end="", file=sys.stderr)
        assert "\x1b]" not in found.getvalue()
        assert "\r\x1b[2K" in found.getvalue(), "the bar moves the cursor"
        assert "⟨1B⟩[2K" not in found.getvalue()
        assert SHOWN in found.getvalue()

    def test_stages_without_a_terminal(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for seconds, expected in ((0, f"loading {SHOWN}: 0%\nloading {SHOWN}: 25%\n"), (1e9, "")):
            monkeypatch.setattr("glinfer.cli.common._LINE_SECONDS", seconds)
            with progress(f"loading {HARM}") as advance:
                for done in (0, 1):
                    advance(done, 4)
            assert capsys.readouterr().err == expected


class TestErrors:
    @each_case(
        "arguments",
        [[HARM[:-1]], ["info", HARM[:-1]], ["info", f"--{HARM[:-1]}"], ["generate", "m", "x", "--top-k", HARM[:-1]]],
    )
    def test_arguments_that_they_quote(self, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(list(arguments)) == 2
        printed = capsys.readouterr().err
        assert "pwned" in printed
        assert harmless(printed)

    def test_warnings_and_lines_beside_the_output(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        app._say_warnings_in_one_line("glinfer")
        warnings.showwarning(GlinferWarning(HARM), GlinferWarning, "x.py", 1)
        say(HARM)
        printed = capsys.readouterr().err
        assert harmless(printed)
        assert printed.count("pwned") == 2

    def test_a_process_wraps_its_standard_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tracebacks, logs of the server and warnings of libraries go there."""
        monkeypatch.setattr(sys, "stderr", plain := Terminal())
        monkeypatch.setattr(sys, "stdout", Terminal())
        monkeypatch.setenv("NO_COLOR", "1")  # Python 3.13 colours the name of the error

        def fails(*_: Any) -> int:
            raise RuntimeError(HARM)

        monkeypatch.setattr(app, "run", fails)
        with pytest.raises(RuntimeError) as caught:
            app.main([])
        sys.excepthook(RuntimeError, caught.value, None)
        assert f"RuntimeError: {SHOWN[:20]}" in plain.getvalue()
        assert harmless(plain.getvalue())


# Tables on narrow terminals


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


# The bar of long commands, drawn at times that are made up


def drawn(total: int | None, done: int, seconds: float) -> str:
    """One line of the bar after so many seconds."""
    now = [100.0]
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    bar = Progress(*bar_columns(), console=console, get_time=lambda: now[0], auto_refresh=False)
    task = bar.add_task("soaking", total=total)
    now[0] += seconds
    bar.update(task, completed=done)
    console.print(bar.get_renderable())
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().strip()


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00:00 elapsed"), (83, "0:01:23 elapsed")])
def test_the_time_says_what_it_is(seconds: float, shown: str) -> None:
    assert drawn(200, 50, seconds).endswith(f" 25% {shown}")


def test_a_bar_without_an_end_shows_no_percentage() -> None:
    line = drawn(None, 50, 5)
    assert line.startswith("soaking")
    assert line.endswith("0:00:05 elapsed")
    assert "%" not in line
