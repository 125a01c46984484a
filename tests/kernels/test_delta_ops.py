"""The passes of the gated delta rule: all oracles against the state itself, and each shader against its oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS, first_rows, over, with_kernels
from one_draw import OUT, TABLE, Array, BlockDraw, Case, check, normal
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.families.layer import DeltaRule
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels.flat.delta import gated_delta
from glinfer.kernels.fused.delta import (
    REWINDS,
    RING,
    SPAN,
    DeltaHeads,
    DeltaRun,
    delta_conv,
    delta_correct,
    delta_fold,
    delta_norm,
    delta_recall,
    delta_scores,
    delta_solve,
    delta_unit,
    input_ring,
)
from glinfer.kernels.fused.rows import BASE, POSITION, RowInterleaved
from glinfer.kernels.fused.rowwise import gate_heads
from glinfer.kernels.fused.scan import scan_gate, scan_norm, scan_row
from glinfer.kernels.fused.tiles import store_rows
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import OPS, DrawSpec, TensorSpec

ROWS, EVERY, SEQUENCES, TAPS = SPAN, 128, 2, 4
"""Rows of a run, slots of a sequence in the table of rows, sequences, and tokens that a convolution sees."""
RULES = {
    "shared keys": DeltaRule(2, 6, 12, 20),
    "keys in turn": DeltaRule(2, 6, 12, 20, in_turn=True),
    "long keys": DeltaRule(1, 3, 36, 8),
    "whole blocks": DeltaRule(4, 4, 16, 16),
    "scan": DeltaRule(2, 6, 12, 20, scan=True, norm_groups=3),
}
Positions = Sequence[tuple[int, int]]
PIECES: dict[str, Positions] = {
    "from the beginning": [(0, position) for position in range(SPAN)],
    "over the end of the first span": [(1, position) for position in range(9, 36)],
    "over the end of a span": [(0, position) for position in range(50, 80)],
    "of several sequences": [*((0, position) for position in range(61, 70)), *((1, position) for position in range(5))],
    "a whole span": [(1, position) for position in range(96, 96 + SPAN)],
}
APART: dict[str, Positions] = {
    "each of its own sequence": [(0, 63), (1, 70)],
    "the first tokens": [(0, 0), (1, 1)],
    "in odd spans": [(0, 33), (1, 95)],
}
ALONE = (0, 1, 30, 31, 32, 33, 63, 64, 95, 127)
SETUPS = [
    ("llvmpipe", "shared keys", "alone"),
    ("one by one", "keys in turn", "apart"),
    ("GPU", "whole blocks", "pieces"),
    ("mantissa, one by one", "long keys", "pieces"),
    ("plain", "keys in turn", "alone"),
    ("one by one, looked up", "shared keys", "apart"),
    ("small points", "shared keys", "pieces"),
]
SCANS = [("llvmpipe", "scan", "pieces"), ("one by one", "scan", "alone"), ("GPU", "scan", "apart")]
every_setup = tiered("place", range(len(SETUPS)), keep=3)
"""Kernel options, a rule, and how the rows of a run belong together."""


# The oracles


class Passes:
    """The passes over one sequence, in NumPy, with the rings that they leave; what no run has written is NaN."""

    def __init__(self, heads: DeltaHeads) -> None:
        self.heads, self.cache = heads, np.full((RING, heads.kept), np.nan)
        self.states = [np.full((heads.state_rows, heads.rule.values), np.nan) for _ in range(2)]

    def run(self, given: Array, first: int, count: int, *, alone: bool) -> Array:
        """The results of tokens from ``first`` on, of which ``given`` has the rows."""
        heads = self.heads
        params = {**dict(heads.defines()), "ALONE": int(alone), "PIECE": 0 if alone else count, "position": first}
        table = np.zeros((count, 8))
        table[:, POSITION], params["EVERY"] = first + np.arange(count), EVERY
        inputs = {"x": given[first : first + count], "cache": self.cache, **({} if alone else {"rows": table})}
        inputs |= {"state0": self.states[0], "state1": self.states[1]}

        def draw(op: str, cols: int, **further: Any) -> Array:
            return OPS[op].oracle(inputs, {**params, **further}, (count, cols))

        *of_keys, of_queries = draw("delta_scores", heads.per_head)
        scan = heads.rule.scan
        if not scan:
            inputs["scores"] = of_keys[0]
        kept = draw("scan_row", heads.kept) if scan else draw("delta_recall", heads.kept, QUERIES=0)
        if not alone and not scan:
            inputs["apart"], inputs["solved"] = kept, draw("delta_solve", heads.per_head)
            kept = draw("delta_correct", heads.kept)
        self.cache[(first + np.arange(count)) % RING] = kept
        for parity in (0, 1):
            inputs["state"] = self.states[1 - parity]
            if len(state := draw("delta_fold", heads.rule.values, parity=parity)):
                self.states[parity] = inputs[f"state{parity}"] = state
        inputs["scores"] = of_queries
        return draw("delta_recall", heads.rule.values, QUERIES=1)


def given_rows(heads: DeltaHeads, rows: int, seed: int = 1) -> Array:
    """Rows of queries, keys of length 1, values, decays and shares; the decays are added up within each span."""
    rule, random = heads.rule, np.random.default_rng(seed)
    found = np.zeros((rows, heads.mixed), np.float32)
    q, k = (random.standard_normal((rows, rule.key_heads, rule.key)) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -0.1 * random.random((rows, rule.heads))
    for first in range(0, rows, SPAN):
        g[first : first + SPAN] = g[first : first + SPAN].cumsum(axis=0)
    found[:, : rule.keys], found[:, heads.k_at : heads.k_at + rule.keys] = q.reshape(rows, -1), k.reshape(rows, -1)
    found[:, heads.v_at : heads.v_at + rule.values] = random.standard_normal((rows, rule.values))
    found[:, heads.g_at : heads.g_at + rule.heads], found[:, heads.beta_at :] = g, random.random((rows, rule.heads))
    return found


def by_state(heads: DeltaHeads, given: Array) -> Array:
    """What the state itself gives, taken along from token to token."""
    rule, rows = heads.rule, len(given)
    wide = given.astype(np.float64)
    q, k = (wide[:, at : at + rule.keys].reshape(rows, rule.key_heads, -1) for at in (0, heads.k_at))
    shared = rule.heads // rule.key_heads
    own = [head % rule.key_heads if rule.in_turn else head // shared for head in range(rule.heads)]
    q, k = q[:, own], k[:, own]
    v = wide[:, heads.v_at : heads.v_at + rule.values].reshape(rows, rule.heads, -1)
    sums = wide[:, heads.g_at : heads.g_at + rule.heads]
    begins = (np.arange(rows) % SPAN == 0)[:, None]
    g = sums - np.where(begins, 0.0, np.concatenate([sums[:1], sums[:-1]]))
    return gated_delta(q, k, v, g, wide[:, heads.beta_at :], scan=rule.scan)[0].reshape(rows, -1)


@tiered("rule", list(RULES.values())[::-1], keep=(0, 2, 3))
def test_rings_stand_for_the_state(rule: DeltaRule) -> None:
    """However a sequence runs, in whatever pieces, the results are those of the state over more than three rings."""
    heads = DeltaHeads(rule)
    given = given_rows(heads, 3 * RING + 7)
    expected = by_state(heads, given)
    for pieces in ([1], [SPAN, 1, 3], [5, SPAN - 1, 1, 1], [SPAN - 1, 2]):
        passes, done, found = Passes(heads), 0, list[Array]()
        while done < len(given):
            for count in pieces:
                count = min(count, len(given) - done)
                if count:
                    found.append(passes.run(given, done, count, alone=count == 1))
                done += count
        assert np.abs(np.concatenate(found) - expected).max() < 1e-10


@pytest.mark.parametrize("reached", [SPAN, 60, 64, 65, 95, 96, 127, 128, 150])
def test_a_sequence_continues_from_any_of_its_last_tokens(reached: int) -> None:
    """Rewound as far as allowed, its last token runs again, after others had followed it alone or together."""
    heads = DeltaHeads(RULES["shared keys"])
    given, other = given_rows(heads, reached + 70), given_rows(heads, reached + 70, seed=2)
    first = max(reached - REWINDS - 1, 0)
    other[:first] = given[:first]
    expected = by_state(heads, given)
    for alone in (True, False):
        passes = Passes(heads)
        for position in range(first):
            passes.run(other, position, 1, alone=True)
        for position in range(first, reached, 1 if alone else SPAN):
            passes.run(other, position, 1 if alone else min(SPAN, reached - position), alone=alone)
        for position in range(first, len(given)):
            assert np.abs(passes.run(given, position, 1, alone=True)[0] - expected[position]).max() < 1e-10, position


# The shaders


class Rows(BlockDraw):
    """A plan of one draw of the rule over rows of a table, or of one alone."""

    def __init__(self, place: int) -> None:
        name, rule, self.form = [*SETUPS, *SCANS][place]
        self.alone, kernels = self.form == "alone", KERNELS[name]
        super().__init__(kernels, {"position": (0, 400)} if self.alone else {"rows": (1, ROWS)})
        self.heads, self.rows = DeltaHeads(RULES[rule]), 1 if self.alone else ROWS
        piece = ROWS if self.form == "pieces" else 0
        self.run_of = DeltaRun("draw", self.heads, kernels, None if self.alone else self.table(ROWS), EVERY, piece)

    def matrix(self, name: str, array: Array) -> TensorSpec:
        self.by_row |= set() if self.alone else {name}
        return self.blocks(name, array)

    @property
    def x(self) -> TensorSpec:
        return self.matrix("x", given_rows(self.heads, self.rows))

    def per_head(self, name: str, scale: float = 0.2) -> TensorSpec:
        return self.matrix(name, normal(6, self.rows, self.heads.per_head, scale=scale))

    @property
    def rows_before(self) -> TensorSpec:
        """The cache: keys of length 1, and decays that fall within each span."""
        heads, rows = self.heads, given_rows(self.heads, SEQUENCES * RING, seed=4)
        found = normal(3, SEQUENCES * RING, heads.kept)
        found[:, : heads.k_at] = rows[:, heads.k_at : heads.v_at]
        found[:, heads.k_at : heads.u_at] = rows[:, heads.g_at : heads.beta_at]
        return self.cache("cache", found)

    def state(self, name: str, seed: int = 5) -> TensorSpec:
        layout = self.heads.layouts(TAPS, SEQUENCES, self.edge)["state.0"]
        return self.whole(name, normal(seed, layout.rows, layout.cols), layout)

    @property
    def states(self) -> tuple[TensorSpec, TensorSpec]:
        return self.state("state0"), self.state("state1", 6)

    def target(self, cols: int, name: str = OUT) -> TensorSpec:
        return self.builder.laid_out(name, "cache", self.layout(self.rows, cols))

    def draw_rule(self, made: DrawSpec, *, own: bool) -> Rows:
        """Add the draw; it may read tokens of the cache since the window began, before the run or (``own``) of it."""

        def poison(arrays: dict[str, Array], case: Case) -> None:
            usable, states = np.zeros(SEQUENCES * RING, bool), np.zeros((2, SEQUENCES), bool)
            places = self.positions_of(case)
            for sequence in {sequence for sequence, _ in places}:
                positions = [position for each, position in places if each == sequence]
                window = min(positions) // SPAN * SPAN
                seen = np.arange(window, max(positions) + 1 if own else min(positions))
                usable[sequence * RING + seen % RING] = True
                states[window // SPAN % 2, sequence] = window > 0
            arrays["cache"][~usable] = np.nan
            if "inputs" in arrays:
                ring, before = input_ring(TAPS), np.zeros(len(arrays["inputs"]), bool)
                for sequence, position in places:
                    begin = min(other for each, other in places if each == sequence)
                    before[sequence * ring + np.arange(max(position - TAPS + 1, 0), begin) % ring] = True
                arrays["inputs"][~before] = np.nan
            for name, held in zip(("state0", "state1"), states, strict=True):
                if name in arrays:
                    arrays[name][np.repeat(~held, self.heads.state_rows)] = np.nan

        self.alter = poison
        self.draw(made)
        return self

    def positions_of(self, case: Case) -> Positions:
        if self.alone:
            return [(0, int(case.values["position"]))]
        table = case.arrays[TABLE][: int(case.values["rows"])].astype(int)
        return [(row[BASE] // EVERY, row[POSITION] + row[BASE] % EVERY) for row in table]

    @property
    def cases(self) -> list[Case]:
        if self.alone:
            return [Case({"position": position}) for position in ALONE]
        return [self.case(each) for each in (APART if self.form == "apart" else PIECES).values()]

    def case(self, places: Positions) -> Case:
        """The first row's slot is given as that of an idle slot is: from the last multiple of 64 on."""
        table = np.zeros_like(self.arrays[TABLE])
        table[: len(places), [BASE, POSITION]] = [(EVERY * sequence, position) for sequence, position in places]
        if not self.run_of.piece:
            base, position = table[0, BASE], table[0, POSITION]
            table[0, [BASE, POSITION]] = base + position // 64 * 64, position % 64
        return Case({"rows": len(places)}, {TABLE: table}, np.arange(self.rows) < len(places))


