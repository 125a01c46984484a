"""Sums, differences, products, quotients and multiples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.tensors.device import Device
from qa.kernels.cases.case import Check, Found, KernelCase, Timed, normal

FORMS = ("float32", "float16")
FUNCTIONS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


def _check(kernel: str, function: np.ufunc, shapes: Callable[[int, int], Sequence[tuple[Sequence[int], ...]]]) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        found = []
        for of_x, of_y in shapes(rows, cols):
            x, y = normal(rng, *of_x).astype(form), normal(rng, *of_y).astype(form)
            with device.tensor(x) as left, device.tensor(y) as right, getattr(device.ops, kernel)(left, right) as z:
                found.append((z.numpy(), function(x.astype(np.float64), y.astype(np.float64))))
        return found

    return check


def _broadcast(rows: int, cols: int) -> Sequence[tuple[Sequence[int], ...]]:
    return [
        ((rows, cols), (rows, cols)),
        ((rows, cols), (cols,)),
        ((rows, 1), (rows, cols)),
        ((rows, 1), (1, cols)),
        ((2, 1, cols), (min(rows, 9), 1)),
    ]


def _same_and_outer(rows: int, cols: int) -> Sequence[tuple[Sequence[int], ...]]:
    """Fewer shapes for the operations that take the walks of ``add``."""
    return [((rows, cols), (rows, cols)), ((rows, 1), (1, cols))]


def _bias(rows: int, cols: int) -> Sequence[tuple[Sequence[int], ...]]:
    return [((rows, cols), (cols,))]


def _residual(rows: int, cols: int) -> Sequence[tuple[Sequence[int], ...]]:
    return [((rows, cols), (rows, cols))]


def _timed(kernel: str, *other: int) -> Timed:
    def timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        x, y = device.tensor(normal(rng, 512, 2048)), device.tensor(normal(rng, *other))
        return lambda: getattr(device.ops, kernel)(x, y).release()

    return timed


def _check_scale(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x, factor = normal(rng, rows, cols).astype(form), float(rng.standard_normal())
    with device.tensor(x) as tensor, device.ops.scale(tensor, factor) as y:
        return [(y.numpy(), factor * x.astype(np.float64))]


def _timed_scale(device: Device, rng: np.random.Generator) -> Callable[[], object]:
    x = device.tensor(normal(rng, 512, 2048))
    return lambda: device.ops.scale(x, 0.125).release()


def _case(kernel: str, shader: str, check: Check, timed: Timed) -> KernelCase:
    return KernelCase(kernel, "elementwise", (shader,), FORMS, check, timed, "512×2048", tolerance=1e-6)


CASES = [
    *(
        _case(
            name,
            "arithmetic",
            _check(name, function, _broadcast if name == "add" else _same_and_outer),
            _timed(name, 512, 2048),
        )
        for name, function in FUNCTIONS.items()
    ),
    _case("add_bias", "arithmetic", _check("add_bias", np.add, _bias), _timed("add_bias", 2048)),
    _case("residual_add", "arithmetic", _check("residual_add", np.add, _residual), _timed("residual_add", 512, 2048)),
    _case("scale", "scale", _check_scale, _timed_scale),
]
