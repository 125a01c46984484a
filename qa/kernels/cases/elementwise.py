"""Sums, differences, products, quotients and multiples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Check, Found, KernelCase, Timed, normal, result, timed

FUNCTIONS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
Shapes = Callable[[int, int], Sequence[tuple[Sequence[int], ...]]]


def _check(kernel: str, function: np.ufunc, shapes: Shapes) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        found = []
        for of_x, of_y in shapes(rows, cols):
            x, y = normal(rng, *of_x).astype(form), normal(rng, *of_y).astype(form)
            found.append((result(device, kernel, x, y), function(x.astype(np.float64), y.astype(np.float64))))
        return found

    return check


def _broadcast(rows: int, cols: int) -> Sequence[tuple[Sequence[int], ...]]:
    whole, three = (rows, cols), (2, 1, cols)
    return [(whole, whole), (whole, (cols,)), ((rows, 1), whole), ((rows, 1), (1, cols)), (three, (min(rows, 9), 1))]


def _same_and_outer(rows: int, cols: int) -> Sequence[tuple[Sequence[int], ...]]:
    """Fewer shapes for the operations that take the walks of ``add``."""
    return [((rows, cols), (rows, cols)), ((rows, 1), (1, cols))]


def _check_scale(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x, factor = normal(rng, rows, cols).astype(form), float(rng.standard_normal())
    return [(result(device, "scale", x, factor), factor * x.astype(np.float64))]


def _case(kernel: str, shader: str, check: Check, time: Timed) -> KernelCase:
    return KernelCase(kernel, "elementwise", (shader,), FLOATS, check, time, "512×2048", tolerance=1e-6)


def _sum(kernel: str, function: np.ufunc, shapes: Shapes, *other: int) -> KernelCase:
    return _case(kernel, "arithmetic", _check(kernel, function, shapes), timed(kernel, (512, 2048), other))


CASES = [
    *(_sum(name, function, _broadcast if name == "add" else _same_and_outer, 512, 2048)
      for name, function in FUNCTIONS.items()),
    _sum("add_bias", np.add, lambda rows, cols: [((rows, cols), (cols,))], 2048),
    _sum("residual_add", np.add, lambda rows, cols: [((rows, cols), (rows, cols))], 512, 2048),
    _case("scale", "scale", _check_scale, timed("scale", (512, 2048), factor=0.125)),
]  # fmt: skip