@pytest.mark.gl
@every_setup
def test_scores_are_those_of_float64(device: Device, place: int) -> None:
    one = Rows(place)
    one.promise = lambda case, shape: np.broadcast_to(np.repeat(case.real, 2)[: shape[0], None], shape)
    outputs = one.target(one.heads.per_head), one.target(one.heads.per_head, "beside")
    made = delta_scores(one.run_of, one.x, one.rows_before, *outputs)
    check(device, one.draw_rule(made, own=False), *one.cases)


@pytest.mark.gl
@tiered(("place", "queries"), [(0, True), (1, False), (2, False), (2, True), (3, True), (4, False), (5, True)], keep=4)
def test_what_a_state_gives_is_that_of_float64(device: Device, place: int, queries: bool) -> None:
    """Results read the run's own rows, which are stored by then; corrections need those before the run."""
    one = Rows(place)
    heads, inputs = one.heads, (one.x, one.per_head("scores"), one.rows_before, one.states)
    out = one.target(heads.rule.values if queries else heads.kept)
    made = delta_recall(one.run_of, *inputs, out, queries=queries)
    check(device, one.draw_rule(made, own=queries), *one.cases)


@pytest.mark.gl
@tiered("place", [2, 3, 6], keep=2)
def test_corrections_of_a_run_are_those_of_float64(device: Device, place: int) -> None:
    one = Rows(place)
    made = delta_solve(one.run_of, one.x, one.per_head("scores"), one.target(one.heads.per_head))
    check(device, one.draw(made), *one.cases)
    one = Rows(place)
    apart = one.matrix("apart", normal(7, ROWS, one.heads.kept))
    made = delta_correct(one.run_of, apart, one.per_head("solved"), one.target(one.heads.kept))
    check(device, one.draw(made), *one.cases)


