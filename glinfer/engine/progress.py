"""Callbacks that report progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Receives the finished amount and the total."""
StagedProgress = Callable[[str, int, int], None]
"""Receives the name of the current stage, its finished amount and its total."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""


def no_staged_progress(stage: str, done: int, total: int) -> None:
    """Ignore progress."""
