"""The choice of the next token on the GPU: the best candidates of a row of logits, with or without noise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BLOCK_TEXELS
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.draws import Inputs, block_draw
from glinfer.kernels.fused.rows import DRAWN, INVERSE_TEMPERATURE, NOISE, NOISE_KEY, X_ROWS, RowInterleaved, gathered
from glinfer.kernels.noise import gumbel_at
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, op


def pick(
    draw: Pass, logits: RowInterleaved, out: TensorSpec, rows: TensorSpec | None = None, *, first: Extent = 0
) -> DrawSpec:
    """The 16 candidates of a block's lanes, (score, id, 0, whether the logit is 0), for each row of logits.

    logits [rows, vocab] and out [slots, 64] are in blocks, and lane n reads the texels n, n + 16, … of the logits. With
    the table ``rows`` each row's candidates are in its slot of out. Without it there is one row, in slot ``first``. Run
    values: noise (0 or 1), inverse_temperature, noise_key.
    """
    vocab = "VOCAB", logits.cols
    if rows is None:
        per_run = tuple((each, each) for each in ("noise", "inverse_temperature", "noise_key"))
        return block_draw(draw, "pick", {"logits": logits.tensors[0]}, out, [vocab], first=first, per_run=per_run)
    inputs: Inputs = {**dict(logits.inputs()), "rows": rows}
    defines = [*logits.layout.defines("LOGITS"), ("ROWS", len(logits.tensors)), vocab]
    return block_draw(draw, "pick_rows", inputs, out, defines, shader="pick")


NO_SCORE = np.float32(-3.4e38)
"""The score of a candidate without any logit that is a number, as in shaders/pick.frag."""


def best_candidates(candidates: Array) -> tuple[Array, Array, Array]:
    """Ids, scores and doubts [n] of the best of the candidates [n, 64] of picks; ties give the lowest id.

    A doubt is 1 if :mod:`glinfer.kernels.fused.choice` leaves the choice to the whole row.
    """
    scores, ids, doubts = candidates[:, ::4], candidates[:, 1::4], candidates[:, 2::4]
    best = scores.max(axis=1)
    among = scores == best[:, None]
    return np.where(among, ids, np.inf).min(axis=1), best, np.where(among, doubts, 0.0).max(axis=1)


def all_zero(candidates: Array) -> Array:
    """Whether the logits of the candidates [n, 64] of picks are 0, as after a draw that the driver dropped; [n]."""
    scores, zero = candidates[:, ::4], candidates[:, 3::4]
    return np.asarray(((zero == 1.0) | (scores == NO_SCORE)).all(axis=1) | ~scores.any(axis=1))


def ordinary(candidates: Array) -> Array:
    """Whether the best scores of the candidates [n, 64] of picks are finite, and their logits are not all 0; [n]."""
    best = candidates[:, ::4].max(axis=1)
    return np.asarray((best > NO_SCORE) & (best < np.inf) & ~all_zero(candidates))


def best_candidate(candidates: Array) -> int:
    """The id of the best of the candidates [64] of one pick."""
    return int(best_candidates(candidates.reshape(1, -1))[0][0])


def unsure(candidates: Array) -> bool:
    """Whether the candidates [64] of one pick leave the choice to the whole row, see :func:`best_candidates`."""
    return bool(best_candidates(candidates.reshape(1, -1))[2][0])


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("logits", 1, params["VOCAB"])
    shapes.expect(X_ROWS, None, params["VOCAB"])
    shapes.expect("output", None, BLOCK_FLOATS)


@op("pick", ("logits",), (), _check, regions=("logits", "output"))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    logits = np.asarray(inputs["logits"])[0]
    return _candidates(logits, bool(params["noise"]), params["inverse_temperature"], int(params["noise_key"]))[None]


def _candidates(logits: Array, noise: bool, inverse_temperature: float, noise_key: int) -> Array:
    """The candidates [64] of one row of logits [vocab]."""
    # In float32 like the shader, because nearly equal scores decide the result.
    scores = logits.astype(np.float32)
    if noise:
        scores = scores * np.float32(inverse_temperature) + gumbel_at(noise_key, np.arange(scores.size))
    ids = np.arange(scores.size)
    lane = (ids // 4) % BLOCK_TEXELS
    found = np.zeros((BLOCK_TEXELS, 4))
    found[:, 0] = NO_SCORE
    for number in range(BLOCK_TEXELS):
        mine = ids[lane == number]
        if mine.size:
            best = mine[np.argmax(scores[mine])]
            found[number] = scores[best], best, 0.0, logits[best] == 0.0
    return found.reshape(-1)


@op("pick_rows", ("rows",), X_ROWS, _check, ("rows",))
def _oracle_rows(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    logits, table = gathered(inputs, params), np.ascontiguousarray(inputs["rows"])
    inverse = table[:, INVERSE_TEMPERATURE].copy().view(np.float32)
    return np.stack(
        [
            _candidates(logits[row], bool(table[row, NOISE] & DRAWN), inverse[row], int(table[row, NOISE_KEY]))
            for row in range(size[0])
        ]
    )
