"""Gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Found, KernelCase, integers, normal, result, timed

_PLACES = (5, 13)


def _check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    ids = rng.integers(-1, rows + 1, _PLACES).astype(np.int32)
    ids[0] = rows // 2  # one token many times
    grad = normal(rng, *_PLACES, cols).astype("float16" if form == "float16" else "float32")
    odd = np.array([np.nan, np.inf, -np.inf], dtype=grad.dtype)
    grad = np.where(rng.random(grad.shape) < 0.05, rng.choice(odd, grad.shape), grad)
    sums, counts = expected(ids, grad, rows)
    table = normal(rng, rows, cols)
    into = device.tensor(table) if form.endswith("into") else None
    method = "gather" if form.startswith("gather") else None
    found, added = result(device, "embedding_backward", ids, grad, rows, method=method, into=into)
    return [(found, sums if into is None else table + sums), (added, counts)]


def expected(ids: Array, grad: Array, vocab: int) -> tuple[Array, Array]:
    """Sum the gradients by token in float64; also count the elements in each sum."""
    sums, counts = np.zeros((vocab, grad.shape[-1])), np.zeros((vocab, grad.shape[-1]))
    for token, row in zip(ids.reshape(-1), grad.reshape(-1, grad.shape[-1]).astype(np.float64), strict=True):
        if 0 <= token < vocab:
            sums[token] += np.where(np.isfinite(row), row, 0.0)
            counts[token] += np.isfinite(row)
    return sums, counts


CASES = [
    KernelCase(
        *("embedding_backward", "backward", ("scatter_add", "gather_add", "strided_copy")),
        *((*FLOATS, "into", "gather", "gather into"), _check),
        *(timed("embedding_backward", integers(5256, 512), (512, 512), vocab=5256), "512 of 5256×512"),
    )
]
