"""Short convolutions with a gate, C · conv(B · x), over a cache that has B · x of every position of a sequence.

LFM2 (Liquid AI 2025) has them in place of attention. llama.cpp and transformers keep only the last rows of B · x of a
sequence. Here a cache keeps all of them, like keys and values, and a token's position selects those that it sees. So
sequences are copied, rewound, shared and drafted by the same rules. The ops read rows of :data:`PARTS` parts, each of
whole blocks: B | C | x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.gl.layouts.blocks import blocks_for
from glinfer.kernels.fused.dense import half_defines
from glinfer.kernels.fused.draws import Inputs, block_draw, block_layout, expect_table
from glinfer.kernels.fused.rows import X_ROWS, RowInterleaved, gathered, padded, places_in, stored_places
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, Shapes, TensorSpec, float64, op

PARTS = 3


def store_gated(
    draw: Pass, x: RowInterleaved, cache: TensorSpec, rows: TensorSpec | None = None, *, together: bool = False
) -> DrawSpec:
    """``cache[base + position] = B[r] * x[r]`` for each row, with base and position from the table ``rows``.

    x [rows, 3 · padded D] = B | C | x, cache [slots, D]. Without the table there is one row, of the token at the run
    value position, in a sequence that begins in the first slot. Run value: rows, or position. For ``together`` see
    :func:`glinfer.kernels.fused.tiles.store_rows`.
    """
    layout = block_layout(draw.name, cache)
    strip = together and layout.in_one_line
    defines = [*half_defines(layout), ("STRIP", int(strip)), ("FACTOR_BLOCK", 2 * blocks_for(cache.shape[1]))]
    how: dict[str, Any] = {"shader": "store_rows"}
    if rows is None:
        defines.append(("ALONE", 1))
        return block_draw(draw, "store_gated_row", {"x": x}, cache, defines, first="position", **how)
    how |= {"cover": "strip"} if strip else {"vertex": "common/rows.vert"}
    return block_draw(draw, "store_gated", {"x": x, "rows": rows}, cache, defines, **how)


def short_conv(
    draw: Pass,
    x: RowInterleaved,
    cache: TensorSpec,
    taps: TensorSpec,
    out: RowInterleaved,
    rows: TensorSpec | None = None,
    *,
    length: int,
) -> DrawSpec:
    """``out[r] = C[r] * (bias + Σ over k of taps[k] * cache[base + position - length + 1 + k])``, out [rows, D].

    x and cache are as in :func:`store_gated`; a sequence has zeros before its first position. taps [length, D] may have
    one more row, the bias. Without the table ``rows`` there is the token at the run value position alone, in a sequence
    that begins in the first slot.
    """
    inputs: Inputs = {"x": x, "cache": cache, "taps": expect_table(draw.name, taps), "rows": rows}
    defines = [
        ("CACHE_SLOTS", cache.shape[0]),
        ("ALONE", int(rows is None)),
        ("LENGTH", length),
        ("BIASED", taps.shape[0] - length),
        ("GATE_BLOCK", blocks_for(out.cols)),
    ]
    how: dict[str, Any] = {"cells": True} if rows is not None else {"per_run": (("position", "position"),)}
    return block_draw(draw, "short_conv", inputs, out, defines, **how)


def _check_store(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, PARTS * padded(shapes.by_name["output"][1]))
    if "rows" not in shapes.by_name:
        shapes.require(params["ROWS"] == 1, f"found {params['ROWS']} textures; expected one row")


@op("store_gated_row", (), X_ROWS, _check_store, regions=X_ROWS)
@op("store_gated", ("rows",), X_ROWS, _check_store, ("rows",), places=stored_places)
def _oracle_store(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x = gathered(inputs, params)[: size[0]]
    start = 2 * padded(size[1])
    return np.asarray(x[:, : size[1]] * x[:, start : start + size[1]])


def _check_conv(shapes: Shapes, params: Params) -> None:
    width = shapes.by_name["output"][1]
    shapes.expect(X_ROWS, None, PARTS * padded(width))
    shapes.expect("cache", None, width)
    shapes.expect("taps", params["LENGTH"] + params["BIASED"], width)
    if params["ALONE"]:
        shapes.require(params["position"] < shapes.rows("cache"), f"position {params['position']} is outside the cache")


def _parts(params: Params) -> Mapping[str, Part]:
    """The rows of the cache that each token sees; consecutive tokens share rows."""
    rows, length = 1 if params["ALONE"] else int(params["rows"]), int(params["LENGTH"])
    together = "strip_first" in params or rows == 1
    return {"cache": Part(rows + length - 1 if together else rows * length)}


@op(
    "short_conv",
    ("cache", "taps"),
    (*X_ROWS, "rows"),
    _check_conv,
    ("rows",),
    regions=(*X_ROWS, "output"),
    parts=_parts,
)
def _oracle_conv(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, length, width = gathered(inputs, params, size[0]), int(params["LENGTH"]), size[1]
    cache, taps = float64(inputs, ["cache", "taps"])
    gates = x[:, padded(width) :][:, :width]
    found = np.zeros((len(x), width))
    for row, (position, base) in enumerate(places_in(inputs, params)[: len(x)]):
        sums = taps[length].copy() if params["BIASED"] else np.zeros(width)
        for k in range(max(0, length - 1 - position), length):
            sums += taps[k] * cache[min(base + position - length + 1 + k, len(cache) - 1)]
        found[row] = gates[row] * sums
    return found
