"""Convolutions along a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Found, KernelCase, normal, result, timed

_LENGTH = 4


def _check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    floats = "float16" if form == "float16" else "float32"
    x = normal(rng, 2, rows, cols).astype(floats)
    taps, bias = normal(rng, _LENGTH, cols).astype(floats), normal(rng, cols).astype(floats)
    wanted = expected(x, taps) + (bias.astype(np.float64) if form == "bias" else 0.0)
    added = (bias,) if form == "bias" else ()
    return [(result(device, "causal_conv", x, taps, *added), wanted)]


def expected(x: Array, taps: Array) -> Array:
    """x [..., S, D] summed with the rows before each, element by element."""
    x, taps = x.astype(np.float64), taps.astype(np.float64)
    before = [(0, 0)] * (x.ndim - 2)
    padded = np.pad(x, [*before, (len(taps) - 1, 0), (0, 0)])
    found: Array = sum(padded[..., k : k + x.shape[-2], :] * tap for k, tap in enumerate(taps))
    return found


CASES = [
    KernelCase(
        *("causal_conv", "convolution", ("causal_conv",), (*FLOATS, "bias"), _check),
        *(timed("causal_conv", (512, 2048), (3, 2048)), "512×2048, 3 positions", 1e-6),
    )
]
