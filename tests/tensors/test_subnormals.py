"""What happens to subnormal float32 numbers in arithmetic, by renderer: docs/kernels.md has the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_draw import same_bits
from subnormals import BEHAVIOUR, CASES, outcomes, renderer_of

from glinfer.tensors.device import Device

pytestmark = pytest.mark.gl

DOC = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"


def computed(dev: Device, operation: str, x: Any, y: Any) -> Any:
    with dev.tensor(x) as a, dev.tensor(y) as b, getattr(dev.ops, operation)(a, b) as z:
        return z.numpy()


def test_this_renderer_does_what_the_page_says(dev: Device) -> None:
    found = outcomes({name: computed(dev, case.operation, case.x, case.y) for name, case in CASES.items()})
    known = renderer_of(dev.description)
    assert known is None or found == BEHAVIOUR[known]


def test_products_and_halves(dev: Device) -> None:
    """A sum of products treats them as the products do; half floats below 2^-14 are normal numbers in float32."""
    x = np.full((1, 4), 2.0**-70, np.float32)
    flushed = dev.ops.matmul(dev.tensor(x), dev.tensor(x.T)).numpy()
    assert flushed[0, 0] in (0.0, 2.0**-138)
    halves = np.arange(1, 0x400, dtype=np.uint16).view(np.float16)
    with dev.ops.scale(dev.tensor(halves), 1.0) as y, dev.ops.scale(y, 1.0, dtype="float16") as z:
        assert np.array_equal(y.numpy(), halves.astype(np.float32))
        assert same_bits(z.numpy(), halves)


def test_copies_keep_them_on_llvmpipe(dev: Device) -> None:
    x = np.arange(1, 41, dtype=np.uint32).reshape(5, 8).view(np.float32)
    if "llvmpipe" not in dev.description:
        pytest.skip("OpenGL promises it nowhere")
    with dev.tensor(x) as tensor, dev.ops.transpose(tensor) as y:
        assert same_bits(y.numpy(), np.ascontiguousarray(x.T))


def test_the_page_has_the_table() -> None:
    lines = [f"| {name} | {' | '.join(BEHAVIOUR[name].values())} |" for name in BEHAVIOUR]
    heading = f"| renderer | {' | '.join(case.words for case in CASES.values())} |"
    assert "\n".join([heading, "|---" * (len(CASES) + 1) + "|", *lines]) in DOC.read_text("utf-8")
