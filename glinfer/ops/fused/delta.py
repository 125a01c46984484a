"""The gated delta rule over caches that have a row for each token, so that no state rolls on from run to run.

Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024) keeps a matrix S [D_K, D_V] for each head of values:
``S_t = exp(g_t) S_{t-1} + k_t ⊗ u_t`` with the correction ``u_t = beta_t (v_t - exp(g_t) S_{t-1}ᵀ k_t)``, and gives
``S_tᵀ q_t``. Other software keeps the newest S of a sequence alone. Here tokens are taken in **spans** of N, as many as
S has rows, and a row of the cache holds of token t its key, its correction, the decay G since its span began, and row
t mod N of the state with which that span began. That state follows from the span before, in which all is known when
the first token of this one comes, so that a row is written once and depends on its own token and those before it alone,
as keys and values do: sequences are cut back, copied, shared and drafted without another rule.

A token in span c reads the state at the beginning of span c - 1, whose N rows lie in that span, and the corrections
from there on, N to 2N of them, weighed by ``exp(decay) k_s · q_t`` as attention over a window would:
``S_tᵀ q = exp(decay) S_cᵀ q + Σ exp(decay) (k_s · q) u_s``. The same with its key gives what its own correction needs.
Rows of one run that follow each other in a sequence need each other's corrections; a pass computes them anew, token
after token, for each column of S by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.families.layer import DeltaRule
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, RowLayout, blocks_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.flat.delta import of_values
from glinfer.ops.fused.draws import block_draw, block_layout
from glinfer.ops.fused.rows import (
    BASE,
    POSITION,
    RowInterleaved,
    check_same,
    deinterleaved,
    gathered,
    optional_names,
    table_layout,
)
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.published.linear import ACTIVATIONS, activate
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register

Defines = list[tuple[str, int | float]]
SPAN_STEP = 16
"""Spans are multiples of so many tokens, which every number of rows that passes compute at once divides."""
MOST_TOGETHER = 64
"""Limit for rows of one run that follow each other, whose corrections a fragment holds."""


def _part(floats: int) -> int:
    """Floats of a part of a row, which begins where a block does."""
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
        """The most rows of one run: no more than a span, so that they lie in at most two."""
        return min(self.span, MOST_TOGETHER)

    @property
    def seen_blocks(self) -> int:
        """Blocks with the weights of all tokens that a row sees for one head: those of two spans."""
        return blocks_for(2 * self.span)

    @property
    def a_at(self) -> int:
        """In a row that the product before the rule writes, what decays are made of; the channels begin it."""
        return _part(self.rule.channels)

    @property
    def b_at(self) -> int:
        """In that row, what the shares that are written are made of."""
        return self.a_at + _part(self.rule.heads)

    @property
    def z_at(self) -> int:
        """In that row, the gates of the results."""
        return self.b_at + _part(self.rule.heads)

    @property
    def projected(self) -> int:
        """Floats of that row."""
        return self.z_at + self.rule.values

    @property
    def aside(self) -> int:
        """Blocks of that row that no later token reads."""
        return blocks_for(self.projected) - blocks_for(self.b_at)

    @property
    def k_at(self) -> int:
        """In a row of queries, keys, values, decays and shares, the keys."""
        return _part(self.rule.keys)

    @property
    def v_at(self) -> int:
        """In that row, the values."""
        return 2 * self.k_at

    @property
    def g_at(self) -> int:
        """In that row, the decays."""
        return self.v_at + _part(self.rule.values)

    @property
    def beta_at(self) -> int:
        """In that row, the shares."""
        return self.g_at + _part(self.rule.heads)

    @property
    def mixed(self) -> int:
        """Floats of that row."""
        return self.beta_at + self.rule.heads

    @property
    def u_at(self) -> int:
        """In a row of the cache, the corrections; its keys begin it, and its decays lie behind them."""
        return self.k_at + _part(self.rule.heads)

    @property
    def s_at(self) -> int:
        """In a row of the cache, the row of the state."""
        return self.u_at + _part(self.rule.values)

    @property
    def kept(self) -> int:
        """Floats of a row of the cache."""
        return self.s_at + self.rule.values

    @property
    def scores(self) -> int:
        """Floats of the weights of a row."""
        return 2 * self.rule.heads * self.seen_blocks * BLOCK_FLOATS

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


def _draw(
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
    placed: bool = True,
) -> DrawSpec:
    """A draw over rows, each a slot of its tensors: one of the token at the run value position, or those of a table."""
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
    return block_draw(name, f"delta.{part}", op, bound, (out.name,), size, found, kernels=kernels, per_run=per_run)


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
    rows: TensorSpec | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """Queries, keys, values, decays and shares of each row, out [rows, heads.mixed], from what a product made.

    x and cache have rows of ``heads.projected`` floats, cache one of each token. Channels are convolved over as many
    tokens as taps [length, channels] has rows and go through SiLU; each head of queries and keys is divided by
    ``sqrt(Σ x² + eps)``, and queries by the root of their elements. decay [2, heads] has the factor of
    ``log(1 + exp(a + shift))``, below 0, and the shift; the logarithms of the decays are added up from the beginning of
    a span on.
    """
    defines: Defines = [
        ("PIECE", 0),
        ("LENGTH", taps.shape[0]),
        ("EPS", float(eps)),
        ("SCALE", heads.rule.key**-0.5),
        ("DECAY_BLOCK", heads.a_at // BLOCK_FLOATS),
        ("SHARE_BLOCK", heads.b_at // BLOCK_FLOATS),
        ("ACTIVATION", ACTIVATIONS["silu"]),
    ]
    inputs = {"x": x, "cache": cache, "taps": taps, "decay": decay}
    return _draw(name, "conv", "delta_conv", inputs, out, heads, rows, defines, kernels)


def delta_scores(
    name: str,
    x: TensorSpec,
    cache: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    rows: TensorSpec | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """The weights of the tokens that each row sees apart from a state, out [rows, heads.scores], for its key and query.

    x [rows, heads.mixed]; cache [slots, heads.kept] has keys and decays of the tokens before each row.
    """
    inputs = {"x": x, "cache": cache}
    return _draw(name, "scores", "delta_scores", inputs, out, heads, rows, [("PIECE", 0)], kernels)


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
    """What the state gives for each row, out [rows, values].

    With ``queries`` these are the results of the rule, from all tokens up to the row's own, which the cache has.
    Otherwise it is what tokens before those of ``piece`` rows that may follow each other give for the row's key.
    """
    inputs, defines = {"x": x, "scores": scores, "cache": cache}, [("PIECE", piece), ("QUERIES", int(queries))]
    part = "results" if queries else "known"
    return _draw(name, part, "delta_recall", inputs, out, heads, rows, [*defines], kernels)


def delta_row(
    name: str,
    x: TensorSpec,
    cache: TensorSpec,
    out: TensorSpec,
    heads: DeltaHeads,
    *,
    scores: TensorSpec | None = None,
    known: TensorSpec | None = None,
    rows: TensorSpec | None = None,
    piece: int = 0,
    kernels: KernelOptions,
) -> DrawSpec:
    """What the cache keeps of each row, out [rows, heads.kept].

    Without ``scores`` corrections are left out, and so are rows of states that depend on rows of this run. At most
    ``piece`` rows may follow each other in a sequence; ``known`` is then what :func:`delta_recall` gives for them.
    """
    defines: Defines = [("PIECE", piece), ("EARLY", int(scores is None))]
    inputs = {"x": x, "cache": cache}
    inputs |= {} if scores is None else {"scores": scores}
    inputs |= {} if known is None else {"known": known}
    return _draw(name, "row", "delta_row", inputs, out, heads, rows, defines, kernels)


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
    return _draw(name, "mixed", "delta_norm", inputs, out, heads, rows, defines, kernels, placed=False)


def gate_heads(
    name: str,
    x: RowInterleaved,
    gates: RowInterleaved,
    out: RowInterleaved,
    *,
    gates_at: int,
    slots: Extent = 1,
    kernels: KernelOptions,
) -> DrawSpec:
    """``out = x · sigmoid(gate)``, x and out [rows, C]; the gates of a row are its floats from ``gates_at`` on.

    Raises:
        PlanError: they do not begin where a block does.
    """
    if gates_at % BLOCK_FLOATS:
        raise PlanError(f"draw {name}: gates from float {gates_at} on; expected a multiple of {BLOCK_FLOATS}")
    defines: Defines = [
        *x.layout.defines("X"),
        *gates.layout.defines("R"),
        *out.layout.defines("OUT"),
        ("ROWS", len(out.tensors)),
        ("GATE_BLOCK", gates_at // BLOCK_FLOATS),
    ]
    inputs = (*x.inputs(), *gates.inputs("r"))
    return block_draw(name, "attn.gate", "gate_heads", inputs, out.names, (slots, out.cols), defines, kernels=kernels)


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


def _check_rule(shapes: Shapes, params: Params) -> DeltaHeads:
    heads = DeltaHeads.of(params)
    shapes.expect("x", shapes.rows("output"), heads.mixed)
    shapes.expect("cache", None, heads.kept)
    shapes.expect("scores", shapes.rows("output"), heads.scores)
    shapes.expect("known", shapes.rows("output"), heads.rule.values)
    _check_position(shapes, params)
    return heads


def _check_scores(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, _check_rule(shapes, params).scores)


def _check_recall(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, _check_rule(shapes, params).rule.values)


def _check_row(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", None, _check_rule(shapes, params).kept)


def _check_norm(shapes: Shapes, params: Params) -> None:
    heads = DeltaHeads.of(params)
    shapes.expect("x", shapes.rows("output"), heads.rule.values)
    shapes.expect("gates", shapes.rows("output"), heads.projected)
    shapes.expect("gains", 1, heads.rule.value)
    shapes.expect("output", None, heads.rule.values)


def _check_gate(shapes: Shapes, params: Params) -> None:
    cols = shapes.by_name["output"][1]
    check_same(shapes, params, None, cols)
    for name in optional_names("r"):
        shapes.expect(name, None, BLOCK_FLOATS * params["GATE_BLOCK"] + cols)


@dataclass(frozen=True)
class _Row:
    """One row of a run: its number, its position, the slot of its sequence, and the first row that it follows."""

    number: int
    position: int
    base: int
    first: int
    span: int

    @property
    def begin(self) -> int:
        """The position of the first of the rows that follow each other up to this one."""
        return self.position - self.number + self.first

    @property
    def seen(self) -> int:
        """The first token that is read apart from a state."""
        return max(self.position // self.span - 1, 0) * self.span


def _rows_of(inputs: Mapping[str, Array], params: Params, count: int) -> list[_Row]:
    """The rows of a run, as the shaders find them."""
    span = int(params["SPAN"])
    if params["ALONE"]:
        return [_Row(0, int(params["position"]), 0, 0, span)]
    table, found = inputs["rows"].astype(np.intp), list[_Row]()
    for number, info in enumerate(table[:count]):
        position, base, first = int(info[POSITION]), int(info[BASE]), number
        if found and params["PIECE"]:
            last = found[-1]
            follows = last.base == base and last.position + 1 == position
            first = max(last.first, number - int(params["PIECE"]) + 1) if follows else number
        found.append(_Row(number, position, base, first, span))
    return found


class _Caches:
    """The parts of the rows of a run and of its cache, for the oracle."""

    def __init__(self, inputs: Mapping[str, Array], params: Params) -> None:
        self.heads = DeltaHeads.of(params)
        rule = self.heads.rule
        self.shared = rule.heads // rule.key_heads
        x, cache = float64(inputs, ["x", "cache"])
        self.q, self.k = (self._by_head(x, at, rule.key_heads, rule.key) for at in (0, self.heads.k_at))
        self.v = self._by_head(x, self.heads.v_at, rule.heads, rule.value)
        self.g, self.beta = (x[:, at : at + rule.heads] for at in (self.heads.g_at, self.heads.beta_at))
        self.keys = self._by_head(cache, 0, rule.key_heads, rule.key)
        self.decays = cache[:, self.heads.k_at : self.heads.k_at + rule.heads]
        self.corrections = self._by_head(cache, self.heads.u_at, rule.heads, rule.value)
        self.states = self._by_head(cache, self.heads.s_at, rule.heads, rule.value)
        if "scores" in inputs:
            (scores,) = float64(inputs, ["scores"])
            self.scores = scores.reshape(len(scores), 2, rule.heads, -1)

    def _by_head(self, rows: Array, at: int, heads: int, each: int) -> Array:
        """[rows, heads, elements]; those of keys are repeated for all heads of values that share them."""
        found = rows[:, at : at + heads * each].reshape(len(rows), heads, each)
        return of_values(found, self.heads.rule.heads, in_turn=self.heads.rule.in_turn)

    def weights(self, row: _Row, kind: int) -> Array:
        """The weights [heads, tokens] of one kind, of the tokens that a row sees."""
        found = np.zeros((self.heads.rule.heads, self.heads.seen_blocks * BLOCK_FLOATS))
        vector = (self.q if kind else self.k)[row.number]
        span = row.position // row.span * row.span
        before = self.decays[row.base + span - 1] if row.seen < span else 0.0
        for seen in range(row.seen, row.position):
            slot = row.base + seen
            since = self.g[row.number] + (before if seen < span else 0.0) - self.decays[slot]
            found[:, seen - row.seen] = np.exp(since) * (vector * self.keys[slot]).sum(axis=-1)
        if kind:
            found[:, row.position - row.seen] = (vector * self.k[row.number]).sum(axis=-1)
        return found

    def recalled(self, row: _Row, kind: int, stop: int) -> Array:
        """What tokens before ``stop`` give for the query or the key of a row, [heads, elements]."""
        vector, found = (self.q if kind else self.k)[row.number], np.zeros(self.v.shape[1:])
        if row.seen:
            start = row.base + row.seen
            state = self.states[start : start + vector.shape[-1]]
            decay = np.exp(self.g[row.number] + self.decays[start + row.span - 1])
            found += decay[:, None] * np.einsum("hk,khv->hv", vector, state)
        for seen in range(row.seen, stop):
            found += self.scores[row.number, kind, :, seen - row.seen][:, None] * self.corrections[row.base + seen]
        return found

    def corrected(self, rows: list[_Row], row: _Row, known: Array) -> list[Array]:
        """The corrections of the rows that follow each other up to one, from what tokens before them give."""
        own: list[Array] = []
        for each in rows[row.first : row.number + 1]:
            found = known[each.number].copy()
            for place, correction in enumerate(own):
                found += self.scores[each.number, 0, :, each.begin + place - each.seen][:, None] * correction
            own.append(self.beta[each.number][:, None] * (self.v[each.number] - found))
        return own

    def state_row(self, row: _Row, own: list[Array]) -> Array:
        """The row of the state with which the span of a row begins, [heads, elements]; ``own`` are this run's."""
        end = row.position // row.span * row.span
        key, found = row.position - end, np.zeros(self.v.shape[1:])
        if not end or key >= self.keys.shape[-1]:
            return found
        start, last = end - row.span, self.decays[row.base + end - 1]
        if start:
            found += np.exp(last)[:, None] * self.states[row.base + start + key]
        for seen in range(start, end):
            slot = row.base + seen
            correction = self.corrections[slot] if seen < row.begin else own[seen - row.begin]
            found += (np.exp(last - self.decays[slot]) * self.keys[slot, :, key])[:, None] * correction
        return found


