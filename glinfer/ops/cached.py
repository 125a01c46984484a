"""Attention of one new token over a cache: scores, then softmax and weighted sum in one pass, all heads at once.

Of one sequence, or of many: then the table of rows (:mod:`glinfer.ops.rows`) has each one's position, and the cache
slot, a multiple of 64, where it begins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.ops.kernels import Kernels
from glinfer.ops.rows import BASE, POSITION, table_layout
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register

SLOT_TOKENS = BLOCK_FLOATS
"""Tokens of one slot of the scores: one block a head."""
MASKED = -1e30


def score_slots(tokens: int) -> int:
    """How many slots of scores so many tokens take."""
    return -(-tokens // SLOT_TOKENS)


def block_layout(name: str, tensor: TensorSpec) -> BlockLayout:
    """The layout of a tensor of draw ``name``.

    Raises:
        PlanError: it does not lie in blocks.
    """
    if not isinstance(tensor.layout, BlockLayout):
        raise PlanError(f"draw {name}: {tensor.name} does not lie in blocks")
    return tensor.layout


def head_defines(name: str, heads: int, head_floats: int, **tensors: TensorSpec) -> list[tuple[str, int | float]]:
    """What attention's shaders are told of the heads, and of tensors in blocks by their prefix.

    Raises:
        PlanError: a head is no whole number of quads, or a tensor does not lie in blocks.
    """
    if head_floats % 16:
        raise PlanError(f"draw {name}: a head of {head_floats} floats; expected whole quads of 16, padded with zeros")
    defines: list[tuple[str, int | float]] = [("HEADS", heads), ("HEAD_TEXELS", head_floats // 4)]
    for prefix, tensor in tensors.items():
        defines += block_layout(name, tensor).defines(prefix)
    return defines


def cached_scores(
    name: str,
    cache: TensorSpec,
    out: TensorSpec,
    *,
    heads: int,
    head_floats: int,
    kernels: Kernels,
    rows: TensorSpec | None = None,
) -> DrawSpec:
    """``out[t] = q[position] · k[t]`` for each head and every token t up to position; -1e30 after it.

    cache [positions, 3 · heads · head_floats] = q | k | v, the query already scaled; out [slots, heads · 64], a slot
    64 tokens of each head. Run values: position, score_slots.

    With the table ``rows``, of each of its rows: group g of 64 tokens of row r in slot ``rows · g + r`` of out. Run
    value: score_slots, of all rows together.
    """
    many = rows is not None
    return DrawSpec(
        name=name,
        kind="attn.scores",
        op="row_scores" if many else "cached_scores",
        inputs=(("cache", cache.name), *_table(rows)),
        outputs=(out.name,),
        size=("score_slots", out.shape[1]),
        defines=(
            *head_defines(name, heads, head_floats, CACHE=cache, OUT=out),
            *_many(rows),
            ("QUAD", int(kernels.quad)),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ),
        per_run=() if many else (("position", "position"),),
        cover=kernels.cover,
        shader="cached_scores",
    )


def cached_values(
    name: str,
    scores: TensorSpec,
    cache: TensorSpec,
    out: TensorSpec,
    *,
    heads: int,
    head_floats: int,
    kernels: Kernels,
    rows: TensorSpec | None = None,
) -> DrawSpec:
    """``out = softmax(scores) @ v`` for each head, [1, heads · head_floats]; see :func:`cached_scores`.

    With ``kernels.split_values`` an instance takes 64 tokens, and blending adds the instances up.

    With the table ``rows``, of each of its rows: out [rows, heads · head_floats]. Run value: groups, the most that one
    row has.
    """
    many = rows is not None
    parts: list[tuple[str, int | float]] = [("PARTS", 1)] if kernels.split_values else []
    return DrawSpec(
        name=name,
        kind="attn.values",
        op="row_values" if many else "cached_values",
        inputs=(("scores", scores.name), ("cache", cache.name), *_table(rows)),
        outputs=(out.name,),
        size=(rows.shape[0] if rows is not None else 1, out.shape[1]),
        defines=(
            *head_defines(name, heads, head_floats, SCORES=scores, CACHE=cache, OUT=out),
            *_many(rows),
            *parts,
            ("QUAD", int(kernels.quad)),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ),
        per_run=() if many else (("position", "position"),),
        cover=kernels.cover,
        instances=("groups" if many else "score_slots") if parts else 1,
        clears=bool(parts),
        adds=bool(parts),
        shader="cached_values",
    )


def _table(rows: TensorSpec | None) -> list[tuple[str, str]]:
    return [] if rows is None else [("rows", rows.name)]


def _many(rows: TensorSpec | None) -> list[tuple[str, int]]:
    return [] if rows is None else [("MANY", rows.shape[0]), *table_layout(rows).defines("ROWS")]


def check_cache(shapes: Shapes, params: Params) -> int:
    """Require a cache of queries, keys and values; the floats of all heads together."""
    width = int(params["HEADS"] * params["HEAD_TEXELS"] * 4)
    shapes.expect("cache", None, 3 * width)
    # Whole slots of tokens are read, whatever the position.
    shapes.require(shapes.rows("cache") % SLOT_TOKENS == 0, f"the cache has {shapes.rows('cache')} rows")
    return width


def _check_position(shapes: Shapes, params: Params) -> int:
    width = check_cache(shapes, params)
    shapes.require(params["position"] < shapes.rows("cache"), f"position {params['position']} is outside the cache")
    return width


def _check_scores(shapes: Shapes, params: Params) -> None:
    _check_position(shapes, params)
    shapes.expect("output", shapes.rows("cache") // SLOT_TOKENS, params["HEADS"] * SLOT_TOKENS)


def _check_values(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", 1, _check_position(shapes, params))
    shapes.expect("scores", shapes.rows("cache") // SLOT_TOKENS, params["HEADS"] * SLOT_TOKENS)


def heads_of(cache: Array, params: Params, part: int) -> Array:
    """For an oracle: [heads, positions, head_floats] of the queries (part 0), keys (1) or values (2)."""
    heads, floats = int(params["HEADS"]), int(params["HEAD_TEXELS"]) * 4
    columns = cache[:, part * heads * floats : (part + 1) * heads * floats]
    return np.asarray(columns.reshape(cache.shape[0], heads, floats).transpose(1, 0, 2))


def scores_of(queries: Array, keys: Array, position: int, slots: int) -> Array:
    """For an oracle: one query's scores [slots, heads · 64]; queries [heads, floats], keys [heads, tokens, floats]."""
    heads = len(queries)
    padded = np.full((heads, slots * SLOT_TOKENS), MASKED)
    padded[:, : position + 1] = np.einsum("hd,htd->ht", queries, keys[:, : position + 1])
    return padded.reshape(heads, slots, SLOT_TOKENS).transpose(1, 0, 2).reshape(slots, -1)


