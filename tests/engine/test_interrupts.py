"""Ctrl-C before any line of the scheduler and the batch: nothing is held behind it, and the model gives the same."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interrupts import files_of, heeds_ctrl_c

import glinfer
from glinfer.engine import batch, requests, scheduler
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest

__all__ = ["heeds_ctrl_c"]

pytestmark = pytest.mark.gl

Place = tuple[str, int, int]
"""A file, a line of it, and how often it was passed before."""


def watched(files: set[str], act: Callable[[], object], at: Place | None = None) -> list[Place]:
    """Run something, with a Ctrl-C at a place; returns the first and the last pass of each line."""
    passed: dict[tuple[str, int], int] = {}

    def trace(frame: types.FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            before = passed[line] = passed.get(line, 0) + 1
            if at == (*line, before):
                signal.raise_signal(signal.SIGINT)
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(old)
    return sorted({(*line, which) for line, last in passed.items() for which in (1, last)})


def answered(model: Model) -> list[tuple[int, list[int], str | None]]:
    """Chosen by the GPU, with filters and from whole rows: three in two places, two of which begin alike."""
    options: list[dict[str, Any]] = [{}, {"top_k": 5}, {"logprobs": 2}]
    asked = [
        BatchRequest("Once upon a time"[: 16 - place // 2], {"max_tokens": 2, "seed": place, **each}, key=place)
        for place, each in enumerate(options)
    ]
    found = [(each.request.key, each.ids, each.text) for each in model.batch(asked, slots=2)]
    return sorted(found)  # type: ignore[arg-type]


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.slow
@pytest.mark.parametrize("module", [scheduler, batch, requests])
def test_ctrl_c_before_any_line_leaves_nothing(small: Path, module: types.ModuleType) -> None:
    files = files_of(module)
    with glinfer.load(str(small)) as model:
        expected = answered(model)
        kept, held = model.device.live_objects(), list[Place]()
        places = watched(files, lambda: answered(model))
        for at in places[::15]:
            with pytest.raises(KeyboardInterrupt):
                watched(files, lambda: answered(model), at)
            if model.device.live_objects() != kept:
                held.append(at)
                kept = model.device.live_objects()
        assert answered(model) == expected
        assert held == []
        assert len(places) > 50
