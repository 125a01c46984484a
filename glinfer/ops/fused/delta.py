"""The gated delta rule over caches with a row for each token, so that no run depends on a rolling state.

Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024) keeps a matrix S [D_K, D_V] for each value head:
``S_t = exp(g_t) S_{t-1} + k_t ⊗ u_t`` with the correction ``u_t = beta_t (v_t - exp(g_t) S_{t-1}ᵀ k_t)``, and returns
``S_tᵀ q_t``. Other software keeps only the newest S of a sequence. Here tokens form **spans** of N, the number of rows
of S. The cache row of token t holds its key, its correction, the decay G since its span began, and row t mod N of the
state at the beginning of that span. That state follows from the previous span, which is complete before the first token
of this one. So a row is written once and depends only on its own token and earlier ones, as keys and values do:
sequences are rewound, copied, shared and drafted by the same rules.

A token in span c reads the state at the beginning of span c - 1, whose N rows are stored in that span. It adds the N to
2N corrections since then, weighted by ``exp(decay) k_s · q_t`` as in attention over a window:
``S_tᵀ q = exp(decay) S_cᵀ q + Σ exp(decay) (k_s · q) u_s``. The same sum with the token's key gives its correction.
Consecutive rows of one run need each other's corrections. If the rows are few, a pass computes these corrections again,
token after token, for each column of S; for a prompt :mod:`glinfer.ops.fused.delta_chunk` solves for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.families.layer import DeltaRule
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, RowLayout, blocks_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.flat.delta import of_values
from glinfer.ops.fused.draws import block_draw, block_layout
from glinfer.ops.fused.rows import (
    BASE,
    POSITION,
    table_layout,
)
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.published.linear import ACTIVATIONS, activate
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Part, Shapes, TensorSpec, float64, register

Defines = list[tuple[str, int | float]]
SPAN_STEP = 16
"""Spans are multiples of this many tokens, a multiple of every number of rows that a pass computes at once."""
MOST_TOGETHER = 64
"""Limit for the consecutive rows of one run."""


def _part(floats: int) -> int:
    """Floats of a part of a row, rounded up to whole blocks."""
    return BLOCK_FLOATS * blocks_for(floats)


@dataclass(frozen=True)
class DeltaHeads:
    """The parts of the rows that the passes of a delta rule read and write; offsets and widths are in floats."""

    rule: DeltaRule

    @property
    def span(self) -> int:
        """Tokens of a span: as many as the state has rows, rounded up to a multiple of :data:`SPAN_STEP`."""
        return -(-self.rule.key // SPAN_STEP) * SPAN_STEP

    @property
    def most_together(self) -> int:
        """Limit for the rows of one run: at most a span, so that they belong to at most two."""
        return min(self.span, MOST_TOGETHER)

    @property
    def seen_blocks(self) -> int:
        """Blocks with the weights of all tokens that a row sees for one head: those of two spans."""
        return blocks_for(2 * self.span)

    @property
    def a_at(self) -> int:
        """Offset of the decays' inputs in a row of the product before the rule, which begins with the channels."""
        return _part(self.rule.channels)

    @property
    def b_at(self) -> int:
        """Offset of the inputs of the written shares in a row of the product."""
        return self.a_at + _part(self.rule.heads)

    @property
    def z_at(self) -> int:
        """Offset of the results' gates in a row of the product."""
        return self.b_at + _part(self.rule.heads)

    @property
    def projected(self) -> int:
        """Floats of a row of the product."""
        return self.z_at + self.rule.values

    @property
    def aside(self) -> int:
        """Blocks of a row of the product that no later token reads."""
        return blocks_for(self.projected) - blocks_for(self.b_at)

    @property
    def k_at(self) -> int:
        """Offset of the keys in a mixed row: queries, keys, values, decays, shares."""
        return _part(self.rule.keys)

    @property
    def v_at(self) -> int:
        """Offset of the values in a mixed row."""
        return 2 * self.k_at

    @property
    def g_at(self) -> int:
        """Offset of the decays in a mixed row."""
        return self.v_at + _part(self.rule.values)

    @property
    def beta_at(self) -> int:
        """Offset of the shares in a mixed row."""
        return self.g_at + _part(self.rule.heads)

    @property
    def mixed(self) -> int:
        """Floats of a mixed row."""
        return self.beta_at + self.rule.heads

    @property
    def u_at(self) -> int:
        """Offset of the corrections in a row of the cache, after its keys and decays."""
        return self.k_at + _part(self.rule.heads)

    @property
    def s_at(self) -> int:
        """Offset of the row of the state in a row of the cache."""
        return self.u_at + _part(self.rule.values)

    @property
    def kept(self) -> int:
        """Floats of a row of the cache."""
        return self.s_at + self.rule.values

    @property
    def scores(self) -> int:
        """Floats of the weights of a row, for its keys or for its queries."""
        return self.rule.heads * self.seen_blocks * BLOCK_FLOATS

    @property
    def ends(self) -> int:
        """Floats of a row with a number for each token of a span, for each head."""
        return self.rule.heads * blocks_for(self.span) * BLOCK_FLOATS

    def seen(self, position: int, rows: int = 1) -> int:
        """Tokens that ``rows`` rows from ``position`` on read: from the beginning of the span before that one."""
        return min(position, self.span + position % self.span) + rows

    def over_run(self, rows: int) -> int:
        """Floats of a row of matrices [rows, rows] over a run, one for each head."""
        return self.rule.heads * blocks_for(rows) * BLOCK_FLOATS

    def defines(self) -> Defines:
        """The defines of shaders/common/delta.glsl."""
        rule = self.rule
        return [
            ("HEADS", rule.heads),
            ("KEY_HEADS", rule.key_heads),
            ("IN_TURN", int(rule.in_turn)),
            ("KEY_TEXELS", rule.key // 4),
            ("VALUE_TEXELS", rule.value // 4),
            ("SPAN", self.span),
            ("SPAN_BLOCKS", self.seen_blocks),
            ("X_K", self.k_at // 4),
            ("X_V", self.v_at // 4),
            ("X_G", self.g_at // 4),
            ("X_BETA", self.beta_at // 4),
            ("C_G", self.k_at // 4),
            ("C_U", self.u_at // 4),
            ("C_S", self.s_at // 4),
        ]

    @classmethod
    def of(cls, params: Params) -> DeltaHeads:
        """The heads of a draw's defines."""
        key_heads, heads = (int(params[name]) for name in ("KEY_HEADS", "HEADS"))
        key, value = (4 * int(params[f"{name}_TEXELS"]) for name in ("KEY", "VALUE"))
        return cls(DeltaRule(key_heads, heads, key, value, bool(params["IN_TURN"])))


def of_run(piece: int) -> Defines:
    """The defines of draws with at most ``piece`` consecutive rows of a sequence."""
    step = 1 << max(piece - 1, 1).bit_length() - 1
    return [("PIECE", piece), ("RUN_STEP", step), ("RUN_BLOCKS", blocks_for(piece))] if piece else [("PIECE", 0)]


def rule_draw(
    name: str,
    part: str,
    op: str,
    inputs: dict[str, TensorSpec],
    out: TensorSpec,
    heads: DeltaHeads,
    rows: TensorSpec | None,
    defines: Defines,
    kernels: KernelOptions,
    *,
    beside: tuple[str, ...] = (),
    placed: bool = True,
) -> DrawSpec:
    """A draw over rows, one per slot: the token at the run value position, or the rows of a table."""
    found: Defines = [*heads.defines(), ("ALONE", int(rows is None)), *defines]
    for sampler, tensor in inputs.items():
        layout = tensor.layout
        found += (layout if isinstance(layout, RowLayout) else block_layout(name, tensor)).defines(sampler.upper())
    found += block_layout(name, out).defines("OUT")
    bound = [(sampler, tensor.name) for sampler, tensor in inputs.items()]
    if rows is not None and placed:
        bound.append(("rows", rows.name))
        found += table_layout(rows).defines("ROWS")
    size: tuple[Extent, Extent] = (1 if rows is None else "rows", out.shape[1])
    per_run = (("position", "position"),) if rows is None and placed else ()
    outputs = (out.name, *beside)
    return block_draw(name, f"delta.{part}", op, bound, outputs, size, found, kernels=kernels, per_run=per_run)


def delta_conv(
    name: str,
    x: TensorSpec,
    cache: TensorSpec,
    taps: TensorSpec,
    decay: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    eps: float,
    unit: bool = True,
    rows: TensorSpec | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """Queries, keys, values, decays and shares of each row, out [rows, heads.mixed], from a product.

    x and cache have rows of ``heads.projected`` floats, cache one for each token. Channels pass through a convolution
    with taps [length, channels] and SiLU. Each head of queries and keys is divided by ``sqrt(Σ x² + eps)``, and queries
    also by the root of their number of elements; without ``unit``
    :func:`glinfer.ops.fused.delta_chunk.delta_unit` does both later. decay [2, heads] has the factor of
    ``log(1 + exp(a + shift))``, below 0, and the shift; log decays are summed from the beginning of a span.
    """
    defines: Defines = [
        ("PIECE", 0),
        ("LENGTH", taps.shape[0]),
        ("UNIT", int(unit)),
        ("EPS", float(eps)),
        ("SCALE", heads.rule.key**-0.5),
        ("DECAY_BLOCK", heads.a_at // BLOCK_FLOATS),
        ("SHARE_BLOCK", heads.b_at // BLOCK_FLOATS),
        ("ACTIVATION", ACTIVATIONS["silu"]),
    ]
    inputs = {"x": x, "cache": cache, "taps": taps, "decay": decay}
    return rule_draw(name, "conv", "delta_conv", inputs, out, heads, rows, defines, kernels)


def delta_scores(
    name: str,
    x: TensorSpec,
    cache: TensorSpec,
    of_keys: TensorSpec,
    of_queries: TensorSpec | None,
    heads: DeltaHeads,
    *,
    rows: TensorSpec | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """The weights, for each row's key and query, of the tokens that it sees outside the state.

    of_keys and of_queries, of one layout, are [rows, heads.scores]; of_queries is optional.

    x [rows, heads.mixed]; cache [slots, heads.kept] has keys and decays of the tokens before each row.
    """
    inputs = {"x": x, "cache": cache}
    beside = () if of_queries is None else (of_queries.name,)
    found: Defines = [("PIECE", 0)]
    return rule_draw(name, "scores", "delta_scores", inputs, of_keys, heads, rows, found, kernels, beside=beside)


def delta_recall(
    name: str,
    x: TensorSpec,
    scores: TensorSpec,
    cache: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    queries: bool,
    rows: TensorSpec | None = None,
    piece: int = 0,
    kernels: KernelOptions,
) -> DrawSpec:
    """The output of the state for each row, out [rows, values].

    With ``queries`` it is the result of the rule, from all tokens of the cache up to the row's own. Otherwise it is the
    row's correction as if it were the first of its (at most ``piece``) consecutive rows: ``beta · (v - Sᵀ k)`` with S
    from the tokens before them all.
    """
    inputs, defines = {"x": x, "scores": scores, "cache": cache}, [*of_run(piece), ("QUERIES", int(queries))]
    part = "results" if queries else "apart"
    return rule_draw(name, part, "delta_recall", inputs, out, heads, rows, defines, kernels)


def delta_row(
    name: str,
    x: TensorSpec,
    cache: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    scores: TensorSpec | None = None,
    apart: TensorSpec | None = None,
    ends: TensorSpec | None = None,
    solved: TensorSpec | None = None,
    carry: TensorSpec | None = None,
    rows: TensorSpec | None = None,
    piece: int = 0,
    kernels: KernelOptions,
) -> DrawSpec:
    """The cache's row for each row of a run, out [rows, heads.kept].

    At most ``piece`` rows may be consecutive in a sequence. Filling the cache takes two draws. The first, without
    ``scores`` and ``solved``, omits corrections and the rows of states that depend on this run; it may use ``ends``.
    The second adds them, once the first is in the cache. ``apart`` is the output of :func:`delta_recall` for keys.
    Corrections come from ``scores`` of keys, or from ``solved`` and ``carry``. ``ends``, ``solved`` and ``carry`` are
    outputs of :mod:`glinfer.ops.fused.delta_chunk`.
    """
    found = {"scores": scores, "apart": apart, "ends": ends, "solved": solved, "carry": carry}
    inputs = {"x": x, "cache": cache, **{name: tensor for name, tensor in found.items() if tensor is not None}}
    defines = [*of_run(piece), ("EARLY", int(scores is None and solved is None))]
    if ends is not None:
        defines.append(("END_BLOCKS", blocks_for(heads.span)))
    return rule_draw(name, "row", "delta_row", inputs, out, heads, rows, defines, kernels)


def delta_norm(
    name: str,
    x: TensorSpec,
    gates: TensorSpec,
    gains: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    eps: float,
    rows: TensorSpec | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """``out = x / sqrt(mean(x²) + eps) · gains · silu(z)``, the mean over each head; x and out [rows, values].

    gains [1, elements of a head]; z is in rows of ``heads.projected`` floats.
    """
    defines: Defines = [
        ("EPS", float(eps)),
        ("GATE_BLOCK", heads.z_at // BLOCK_FLOATS),
        ("ACTIVATION", ACTIVATIONS["silu"]),
    ]
    inputs = {"x": x, "gates": gates, "gains": gains}
    return rule_draw(name, "mixed", "delta_norm", inputs, out, heads, rows, defines, kernels, placed=False)


def _check_position(shapes: Shapes, params: Params) -> None:
    if params["ALONE"]:
        shapes.require(params["position"] < shapes.rows("cache"), f"position {params['position']} is outside the cache")


def _check_conv(shapes: Shapes, params: Params) -> None:
    heads = DeltaHeads.of(params)
    shapes.expect("x", shapes.rows("output"), heads.projected)
    shapes.expect("cache", None, heads.projected)
    shapes.expect("taps", params["LENGTH"], heads.rule.channels)
    shapes.expect("decay", 2, heads.rule.heads)
    shapes.expect("output", None, heads.mixed)
    _check_position(shapes, params)


def check_rule(shapes: Shapes, params: Params) -> DeltaHeads:
    """Check the inputs that all draws of the rule share; returns their heads."""
    heads = DeltaHeads.of(params)
    shapes.expect("x", shapes.rows("output"), heads.mixed)
    shapes.expect("cache", None, heads.kept)
    shapes.expect("scores", shapes.rows("output"), heads.scores)
    shapes.expect("apart", shapes.rows("output"), heads.rule.values)
    shapes.expect("ends", shapes.rows("output"), heads.ends)
    for name in ("solved", "carry"):
        shapes.expect(name, shapes.rows("output"), heads.over_run(int(params["PIECE"])))
    _check_position(shapes, params)
    return heads


def _check_scores(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, check_rule(shapes, params).scores)


def _check_recall(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, check_rule(shapes, params).rule.values)


def _check_row(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, check_rule(shapes, params).kept)


def _check_norm(shapes: Shapes, params: Params) -> None:
    heads = DeltaHeads.of(params)
    shapes.expect("x", shapes.rows("output"), heads.rule.values)
    shapes.expect("gates", shapes.rows("output"), heads.projected)
    shapes.expect("gains", 1, heads.rule.value)
    shapes.expect("output", None, heads.rule.values)


@dataclass(frozen=True)
class Row:
    """A row of a run: its number, position, and slot of its sequence, and the number of its first consecutive row."""

    number: int
    position: int
    base: int
    first: int
    span: int

    @property
    def begin(self) -> int:
        """The position of the first of the consecutive rows up to this one."""
        return self.position - self.number + self.first

    @property
    def end(self) -> int:
        """The position at which the row's span begins and the previous one ends."""
        return self.position // self.span * self.span

    @property
    def key(self) -> int:
        """The number of the state's row that this row keeps, if the state has that many rows."""
        return self.position - self.end

    @property
    def seen(self) -> int:
        """The first token that is read outside the state."""
        return max(self.end - self.span, 0)


def rows_of(inputs: Mapping[str, Array], params: Params, count: int) -> list[Row]:
    """The rows of a run, as the shaders find them."""
    span = int(params["SPAN"])
    if params["ALONE"]:
        return [Row(0, int(params["position"]), 0, 0, span)]
    table, found = inputs["rows"].astype(np.intp), list[Row]()
    for number, info in enumerate(table[:count]):
        position, base, first = int(info[POSITION]), int(info[BASE]), number
        if found and params["PIECE"]:
            last = found[-1]
            follows = last.base == base and last.position + 1 == position
            first = last.first if follows else number
        found.append(Row(number, position, base, first, span))
    return found


class Caches:
    """The parts of the rows of a run and of its cache, for the oracle."""

    def __init__(self, inputs: Mapping[str, Array], params: Params) -> None:
        """Split the inputs that the draw has into parts."""
        self.heads = DeltaHeads.of(params)
        rule = self.heads.rule
        self.shared = rule.heads // rule.key_heads
        if "x" in inputs:
            self._take(*float64(inputs, ["x"]))
        self.ends: Array | None = None
        if "ends" in inputs:
            (ends,) = float64(inputs, ["ends"])
            self.ends = ends.reshape(len(ends), rule.heads, -1)
        if "cache" in inputs:
            self._read(*float64(inputs, ["cache"]))
        if "scores" in inputs:
            (scores,) = float64(inputs, ["scores"])
            self.scores = scores.reshape(len(scores), rule.heads, -1)

    def _take(self, x: Array) -> None:
        rule = self.heads.rule
        self.q, self.k = (self._by_head(x, at, rule.key_heads, rule.key) for at in (0, self.heads.k_at))
        self.v = self._by_head(x, self.heads.v_at, rule.heads, rule.value)
        self.g, self.beta = (x[:, at : at + rule.heads] for at in (self.heads.g_at, self.heads.beta_at))

    def _read(self, cache: Array) -> None:
        rule = self.heads.rule
        self.keys = self._by_head(cache, 0, rule.key_heads, rule.key)
        self.decays = cache[:, self.heads.k_at : self.heads.k_at + rule.heads]
        self.corrections = self._by_head(cache, self.heads.u_at, rule.heads, rule.value)
        self.states = self._by_head(cache, self.heads.s_at, rule.heads, rule.value)

    def _by_head(self, rows: Array, at: int, heads: int, each: int) -> Array:
        """A part as [rows, heads, elements]; key heads are repeated for all value heads that share them."""
        found = rows[:, at : at + heads * each].reshape(len(rows), heads, each)
        return of_values(found, self.heads.rule.heads, in_turn=self.heads.rule.in_turn)

    def weights(self, row: Row, kind: int) -> Array:
        """The weights [heads, tokens] of one kind, of the tokens that a row sees."""
        found = np.zeros((self.heads.rule.heads, self.heads.seen_blocks * BLOCK_FLOATS))
        vector = (self.q if kind else self.k)[row.number]
        before = self.decays[row.base + row.end - 1] if row.seen < row.end else 0.0
        for seen in range(row.seen, row.position):
            slot = row.base + seen
            since = self.g[row.number] + (before if seen < row.end else 0.0) - self.decays[slot]
            found[:, seen - row.seen] = np.exp(since) * (vector * self.keys[slot]).sum(axis=-1)
        if kind:
            found[:, row.position - row.seen] = (vector * self.k[row.number]).sum(axis=-1)
        return found

    def recalled(self, row: Row, kind: int, stop: int) -> Array:
        """The output for a row's query or key from tokens before ``stop``, [heads, elements]."""
        vector, found = (self.q if kind else self.k)[row.number], np.zeros(self.v.shape[1:])
        if row.seen:
            start = row.base + row.seen
            state = self.states[start : start + vector.shape[-1]]
            decay = np.exp(self.g[row.number] + self.decays[start + row.span - 1])
            found += decay[:, None] * np.einsum("hk,khv->hv", vector, state)
        for seen in range(row.seen, stop):
            found += self.scores[row.number, :, seen - row.seen][:, None] * self.corrections[row.base + seen]
        return found

    def apart(self, row: Row) -> Array:
        """The correction of a row as if it were the first of its consecutive rows, [heads, elements]."""
        known = self.recalled(row, 0, row.begin)
        return np.asarray(self.beta[row.number][:, None] * (self.v[row.number] - known))

    def lower(self, row: Row, other: int) -> Array:
        """The factor by which row ``other``'s correction lowers that of a later row of the run, [heads]."""
        return np.asarray(self.beta[row.number] * self.scores[row.number, :, row.begin + other - row.first - row.seen])

    def corrected(self, rows: list[Row], row: Row, apart: Array) -> list[Array]:
        """The corrections of the consecutive rows up to ``row``, token after token."""
        own: list[Array] = []
        for each in rows[row.first : row.number + 1]:
            found = apart[each.number].copy()
            for place, correction in enumerate(own):
                found -= self.lower(each, each.first + place)[:, None] * correction
            own.append(found)
        return own

    def keeps(self, row: Row) -> bool:
        """Whether a cache row stores a row of the state."""
        return row.end > 0 and row.key < self.heads.rule.key

    def state_before(self, row: Row) -> Array:
        """The share of tokens before the run in the state's row that ``row`` keeps."""
        found = np.zeros((self.heads.rule.heads, self.heads.rule.value))
        if not self.keeps(row):
            return found
        start, last = row.end - row.span, self.decays[row.base + row.end - 1]
        if start:
            found += np.exp(last)[:, None] * self.states[row.base + start + row.key]
        weights = self.ends[row.number].T if self.ends is not None else self.ended(row)
        for seen, weight in zip(range(start, min(row.end, row.begin)), weights, strict=False):
            found += weight[:, None] * self.corrections[row.base + seen]
        return found

    def ended(self, row: Row) -> Array:
        """The weights of the previous span's corrections in that row of the state, [tokens, heads]."""
        slots = slice(row.base + row.end - row.span, row.base + row.end)
        decays = np.exp(self.decays[row.base + row.end - 1] - self.decays[slots])
        return np.asarray(decays * self.keys[slots, :, row.key])

    def carried(self, row: Row) -> list[Array]:
        """The weights of the run's corrections in that row of the state, each [heads]."""
        numbers = range(row.first, row.first + row.end - row.begin)
        if not numbers or not self.keeps(row):
            return []
        return [np.exp(self.g[numbers[-1]] - self.g[each]) * self.k[each, :, row.key] for each in numbers]


def unit(x: Array, rule: DeltaRule, scale: float, params: Params) -> Array:
    """``scale · x / sqrt(Σ x² + EPS)``, the sum over each head of queries or keys; x [.., keys]."""
    by_head = x.reshape(*x.shape[:-1], rule.key_heads, rule.key)
    norms = np.sqrt((by_head**2).sum(axis=-1, keepdims=True) + params["EPS"])
    return np.asarray((scale * by_head / norms).reshape(x.shape))


def _oracle_conv(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, cache, taps, decay = float64(inputs, ["x", "cache", "taps", "decay"])
    heads, found = DeltaHeads.of(params), np.zeros(size)
    rule = heads.rule
    for row in rows_of(inputs, params, size[0]):
        tokens = [row.position - len(taps) + 1 + k for k in range(len(taps))]
        sums = sum(taps[k] * cache[row.base + token, : rule.channels] for k, token in enumerate(tokens) if token >= 0)
        channels = activate(np.asarray(sums), ACTIVATIONS["silu"])
        for part, scale in ((0, rule.key**-0.5), (1, 1.0)):
            start, own = part * heads.k_at, channels[part * rule.keys : (part + 1) * rule.keys]
            found[row.number, start : start + rule.keys] = unit(own, rule, scale, params) if params["UNIT"] else own
        found[row.number, heads.v_at : heads.v_at + rule.values] = channels[2 * rule.keys :]
        span = range(row.base + row.position // row.span * row.span, row.base + row.position + 1)
        a = cache[span.start : span.stop, heads.a_at : heads.a_at + rule.heads]
        g = (decay[0] * np.logaddexp(0.0, a + decay[1])).sum(axis=0)
        found[row.number, heads.g_at : heads.g_at + rule.heads] = g
        shares = x[row.number, heads.b_at : heads.b_at + rule.heads]
        found[row.number, heads.beta_at :] = np.exp(-np.logaddexp(0.0, -shares))
    return found


def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    caches = Caches(inputs, params)
    rows = rows_of(inputs, params, size[0])
    return np.stack([[caches.weights(row, kind).reshape(-1) for row in rows] for kind in (0, 1)])


def _oracle_recall(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    caches, rows = Caches(inputs, params), rows_of(inputs, params, size[0])
    if params["QUERIES"]:
        return np.stack([caches.recalled(row, 1, row.position + 1).reshape(-1) for row in rows])
    return np.stack([caches.apart(row).reshape(-1) for row in rows])


def _oracle_row(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    caches, found = Caches(inputs, params), np.zeros(size)
    heads, rows = caches.heads, rows_of(inputs, params, size[0])
    x, rule, early = float64(inputs, ["x"])[0], caches.heads.rule, bool(params["EARLY"])
    for row in rows:
        correction, state = _kept(inputs, caches, rows, row, early=early)
        line = found[row.number]
        line[: rule.keys] = x[row.number, heads.k_at : heads.k_at + rule.keys]
        line[heads.k_at : heads.k_at + rule.heads] = caches.g[row.number]
        line[heads.u_at : heads.u_at + rule.values] = correction.reshape(-1)
        line[heads.s_at :] = state.reshape(-1)
    return found


def _kept(
    inputs: Mapping[str, Array], caches: Caches, rows: list[Row], row: Row, *, early: bool
) -> tuple[Array, Array]:
    """The correction of a row, and the state's row that it keeps, each [heads, elements]."""
    rule = caches.heads.rule
    none = np.zeros((rule.heads, rule.value))
    if early:
        return none, caches.state_before(row) if row.end <= row.begin else none
    if "apart" not in inputs:
        return caches.apart(row), caches.state_before(row)
    apart = float64(inputs, ["apart"])[0].reshape(-1, rule.heads, rule.value)
    if "solved" in inputs:
        solved, carry = (each.reshape(len(each), rule.heads, -1) for each in float64(inputs, ["solved", "carry"]))
        own = sum((solved[row.number, :, each, None] * apart[each] for each in range(row.first, row.number + 1)), none)
        ended = range(row.first, row.first + row.end - row.begin)
        added = sum((carry[row.number, :, each, None] * apart[each] for each in ended), none)
    else:
        together = caches.corrected(rows, row, apart)
        own, weights = together[-1], caches.carried(row)
        added = sum((weight[:, None] * each for weight, each in zip(weights, together, strict=False)), none)
    if not caches.keeps(row):
        return own, none
    if row.end <= row.begin:
        return own, caches.states[row.base + row.position]
    return own, caches.state_before(row) + added


def _oracle_norm(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, gates, gains = float64(inputs, ["x", "gates", "gains"])
    heads = DeltaHeads.of(params)
    by_head = x[: size[0]].reshape(size[0], heads.rule.heads, -1)
    normed = by_head / np.sqrt((by_head**2).mean(axis=-1, keepdims=True) + params["EPS"]) * gains[0]
    z = gates[: size[0], heads.z_at : heads.z_at + heads.rule.values]
    return np.asarray(normed.reshape(size) * activate(z, ACTIVATIONS["silu"]))


def _rows(params: Params) -> int:
    return 1 if params["ALONE"] else int(params["rows"])


def _parts_of_conv(params: Params) -> Mapping[str, Part]:
    """The rows that the convolution sees, without the blocks aside."""
    heads = DeltaHeads.of(params)
    share = 1 - heads.aside / blocks_for(heads.projected)
    return {"cache": Part(_rows(params) + int(params["LENGTH"]) - 1, share)}


def _parts(params: Params) -> Mapping[str, Part]:
    """The rows of the cache that one row sees; those of a run, which share them, as if the first began a span."""
    heads = DeltaHeads.of(params)
    return {"cache": Part(heads.seen(int(params["position"]) if params["ALONE"] else heads.span, _rows(params)))}


_TABLE: dict[str, Any] = {"integers": ("rows",), "parts": _parts}
_CONV = ("x", "cache", "taps", "decay")
register(Op("delta_conv", _CONV, ("rows",), _check_conv, _oracle_conv, ("rows",), parts=_parts_of_conv))
register(Op("delta_scores", ("x", "cache"), ("rows",), _check_scores, _oracle_scores, **_TABLE))
register(Op("delta_recall", ("x", "scores", "cache"), ("rows",), _check_recall, _oracle_recall, **_TABLE))
_FOUND = ("scores", "apart", "ends", "solved", "carry", "rows")
register(Op("delta_row", ("x", "cache"), _FOUND, _check_row, _oracle_row, **_TABLE))
register(Op("delta_norm", ("x", "gates", "gains"), (), _check_norm, _oracle_norm))
