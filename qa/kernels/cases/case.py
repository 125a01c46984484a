"""The case of one kernel: a check against float64 and a call to time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES
from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor

Found = tuple[Array, Array]
"""The device's result and that of float64 NumPy, of one shape."""
Check = Callable[[Device, np.random.Generator, int, int, str], Sequence[Found]]
Timed = Callable[[Device, np.random.Generator], Callable[[], object]]
FLOATS = ("float32", "float16")


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


def result(device: Device, kernel: str, *operands: Any, **options: Any) -> Any:
    """Run a kernel: the array of its result, or a tuple of several; operands may be arrays, and nothing is kept.

    Raises:
        PlanError: the padding of a result is not zero.
    """
    with ExitStack() as stack:
        given = [
            stack.enter_context(device.tensor(each)) if isinstance(each, (np.ndarray, np.generic)) else each
            for each in operands
        ]
        found = getattr(device.ops, kernel)(*given, **options)
        if isinstance(found, Tensor):
            return _array(stack.enter_context(found))
        return tuple(_array(stack.enter_context(each)) for each in found)


def _array(tensor: Tensor) -> Array:
    if tensor.size and padding(tensor).any():
        raise PlanError(
            "found numbers after the last column of rows; expected zeros, which other kernels rely on, as 'trimmed' "
            "of shaders/common/flat.glsl writes them"
        )
    return tensor.numpy()


def padding(tensor: Tensor) -> Array:
    """What lies after the columns of every row, [rows, 0 to 3]; of a tensor with elements."""
    layout = tensor.layout
    texels = tensor.storage.texture().framebuffer.read(0, layout.width, layout.height).reshape(-1, LANES)
    return texels[: layout.rows * layout.row_texels].reshape(layout.rows, -1)[:, layout.cols :]


def timed(kernel: str, *operands: Any, **options: Any) -> Timed:
    """What times a kernel; operands are shapes of random float32 tensors, or make one of a device and a generator."""

    def prepared(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        given = [each(device, rng) if callable(each) else device.tensor(normal(rng, *each)) for each in operands]

        def run() -> None:
            found = getattr(device.ops, kernel)(*given, **options)
            for each in [found] if isinstance(found, Tensor) else found:
                each.release()

        return run

    return prepared


def integers(below: int, count: int) -> Callable[[Device, np.random.Generator], Tensor]:
    """An operand of :func:`timed`: ids."""
    return lambda device, rng: device.tensor(rng.integers(0, below, count).astype(np.int32))
