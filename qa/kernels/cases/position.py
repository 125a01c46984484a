"""Rotary positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Found, KernelCase, normal, result, timed

_THETA = 10000.0
_OFFSET = 50


def _check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    heads = 3 if form == "heads" else 1
    dim = 2 * -(-cols // (2 * heads))
    rotary = 2 * -(-dim // 4) if form == "partial" else dim
    x = normal(rng, 2, rows, heads * dim).astype("float16" if form == "float16" else "float32")
    at = rng.integers(0, 2 * _OFFSET, rows).astype(np.int32) if form == "positions" else _OFFSET + np.arange(rows)
    interleaved = form == "interleaved"
    by_head = x.reshape(2, rows, heads, dim).swapaxes(1, 2)
    rotated = expected(by_head, at, rotary, interleaved=interleaved).swapaxes(1, 2).reshape(x.shape)
    with device.tensor(at) as places:
        where: dict[str, Any] = {"positions": places} if form == "positions" else {"offset": _OFFSET}
        how = {"heads": heads, "rotary_dim": rotary, "interleaved": interleaved}
        return [(result(device, "rope", x, **how, **where), rotated)]


def expected(x: Array, positions: Array, rotary: int, *, interleaved: bool = False, theta: float = _THETA) -> Array:
    """x [..., S, D] with the pairs of the first ``rotary`` elements rotated as complex numbers."""
    y = x.astype(np.float64)
    angles = positions[:, None] * theta ** (-2.0 * np.arange(rotary // 2) / rotary)
    first, second = slice(0, rotary // 2), slice(rotary // 2, rotary)
    if interleaved:
        first, second = slice(0, rotary, 2), slice(1, rotary, 2)
    rotated = (y[..., first] + 1j * y[..., second]) * np.exp(1j * angles)
    y[..., first], y[..., second] = rotated.real, rotated.imag
    return y


CASES = [
    KernelCase(
        *("rope", "position", ("rotate",), (*FLOATS, "interleaved", "heads", "partial", "positions"), _check),
        *(timed("rope", (16, 512, 128)), "16×512×128", 1e-6),
    )
]
