"""NumPy on several cores: it lets go of Python's lock while it computes, so threads over pieces of an array help."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_NONE = object()
PIECE_WEIGHTS = 1 << 19
"""Weights that a thread converts together: few calls of NumPy wait for Python's lock, and a CPU's cache holds them."""
MAX_THREADS = 16
"""More are of no use, as memory is then what takes the time, and each holds a piece of its own."""


def in_threads(function: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    """Call ``function`` with every item, in threads where there are several cores and items.

    The first error of a call is raised when the calls under way have ended; no other call begins then.
    """
    count = min(len(items), cores(), MAX_THREADS)
    if count < 2:
        for item in items:
            function(item)
        return
    waiting, lock, errors = iter(items), threading.Lock(), list[BaseException]()

    def work() -> None:
        while not errors:
            with lock:
                item = next(waiting, _NONE)
            if item is _NONE:
                return
            try:
                function(item)  # type: ignore[arg-type]  # mypy cannot tell that it is no end
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt
        errors.append(error)
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
