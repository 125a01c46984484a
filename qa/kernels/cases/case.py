"""The case of one kernel: a check against float64 and a call to time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device

Found = tuple[Array, Array]
"""The device's result and that of float64 NumPy, of one shape."""
Check = Callable[[Device, np.random.Generator, int, int, str], Sequence[Found]]
Timed = Callable[[Device, np.random.Generator], Callable[[], object]]


@dataclass(frozen=True)
class KernelCase:
    """A kernel with a check against float64 and a call to time.

    Attributes:
        kernel: the name of the method of ``device.ops``.
        family: the group in docs/kernels.md.
        shaders: the names of its shader files, without ``.frag``.
        forms: the formats or variants that ``check`` takes, such as ``float32`` or ``Q4_K``.
        check: runs the kernel on random contents of about [rows, cols] in one form; returns (found, expected) pairs.
        timed: makes inputs; returns a function that runs the kernel once and releases the result.
        timed_at: the size that ``timed`` uses, in words.
        tolerance: the largest allowed error, relative to the largest expected element; 0 asks for equal bits.
    """

    kernel: str
    family: str
    shaders: tuple[str, ...]
    forms: tuple[str, ...]
    check: Check
    timed: Timed
    timed_at: str
    tolerance: float = 1e-5


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Array:
    """Random float32 numbers around ``offset``."""
    return (rng.standard_normal(shape) * scale + offset).astype(np.float32)
