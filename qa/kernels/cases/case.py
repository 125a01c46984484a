"""A kernel, how to check it against float64, and how to time it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.ops.spec import Array
from glinfer.tensors.device import Device

Found = tuple[Array, Array]
"""What the device gave, and what float64 NumPy gives: of one shape."""
Check = Callable[[Device, np.random.Generator, int, int, str], Sequence[Found]]
Timed = Callable[[Device, np.random.Generator], Callable[[], object]]


@dataclass(frozen=True)
class KernelCase:
    """One kernel.

    Attributes:
        kernel: the name of the method of ``device.ops``.
        family: the group that docs/kernels.md lists it under.
        shaders: the shader files that it draws with, without ``.frag``.
        forms: the formats or variants that ``check`` takes, such as ``float32`` or ``Q4_K``.
        check: runs it on random contents of a size of about [rows, cols] in one form; gives (found, expected) pairs.
        timed: makes its inputs and gives a function that runs it once, releasing what it made.
        timed_at: the size that ``timed`` uses, in words.
        tolerance: the largest error relative to the largest expected element that is right; 0 for bit for bit.
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
