"""Short convolutions with a gate, C · conv(B · x), over a ring with B · x of a sequence's newest tokens.

LFM2 (Liquid AI 2025) has them in place of attention. The ring has room for as many tokens as a sequence can be rewound
by, as that of a delta rule (:func:`glinfer.kernels.fused.delta.input_ring`). The op reads rows of :data:`PARTS` parts,
each of whole blocks: B | C | x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.gl.layouts.blocks import blocks_for
from glinfer.kernels.fused.draws import Inputs, block_draw, block_layout, expect_table
from glinfer.kernels.fused.rows import X_ROWS, RowInterleaved, gathered, padded, positions_in
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, Shapes, TensorSpec, float64, op

PARTS = 3


def short_conv(
    draw: Pass,
    x: RowInterleaved,
    inputs: TensorSpec,
    taps: TensorSpec,
    out: RowInterleaved,
    rows: TensorSpec | None = None,
    *,
    length: int,
    every: int,
    together: bool = False,
) -> DrawSpec:
    """``out[r] = C[r] * (bias + Σ over k of taps[k] * u[position - length + 1 + k])``, ``u = B * x``, out [rows, D].

    x [rows, 3 · padded D] = B | C | x; inputs has u of each sequence's newest tokens in a ring, and before its first
    position u is zero. With ``together`` the rows of a slot follow each other in a sequence, and inputs has only the
    tokens before the run; otherwise also the rows' own. taps [length, D] may have one more row, the bias. The table
    ``rows`` has ``every`` slots a sequence; without it there is the token at the run value position alone, in the
    first ring.
    """
    read: Inputs = {"x": x, "taps": expect_table(draw.name, taps), "inputs": inputs, "rows": rows}
    defines = [
        ("RING", block_layout(draw.name, inputs).every),
        ("EVERY", every),
        ("ALONE", int(rows is None)),
        ("TOGETHER", int(together)),
        ("LENGTH", length),
        ("BIASED", taps.shape[0] - length),
        ("GATE_BLOCK", blocks_for(out.cols)),
    ]
    how: dict[str, Any] = {"cells": True} if rows is not None else {"per_run": (("position", "position"),)}
    return block_draw(draw, "short_conv", read, out, defines, **how)


def _check_conv(shapes: Shapes, params: Params) -> None:
    width = shapes.by_name["output"][1]
    shapes.expect(X_ROWS, None, PARTS * padded(width))
    shapes.expect("inputs", None, width)
    shapes.expect("taps", params["LENGTH"] + params["BIASED"], width)


def _parts(params: Params) -> Mapping[str, Part]:
    """The rows of the ring that each token sees, without those of the run itself where these follow each other."""
    rows, length = 1 if params["ALONE"] else int(params["rows"]), int(params["LENGTH"])
    return {"inputs": Part(length - 1 if params["TOGETHER"] else rows * length)}


@op(
    "short_conv",
    ("inputs", "taps"),
    (*X_ROWS, "rows"),
    _check_conv,
    ("rows",),
    regions=(*X_ROWS, "output"),
    parts=_parts,
)
def _oracle_conv(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, length, width = gathered(inputs, params, size[0]), int(params["LENGTH"]), size[1]
    kept, taps = float64(inputs, ["inputs", "taps"])
    b, gates, given = x.reshape(len(x), PARTS, -1)[:, :, :width].transpose(1, 0, 2)
    positions, ring, found = positions_in(inputs, params), int(params["RING"]), np.zeros((len(x), width))
    for row, (position, base) in enumerate(positions[: len(x)]):
        sequence, offset = divmod(base, int(params["EVERY"]))
        sums = taps[length].copy() if params["BIASED"] else np.zeros(width)
        for back in range(min(length - 1, position), -1, -1):
            if params["TOGETHER"] and back <= row and positions[row - back] == (position - back, base):
                seen = b[row - back] * given[row - back]
            else:
                seen = kept[sequence * ring + (offset + position - back) % ring]
            sums += taps[length - 1 - back] * seen
        found[row] = gates[row] * sums
    return found
