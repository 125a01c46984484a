"""The gated delta rule over caches that keep only the newest tokens of a sequence, so that memory does not grow.

Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024) keeps a matrix S [D_K, D_V] for each value head:
``S_t = exp(g_t) S_{t-1} + k_t ⊗ u_t`` with the correction ``u_t = beta_t (v_t - exp(g_t) S_{t-1}ᵀ k_t)``, and returns
``S_tᵀ q_t``. Here tokens form **spans** of :data:`SPAN`. A sequence has three rings, whose slots follow from positions:

* the inputs of the convolution before the rule;
* a row for each of the last two spans' tokens: its key, its correction, and the decay G since its span began;
* the states at the beginnings of the last two spans, one in each of two textures, as no draw samples its own target.

A run of consecutive tokens reads the state S_c at the beginning of its first token's span, and adds the corrections
since then, weighted by ``exp(decay) k_s · q_t`` as in attention over a window:
``S_tᵀ q = exp(decay) S_cᵀ q + Σ exp(decay) (k_s · q) u_s``. The same sum with the token's key gives its correction. The
last token of a span folds the span's corrections into the next state. All of this depends on positions alone, so a
sequence continues from any of its last :data:`REWINDS` tokens; rows after that token are overwritten.

Consecutive rows of one run need each other's corrections. If row i were the first of its run, its correction would be
``a_i = beta_i (v_i - Sᵀ k_i)``. The rows j before it lower that by ``L_ij u_j`` with
``L_ij = beta_i exp(decay) (k_j · k_i)``. So all corrections solve ``(I + L) U = A`` (Yang, Wang, Zhang, Shen and Kim
2024). L does not depend on values, so :func:`delta_solve` inverts I + L once for each head.

The scan of Mamba-2 is a rule without corrections, see :mod:`glinfer.kernels.fused.scan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.families.layer import DeltaRule
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.kernels.flat.delta import of_values
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw
from glinfer.kernels.fused.rows import BASE, POSITION, padded
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.published.linear import ACTIVATIONS, activate
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, ShapeCheck, Shapes, TensorSpec, float64, given, op

SPAN = 32
"""Tokens of a span, and the limit for the consecutive rows of one run, which thus complete at most one span."""
RING = 2 * SPAN
"""Slots of a sequence for the rows of its tokens: a run sees its own and those since its first row's span began."""
REWINDS = 28
"""The most tokens by which a sequence can be rewound; the one before them may then run again.

With the inputs of a convolution over four tokens that makes 32 slots.
"""
_TOGETHER = 16
"""Slots of a cache are laid out in whole groups of this many."""


