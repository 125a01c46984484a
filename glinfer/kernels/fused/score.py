"""Log-probabilities of given tokens, without reading the logits back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BLOCK_TEXELS
from glinfer.kernels.fused.draws import Inputs, block_draw
from glinfer.kernels.fused.rows import WANTED, X_ROWS, RowInterleaved, gathered
from glinfer.kernels.fused.sample import NO_SCORE
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, op


def score_rows(draw: Pass, logits: RowInterleaved, rows: TensorSpec, out: RowInterleaved) -> DrawSpec:
    """The 16 parts of 4 numbers that :func:`log_probabilities` needs of each row of logits [rows, vocab].

    The table ``rows`` names each row's wanted token; out [rows, 64] is interleaved as the logits are.
    """
    inputs: Inputs = {"x": logits, "rows": rows}
    return block_draw(draw, "score_rows", inputs, out, [("VOCAB", logits.cols)], cells=True)


class RowScores(NamedTuple):
    """Log-probability of each row's wanted token; the likeliest token, and its log-probability (float64)."""

    wanted: npt.NDArray[np.float64]
    likeliest: npt.NDArray[np.intp]
    best: npt.NDArray[np.float64]


def log_probabilities(parts: Array) -> RowScores:
    """The scores of each row, from a pass's parts [rows, 64]."""
    wide = parts.reshape(len(parts), BLOCK_TEXELS, 4).astype(np.float64)
    largest, total, likeliest, wanted = (wide[:, :, number] for number in range(4))
    top = largest.max(axis=1)
    log_sum = top + np.log((total * np.exp(largest - top[:, None])).sum(axis=1))
    best = np.where(largest == top[:, None], likeliest, np.inf).min(axis=1)
    return RowScores(wanted.max(axis=1) - log_sum, best.astype(np.intp), top - log_sum)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, shapes.rows("output"), params["VOCAB"])
    shapes.expect("output", None, BLOCK_FLOATS)


@op("score_rows", ("rows",), X_ROWS, _check, ("rows",))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    logits = gathered(inputs, params, size[0])
    count = len(logits)
    wanted = inputs["rows"][:count, WANTED]
    parts = np.tile(np.array([NO_SCORE, 0.0, 0.0, NO_SCORE]), (count, BLOCK_TEXELS, 1))
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
    return parts.reshape(count, -1)
