"""Text on a terminal: what a model, a file or a name brings is shown there, and never obeyed.

A terminal obeys control characters: they set its title, fill the clipboard, or write over what was said. All output of
commands goes through :func:`emit`; a pipe gets a model's text as it is.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, TextIO

import click

HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but line ends and tabs, those that turn the direction of text around, and halves of characters."""


def sign(char: str) -> str:
    """A sign for a character that does not print, such as ``⟨1B⟩`` for an escape."""
    return f"⟨{ord(char):X}⟩"


def printable(text: str) -> str:
    """A text with signs in the place of all :data:`HIDDEN` characters; doing this twice changes nothing more."""
    return HIDDEN.sub(lambda found: sign(found[0]), text)


def emit(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a text on standard output or standard error, with the style of :func:`click.style`.

    It is :func:`printable` on a terminal, and on standard error always.
    """
    if err or sys.stdout.isatty():
        text = printable(text)
    click.echo(click.style(text, **style) if style and not os.environ.get("NO_COLOR") else text, err=err, nl=nl)


class PrintableStream:
    """Standard error for what does not call :func:`emit`: logs, tracebacks and warnings of libraries.

    The bars of rich, which move the cursor, write to the stream itself.
    """

    def __init__(self, stream: TextIO) -> None:
        """Stand before a stream."""
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write a text, printable."""
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own."""
        return getattr(self.rich_proxied_file, name)
