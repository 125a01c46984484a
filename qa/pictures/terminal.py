"""Programs recorded in a terminal of their own: what they print and when, as lines and as an animated SVG."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

from qa.steps import StepError

Event = tuple[float, str]
"""Seconds since the start, and what was printed then."""
PROMPT = "> "
_KEY = 0.06  # seconds between keys
_SILENCE = 180  # seconds after which a program hangs
_LONGEST = 1.2  # seconds of a pause in the animation
_HOLD = 5.0  # seconds that the last picture stays
_CHAR, _LINE, _EDGE = 8.0, 19, 14  # pixels of a column and a line, and around the text
_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\s\S])")
_STYLE = """text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1b1b1b;
white-space:pre;animation-timing-function:step-end;animation-iteration-count:infinite}
.d{fill:#57606a}.c{fill:#0a6b3d;font-weight:600}.page{fill:#fff;stroke:#c9c9c9}
@media(prefers-color-scheme:dark){text{fill:#e8eaed}.d{fill:#a2acb8}.c{fill:#7ee2a8}.page{fill:#14171c;stroke:#3c424b}}
@media(prefers-reduced-motion:reduce){text{animation:none!important}}#still:target text{animation:none!important}"""


def record(
    command: Sequence[str],
    typed: Sequence[str],
    folder: Path,
    columns: int,
    variables: Mapping[str, str],
    leave: str = "",
) -> list[Event]:
    """Run a command in a terminal with more variables, and type a line at each prompt ``> ``, key by key.

    ``leave`` is a last line, which ends the program; what is printed after it is not recorded. A StepError says that it
    failed, or printed nothing for three minutes.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, **variables, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    start, waiting, found = time.monotonic(), list(typed), list[Event]()
    said, keys, left = b"", b"", False
    try:
        while keys or select.select([ours], [], [], _SILENCE)[0]:
            if not select.select([ours], [], [], _KEY)[0]:
                os.write(ours, keys[:1])
                keys = keys[1:]
                continue
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # it has ended
                break
            said += data
            if not left:
                found.append((time.monotonic() - start, data.decode("utf-8", "replace")))
            if said.endswith(PROMPT.encode()) and (waiting or leave):
                left = not waiting
                keys = f"{leave if left else waiting.pop(0)}\n".encode()
        else:
            process.kill()
    finally:
        os.close(ours)
        status = process.wait()
    if status or waiting:
        last = lines_of(found, columns)[-1:] or ["nothing"]
        raise StepError(f"'{' '.join(command[:5])} …' ended with exit status {status}; it printed: {last[0]}")
    return found


@dataclass
class Screen:
    """What a terminal shows; each cell has its character, its style and the time of the last change."""

    columns: int
    cells: list[list[tuple[str, str, float]]] = field(default_factory=lambda: [[]])

    def play(self, events: Sequence[Event]) -> Screen:
        """Show all that was printed: text, ends of lines, cleared lines, dim text; colours are left out."""
        row, column, style = 0, 0, ""
        for seconds, text in events:
            for values, kind, char in _TOKEN.findall(text):
                if kind == "m":
                    style = "d" if "2" in values.split(";") and "5" not in values.split(";") else ""
                elif kind == "K":
                    del self.cells[row][0 if values == "2" else column :]
                elif kind == "A":
                    row = max(0, row - int(values or 1))
                elif char == "\r":
                    column = 0
                elif char == "\n" or (char >= " " and column == self.columns):
                    row, column = row + 1, 0
                    self.cells += [[] for _ in range(row + 1 - len(self.cells))]
                if char >= " ":
                    line = self.cells[row]
                    line += [(" ", "", seconds)] * (column - len(line))
                    line[column : column + 1] = [(char, style, seconds)]
                    column += 1
        return self

    def runs(self) -> Iterator[tuple[float, int, int, str, str]]:
        """Adjacent characters that came together: seconds, line, column, style and text."""
        for row, line in enumerate(self.cells):
            column = 0
            for (style, seconds), group in groupby(line, key=lambda cell: cell[1:]):
                text = "".join(char for char, *_ in group)
                if text.strip():
                    indent = len(text) - len(text.lstrip())
                    yield seconds, row, column + indent, style, text.strip()
                column += len(text)


def lines_of(events: Sequence[Event], columns: int) -> list[str]:
    """The lines that a terminal shows at the end, without those at the end that are empty."""
    lines = ["".join(char for char, *_ in line).rstrip() for line in Screen(columns).play(events).cells]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def animated(command: str, events: Sequence[Event], columns: int) -> str:
    """An SVG that shows a recorded run again and again, in its own time; pauses are cut to 1.2 s.

    It has its own background for light and dark pages. It stands still where a reader prefers that, and as
    ``chat.svg#still``, since Chromium does not tell images what readers prefer.
    """
    screen = Screen(columns).play([(0.0, f"\x1b[0m$ {command}\r\n"), *events])
    seconds = sorted({at for at, *_ in screen.runs()})
    pauses = [min(after - before, _LONGEST) for before, after in pairwise(seconds)]
    times = dict(zip(seconds, [sum(pauses[:place]) for place in range(len(seconds))], strict=True))
    length, frames, body = max(times.values()) + _HOLD, dict[float, str](), list[str]()
    rows = max(row for _, row, *_ in screen.runs()) + 1
    width, height = columns * _CHAR + 2 * _EDGE, rows * _LINE + 2 * _EDGE
    for at, row, column, style, text in screen.runs():
        name = frames.setdefault(times[at], f"k{len(frames)}")
        kind = "c" if row == 0 else style
        classes = f' class="{kind}"' if kind else ""
        moves = f' style="animation-name:{name}"' if times[at] else ""
        body.append(
            f'<text{classes}{moves} x="{_EDGE + column * _CHAR:g}" y="{_EDGE + 14 + row * _LINE}" '
            f'textLength="{len(text) * _CHAR:g}">{escape(text)}</text>'
        )
    keyframes = "".join(
        f"@keyframes {name}{{0%{{opacity:0}}{100 * at / length:.2f}%{{opacity:1}}}}"
        for at, name in frames.items()
        if at
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" '
            f'height="{height}" role="img">',
            f"<title>{escape(command)}</title>",
            f"<style>{_STYLE}text{{animation-duration:{length:.2f}s}}{keyframes}</style>",
            f'<rect class="page" x=".5" y=".5" width="{width - 1:g}" height="{height - 1}" rx="8"/>',
            '<g id="still">',
            *body,
            "</g></svg>\n",
        ]
    )
