"""The ``glinfer`` command: one thin module per subcommand over the library."""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn


def keep_interrupts() -> None:
    """Repeat a Ctrl-C that arrives in a callback of Python itself, which would print a traceback and go on."""
    usual = sys.unraisablehook

    def again() -> None:
        time.sleep(0.01)  # until the callback is over
        _thread.interrupt_main()

    def hook(report: Any) -> None:
        if not isinstance(report.exc_value, KeyboardInterrupt):
            usual(report)
            return
        with suppress(RuntimeError):  # Python is ending anyway
            _thread.start_new_thread(again, ())

    sys.unraisablehook = hook


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; see :func:`glinfer.cli.app.main`."""
    keep_interrupts()
    # NumPy's idle threads otherwise compute for 2**26 cycles before they sleep, 0.1 s of a processor at each start.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    try:
        from glinfer.cli import app  # takes half a second; Ctrl-C may arrive meanwhile
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    app.main(arguments)


__all__ = ["keep_interrupts", "main"]
