"""The largest elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Found, KernelCase, normal, result, timed

_FEW = 8


def _check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x = normal(rng, rows, cols)
    k = min(_FEW, cols)
    if form == "sort":
        k, x = cols, with_ties(rng, x)
    x = x.astype("float16" if form == "float16" else "float32")
    values, indices = expected(x, k)
    largest, places = result(device, "top_k", x, k)
    return [(largest, values), (places, indices)]


def with_ties(rng: np.random.Generator, x: Array) -> Array:
    """Round ``x`` to tenths, so that many are equal; a tenth becomes zeros of both signs, infinities and NaN."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], dtype=np.float32)
    return np.where(rng.random(x.shape) < 0.1, rng.choice(special, x.shape), np.round(x, 1))


def expected(x: Array, k: int) -> tuple[Array, Array]:
    """The k largest of each row and their columns: NaN first, then the largest, then the lowest column."""
    wide = x.astype(np.float64)
    unknown = np.isnan(wide)
    falling = np.where(unknown, 0.0, -wide)
    order = np.lexsort((np.broadcast_to(np.arange(x.shape[-1]), x.shape), falling, ~unknown), axis=-1)[..., :k]
    return np.take_along_axis(wide, order, axis=-1), order.astype(np.float64)


CASES = [
    KernelCase(
        *("top_k", "sorting", ("sort_chunks", "merge_sorted", "sorted_pairs"), (*FLOATS, "sort"), _check),
        *(timed("top_k", (32, 32000), k=40), "40 of 32×32000", 0.0),
    )
]
