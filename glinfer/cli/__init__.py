"""The ``glinfer`` command: one thin module per subcommand over the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

_EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; see :func:`glinfer.cli.app.main`."""
    try:
        from glinfer.cli import app  # takes half a second; Ctrl-C may arrive meanwhile
    except KeyboardInterrupt:
        raise SystemExit(_EXIT_INTERRUPTED) from None
    app.main(arguments)


__all__ = ["main"]
