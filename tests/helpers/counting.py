"""Costs as counts: they are the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooManyCalls(BaseException):
    """Raised inside what is counted, where no reader may catch it."""


class Calls:
    """Counts the calls of Python and C functions in this thread while it is entered.

    Args:
        most: calls after which :class:`TooManyCalls` is raised; None for any number.
    """

    def __init__(self, most: int | None = None) -> None:
        self.count, self.most = 0, most

    def _noted(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1
            if self.most is not None and self.count > self.most:
                sys.setprofile(None)
                raise TooManyCalls(f"more than {self.most} calls")

    def __enter__(self) -> Calls:
        sys.setprofile(self._noted)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def calls_of(run: Callable[[], object]) -> int:
    """How many functions are called by a run, those written in C included."""
    with Calls() as calls:
        run()
    return calls.count
