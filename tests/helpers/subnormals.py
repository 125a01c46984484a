"""Arithmetic over subnormal float32 numbers, and what renderers make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SMALLEST = 2.0**-126
"""The smallest normal float32."""


@dataclass(frozen=True)
class Case:
    """One operation over pairs of numbers, of which numbers or results are subnormal.

    Attributes:
        operation: a kernel of elementwise arithmetic.
        x, y: the numbers.
        words: how docs/kernels.md calls it.
    """

    operation: str
    x: Array
    y: Array
    words: str

    @property
    def exact(self) -> Array:
        """What NumPy computes, which keeps subnormal numbers."""
        found: Array = getattr(np, self.operation)(self.x, self.y)
        return found


def _numbers(*values: float) -> Array:
    return np.array(values, np.float32)


CASES = {
    "operands": Case(
        "multiply",
        _numbers(SMALLEST / 2, -SMALLEST / 4, 2.0**-149, SMALLEST * 0.75),
        _numbers(2.0**100, 2.0**24, 2.0**120, 4),
        "subnormal × normal",
    ),
    "products": Case(
        "multiply",
        _numbers(2.0**-70, SMALLEST, -(2.0**-100), 2.0**-64),
        _numbers(2.0**-70, 0.5, 2.0**-40, 2.0**-64),
        "a product that is subnormal",
    ),
    "sums": Case(
        "add",
        _numbers(SMALLEST * 1.5, SMALLEST * -1.25, SMALLEST * 1.75, SMALLEST * 1.25),
        _numbers(-SMALLEST, SMALLEST, -SMALLEST, SMALLEST * -1.5),
        "a sum that is subnormal",
    ),
}
_FLUSHED = dict.fromkeys(CASES, "flushed to 0")
BEHAVIOUR: dict[str, dict[str, str]] = {"llvmpipe": _FLUSHED, "NVIDIA": _FLUSHED, "SwiftShader": _FLUSHED}
"""By renderer, what was found: on llvmpipe and SwiftShader by the tests, on an NVIDIA H200 (driver 580) by hand."""


def renderer_of(description: str) -> str | None:
    """The name in :data:`BEHAVIOUR` of a renderer."""
    return next((name for name in BEHAVIOUR if name in description), None)


def outcomes(found: Mapping[str, Array]) -> dict[str, str]:
    """Whether the results of each case are kept, or all flushed to zero; a third thing fails."""
    named = {}
    for name, array in found.items():
        exact = CASES[name].exact
        kept = np.array_equal(array, exact)
        assert kept or not np.any(array), f"{name}: {array} is neither {exact} nor zero"
        named[name] = "kept" if kept else "flushed to 0"
    return named
