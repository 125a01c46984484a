"""The stages of loading a model, and their times where somebody wants to know them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

STAGES = ("imports", "file", "tokenizer", "context", "plan", "upload", "programs", "first token")
"""What comes before the first token, in order: Python and its imports; the file read and checked; tokenizer, stop
tokens and sampling; the OpenGL context; the plan; weights packed and uploaded; programs compiled and bound."""

_times: ContextVar[dict[str, float] | None] = ContextVar("times", default=None)


@contextmanager
def stage_times() -> Iterator[dict[str, float]]:
    """Collect the seconds of each stage that runs within the block."""
    times: dict[str, float] = {}
    token = _times.set(times)
    try:
        yield times
    finally:
        _times.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Add the time of the block to a stage, one of :data:`STAGES`."""
    started = time.perf_counter()
    yield
    times = _times.get()
    if times is not None:
        times[name] = times.get(name, 0.0) + time.perf_counter() - started