def _grouped(slots: int) -> int:
    return -(-slots // _TOGETHER) * _TOGETHER


def input_ring(taps: int) -> int:
    """Slots of a sequence for the inputs of a convolution over ``taps`` tokens."""
    return _grouped(max(REWINDS + taps, SPAN))


def input_layout(taps: int, floats: int, sequences: int, max_texture_size: int) -> BlockLayout:
    """The layout of a ring with such inputs for each sequence; PlanError if it does not fit such a texture."""
    return _ring(input_ring(taps), floats, sequences, max_texture_size)


def _ring(slots: int, floats: int, sequences: int, max_texture_size: int, together: int = _TOGETHER) -> BlockLayout:
    """Float32 whatever the format of other caches, since errors of a state go on from span to span."""
    shape = sequences * slots, floats
    return BlockLayout.by_block(shape, max_texture_size, every=slots, rolls=True, together=together)


class DeltaHeads:
    """The parts of the rows that the passes of a delta rule read and write, each from a whole block on.

    Offsets and widths are in floats.

    Attributes:
        rule: the rule.
        a_at, b_at, z_at: offsets, in a row of the product before the rule, of the inputs of the decays, of the inputs
            of the written shares, and of the results' gates; channels come first, and a scan's shares have the inputs
            of its decays.
        projected: width of a row of the product.
        k_at, v_at, g_at, beta_at: offsets of keys, values, decays and shares in a mixed row, after the queries.
        mixed: width of a mixed row.
        u_at: offset of the corrections in a row of the cache, after its keys and decays.
        kept: width of a row of the cache.
        state_rows: slots of a sequence for a state: one for each element of a key, and at least one for each row of a
            run.
        values: width of a row of results.
        per_head: width of a row with a block for each head, such as the weights of all tokens that a row sees.
    """

    def __init__(self, rule: DeltaRule) -> None:
        """Lay out the rows of a rule."""
        self.rule, decays = rule, padded(rule.heads)
        self.a_at = padded(rule.channels)
        self.b_at = self.a_at + (0 if rule.scan else decays)
        self.z_at = self.b_at + decays
        self.values = rule.values
        self.projected = self.z_at + rule.values
        self.k_at = padded(rule.keys)
        self.v_at = 2 * self.k_at
        self.g_at = self.v_at + padded(rule.values)
        self.beta_at = self.g_at + decays
        self.mixed = self.beta_at + rule.heads
        self.u_at = self.k_at + decays
        self.kept = self.u_at + rule.values
        self.state_rows = max(_grouped(rule.key), SPAN)
        self.per_head = rule.heads * BLOCK_FLOATS

    def layouts(self, taps: int, sequences: int, max_texture_size: int) -> dict[str, BlockLayout]:
        """The layouts of the caches of ``sequences`` sequences by name: inputs, rows, and both states.

        Raises:
            PlanError: one does not fit such textures.
        """
        sizes, whole = (sequences, max_texture_size), self.state_rows  # each block of a state is in one line
        inputs, state = input_layout(taps, self.a_at, *sizes), _ring(whole, self.rule.values, *sizes, whole)
        return {"inputs": inputs, "cache": _ring(RING, self.kept, *sizes), "state.0": state, "state.1": state}

    def defines(self) -> Defines:
        """The defines of shaders/common/delta.glsl."""
        rule = self.rule
        return [
            ("HEADS", rule.heads),
            ("KEY_HEADS", rule.key_heads),
            ("IN_TURN", int(rule.in_turn)),
            ("KEY_TEXELS", rule.key // 4),
            ("VALUE_TEXELS", rule.value // 4),
            ("SPAN", SPAN),
            ("RING", RING),
            ("STATE_ROWS", self.state_rows),
            ("X_K", self.k_at // 4),
            ("X_V", self.v_at // 4),
            ("X_G", self.g_at // 4),
            ("X_BETA", self.beta_at // 4),
            ("C_G", self.k_at // 4),
            ("C_U", self.u_at // 4),
            *given(SCAN=rule.scan),
        ]

    @classmethod
    def of(cls, params: Params) -> DeltaHeads:
        """The heads of a draw's defines."""
        key_heads, heads = (int(params[name]) for name in ("KEY_HEADS", "HEADS"))
        key, value = (4 * int(params[f"{name}_TEXELS"]) for name in ("KEY", "VALUE"))
        return cls(DeltaRule(key_heads, heads, key, value, bool(params["IN_TURN"]), "SCAN" in params))


def snapshot_slots(cache: str, layout: BlockLayout, tokens: int) -> list[tuple[int, int]]:
    """The (first slot, slots) of a rolling cache of one sequence from which it continues after ``tokens`` tokens.

    ``cache`` is the tensor's name; ``tokens`` ends a span.
    """
    if cache.endswith(".inputs"):
        ring = layout.every
        return [((tokens + back) % ring, 1) for back in range(REWINDS + 1 - ring, 0)]
    return [(0, layout.every)] if cache.endswith(f".state.{tokens // SPAN % 2}") else []


def seen(position: int, rows: int = 1) -> int:
    """Tokens whose corrections ``rows`` consecutive rows from ``position`` on read."""
    return position % SPAN + rows


@dataclass(frozen=True)
class DeltaRun:
    """The rows of a run, one in each slot of the activations.

    Attributes:
        name: the beginning of the names of its draws, such as ``h.3.delta``.
        heads: the heads of the rule.
        kernels: the kernel options.
        rows: the table of rows; None for the one row of the token at the run value position.
        every: slots of a sequence in caches of all tokens, in which the table counts.
        piece: the most consecutive rows of a sequence; 0 where no rows follow each other.
    """

    name: str
    heads: DeltaHeads
    kernels: KernelOptions
    rows: TensorSpec | None = None
    every: int = 1
    piece: int = 0

    def draw(
        self,
        part: str,
        op: str,
        inputs: Mapping[str, TensorSpec],
        outputs: list[TensorSpec],
        defines: Defines | None = None,
        *,
        kind: str = "",
        placed: bool = True,
        **further: Any,
    ) -> DrawSpec:
        """The draw of a part of the passes; ``placed`` if it depends on the rows' positions."""
        found: Defines = [*self.heads.defines(), ("ALONE", int(self.rows is None)), *(defines or [])]
        found.append(("PIECE", self.piece if placed else 0))
        if self.rows is not None and placed:
            found.append(("EVERY", self.every))
        elif placed:
            further["per_run"] = (("position", "position"),)
        made = Pass(f"{self.name}.{part}", self.kernels, kind, 1 if self.rows is None else "rows")
        given: Inputs = {**inputs, "rows": self.rows if placed else None}
        return block_draw(made, op, given, outputs, found, **further)


def delta_conv(
    run: DeltaRun,
    x: TensorSpec,
    inputs: TensorSpec,
    cache: TensorSpec,
    taps: TensorSpec,
    decay: TensorSpec,
    out: TensorSpec,
    *,
    length: int,
    eps: float,
    unit: bool = True,
) -> DrawSpec:
    """Queries, keys, values, decays and shares of each row, out [rows, heads.mixed], from a product.

    x has rows of ``heads.projected`` floats, the ring ``inputs`` channels of the tokens before. Channels pass through a
    convolution with taps [length, channels], or a row more for biases, and SiLU. Each head of queries and keys is
    divided by ``sqrt(Σ x² + eps)``, queries also by the root of their elements; without ``unit`` :func:`delta_unit`
    does both later. decay [2, heads] has the factor of ``log(1 + exp(a + shift))``, below 0, and the shift; log decays
    are summed from the beginning of a span, after those of earlier runs in ``cache``. A scan's shares are these logs.
    """
    heads = run.heads
    defines: Defines = [
        ("LENGTH", length),
        ("INPUT_RING", input_ring(length)),
        *given(BIASED=taps.shape[0] > length),
        ("UNIT", int(unit)),
        ("EPS", float(eps)),
        ("SCALE", heads.rule.key**-0.5),
        ("DECAY_BLOCK", heads.a_at // BLOCK_FLOATS),
        ("SHARE_BLOCK", heads.b_at // BLOCK_FLOATS),
        ("ACTIVATION", ACTIVATIONS["silu"]),
    ]
    tensors = {"x": x, "inputs": inputs, "cache": cache, "taps": taps, "decay": decay}
    return run.draw("conv", "delta_conv", tensors, [out], defines)


def delta_unit(run: DeltaRun, x: TensorSpec, out: TensorSpec, *, eps: float) -> DrawSpec:
    """Divide queries and keys of each row by their norms, and copy the rest.

    x and out have rows of ``heads.mixed`` floats; x is the output of :func:`delta_conv` without ``unit``, in which each
    fragment would have to convolve its whole head for the norm.
    """
    defines: Defines = [("EPS", float(eps)), ("SCALE", run.heads.rule.key**-0.5)]
    return run.draw("unit", "delta_unit", {"x": x}, [out], defines, placed=False)


def delta_scores(
    run: DeltaRun, x: TensorSpec, cache: TensorSpec, keys: TensorSpec | None, queries: TensorSpec | None
) -> DrawSpec:
    """The weights, for each row's key and query, of the tokens since the beginning of the first row's span.

    x [rows, heads.mixed]; cache has keys and decays of the tokens before the run. The weights for keys and for queries,
    of one layout, are [rows, heads.per_head]; those for queries are optional, and a scan has them alone.
    """
    outputs = [each for each in (keys, queries) if each is not None]
    return run.draw("scores", "delta_scores", {"x": x, "cache": cache}, outputs)


def delta_recall(
    run: DeltaRun,
    x: TensorSpec,
    scores: TensorSpec,
    cache: TensorSpec,
    states: tuple[TensorSpec, TensorSpec],
    out: TensorSpec,
    *,
    queries: bool,
) -> DrawSpec:
    """The output of the state for each row.

    With ``queries`` it is the result of the rule, out [rows, values], from all tokens up to the row's own. Otherwise it
    is a row of the cache, out [rows, heads.kept], with the correction as if the row were the first of its consecutive
    rows: ``beta · (v - Sᵀ k)`` with S from the tokens before them all.
    """
    inputs = {"x": x, "scores": scores, "cache": cache, "state0": states[0], "state1": states[1]}
    part = "results" if queries else "row"
    return run.draw(part, "delta_recall", inputs, [out], [("QUERIES", int(queries))])


def delta_solve(run: DeltaRun, x: TensorSpec, scores: TensorSpec, out: TensorSpec) -> DrawSpec:
    """The inverse of I + L over the rows of a run, out [rows, heads.per_head] with a matrix for each head.

    x [rows, heads.mixed] and scores are those of :func:`delta_scores` for keys.
    """
    return run.draw("solve", "delta_solve", {"x": x, "scores": scores}, [out])


def delta_correct(run: DeltaRun, apart: TensorSpec, solved: TensorSpec, out: TensorSpec) -> DrawSpec:
    """The cache's rows of a run, out [rows, heads.kept], from those of :func:`delta_recall` for keys.

    Their corrections are multiplied by the matrices ``solved`` of :func:`delta_solve`.
    """
    return run.draw("correct", "delta_correct", {"apart": apart, "solved": solved}, [out])


def delta_fold(run: DeltaRun, cache: TensorSpec, states: tuple[TensorSpec, TensorSpec], parity: int) -> DrawSpec:
    """The state after each row that completes a span, from the state before that span and the span's rows.

    It writes the states of even spans (``parity`` 0) or of odd ones, from those of the others.
    """
    before, out = states[1 - parity], states[parity]
    how: dict[str, Any] = {"vertex": "common/fold.vert", "cover": "quads", "uniforms": (("parity", parity),)}
    inputs, how["kind"] = {"cache": cache, "state": before}, f"{'ssm' if run.heads.rule.scan else 'delta'}.fold"
    return run.draw(f"fold.{parity}", "delta_fold", inputs, [out], **how)


def delta_norm(
    run: DeltaRun, x: TensorSpec, gates: TensorSpec, gains: TensorSpec, out: TensorSpec, *, eps: float
) -> DrawSpec:
    """``out = x / sqrt(mean(x²) + eps) · gains · silu(z)``, the mean over each head; x and out [rows, values].

    gains [1, elements of a head]; z is in rows of ``heads.projected`` floats.
    """
    defines: Defines = [
        ("EPS", float(eps)),
        ("GATE_BLOCK", run.heads.z_at // BLOCK_FLOATS),
        ("ACTIVATION", ACTIVATIONS["silu"]),
    ]
    inputs = {"x": x, "gates": gates, "gains": gains}
    return run.draw("mixed", "delta_norm", inputs, [out], defines, placed=False)


def widths(x: str, output: str) -> ShapeCheck:
    """The check of a draw of a rule or a scan whose x and output have rows as wide as these fields of the heads."""

    def check(shapes: Shapes, params: Params) -> None:
        heads, rows = DeltaHeads.of(params), shapes.rows("output")
        rule = heads.rule
        shapes.expect("x", rows, getattr(heads, x))
        shapes.expect("output", None, getattr(heads, output))
        shapes.expect("apart", rows, heads.kept)
        shapes.expect("gates", rows, heads.projected)
        shapes.expect("results", rows, heads.values)
        shapes.expect(("scores", "solved"), rows, heads.per_head)
        shapes.expect("inputs", None, heads.a_at)
        shapes.expect("cache", None, heads.kept)
        shapes.expect(("state", "state0", "state1"), None, heads.values)
        shapes.expect("taps", params.get("LENGTH", 0) + ("BIASED" in params), rule.channels)
        shapes.expect("decay", 3 if rule.scan else 2, rule.heads)
        shapes.expect("gains", 1, heads.values if rule.scan else rule.value)
        shapes.require(params["PIECE"] <= SPAN, f"{params['PIECE']} consecutive rows; expected at most {SPAN}")
        whole = heads.values % (4 * params.get("GROUP_TEXELS", 1)) == 0
        shapes.require(whole, f"{heads.values} values; expected whole groups")

    return check


def _check_recall(shapes: Shapes, params: Params) -> None:
    widths("mixed", "values" if params["QUERIES"] else "kept")(shapes, params)


@dataclass(frozen=True)
class Row:
    """A row of a run: its number, its position in the sequence with this number, and its first consecutive row."""

    number: int
    position: int
    sequence: int
    first: int

    @property
    def begin(self) -> int:
        """The position of the first of the consecutive rows up to this one."""
        return self.position - self.number + self.first

    @property
    def window(self) -> int:
        """The first token whose correction the row reads: the one that begins the first row's span."""
        return self.begin // SPAN * SPAN

    def slot(self, position: int) -> int:
        """The slot of a token's row in the cache."""
        return self.sequence * RING + position % RING

    def of(self, position: int) -> int:
        """The number of the row of a token of the run."""
        return self.number - self.position + position

    def state_slots(self, heads: DeltaHeads) -> slice:
        """The slots of the sequence's state."""
        return slice(self.sequence * heads.state_rows, self.sequence * heads.state_rows + heads.rule.key)

    def folds(self, params: Params) -> bool:
        """Whether it completes a span before one of the parity that the draw writes."""
        return (self.position + 1) % SPAN == 0 and (self.position + 1) // SPAN % 2 == params["parity"]


def rows_of(inputs: Mapping[str, Array], params: Params, count: int) -> list[Row]:
    """The rows of a run, as the shaders find them."""
    if params["ALONE"]:
        return [Row(0, int(params["position"]), 0, 0)]
    table, found = inputs["rows"].astype(np.intp), list[Row]()
    for number, info in enumerate(table[:count]):
        sequence, offset = divmod(int(info[BASE]), int(params["EVERY"]))
        position, first = int(info[POSITION]) + offset, number
        if found and params["PIECE"]:
            last = found[-1]
            follows = last.sequence == sequence and last.position + 1 == position
            first = last.first if follows else number
        found.append(Row(number, position, sequence, first))
    return found


class _Parts:
    """The parts of the rows of a run and of its caches, for the oracles."""

    def __init__(self, inputs: Mapping[str, Array], params: Params) -> None:
        """Split the inputs that the draw has into parts."""
        self.heads = DeltaHeads.of(params)
        rule = self.heads.rule
        if "x" in inputs:
            (x,) = float64(inputs, ["x"])
            self.q, self.k = (self._by_head(x, at, rule.key_heads, rule.key) for at in (0, self.heads.k_at))
            self.v = self._by_head(x, self.heads.v_at, rule.heads, rule.value)
            self.g, self.beta = (x[:, at : at + rule.heads] for at in (self.heads.g_at, self.heads.beta_at))
        if "cache" in inputs:
            (cache,) = float64(inputs, ["cache"])
            self.keys = self._by_head(cache, 0, rule.key_heads, rule.key)
            self.decays = cache[:, self.heads.k_at : self.heads.k_at + rule.heads]
            self.corrections = self._by_head(cache, self.heads.u_at, rule.heads, rule.value)
        self.by_head = {
            name: each.reshape(len(each), rule.heads, -1)
            for name in ("scores", "solved", "state", "state0", "state1")
            if name in inputs
            for each in float64(inputs, [name])
        }

    def _by_head(self, rows: Array, at: int, heads: int, each: int) -> Array:
        """A part as [rows, heads, elements]; key heads are repeated for all value heads that share them."""
        found = rows[:, at : at + heads * each].reshape(len(rows), heads, each)
        return of_values(found, self.heads.rule.heads, in_turn=self.heads.rule.in_turn)

    def since(self, row: Row, position: int) -> Array:
        """The logarithms of a row's decays since the span of an earlier position began, [heads]."""
        end = position // SPAN * SPAN + SPAN
        return np.asarray(self.g[row.number] + (self.g[row.of(end - 1)] if end <= row.position else 0.0))

    def weights(self, row: Row, *, queries: bool) -> Array:
        """The weights [heads, tokens] of the tokens that a row sees."""
        found = np.zeros((self.heads.rule.heads, BLOCK_FLOATS))
        vector = (self.q if queries else self.k)[row.number]
        for position in range(row.window, row.position + queries):
            own = position >= row.begin
            key = self.k[row.of(position)] if own else self.keys[row.slot(position)]
            decay = self.g[row.of(position)] if own else self.decays[row.slot(position)]
            found[:, position - row.window] = np.exp(self.since(row, position) - decay) * (vector * key).sum(axis=-1)
        return found

    def recalled(self, row: Row, stop: int, *, queries: bool) -> Array:
        """The output for a row's query or key from tokens before ``stop``, [heads, elements]."""
        vector, found = (self.q if queries else self.k)[row.number], np.zeros(self.v.shape[1:])
        if row.window:
            state = self.by_head[f"state{row.window // SPAN % 2}"][row.state_slots(self.heads)]
            found += np.exp(self.since(row, row.window))[:, None] * np.einsum("hk,khv->hv", vector, state)
        for position in range(row.window, stop):
            weight = self.by_head["scores"][row.number, :, position - row.window]
            found += weight[:, None] * self.corrections[row.slot(position)]
        return found

    def folded(self, row: Row) -> Array:
        """The state [key elements, heads, elements] after a row that completes a span."""
        slots = [row.slot(position) for position in range(row.position + 1 - SPAN, row.position + 1)]
        last = self.decays[slots[-1]]
        weights = np.exp(last - self.decays[slots])[:, :, None] * self.keys[slots]
        found = np.einsum("thk,thv->khv", weights, self.corrections[slots])
        if row.position + 1 > SPAN:
            found += np.exp(last)[:, None] * self.by_head["state"][row.state_slots(self.heads)]
        return np.asarray(found)


def _unit(x: Array, rule: DeltaRule, scale: float, params: Params) -> Array:
    """``scale · x / sqrt(Σ x² + EPS)``, the sum over each head of queries or keys; x [.., keys]."""
    by_head = x.reshape(*x.shape[:-1], rule.key_heads, rule.key)
    norms = np.sqrt((by_head**2).sum(axis=-1, keepdims=True) + params["EPS"])
    return np.asarray((scale * by_head / norms).reshape(x.shape))


def _parts_of_conv(params: Params) -> Mapping[str, Part]:
    """The channels that the convolution sees, and the decay of the token before."""
    heads = DeltaHeads.of(params)
    decay = Part(1, padded(heads.rule.heads) / heads.kept)
    return {"inputs": Part(_rows(params) + int(params["LENGTH"]) - 1), "cache": decay}


_CONV = ("x", "inputs", "cache", "taps", "decay")


@op("delta_conv", _CONV, ("rows",), widths("projected", "mixed"), ("rows",), parts=_parts_of_conv)
def _oracle_conv(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, ring, cache, taps, decay = float64(inputs, ["x", "inputs", "cache", "taps", "decay"])
    heads, found, slots = DeltaHeads.of(params), np.zeros(size), int(params["INPUT_RING"])
    rule, length = heads.rule, int(params["LENGTH"])
    for row in rows_of(inputs, params, size[0]):
        sums = taps[length].copy() if "BIASED" in params else np.zeros(rule.channels)
        for tap, token in zip(taps[length - 1 :: -1], range(row.position, -1, -1), strict=False):
            known = x[row.of(token)] if token >= row.begin else ring[row.sequence * slots + token % slots]
            sums += tap * known[: rule.channels]
        channels = activate(sums, ACTIVATIONS["silu"])
        for part, scale in ((0, rule.key**-0.5), (1, 1.0)):
            start, own = part * heads.k_at, channels[part * rule.keys : (part + 1) * rule.keys]
            found[row.number, start : start + rule.keys] = _unit(own, rule, scale, params) if params["UNIT"] else own
        found[row.number, heads.v_at : heads.v_at + rule.values] = channels[2 * rule.keys :]
        start = row.position // SPAN * SPAN
        a = x[row.of(max(start, row.begin)) : row.number + 1, heads.a_at : heads.a_at + rule.heads]
        g = (decay[0] * np.logaddexp(0.0, a + decay[1])).sum(axis=0)
        if start < row.begin:
            g += cache[row.slot(row.begin - 1), heads.k_at : heads.k_at + rule.heads]
        found[row.number, heads.g_at : heads.g_at + rule.heads] = g
        shares = x[row.number, heads.b_at : heads.b_at + rule.heads]
        steps = np.logaddexp(0.0, shares + decay[1]) if rule.scan else np.exp(-np.logaddexp(0.0, -shares))
        found[row.number, heads.beta_at :] = steps
    return found


@op("delta_unit", ("x",), (), widths("mixed", "mixed"))
def _oracle_unit(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    heads, found = DeltaHeads.of(params), float64(inputs, ["x"])[0][: size[0]].copy()
    for start, scale in ((0, heads.rule.key**-0.5), (heads.k_at, 1.0)):
        part = slice(start, start + heads.rule.keys)
        found[:, part] = _unit(found[:, part], heads.rule, scale, params)
    return found


def _parts_of_rule(params: Params) -> Mapping[str, Part]:
    """The tokens and the state that one row sees; those of a run, which share them, as if the first began a span."""
    heads, position = DeltaHeads.of(params), int(params["position"]) if params["ALONE"] else SPAN
    state = Part(heads.rule.key if position >= SPAN else 0)
    even, none = position // SPAN % 2 == 0, Part(0)
    states = {"state0": state if even else none, "state1": none if even else state}
    return {"cache": Part(seen(position, _rows(params))), **states}


_TABLE: dict[str, Any] = {"integers": ("rows",), "parts": _parts_of_rule}


@op("delta_scores", ("x", "cache"), ("rows",), widths("mixed", "per_head"), **_TABLE)
def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    parts, rows = _Parts(inputs, params), rows_of(inputs, params, size[0])
    sides = (True,) if parts.heads.rule.scan else (False, True)
    return np.stack([[parts.weights(row, queries=queries).reshape(-1) for row in rows] for queries in sides])


@op("delta_recall", ("x", "scores", "cache", "state0", "state1"), ("rows",), _check_recall, **_TABLE)
def _oracle_recall(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    parts, found = _Parts(inputs, params), np.zeros(size)
    heads, (x,) = parts.heads, float64(inputs, ["x"])
    for row in rows_of(inputs, params, size[0]):
        if params["QUERIES"]:
            found[row.number] = parts.recalled(row, row.position + 1, queries=True).reshape(-1)
            continue
        known = parts.recalled(row, row.begin, queries=False)
        correction = parts.beta[row.number][:, None] * (parts.v[row.number] - known)
        found[row.number, : heads.k_at] = x[row.number, heads.k_at : heads.v_at]
        found[row.number, heads.k_at : heads.u_at] = x[row.number, heads.g_at : heads.beta_at]
        found[row.number, heads.u_at :] = correction.reshape(-1)
    return found


@op("delta_solve", ("x", "scores"), ("rows",), widths("mixed", "per_head"), ("rows",))
def _oracle_solve(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    parts, heads = _Parts(inputs, params), DeltaHeads.of(params).rule.heads
    matrices = np.tile(np.eye(size[0]), (heads, 1, 1))
    for row in rows_of(inputs, params, size[0]):
        own = slice(row.begin - row.window, row.position - row.window)
        lowered = parts.beta[row.number][:, None] * parts.by_head["scores"][row.number, :, own]
        matrices[:, row.number, row.first : row.number] = lowered
    found = np.zeros((size[0], heads, BLOCK_FLOATS))
    found[:, :, : size[0]] = np.linalg.inv(matrices).transpose(1, 0, 2)
    return found.reshape(size)


@op("delta_correct", ("apart", "solved"), ("rows",), widths("mixed", "kept"), ("rows",))
def _oracle_correct(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    solved, (apart,) = _Parts(inputs, params).by_head["solved"], float64(inputs, ["apart"])
    found, heads = apart[: size[0]].copy(), DeltaHeads.of(params)
    corrections = apart[:, heads.u_at :].reshape(len(apart), heads.rule.heads, -1)
    for row in rows_of(inputs, params, size[0]):
        run = slice(row.first, row.number + 1)
        corrected = np.einsum("ht,thv->hv", solved[row.number, :, run], corrections[run])
        found[row.number, heads.u_at :] = corrected.reshape(-1)
    return found


def _folded_rows(inputs: Mapping[str, Array], params: Params, rows: int) -> Array:
    heads = DeltaHeads.of(params)
    folding = [row for row in rows_of(inputs, params, rows) if row.folds(params)]
    starts = np.array([row.sequence * heads.state_rows for row in folding], np.intp)
    return (starts[:, None] + np.arange(heads.state_rows)).reshape(-1)


def _parts_of_fold(params: Params) -> Mapping[str, Part]:
    """A span and the state before it, where a span ends."""
    position = int(params["position"]) if params["ALONE"] else SPAN - 1
    folds = Row(0, position, 0, 0).folds(params)
    return {"cache": Part(SPAN * folds), "state": Part(DeltaHeads.of(params).rule.key * folds)}


_FOLD: dict[str, Any] = {"integers": ("rows",), "rows_written": _folded_rows, "parts": _parts_of_fold}


@op("delta_fold", ("cache", "state"), ("rows",), widths("mixed", "values"), **_FOLD)
def _oracle_fold(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    parts, found = _Parts(inputs, params), list[Array]()
    for row in rows_of(inputs, params, size[0]):
        if row.folds(params):
            state = np.zeros((parts.heads.state_rows, size[1]))
            state[: parts.heads.rule.key] = parts.folded(row).reshape(-1, size[1])
            found.append(state)
    return np.concatenate([*found, np.zeros((0, size[1]))])


@op("delta_norm", ("x", "gates", "gains"), (), widths("values", "values"))
def _oracle_norm(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, gates, gains = float64(inputs, ["x", "gates", "gains"])
    heads = DeltaHeads.of(params)
    by_head = x[: size[0]].reshape(size[0], heads.rule.heads, -1)
    normed = by_head / np.sqrt((by_head**2).mean(axis=-1, keepdims=True) + params["EPS"]) * gains[0]
    z = gates[: size[0], heads.z_at : heads.z_at + heads.values]
    return np.asarray(normed.reshape(size) * activate(z, ACTIVATIONS["silu"]))


def _rows(params: Params) -> int:
    return 1 if params["ALONE"] else int(params["rows"])
