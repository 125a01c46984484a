"""Text on a terminal, without control characters from models, files or names.

Control characters can set the title, fill the clipboard or overwrite earlier lines. All output of commands goes
through :func:`emit`; a pipe gets a model's text unchanged.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any, TextIO

HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except line ends and tabs, marks that change the text's direction, and lone surrogates."""


def sign(char: str) -> str:
    """The visible form of an unprintable character, such as ``⟨1B⟩`` for an escape."""
    return f"⟨{ord(char):X}⟩"


def printable(text: str) -> str:
    """Replace all :data:`HIDDEN` characters by their signs; idempotent."""
    return HIDDEN.sub(lambda found: sign(found[0]), text)


def emit(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a text on standard output or standard error, with the style of :func:`click.style`.

    Text for a terminal or for standard error goes through :func:`printable`. Text that standard error cannot take, as
    on a full disk, is lost: the work and its exit status do not depend on it.
    """
    import click  # slow to import; libraries use :func:`printable` alone

    if err or sys.stdout.isatty():
        text = printable(text)
    with contextlib.suppress(*[OSError] if err else []):
        click.echo(click.style(text, **style) if style and not os.environ.get("NO_COLOR") else text, err=err, nl=nl)


class PrintableStream:
    """Standard error for logs, tracebacks and warnings of libraries, which do not call :func:`emit`.

    Progress bars of rich move the cursor, so they write to ``rich_proxied_file`` directly.
    """

    def __init__(self, stream: TextIO) -> None:
        """Wrap a stream."""
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write a text through :func:`printable`."""
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        """Use the stream's attribute."""
        return getattr(self.rich_proxied_file, name)