def values_of(scores: Array, values: Array, position: int) -> Array:
    """For an oracle: one query's weighted sum [heads · floats]; scores [slots, heads · 64], values like keys."""
    heads = len(values)
    by_head = scores.reshape(len(scores), heads, SLOT_TOKENS).transpose(1, 0, 2).reshape(heads, -1)[:, : position + 1]
    weights = np.exp(by_head - by_head.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("ht,htd->hd", weights, values[:, : position + 1]).reshape(-1))


def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (cache,) = float64(inputs, ["cache"])
    position = int(params["position"])
    return scores_of(heads_of(cache, params, 0)[:, position], heads_of(cache, params, 1), position, size[0])


def _oracle_values(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    cache, scores = float64(inputs, ["cache", "scores"])
    position = int(params["position"])
    used = scores[: score_slots(position + 1)]
    return values_of(used, heads_of(cache, params, 2), position)[None]


def _check_row_scores(shapes: Shapes, params: Params) -> None:
    _check_rows(shapes, params)
    groups = shapes.rows("output") // int(params["MANY"])
    shapes.expect("output", groups * params["MANY"], params["HEADS"] * SLOT_TOKENS)


def _check_row_values(shapes: Shapes, params: Params) -> None:
    width = _check_rows(shapes, params)
    shapes.expect("output", params["MANY"], width)
    shapes.expect("scores", None, params["HEADS"] * SLOT_TOKENS)


def _check_rows(shapes: Shapes, params: Params) -> int:
    width = check_cache(shapes, params)
    shapes.expect("rows", params["MANY"], None)
    return width


def _oracle_row_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (cache,) = float64(inputs, ["cache"])
    rows, groups = int(params["MANY"]), size[0] // int(params["MANY"])
    found = np.full((groups, rows, size[1]), MASKED)
    for row, info in enumerate(inputs["rows"].astype(np.intp)):
        position, own = info[POSITION], cache[info[BASE] :]
        found[:, row] = scores_of(
            heads_of(own, params, 0)[:, position], heads_of(own, params, 1), position, max(groups, position // 64 + 1)
        )[:groups]
    return found.reshape(size)


def _oracle_row_values(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    cache, scores = float64(inputs, ["cache", "scores"])
    found = np.zeros(size)
    for row, info in enumerate(inputs["rows"].astype(np.intp)):
        position = info[POSITION]
        own = scores[row :: int(params["MANY"])][: score_slots(position + 1)]
        found[row] = values_of(own, heads_of(cache[info[BASE] :], params, 2), position)
    return found


register(Op("cached_scores", ("cache",), (), _check_scores, _oracle_scores))
register(Op("cached_values", ("scores", "cache"), (), _check_values, _oracle_values))
register(Op("row_scores", ("cache", "rows"), (), _check_row_scores, _oracle_row_scores, ("rows",)))
register(Op("row_values", ("scores", "cache", "rows"), (), _check_row_values, _oracle_row_values, ("rows",)))
