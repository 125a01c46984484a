"""Holds Python's signal handlers back while C code calls Python and does not look for its errors.

moderngl makes a program's members by calls of Python, and takes what they return unchecked: a handler that raises in
one of them, as that of Ctrl-C does, ends the process with a segmentation fault.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

_NUMBERS = tuple(map(int, signal.valid_signals()))


@contextlib.contextmanager
def signals_held(end: Callable[[], None] | None = None) -> Iterator[Collection[int]]:
    """Call the handlers of signals that come within the block after it, each signal once.

    Python runs handlers in its main thread alone, so nothing is done in others.

    Args:
        end: called by the first of a signal, to end the block soon; a second one then calls its handler at once.

    Yields:
        The numbers of the signals that have come.
    """
    came: dict[int, FrameType | None] = {}
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    handlers = {number: handler for number in _NUMBERS if callable(handler := signal.getsignal(number))}
    holding = True

    def hold(number: int, frame: FrameType | None) -> None:
        # Where not holding, an error of another handler kept this one from being put back.
        if not holding or (end is not None and number in came):
            handlers[number](number, frame)
            return
        came[number] = frame
        if end is not None:
            end()

    try:
        for number in handlers:
            signal.signal(number, hold)
        yield came
    finally:
        try:  # one that comes meanwhile still waits
            for number, handler in reversed(handlers.items()):
                signal.signal(number, handler)
        finally:
            holding = False
        for number, frame in came.items():
            handlers[number](number, frame)
