"""NumPy on several cores: it releases the GIL while it computes, so threads can share the pieces of an array."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_NONE = object()
PIECE_WEIGHTS = 1 << 19
"""Weights that a thread converts together: large enough to rarely wait for the GIL, small enough for a CPU's cache."""
MAX_THREADS = 16
"""More threads do not help, since memory becomes the bottleneck, and each holds a separate piece."""


def in_threads(function: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    """Call ``function`` with every item, here and in threads if there are several cores and items.

    After an error no further call begins; the first error is raised when the running calls have ended.
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
                function(item)  # type: ignore[arg-type]  # mypy does not see that it cannot be _NONE
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(count - 1)]
    try:
        for thread in threads:
            thread.start()
        work()
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
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
