"""How alike two results have to be that different shaders, or different plans, have computed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from glinfer.gl.context import open_device

Array = np.ndarray[Any, Any]
LAST_DIGITS = 1e-5
"""Of the largest number: what orders of sums, and products joined with sums, change at most."""


@lru_cache(maxsize=1)
def exact() -> bool:
    """Whether the tests run where a row has the same bits whatever computes it."""
    with open_device() as device:
        return "llvmpipe" in device.renderer


def same_bits(found: Array, expected: Array) -> bool:
    """Also of numbers that are none, and of zeros of both signs."""
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def agree(found: Any, expected: Any, tolerance: float = LAST_DIGITS, *, same_order: bool = True) -> bool:
    """The same bits on llvmpipe; elsewhere sums are split over instances, and compilers join a product and a sum.

    Where the two add in another order, which ``same_order`` says, last digits are compared on llvmpipe too.
    """
    found, expected = (np.ascontiguousarray(each, dtype=np.float32) for each in (found, expected))
    if same_order and exact():
        return same_bits(found, expected)
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return False
    finite = np.isfinite(expected)
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    return bool(np.abs(found[finite] - expected[finite]).max(initial=0.0) <= tolerance * scale)
