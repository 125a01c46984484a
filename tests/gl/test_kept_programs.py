"""Programs that nothing uses any more: the last ones are kept, the others are released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.engine.requests import BatchRequest
from glinfer.gl import program

pytestmark = pytest.mark.gl


def test_ever_new_shapes_of_tensors_do_not_gather_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    make = program.Program.__init__

    def spy(self: program.Program, device: Any, shader: str, *given: Any, **options: Any) -> None:
        compiled.extend([shader] * (shader == "arithmetic"))
        make(self, device, shader, *given, **options)

    monkeypatch.setattr(program.Program, "__init__", spy)
    monkeypatch.setattr(program, "MAX_UNUSED_PROGRAMS", 3)
    with glinfer.Device() as dev:
        for rows in [*range(1, 6), 5, 4]:
            ones = np.ones((rows, 16 * rows), np.float32)
            np.testing.assert_array_equal(dev.ops.add(dev.tensor(ones), dev.tensor(ones)).numpy(), ones + ones)
            assert dev.context.live_objects()["program"] == len(dev.programs) == min(rows, 3)
        assert len(compiled) == 5, "the last used ones are found again"
        dev.ops.add(dev.tensor(ones[:1, :16]), dev.tensor(ones[:1, :16]))
        assert len(compiled) == 6, "the first one was released"


@pytest.mark.slow
def test_batches_of_many_sizes_do_not_gather_programs(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_UNUSED_PROGRAMS", 8)
    with glinfer.load(small) as model:
        alone = model.generate([1, 2, 3], max_tokens=2, temperature=0)
        own, kept = model.bound.program_count, set[int]()
        for size in (1, 2, 3, 4, 5, 9, 17, 2, 1):
            requests = [BatchRequest([1, 2, 3], {"max_tokens": 2, "temperature": 0})] * size
            assert [result.ids for result in model.batch(requests)] == [alone] * size
            kept.add(model.bound.program_count)
        assert max(kept) <= own + 8
        assert model.bound.program_count == model.device.live_objects()["program"]
        assert model.generate([1, 2, 3], max_tokens=2, temperature=0) == alone
