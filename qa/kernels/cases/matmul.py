"""Products of matrices, by every strategy and over weights of every format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glinfer.kernels.flat.product import STRATEGIES
from glinfer.kernels.published.linear import ACTIVATIONS, activate
from glinfer.kernels.spec import Array
from glinfer.quant.formats import BLOCK_FORMATS
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Found, KernelCase, normal, result, timed
from qa.kernels.cases.embedding import table_of, whole_blocks

_MAX_WEIGHTS, _MAX_RESULTS = 200_000, 300_000
_FEWEST_ROWS = {"packed": 2}
_MOST_ROWS = {"matvec": 1}


def columns_for(rows: int, sums_over: int) -> int:
    """Columns of a product: about as many as rows, with few enough weights and results to make them quickly."""
    return max(1, min(rows + 2, _MAX_WEIGHTS // sums_over, 1 + _MAX_RESULTS // rows))


def _check_matmul(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    m = min(max(rows, _FEWEST_ROWS.get(form, 1)), _MOST_ROWS.get(form, rows + 1))
    n, k = columns_for(rows, cols), cols
    strategy = form if form in STRATEGIES else None
    if strategy == "split_k" and not device.blends_floats:
        return []
    dtype = form if form in FLOATS else "float32"
    x, y = normal(rng, m, k).astype(dtype), normal(rng, k, n).astype(dtype)
    bias = normal(rng, n)
    expected = x.astype(np.float64) @ y.astype(np.float64)
    finished = activate(expected + bias, ACTIVATIONS["gelu"]) + expected
    product = result(device, "matmul", x, y, strategy=strategy)
    with device.tensor(expected.astype(np.float32)) as residual, device.tensor(bias) as added:
        finish: dict[str, Any] = {"bias": added, "activation": "gelu", "residual": residual}
        whole = result(device, "matmul", x, y, strategy=strategy, **finish)
    return [(product, expected), (whole, finished)]


def _check_dot(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    n = min(columns_for(rows, 6 * cols), 1 + _MAX_WEIGHTS // (12 * rows))
    shapes = [
        ((2, rows, cols), (3, 2, cols, n)),
        ((rows, cols), (cols,)),
        ((cols,), (2, cols, n)),
        ((cols,), (cols,)),
        ((), (rows, cols)),
    ]
    found = []
    for shape_x, shape_y in shapes:
        x, y = normal(rng, *shape_x).astype(form), normal(rng, *shape_y).astype(form)
        found.append((result(device, "dot", x, y), np.asarray(np.dot(x.astype(np.float64), y.astype(np.float64)))))
    x, y = normal(rng, 2, 1, rows, cols).astype(form), normal(rng, 3, cols, n).astype(form)
    return [*found, (result(device, "matmul", x, y), x.astype(np.float64) @ y.astype(np.float64))]


def _check_linear(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    k = whole_blocks(form, cols)
    n = columns_for(rows, k)
    weight, floats = table_of(device, rng, n, k, form)
    found: list[tuple[Array, Array]] = []
    # Beside the usual strategy, by turns: another for one row or for many. Over the shapes each format meets all four.
    turn = (rows + cols) % 4
    with weight:
        for m in sorted({1, rows}):
            x, bias = normal(rng, m, k), normal(rng, n)
            expected = x.astype(np.float64) @ floats.T + bias
            with device.tensor(bias) as added:
                for strategy in (None, *[("small", "reduce")[turn % 2]] * ((m == 1) == (turn < 2))):
                    found.append((result(device, "linear", x, weight, bias=added, strategy=strategy), expected))
    return found


_PRODUCT = ("matmul", "matvec", "finish")
CASES = [
    KernelCase(
        *("matmul", "product", _PRODUCT, (*FLOATS, *STRATEGIES), _check_matmul),
        *(timed("matmul", (512, 512), (512, 512)), "512×512 · 512×512"),
    ),
    KernelCase(
        *("dot", "product", (*_PRODUCT, "arithmetic", "repack", "strided_copy"), FLOATS, _check_dot),
        *(timed("dot", (64, 512), (4, 512, 128)), "64×512 · 4×512×128"),
    ),
    KernelCase(
        *("linear", "product", _PRODUCT, (*FLOATS, *BLOCK_FORMATS), _check_linear),
        timed("linear", (1, 2048), lambda device, rng: table_of(device, rng, 2048, 2048, "Q4_K")[0]),
        "1×2048 · 2048×2048 of Q4_K",
    ),
]
