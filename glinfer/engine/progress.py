"""Callbacks that report progress."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

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
    """Run all steps, and return the generator's result."""
    while True:
        try:
            on_progress(*next(steps))
        except StopIteration as end:
            made: T = end.value
            return made