@pytest.mark.gl
@every_setup
def test_folds_are_those_of_float64(device: Device, place: int) -> None:
    """Only rows that end a span write, each the state of its own sequence."""
    for parity in (0, 1):
        one = Rows(place)
        before = one.state("state")
        assert isinstance(before.layout, BlockLayout)
        out = one.out(before.layout)
        states = (out, before) if parity == 0 else (before, out)
        one.promise = lambda case, shape: np.ones(shape, bool)
        one.draw(delta_fold(one.run_of, one.rows_before, states, parity))
        ends = [
            [(position + 1) // SPAN % 2 for _, position in one.positions_of(case) if (position + 1) % SPAN == 0]
            for case in one.cases
        ]
        folding = [case for case, found in zip(one.cases, ends, strict=True) if parity in found]
        check(device, one, *folding)
        others = [case for case, found in zip(one.cases, ends, strict=True) if parity not in found]
        assert [len(each) for each in one.run(device, *others)] == [0] * len(others)
        assert folding


@pytest.mark.gl
@with_kernels("one by one", "llvmpipe")
def test_queries_and_keys_are_divided_by_their_lengths(device: Device, kernels: KernelOptions) -> None:
    one = Rows(6)
    run = DeltaRun("draw", one.heads, kernels, one.run_of.rows, EVERY, ROWS)
    one.draw(delta_unit(run, one.x, one.target(one.heads.mixed), eps=1e-6))
    check(device, one, *[Case({"rows": rows}, real=np.arange(ROWS) < rows) for rows in (1, 5, ROWS)])


@pytest.mark.gl
@every_setup
def test_queries_keys_and_values_are_those_of_float64(device: Device, place: int) -> None:
    one = Rows(place)
    heads, rule = one.heads, one.heads.rule
    x = normal(1, one.rows, heads.projected)
    x[:, heads.a_at + rule.heads : heads.b_at] = x[:, heads.b_at + rule.heads : heads.z_at] = 0
    inputs = one.cache("inputs", normal(2, SEQUENCES * input_ring(TAPS), heads.a_at))
    decay = np.stack([-np.linspace(0.01, 2.0, rule.heads), np.linspace(-3.0, 3.0, rule.heads)]).astype(np.float32)
    taps = one.row_weight("taps", normal(3, TAPS, rule.channels)), one.row_weight("decay", decay)
    tensors = one.matrix("x", x), inputs, one.rows_before, *taps, one.target(heads.mixed)
    made = delta_conv(one.run_of, *tensors, length=TAPS, eps=1e-6, unit=place % 2 == 0)
    check(device, one.draw_rule(made, own=False), *one.cases)


@pytest.mark.gl
@tiered("place", [2, 3, 1])
def test_results_are_normalised_and_gated(device: Device, place: int) -> None:
    one = Rows(place)
    heads, rule = one.heads, one.heads.rule
    x, gates = one.matrix("x", normal(1, ROWS, rule.values)), one.matrix("gates", normal(2, ROWS, heads.projected))
    gains, out = one.row_weight("gains", normal(3, 1, rule.value)), one.target(rule.values)
    one.draw(delta_norm(one.run_of, x, gates, gains, out, eps=1e-5))
    check(device, one, *[Case({"rows": rows}, real=np.arange(ROWS) < rows) for rows in (1, 5, ROWS)])


@pytest.mark.gl
@pytest.mark.parametrize("number", range(len(SCANS)))
def test_passes_of_a_scan_are_those_of_float64(device: Device, number: int) -> None:
    """Its channels with biases and steps, the weights of queries alone, and rows, gates and norms of its own."""
    place = len(SETUPS) + number
    one = Rows(place)
    heads, rule = one.heads, one.heads.rule
    x = normal(1, one.rows, heads.projected)
    x[:, heads.a_at + rule.heads : heads.z_at] = 0
    inputs = one.cache("inputs", normal(2, SEQUENCES * input_ring(TAPS), heads.a_at))
    taps = one.row_weight("taps", normal(3, TAPS + 1, rule.channels))
    tensors = one.matrix("x", x), inputs, one.rows_before, taps, decay_rows(one), one.target(heads.mixed)
    made = delta_conv(one.run_of, *tensors, length=TAPS, eps=1e-6, unit=False)
    check(device, one.draw_rule(made, own=False), *one.cases)
    one = Rows(place)
    made = delta_scores(one.run_of, one.x, one.rows_before, None, one.target(heads.per_head))
    check(device, one.draw_rule(made, own=False), *one.cases)
    one = Rows(place)
    one.draw(scan_row(one.run_of, one.x, one.target(heads.kept)))
    check(device, one, *one.cases)
    one = Rows(place)
    sizes = ("results", rule.values), ("gates", heads.projected)
    results, gates = (one.matrix(name, normal(4, one.rows, cols)) for name, cols in sizes)
    one.draw(scan_gate(one.run_of, one.x, results, gates, decay_rows(one), one.target(rule.values)))
    check(device, one, *one.cases)
    one = Rows(place)
    x, gains = one.matrix("x", normal(1, one.rows, rule.values)), one.row_weight("gains", normal(3, 1, rule.values))
    one.draw(scan_norm(one.run_of, x, gains, one.target(rule.values), groups=3, eps=1e-5))
    check(device, one, *one.cases)


def decay_rows(one: Rows) -> TensorSpec:
    """Factors and shifts of decays, and factors of values."""
    heads = one.heads.rule.heads
    rows = -np.linspace(0.01, 2.0, heads), np.linspace(-3.0, 3.0, heads), np.linspace(-1.0, 2.0, heads)
    return one.row_weight("decay", np.stack(rows).astype(np.float32))


@pytest.mark.gl
@with_kernels("llvmpipe", "mantissa")
@pytest.mark.parametrize("head_floats", [0, 16])
def test_results_of_attention_are_gated(device: Device, kernels: KernelOptions, head_floats: int) -> None:
    count = kernels.rows_per_draw
    one, _, _ = over(kernels, 2 * count)
    width = 48 // (head_floats or 1)
    x, gates = one.interleaved("x", normal(1, 2 * count, 48)), one.interleaved("r", normal(2, 2 * count, 128 + width))
    out = one.deal(OUT, 2, 48, "cache")
    one.draw(gate_heads(one.of(), x, gates, out, gates_at=128, head_floats=head_floats))
    check(device, one, first_rows(one, count + 1))
    with pytest.raises(PlanError, match="gates from float 100 on; expected a multiple of 64"):
        gate_heads(one.of(), x, gates, out, gates_at=100)


@pytest.mark.gl
@with_kernels("one by one", "GPU")
def test_rows_are_stored_in_rings(device: Device, kernels: KernelOptions) -> None:
    """Of a table each in its sequence's ring, and one alone; columns beyond those of the ring are left out."""
    one = BlockDraw(kernels, {"slot": (0, RING - 1)})
    x = one.blocks("x", normal(1, 1, 200))
    cache = one.out(BlockLayout.by_block((SEQUENCES * RING, 128), 2048))
    one.draw(store_rows(one.of(), RowInterleaved((x,)), cache, first="slot"))
    check(device, one, *[Case({"slot": slot}) for slot in (0, 5, RING - 1)])
    one = Rows(1)
    x = one.matrix("x", normal(1, ROWS, 200))
    cache, table = one.out(BlockLayout.by_block((SEQUENCES * RING, 128), 2048)), one.run_of.rows
    assert table is not None
    rows = RowInterleaved((x,))
    one.draw(store_rows(one.of("rows"), rows, cache, table, ring=(RING, EVERY)))
    check(device, one, *map(one.case, (*APART.values(), *PIECES.values())))


def test_what_does_not_fit_is_refused() -> None:
    one = Rows(3)
    run = DeltaRun("draw", one.heads, one.kernels, one.run_of.rows, EVERY, SPAN + 8)
    one.draw(delta_solve(run, one.x, one.per_head("scores"), one.target(one.heads.per_head)))
    with pytest.raises(PlanError, match=r"draw draw\.solve: 40 consecutive rows; expected at most 32"):
        one.plan.validate()
    one = Rows(2)
    kept = one.heads.kept
    cache = one.cache("cache", normal(1, RING, kept - 4))
    one.draw(delta_scores(one.run_of, one.x, cache, one.target(one.heads.per_head), None))
    with pytest.raises(PlanError, match=rf"draw draw\.scores: cache is \[64, {kept - 4}\]; expected \[any, {kept}"):
        one.plan.validate()
    with pytest.raises(PlanError, match="found 3 tensors for one matrix"):
        RowInterleaved((cache, cache, cache))