def _oracle_conv(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, cache, taps, decay = float64(inputs, ["x", "cache", "taps", "decay"])
    heads, found = DeltaHeads.of(params), np.zeros(size)
    rule = heads.rule
    for row in _rows_of(inputs, params, size[0]):
        tokens = [row.position - len(taps) + 1 + k for k in range(len(taps))]
        sums = sum(taps[k] * cache[row.base + token, : rule.channels] for k, token in enumerate(tokens) if token >= 0)
        channels = activate(np.asarray(sums), ACTIVATIONS["silu"])
        for part, scale in ((0, rule.key**-0.5), (1, 1.0)):
            by_head = channels[part * rule.keys : (part + 1) * rule.keys].reshape(rule.key_heads, rule.key)
            norms = np.sqrt((by_head**2).sum(axis=-1, keepdims=True) + params["EPS"])
            start = part * heads.k_at
            found[row.number, start : start + rule.keys] = (scale * by_head / norms).reshape(-1)
        found[row.number, heads.v_at : heads.v_at + rule.values] = channels[2 * rule.keys :]
        span = range(row.base + row.position // row.span * row.span, row.base + row.position + 1)
        a = cache[span.start : span.stop, heads.a_at : heads.a_at + rule.heads]
        g = (decay[0] * np.logaddexp(0.0, a + decay[1])).sum(axis=0)
        found[row.number, heads.g_at : heads.g_at + rule.heads] = g
        shares = x[row.number, heads.b_at : heads.b_at + rule.heads]
        found[row.number, heads.beta_at :] = np.exp(-np.logaddexp(0.0, -shares))
    return found


def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    caches = _Caches(inputs, params)
    rows = _rows_of(inputs, params, size[0])
    return np.stack([np.stack([caches.weights(row, kind) for kind in (0, 1)]).reshape(-1) for row in rows])


def _oracle_recall(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    caches, kind = _Caches(inputs, params), int(params["QUERIES"])
    rows = _rows_of(inputs, params, size[0])
    stops = (row.position + 1 if kind else row.begin for row in rows)
    return np.stack([caches.recalled(row, kind, stop).reshape(-1) for row, stop in zip(rows, stops, strict=True)])


def _oracle_row(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    caches, found = _Caches(inputs, params), np.zeros(size)
    heads, rows = caches.heads, _rows_of(inputs, params, size[0])
    x, rule, early = float64(inputs, ["x"])[0], caches.heads.rule, bool(params["EARLY"])
    known: Array = np.zeros(caches.v.shape)
    if "known" in inputs:
        known = float64(inputs, ["known"])[0].reshape(-1, rule.heads, rule.value)
    elif not early:
        known = np.stack([caches.recalled(row, 0, row.position) for row in rows])
    for row in rows:
        own = [] if early else caches.corrected(rows, row, known)
        line = found[row.number]
        line[: rule.keys] = x[row.number, heads.k_at : heads.k_at + rule.keys]
        line[heads.k_at : heads.k_at + rule.heads] = caches.g[row.number]
        if own:
            line[heads.u_at : heads.u_at + rule.values] = own[-1].reshape(-1)
        if not early or row.position // row.span * row.span <= row.begin:
            line[heads.s_at :] = caches.state_row(row, own).reshape(-1)
    return found


def _oracle_norm(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, gates, gains = float64(inputs, ["x", "gates", "gains"])
    heads = DeltaHeads.of(params)
    by_head = x[: size[0]].reshape(size[0], heads.rule.heads, -1)
    normed = by_head / np.sqrt((by_head**2).mean(axis=-1, keepdims=True) + params["EPS"]) * gains[0]
    z = gates[: size[0], heads.z_at : heads.z_at + heads.rule.values]
    return np.asarray(normed.reshape(size) * activate(z, ACTIVATIONS["silu"]))


def _oracle_gate(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    count, start = int(params["ROWS"]), BLOCK_FLOATS * int(params["GATE_BLOCK"])
    x, gates = (gathered(inputs, count, letter)[: size[0] * count] for letter in "xr")
    return deinterleaved(x * np.exp(-np.logaddexp(0.0, -gates[:, start : start + size[1]])), count)


_TABLE: dict[str, Any] = {"integers": ("rows",)}
register(Op("delta_conv", ("x", "cache", "taps", "decay"), ("rows",), _check_conv, _oracle_conv, **_TABLE))
register(Op("delta_scores", ("x", "cache"), ("rows",), _check_scores, _oracle_scores, **_TABLE))
register(Op("delta_recall", ("x", "scores", "cache"), ("rows",), _check_recall, _oracle_recall, **_TABLE))
register(Op("delta_row", ("x", "cache"), ("scores", "known", "rows"), _check_row, _oracle_row, **_TABLE))
register(Op("delta_norm", ("x", "gates", "gains"), (), _check_norm, _oracle_norm))
register(Op("gate_heads", (), (*optional_names(), *optional_names("r")), _check_gate, _oracle_gate))
