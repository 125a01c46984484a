"""How likely the tokens are that really came: log-probabilities without reading the logits back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BLOCK_TEXELS
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.fused.rows import (
    WANTED,
    RowInterleaved,
    check_same,
    deinterleaved,
    gathered,
    optional_names,
    table_layout,
)
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, register

LEAST = np.float32(-3.4e38)


def score_rows(
    name: str,
    logits: RowInterleaved,
    rows: TensorSpec,
    out: RowInterleaved,
    *,
    vocab: int,
    slots: Extent,
    kernels: KernelOptions,
) -> DrawSpec:
    """Of each row of logits [rows, vocab] what :func:`log_probabilities` needs, 16 parts of 4 numbers.

    The table rows says whose likelihood is asked for; out [rows, 64] is dealt as the logits are.
    """
    return DrawSpec(
        name=name,
        kind="score",
        op="score_rows",
        inputs=(*logits.inputs(), ("rows", rows.name)),
        outputs=out.names,
        size=(slots, out.cols),
        defines=(
            *logits.layout.defines("X"),
            *table_layout(rows).defines("ROWS"),
            *out.layout.defines("OUT"),
            ("ROWS", len(out.tensors)),
            ("VOCAB", vocab),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
            ("QUAD", 0),
        ),
        cover=kernels.cover,
        largest_cell=kernels.largest_cell,
    )


def log_probabilities(parts: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp]]:
    """(log-probability of the wanted token, likeliest token) of each row, out of what a pass has left [rows, 64]."""
    wide = parts.reshape(len(parts), BLOCK_TEXELS, 4).astype(np.float64)
    largest, total, likeliest, wanted = (wide[:, :, number] for number in range(4))
    top = largest.max(axis=1)
    log_sum = top + np.log((total * np.exp(largest - top[:, None])).sum(axis=1))
    best = np.where(largest == top[:, None], likeliest, np.inf).min(axis=1)
    return wanted.max(axis=1) - log_sum, best.astype(np.intp)


def _check(shapes: Shapes, params: Params) -> None:
    check_same(shapes, params, shapes.rows("output"), params["VOCAB"])
    shapes.expect("output", None, BLOCK_FLOATS)


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    count = size[0] * int(params["ROWS"])
    logits, wanted = gathered(inputs, int(params["ROWS"]))[:count], inputs["rows"][:count, WANTED]
    parts = np.tile(np.array([LEAST, 0.0, 0.0, LEAST]), (count, BLOCK_TEXELS, 1))
    ids = np.arange(logits.shape[1])
    for lane in range(BLOCK_TEXELS):
        mine = ids[(ids // 4) % BLOCK_TEXELS == lane]
        if not mine.size:
            continue
        largest = logits[:, mine].max(axis=1)
        parts[:, lane, 0] = largest
        parts[:, lane, 1] = np.exp(logits[:, mine] - largest[:, None]).sum(axis=1)
        parts[:, lane, 2] = mine[logits[:, mine].argmax(axis=1)]
        has = np.isin(wanted, mine)
        parts[has, lane, 3] = logits[has, wanted[has].astype(np.intp)]
    return deinterleaved(parts.reshape(count, -1), int(params["ROWS"]))


register(Op("score_rows", ("rows",), optional_names(), _check, _oracle, ("rows",)))
