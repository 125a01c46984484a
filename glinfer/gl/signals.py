"""Delays Python's signal handlers while C code calls Python without checking for errors.

moderngl calls Python to make a program's members, and does not check the results: a handler that raises in such a
call, as Ctrl-C's does, crashes the process with a segmentation fault.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_NUMBERS = tuple(map(int, signal.valid_signals()))


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay the handlers of signals that arrive within the block to its end, and call each once.

    Python runs handlers only in its main thread, so in other threads this does nothing.
    """
    came: dict[int, FrameType | None] = {}
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in _NUMBERS if callable(handler := signal.getsignal(number))}
    holding = True

    def hold(number: int, frame: FrameType | None) -> None:
        # If not holding, another handler's error prevented the original from being restored.
        if holding:
            came[number] = frame
        else:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        try:  # signals that arrive here are still delayed
            for number, handler in reversed(handlers.items()):
                signal.signal(number, handler)
        finally:
            holding = False
        for number, frame in came.items():
            handlers[number](number, frame)
