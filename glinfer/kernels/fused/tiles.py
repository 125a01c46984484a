"""Attention of many new tokens over a cache, several rows in a fragment, and the store of keys and values there.

The rows of one slot are consecutive in one sequence (:mod:`glinfer.kernels.fused.rows`): row n of a slot has position
p + n, where p is the position of its first row. The sequence's keys begin at a cache slot that is a multiple of 16. If
rows see later tokens, they begin at the slot of the sequence's first row, and each block of all slots is in one line.
Rows after the last held position of the sequence are padding; values that only they see count as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.kernels.fused.cached import (
    SLOT_TOKENS,
    Heads,
    check_cache,
    heads_in,
    keys_of,
    queries_of,
    score_slots,
    scores_of,
    sinks_in,
    values_of,
)
from glinfer.kernels.fused.draws import Inputs, block_draw, block_layout
from glinfer.kernels.fused.rows import BASE, LAST, POSITION, X_ROWS, RowInterleaved, gathered, padded, stored_rows
from glinfer.kernels.published.attention import MASKED
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, Shapes, TensorSpec, float64, given, op
from glinfer.quant.formats import GROUP

_OF_SLOTS: dict[str, Any] = {"quad": True, "cells": True, "per_run": (("row_slots", "row_slots"),)}


def tile_scores(
    draw: Pass, queries: RowInterleaved, cache: TensorSpec, rows: TensorSpec, out: RowInterleaved, heads: Heads
) -> DrawSpec:
    """``out[r, t] = scale · q[r] · k[t]`` for each head and every token t that the row sees; -1e30 for others.

    queries [rows, heads.cols] = k | v | q and cache [slots, heads.cols]; out [groups · slots, heads · 64] has group g
    of 64 tokens of the rows of slot s in slot ``row_slots · g + s``. Run values: row_slots, the slots of rows;
    score_slots = groups · row_slots.
    """
    inputs: Inputs = {"x": queries, "cache": cache, "rows": rows}
    defines = [*heads.defines, ("CACHE_SLOTS", cache.shape[0])]
    draw = draw._replace(rows="score_slots")
    return block_draw(draw, "tile_scores", inputs, out, defines, vertex="common/causal.vert", **_OF_SLOTS)


def tile_values(
    draw: Pass,
    scores: RowInterleaved,
    cache: TensorSpec,
    rows: TensorSpec,
    out: RowInterleaved,
    heads: Heads,
    *,
    sinks: TensorSpec | None = None,
    split: bool = False,
) -> DrawSpec:
    """``out[r] = softmax(scores[r]) @ v`` for each head, out [rows, heads · head_floats]; see :func:`tile_scores`.

    The ``sinks`` are those of :func:`glinfer.kernels.fused.cached.cached_values`.

    With ``split`` an instance sums 64 tokens, and blending adds the instances, as in
    :func:`glinfer.kernels.fused.cached.cached_values`. Further run value: score_groups, the groups of the longest row.
    """
    inputs: Inputs = {"x": scores, "cache": cache, "rows": rows, "sinks": sinks}
    defines = [*heads.defines, ("CACHE_SLOTS", cache.shape[0]), *given(SINKS=sinks, PARTS=split)]
    shared: dict[str, Any] = {"instances": "score_groups", "adds": True, "clears": "all"} if split else {}
    return block_draw(draw._replace(rows="row_slots"), "tile_values", inputs, out, defines, **_OF_SLOTS, **shared)


def store_rows(
    draw: Pass,
    x: RowInterleaved,
    cache: TensorSpec,
    rows: TensorSpec | None = None,
    *,
    first: str = "position",
    together: bool = False,
    ring: tuple[int, int] | None = None,
    gated: bool = False,
) -> DrawSpec:
    """``cache[base + position] = x[r]`` for each row, with base and position from the table ``rows``. Run value: rows.

    Columns of x beyond the cache's are not stored. With ``gated`` x is B | C | x as for
    :func:`glinfer.kernels.fused.convolve.short_conv`, and B · x is stored. With ``ring``, its slots and the slots of a
    sequence in the table, the cache has a ring for each sequence. Without the table there is one row, and ``first`` is
    the run value that names its slot.

    ``together`` means that the rows' slots are consecutive from the run value strip_first on; the cache's blocks aside
    are then not written. Of rows together in a ring only the last ones are stored, which fit: ``last.{slots}`` rows
    from row ``first_row.{slots}`` on. For a cache in bytes this draw rounds the numbers; x then also has columns of
    queries, which are not stored.
    """
    factor = [("FACTOR_BLOCK", 2 * blocks_for(cache.shape[1]))] if gated else []
    if rows is None:
        alone = [("STRIP", 0), ("ALONE", 1), *factor]
        return block_draw(draw, "store_row", {"x": x}, cache, alone, shader="store_rows", first=first)
    layout = block_layout(draw.name, cache)
    strip = together and layout.in_one_line and ring is None
    cols = layout.kept_cols if strip and layout.aside else cache.shape[1]
    defines = [("STRIP", int(strip)), *(() if ring is None else zip(("RING", "EVERY"), ring, strict=True))]
    defines += factor
    how: dict[str, Any] = {"cover": "strip"} if strip else {"vertex": "common/rows.vert"}
    how["size"] = draw.rows, cols
    if together and ring is not None:
        defines.append(("LAST_ROWS", 1))
        how |= {"size": (f"last.{ring[0]}", cols), "per_run": (("first_row", f"first_row.{ring[0]}"),)}
    return block_draw(draw, "store_rows", {"x": x, "rows": rows}, cache, defines, **how)


def take_row(draw: Pass, x: RowInterleaved, out: TensorSpec) -> DrawSpec:
    """``out = x[last_row]``, [1, D] in blocks. Run value: last_row."""
    return block_draw(draw, "take_row", {"x": x}, out, per_run=(("row", "last_row"),))


def _check_tiles(shapes: Shapes, params: Params) -> int:
    width = check_cache(shapes, params)
    needed = int(params["row_slots"] * params["ROWS"])
    shapes.require(shapes.rows("rows") >= needed, f"the table has {shapes.rows('rows')} rows; {needed} are run")
    return width


def _check_scores(shapes: Shapes, params: Params) -> None:
    _check_tiles(shapes, params)
    shapes.expect(X_ROWS, None, heads_in(params).cols)
    shapes.expect("output", None, params["HEADS"] * SLOT_TOKENS)


def _check_values(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, _check_tiles(shapes, params))
    shapes.expect(X_ROWS, None, params["HEADS"] * SLOT_TOKENS)
    shapes.expect("sinks", 1, params["HEADS"])


def _check_store(shapes: Shapes, params: Params) -> None:
    cols, needed = shapes.by_name["x0"][1], shapes.by_name["output"][1]
    if "FACTOR_BLOCK" in params:
        cols = needed = 3 * padded(needed)
    shapes.expect(X_ROWS, None, cols)
    # No block, or group of bytes, has both stored and other columns.
    whole = needed % (GROUP if "OUT_SCALES_AT" in params else BLOCK_FLOATS) == 0
    shapes.require(cols == needed or (whole and cols > needed), f"x has {cols} columns; the cache stores {needed}")
    if "rows" not in shapes.by_name:
        shapes.require(params["ROWS"] == 1, f"one row, found {params['ROWS']} textures")


def _rows_of(inputs: Mapping[str, Array], params: Params) -> list[tuple[int, int, int, int]]:
    """(row, position, base, last position) of every row; as in the shaders, the first row of each slot gives them."""
    count, table = int(params["ROWS"]), inputs["rows"].astype(np.intp)
    firsts = table[: int(params["row_slots"]) * count : count]
    return [
        (count * slot + n, int(info[POSITION]) + n, int(info[BASE]), int(info[LAST]))
        for slot, info in enumerate(firsts)
        for n in range(count)
    ]


def _seen(heads: Heads, position: int, held: int, tokens: int) -> slice:
    """Those of ``tokens`` tokens that a row sees, in a sequence that ends with token ``held``."""
    last = min(position if heads.ahead is None else min(position + heads.ahead, held), tokens - 1)
    return heads.seen(min(position, last), last)


def _leave_unwritten(scores: Array, heads: Heads, stop: int, params: Params) -> None:
    """Set scores [groups, heads · 64] from ``stop`` on, which no row of a slot sees, to NaN: the shader skips them."""
    step = 16 if params["QUAD"] else 4
    by_head = scores.reshape(len(scores), heads.count, SLOT_TOKENS)
    tokens = np.arange(len(scores))[:, None] * SLOT_TOKENS + np.arange(SLOT_TOKENS)
    by_head[np.broadcast_to((tokens // step * step >= stop)[:, None], by_head.shape)] = np.nan


def _parts_of_tiles(params: Params) -> Mapping[str, Part]:
    return {"cache": Part(floats=heads_in(params).kv_floats * int(params["strip_first"] + params["rows"]))}


_TILES: dict[str, Any] = {"integers": ("rows",), "either": ("cache",), "parts": _parts_of_tiles}


@op("tile_scores", ("cache", "rows"), X_ROWS, _check_scores, **_TILES)
def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (cache,) = float64(inputs, ["cache"])
    count, row_slots = int(params["ROWS"]), int(params["row_slots"])
    groups = size[0] // row_slots
    heads = heads_in(params)
    queries = queries_of(gathered(inputs, params), heads)
    found = np.full((groups, row_slots * count, size[1]), MASKED)
    for row, position, base, held in _rows_of(inputs, params):
        keys = keys_of(cache[base:], heads)
        seen = _seen(heads, position, held, keys.shape[1])
        padded = max(groups, score_slots(seen.stop))
        found[:, row] = scores_of(queries[:, row], keys, seen, padded, heads)[:groups]
        if heads.ahead is not None:
            reach = _seen(heads, position + count - 1 - row % count, held, keys.shape[1])
            _leave_unwritten(found[:, row], heads, reach.stop, params)
    return found.reshape(-1, size[1])


@op("tile_values", ("cache", "rows"), (*X_ROWS, "sinks"), _check_values, **_TILES)
def _oracle_values(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (cache,) = float64(inputs, ["cache"])
    count, row_slots = int(params["ROWS"]), int(params["row_slots"])
    scores = gathered(inputs, params)
    groups = len(scores) // (row_slots * count)
    scores = scores[: groups * row_slots * count].reshape(groups, row_slots * count, -1)
    heads, found = heads_in(params), np.zeros((row_slots * count, size[1]))
    for row, position, base, held in _rows_of(inputs, params):
        values = keys_of(cache[base:], heads, values=True)
        values[:, held + 1 :] = 0
        seen = _seen(heads, position, held, min(values.shape[1], SLOT_TOKENS * len(scores)))
        found[row] = values_of(scores[: score_slots(seen.stop), row], values, seen, sinks_in(inputs))
    return found


_STORE: dict[str, Any] = {"either": ("output",)}


@op("store_rows", ("rows",), X_ROWS, _check_store, ("rows",), rows_written=stored_rows, **_STORE)
@op("store_row", (), X_ROWS, _check_store, regions=X_ROWS, **_STORE)
def _oracle_store(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x = gathered(inputs, params)[int(params.get("first_row", 0)) :][: size[0]]
    first, start = x[:, : size[1]], BLOCK_FLOATS * int(params.get("FACTOR_BLOCK", 0))
    return np.asarray(first * x[:, start : start + size[1]]) if start else first


def _check_take(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, shapes.by_name["output"][1])
    rows = shapes.rows("x0") * int(params["ROWS"])
    shapes.require(params["row"] < rows, f"there is no row {params['row']} of {rows}")


def _part_read(params: Params) -> Mapping[str, Part]:
    count = int(params["ROWS"])
    return {f"x{number}": Part(int(number == params["row"] % count)) for number in range(count)}


@op("take_row", (), X_ROWS, _check_take, regions=("output",), parts=_part_read)
def _oracle_take(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    return np.asarray(gathered(inputs, params)[int(params["row"])][None])
