"""Ctrl-C before any line of the scheduler and the batch: nothing is held behind it, and the model gives the same."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from interrupts import files_of, heeds_ctrl_c, interrupted_everywhere

import glinfer
from glinfer.engine import batch, requests, scheduler
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest

__all__ = ["heeds_ctrl_c"]

pytestmark = pytest.mark.gl


def answered(model: Model) -> list[tuple[int, list[int], str | None]]:
    """Chosen by the GPU, with filters and from whole rows: three in two slots, two of which begin alike."""
    options: list[dict[str, Any]] = [{}, {"top_k": 5}, {"logprobs": 2}]
    asked = [
        BatchRequest("Once upon a time"[: 16 - place // 2], {"max_tokens": 2, "seed": place, **each}, key=place)
        for place, each in enumerate(options)
    ]
    found = [(each.request.key, each.ids, each.text) for each in model.batch(asked, slots=2)]
    return sorted(found)  # type: ignore[arg-type]


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.slow
@pytest.mark.parametrize(("module", "step"), [(scheduler, 41), (batch, 37), (requests, 19)])
def test_ctrl_c_before_any_line_leaves_nothing(small: Path, module: types.ModuleType, step: int) -> None:
    with glinfer.load(str(small)) as model:
        expected = answered(model)
        kept = model.device.live_objects()

        def after(where: str) -> None:
            assert model.device.live_objects() == kept, where

        assert interrupted_everywhere(lambda: answered(model), after, (), files_of(module), step) > 300
        assert answered(model) == expected
