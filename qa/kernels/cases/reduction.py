"""Reductions along the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import Check, Found, KernelCase, Timed, normal

FORMS = ("float32", "float16")
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
        with device.tensor(x) as tensor, getattr(device.ops, name)(tensor) as y:
            found = [(y.numpy(), expected)]
            with getattr(device.ops, name)(tensor, keepdims=True) as kept:
                found.append((kept.numpy(), expected[:, None]))
        return found

    return check


def _timed(name: str) -> Timed:
    def timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        x = device.tensor(normal(rng, 512, 2048))
        return lambda: getattr(device.ops, name)(x).release()

    return timed


def log_softmax(x: Array) -> Array:
    """The logarithm of the softmax of rows, float64."""
    away = x.astype(np.float64) - x.max(axis=-1, keepdims=True).astype(np.float64)
    return np.asarray(away - np.log(np.exp(away).sum(axis=-1, keepdims=True)))


def _check_cross_entropy(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x = normal(rng, rows, cols, scale=4.0).astype(form)
    targets = rng.integers(-1, cols + 1, rows, dtype=np.int32)
    inside = (targets >= 0) & (targets < cols)
    losses = -log_softmax(x)[np.arange(rows), np.where(inside, targets, 0)]
    with (
        device.tensor(x) as logits,
        device.tensor(targets) as wanted,
        device.ops.cross_entropy(logits, wanted) as y,
    ):
        return [(y.numpy(), np.where(inside, losses, 0.0))]


def _timed_cross_entropy(device: Device, rng: np.random.Generator) -> Callable[[], object]:
    logits = device.tensor(normal(rng, 512, 2048, scale=4.0))
    targets = device.tensor(rng.integers(0, 2048, 512, dtype=np.int32))
    return lambda: device.ops.cross_entropy(logits, targets).release()


_SHADERS = ("row_stats", "merge_stats", "stat_column")
CASES = [
    KernelCase("sum", "reduction", _SHADERS, FORMS, _check("sum"), _timed("sum"), "512×2048"),
    KernelCase("max", "reduction", _SHADERS, FORMS, _check("max"), _timed("max"), "512×2048", 0.0),
    KernelCase("argmax", "reduction", _SHADERS, FORMS, _check("argmax"), _timed("argmax"), "512×2048", 0.0),
    KernelCase(
        "cross_entropy",
        "reduction",
        ("row_stats", "merge_stats", "cross_entropy"),
        FORMS,
        _check_cross_entropy,
        _timed_cross_entropy,
        "512×2048",
    ),
]
