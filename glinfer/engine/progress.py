"""Callbacks that report progress."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from glinfer.errors import InputError

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Receives the finished amount and the total."""
StagedProgress = Callable[[str, int, int], None]
"""Receives the name of the current stage, its finished amount and its total."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


def no_staged_progress(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


def run_steps(steps: Generator[tuple[int, int], None, T], on_progress: Progress = no_progress) -> T:
    """Run all steps, and return the generator's result; InputError if ``on_progress`` is not a function."""
    if not callable(on_progress):
        raise InputError(f"on_progress is {type(on_progress).__name__}; expected a function")
    while True:
        try:
            on_progress(*next(steps))
        except StopIteration as end:
            made: T = end.value
            return made
