"""Reductions along the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Check, Found, KernelCase, integers, normal, result, timed

_REDUCED: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x.sum(axis=-1),
    "max": lambda x: x.max(axis=-1),
    "argmax": lambda x: x.argmax(axis=-1),
}


def _check(name: str) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        x = normal(rng, rows, cols, offset=2.0).astype(form)
        if name != "sum":
            x = np.round(x)  # equals, of which the first counts
        expected = _REDUCED[name](x.astype(np.float64))
        kept = result(device, name, x, keepdims=True), expected[:, None]
        return [(result(device, name, x), expected), kept]

    return check


def log_softmax(x: Array) -> Array:
    """The logarithm of the softmax of rows, float64."""
    away = x.astype(np.float64) - x.max(axis=-1, keepdims=True).astype(np.float64)
    return np.asarray(away - np.log(np.exp(away).sum(axis=-1, keepdims=True)))


def _check_cross_entropy(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x = normal(rng, rows, cols, scale=4.0).astype(form)
    targets = rng.integers(-1, cols + 1, rows, dtype=np.int32)
    inside = (targets >= 0) & (targets < cols)
    losses = -log_softmax(x)[np.arange(rows), np.where(inside, targets, 0)]
    return [(result(device, "cross_entropy", x, targets), np.where(inside, losses, 0.0))]


_AT, _SHADERS = (512, 2048), ("row_stats", "merge_stats", "stat_column")
CASES = [
    *(
        KernelCase(name, "reduction", _SHADERS, FLOATS, _check(name), timed(name, _AT), "512×2048", tolerance)
        for name, tolerance in (("sum", 1e-5), ("max", 0.0), ("argmax", 0.0))
    ),
    KernelCase(
        *("cross_entropy", "reduction", (*_SHADERS[:2], "cross_entropy"), FLOATS, _check_cross_entropy),
        *(timed("cross_entropy", _AT, integers(2048, 512)), "512×2048"),
    ),
]
