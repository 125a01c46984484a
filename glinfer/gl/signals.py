"""Holds Python's signal handlers back while C code calls Python and does not look for its errors.

moderngl makes a program's members by calls of Python, and takes what they return unchecked: a handler that raises in
one of them, as that of Ctrl-C does, ends the process with a segmentation fault.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Call the handlers of signals that come within the block after it, each signal once.

    Python runs handlers in its main thread alone, so nothing is done in others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = ((int(number), signal.getsignal(number)) for number in signal.valid_signals())
    handlers = {number: handler for number, handler in found if callable(handler)}
    came: dict[int, FrameType | None] = {}
    holding = True

    def hold(number: int, frame: FrameType | None) -> None:
        if holding:
            came[number] = frame
        else:  # an error of another handler kept this one from being put back
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        holding = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in came.items():
            handlers[number](number, frame)
