"""Attention of one new token over a cache, all heads at once: scores, then softmax and weighted sum in one pass.

It serves one sequence or many. For many, the table of rows (:mod:`glinfer.kernels.fused.rows`) gives the position of
each sequence's token, and the cache slot, a multiple of 64, at which the sequence begins.

A cache in bytes (:mod:`glinfer.quant.bytes`) has only keys and values; the queries stay in the tensor that they were
computed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw
from glinfer.kernels.fused.rows import padded, positions_in
from glinfer.kernels.published.attention import MASKED
from glinfer.kernels.published.linear import soft_cap
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, Shapes, TensorSpec, float64, given, op

SLOT_TOKENS = BLOCK_FLOATS
"""Tokens of one slot of the scores, which holds one block a head."""


def score_slots(tokens: int) -> int:
    """Slots of scores for ``tokens`` tokens."""
    return -(-tokens // SLOT_TOKENS)


@dataclass(frozen=True)
class Heads:
    """The heads of one layer in a row of its cache: keys, then values, and from the next whole block on the queries.

    Attributes:
        count: heads of queries.
        kv: heads of keys and values; each serves the same number of query heads.
        floats: floats of one head with its padding, a multiple of 16.
        scale: factor of the scores.
        window: positions that a token sees, its own included; 0 for all.
        cap: bound c of the scaled scores, c · tanh(score / c); 0 for none.
        ahead: positions after its own that a token sees, in passes over many rows; None in a causal model.
    """

    count: int
    kv: int
    floats: int
    scale: float = 1.0
    window: int = 0
    cap: float = 0.0
    ahead: int | None = None

    def __post_init__(self) -> None:
        """Refuse heads that the shaders cannot compute."""
        if self.floats % 16:
            raise PlanError(f"a head of {self.floats} floats; expected whole quads of 16, padded with zeros")
        if self.kv < 1 or self.count % self.kv:
            raise PlanError(f"{self.count} heads of queries cannot share {self.kv} of keys")

    @property
    def kv_floats(self) -> int:
        """Floats of all keys, or of all values."""
        return self.kv * self.floats

    @property
    def queries_at(self) -> int:
        """The first float of the queries, at the beginning of a block."""
        return padded(2 * self.kv_floats)

    @property
    def width(self) -> int:
        """Floats of all queries."""
        return self.count * self.floats

    @property
    def cols(self) -> int:
        """Floats of a row."""
        return self.queries_at + self.width

    @property
    def aside(self) -> int:
        """Blocks of queries, which a cache keeps only for the last token."""
        return blocks_for(self.width)

    def seen(self, position: int, last: int | None = None) -> slice:
        """The tokens that the query at a position sees, up to ``last``, by default its own."""
        first = max(0, position + 1 - self.window) if self.window else 0
        return slice(first, (position if last is None else last) + 1)

    @property
    def defines(self) -> Defines:
        """The defines of the heads for attention's shaders."""
        return [
            ("HEADS", self.count),
            ("KV_HEADS", self.kv),
            ("HEAD_TEXELS", self.floats // 4),
            ("QUERY_AT", self.queries_at // 4),
            ("SCORE_SCALE", float(self.scale)),
            ("WINDOW", self.window),
            *given(SCORE_CAP=float(self.cap)),
            *([] if self.ahead is None else [("AHEAD", self.ahead)]),
        ]


def cached_scores(
    draw: Pass,
    cache: TensorSpec,
    out: TensorSpec,
    heads: Heads,
    *,
    rows: TensorSpec | None = None,
    queries: TensorSpec | None = None,
    stats: TensorSpec | None = None,
) -> DrawSpec:
    """``out[t] = scale · q[position] · k[t]`` for each head and every token t that it sees; -1e30 for all others.

    cache [positions, heads.cols] = k | v | q; out [slots, heads · 64], where a slot has 64 tokens of each head. Run
    values: position, score_slots.

    With the table ``rows`` it is computed for each row, and group g of 64 tokens of row r is in slot ``rows · g + r``
    of out. Run value: score_slots, of all rows together.

    A cache in bytes is k | v and needs ``queries`` [rows, heads.cols] = k | v | q, of one row without the table. The
    cache of another layer needs them too.

    ``stats``, like out, gets of each 16 tokens the largest score and the sum of exp(score - largest), in each texel.
    """
    op, defines, how = _one_or_many("row_scores", "cached_scores", heads, rows)
    inputs: Inputs = {"cache": cache, "queries": queries, "rows": rows}
    defines += given(STATS=stats)
    outputs = [out] if stats is None else [out, stats]
    return block_draw(draw._replace(rows="score_slots"), op, inputs, outputs, defines, **how)


def cached_values(
    draw: Pass,
    scores: TensorSpec,
    cache: TensorSpec,
    out: TensorSpec,
    heads: Heads,
    *,
    rows: TensorSpec | None = None,
    sinks: TensorSpec | None = None,
    stats: TensorSpec | None = None,
) -> DrawSpec:
    """``out = softmax(scores) @ v`` for each head, [1, heads · head_floats]; see :func:`cached_scores`.

    ``sinks`` [1, heads] adds a logit without a value to the softmax of each head.

    With the kernels' ``split_values`` an instance sums 64 tokens, and blending adds the instances. ``stats`` of
    :func:`cached_scores` then spare each instance the search for the largest of all scores.

    With the table ``rows`` it is computed for each row, and out is [rows, heads · head_floats]. Many rows are not
    split: each instance would search for the largest score again, and several rows give enough fragments.
    """
    op, defines, how = _one_or_many("row_values", "cached_values", heads, rows)
    inputs: Inputs = {"scores": scores, "cache": cache, "rows": rows, "sinks": sinks, "stats": stats}
    count = 1 if rows is None else rows.shape[0]
    split = draw.kernels.split_values and rows is None
    defines += given(SINKS=sinks, STATS=stats, PARTS=split)
    if split:
        how |= {"instances": "score_slots", "clears": "all", "adds": True}
    return block_draw(draw._replace(rows=count), op, inputs, out, defines, **how)


def _one_or_many(many: str, one: str, heads: Heads, rows: TensorSpec | None) -> tuple[str, Defines, dict[str, Any]]:
    """The op for many rows or for one, and the defines and further settings of its draw."""
    how: dict[str, Any] = {"quad": True, "shader": one}
    if rows is None:
        return one, heads.defines, {**how, "per_run": (("position", "position"),)}
    return many, [*heads.defines, ("MANY", rows.shape[0])], how


def sinks_in(inputs: Mapping[str, Array]) -> Array | None:
    """For an oracle: the sinks [heads] of a draw, float64, or None."""
    return inputs["sinks"][0].astype(np.float64) if "sinks" in inputs else None


def heads_in(params: Params) -> Heads:
    """The heads, from a draw's defines."""
    texels = int(params["HEAD_TEXELS"])
    ahead = int(params["AHEAD"]) if "AHEAD" in params else None
    return Heads(
        int(params["HEADS"]),
        int(params["KV_HEADS"]),
        4 * texels,
        float(params["SCORE_SCALE"]),
        int(params["WINDOW"]),
        float(params.get("SCORE_CAP", 0.0)),
        ahead,
    )


def in_bytes(params: Params) -> bool:
    """Whether the cache of a draw is in bytes with scales."""
    return "CACHE_SCALES_AT" in params


def check_cache(shapes: Shapes, params: Params) -> int:
    """Require a cache of keys, values and, unless in bytes, queries; returns the floats of all query heads."""
    heads = heads_in(params)
    shapes.expect("cache", None, heads.queries_at if in_bytes(params) else heads.cols)
    # Whole slots of tokens are read, whatever the position.
    shapes.require(shapes.rows("cache") % SLOT_TOKENS == 0, f"the cache has {shapes.rows('cache')} rows")
    return heads.width


def _check_rows(shapes: Shapes, params: Params) -> int:
    """Require a cache, and rows at positions in it; returns the floats of all query heads."""
    position = 0 if "MANY" in params else params["position"]
    shapes.require(position < shapes.rows("cache"), f"position {position} is outside the cache")
    shapes.expect("rows", params.get("MANY"), None)
    return check_cache(shapes, params)


def _check_scores(shapes: Shapes, params: Params) -> None:
    _check_rows(shapes, params)
    many, slots = int(params.get("MANY", 0)), shapes.rows("cache") // SLOT_TOKENS
    shapes.expect("output", shapes.rows("output") // many * many if many else slots, params["HEADS"] * SLOT_TOKENS)
    shapes.expect("queries", many or 1, heads_in(params).cols)
    shapes.require("queries" in shapes.by_name or not in_bytes(params), "queries must be given for a cache in bytes")
    shapes.require("STATS" not in params or bool(params["QUAD"]), "quads give the statistics, but they share nothing")


def _check_values(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", params.get("MANY", 1), _check_rows(shapes, params))
    shapes.expect("sinks", 1, params["HEADS"])
    slots = None if "MANY" in params else shapes.rows("cache") // SLOT_TOKENS
    shapes.expect(("scores", "stats"), slots, params["HEADS"] * SLOT_TOKENS)


def queries_of(rows: Array, heads: Heads) -> Array:
    """For an oracle: [heads, rows, floats]."""
    columns = rows[:, heads.queries_at : heads.queries_at + heads.width]
    return np.asarray(columns.reshape(len(rows), heads.count, heads.floats).transpose(1, 0, 2))


def keys_of(rows: Array, heads: Heads, *, values: bool = False) -> Array:
    """For an oracle: the keys, or values, that each head of queries sees, [heads, rows, floats]."""
    columns = rows[:, heads.kv_floats * values :][:, : heads.kv_floats]
    apart = columns.reshape(len(rows), heads.kv, heads.floats).transpose(1, 0, 2)
    return np.asarray(np.repeat(apart, heads.count // heads.kv, axis=0))


def scores_of(queries: Array, keys: Array, seen: slice, slots: int, heads: Heads) -> Array:
    """For an oracle: one query's scores [slots, heads · 64]; queries [heads, floats], keys [heads, tokens, floats]."""
    whole = np.full((heads.count, slots * SLOT_TOKENS), MASKED)
    found = heads.scale * np.einsum("hd,htd->ht", queries, keys[:, seen])
    whole[:, seen] = soft_cap(found, heads.cap) if heads.cap else found
    return whole.reshape(heads.count, slots, SLOT_TOKENS).transpose(1, 0, 2).reshape(slots, -1)


def values_of(scores: Array, values: Array, seen: slice, sinks: Array | None) -> Array:
    """For an oracle: one query's weighted sum [heads · floats]; scores [slots, heads · 64], values like keys.

    ``sinks`` [heads] are logits without values.
    """
    heads = len(values)
    by_head = scores.reshape(len(scores), heads, SLOT_TOKENS).transpose(1, 0, 2).reshape(heads, -1)[:, seen]
    logits = by_head if sinks is None else np.concatenate([by_head, sinks[:, None]], axis=1)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights = (weights / weights.sum(axis=1, keepdims=True))[:, : by_head.shape[1]]
    return np.asarray(np.einsum("ht,htd->hd", weights, values[:, seen]).reshape(-1))


def stats_of(scores: Array) -> Array:
    """For an oracle: of each 16 scores the largest, the sum of exp(score - largest) and two zeros, four times."""
    groups = scores.reshape(-1, 16)
    peaks = groups.max(axis=1)
    found = np.zeros((len(groups), 4, 4))
    found[:, :, 0] = peaks[:, None]
    found[:, :, 1] = np.exp(groups - peaks[:, None]).sum(axis=1)[:, None]
    return found.reshape(scores.shape)


def _parts_of_values(params: Params) -> Mapping[str, Part]:
    heads, tokens = heads_in(params), int(params["position"]) + 1
    return {"cache": Part(floats=heads.kv_floats * min(tokens, heads.window or tokens))}


def _parts_of_scores(params: Params) -> Mapping[str, Part]:
    """The keys, which are as many as the values, and the token's queries if they are in the cache."""
    beside = 0 if in_bytes(params) else heads_in(params).width
    return {"cache": Part(floats=_parts_of_values(params)["cache"].floats + beside)}


_CACHE: dict[str, Any] = {"either": ("cache",)}
_ONE_SCORES: dict[str, Any] = {**_CACHE, "regions": ("queries", "output"), "parts": _parts_of_scores}
_ONE_VALUES: dict[str, Any] = {**_CACHE, "regions": ("scores", "output"), "parts": _parts_of_values}


@op("cached_scores", ("cache",), ("queries",), _check_scores, **_ONE_SCORES)
@op("row_scores", ("cache", "rows"), ("queries",), _check_scores, ("rows",), **_CACHE)
def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (cache,), heads, rows = float64(inputs, ["cache"]), heads_in(params), positions_in(inputs, params)
    groups = size[0] // len(rows)
    found = np.full((groups, len(rows), size[1]), MASKED)
    for row, (position, base) in enumerate(rows):
        own, slots = cache[base:], max(groups, score_slots(position + 1))
        asked = float64(inputs, ["queries"])[0][row : row + 1] if "queries" in inputs else own[position : position + 1]
        query, keys = queries_of(asked, heads)[:, 0], keys_of(own, heads)
        found[:, row] = scores_of(query, keys, heads.seen(position), slots, heads)[:groups]
    scores = found.reshape(size)
    return np.stack([scores, stats_of(scores)]) if "STATS" in params else scores


@op("cached_values", ("scores", "cache"), ("sinks", "stats"), _check_values, **_ONE_VALUES)
@op("row_values", ("scores", "cache", "rows"), ("sinks",), _check_values, ("rows",), **_CACHE)
def _oracle_values(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    cache, scores = float64(inputs, ["cache", "scores"])
    heads, rows, found = heads_in(params), positions_in(inputs, params), np.zeros(size)
    for row, (position, base) in enumerate(rows):
        own = scores[row :: len(rows)][: score_slots(position + 1)]
        values = keys_of(cache[base:], heads, values=True)
        found[row] = values_of(own, values, heads.seen(position), sinks_in(inputs))
    return found
