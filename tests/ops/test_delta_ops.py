"""The passes of the gated delta rule: all oracles against the state itself, and each shader against its oracle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from one_draw import OUT, TABLE, Array, BlockDraw, Case, check, normal
from rows_draw import KERNELS
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.families.layer import DeltaRule
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.ops.flat.delta import gated_delta
from glinfer.ops.fused.delta import (
    DeltaHeads,
    delta_conv,
    delta_norm,
    delta_recall,
    delta_row,
    delta_scores,
)
from glinfer.ops.fused.delta_chunk import (
    delta_carry,
    delta_ends,
    delta_join,
    delta_lower,
    delta_solve,
    delta_unit,
    join_sizes,
)
from glinfer.ops.fused.gates import gate_heads
from glinfer.ops.fused.rows import BASE, POSITION, RowInterleaved
from glinfer.ops.fused.tiles import store_row
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import OPS, DrawSpec, TensorSpec

SLOTS, ROWS = 128, 16
RULES = {
    "shared keys": DeltaRule(2, 6, 12, 20),
    "keys in turn": DeltaRule(2, 6, 12, 20, in_turn=True),
    "longer keys than a span step": DeltaRule(1, 3, 20, 8),
    "whole blocks": DeltaRule(4, 4, 16, 16),
}
PIECES = {
    "from the beginning": [(0, position) for position in range(16)],
    "over the end of a span": [(0, position) for position in range(26, 42)],
    "over the end of the first span": [(64, position) for position in range(9, 20)],
    "of several sequences": [
        *((0, position) for position in range(30, 35)),
        *((64, position) for position in range(4)),
    ],
    "one": [(64, 63)],
}
APART = {
    "each of its own sequence": [(64 * (row % 2), (17 * row + 1) % 64) for row in range(2)],
    "one": [(0, 33)],
}
every_kernel = tiered("kernels", KERNELS.values(), keep=(1,), ids=KERNELS)
_SETUPS = {
    **{name: (kernels, RULES["shared keys"]) for name, kernels in KERNELS.items()},
    **{name: (KERNELS["llvmpipe"], rule) for name, rule in RULES.items() if name != "shared keys"},
}
every_setup = tiered(("kernels", "rule"), _SETUPS.values(), keep=(1,), ids=_SETUPS)
"""Every choice of kernels for one rule, and every other rule for one choice."""


# The oracles


class Passes:
    """The passes over one sequence, in NumPy, with the caches that they leave."""

    def __init__(self, heads: DeltaHeads, given: Array) -> None:
        self.heads, self.given, self.cache = heads, given, np.full((2 * SLOTS, heads.kept), np.nan)
        self.results = np.zeros((len(given), heads.rule.values))

    def run(self, first: int, count: int, *, form: str) -> None:
        """Take in one token ``alone``, or several, whose corrections come ``in turn`` or are ``solved`` for."""
        heads, alone = self.heads, form == "alone"
        params = {**dict(heads.defines()), "ALONE": int(alone), "PIECE": 0 if alone else count, "position": first}
        table = np.zeros((count, 8))
        table[:, POSITION] = first + np.arange(count)
        part = slice(first, first + count)
        inputs = {"x": self.given[part], "cache": self.cache, **({} if alone else {"rows": table})}

        def draw(op: str, cols: int, **further: Any) -> Array:
            return OPS[op].oracle(inputs, {**params, **further}, (count, cols))

        if form == "solved":
            inputs["ends"] = draw("delta_ends", heads.ends)
        if not alone:
            self.cache[part] = draw("delta_row", heads.kept, EARLY=1)
            inputs.pop("ends", None)
        inputs["scores"], of_queries = draw("delta_scores", heads.scores)
        if not alone:
            inputs["apart"] = draw("delta_recall", heads.rule.values, QUERIES=0)
        if form == "solved":
            inputs["solved"] = draw("delta_solve", heads.over_run(count), CHUNK=4)
            for size in join_sizes(count, chunk=4):
                inputs["product"] = draw("delta_lower", heads.over_run(count), SIZE=size)
                inputs["solved"] = draw("delta_join", heads.over_run(count), SIZE=size)
            inputs["carry"] = draw("delta_carry", heads.over_run(count))
        self.cache[part] = draw("delta_row", heads.kept, EARLY=0)
        inputs["scores"] = of_queries
        self.results[part] = draw("delta_recall", heads.rule.values, QUERIES=1)


def given_rows(heads: DeltaHeads, rows: int, seed: int = 1) -> Array:
    """Rows of queries, keys of length 1, values, decays and shares; the decays are added up within each span."""
    rule, random = heads.rule, np.random.default_rng(seed)
    found = np.zeros((rows, heads.mixed), np.float32)
    q, k = (random.standard_normal((rows, rule.key_heads, rule.key)) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -0.2 * random.random((rows, rule.heads))
    for first in range(0, rows, heads.span):
        g[first : first + heads.span] = g[first : first + heads.span].cumsum(axis=0)
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
    begins = (np.arange(rows) % heads.span == 0)[:, None]
    g = sums - np.where(begins, 0.0, np.concatenate([sums[:1], sums[:-1]]))
    return gated_delta(q, k, v, g, wide[:, heads.beta_at :])[0].reshape(rows, -1)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rows_of_the_cache_stand_for_the_state(rule: DeltaRule) -> None:
    """However a sequence is taken in, each row of the cache is the same, and so are the results of the state."""
    heads = DeltaHeads(rule)
    given = given_rows(heads, 5 * heads.span + 3)
    expected, kept = by_state(heads, given), None
    most = heads.most_together
    ways = itertools.product(([1], [most], [most, 1, 3], [5, most - 1, 1, 1]), ("in turn", "solved"))
    for pieces, form in ways:
        passes, done = Passes(heads, given), 0
        while done < len(given):
            for count in pieces:
                count = min(count, len(given) - done)
                if count:
                    passes.run(done, count, form="alone" if count == 1 else form)
                done += count
        assert np.abs(passes.results - expected).max() < 1e-10
        rows = passes.cache[: len(given)]
        assert kept is None or np.abs(rows - kept).max() < 1e-10
        kept = rows


def test_a_row_that_is_written_once_more_is_the_same() -> None:
    """The tokens behind one that is taken back leave nothing in the rows before it."""
    heads = DeltaHeads(RULES["shared keys"])
    given, other = given_rows(heads, 60), given_rows(heads, 60, seed=2)
    other[:30] = given[:30]
    for first, again in ((37, 30), (60, 30), (50, 33)):
        passes, wanted = Passes(heads, other), Passes(heads, given)
        for position in range(first):
            passes.run(position, 1, form="alone")
        passes.given = given
        for position in range(60):
            wanted.run(position, 1, form="alone")
        for position in range(min(again, 30), 60):
            passes.run(position, 1, form="alone")
        assert np.array_equal(passes.cache[:60], wanted.cache[:60])


# The shaders


class Rows(BlockDraw):
    """A plan of one draw of the rule over rows of a table, or of one alone."""

    def __init__(self, kernels: KernelOptions, rule: DeltaRule, *, alone: bool = False, rows: int = ROWS) -> None:
        super().__init__(kernels, {"position": (0, SLOTS - 1)} if alone else {"rows": (1, rows)})
        self.heads, self.alone, self.rows = DeltaHeads(rule), alone, 1 if alone else rows

    def matrix(self, name: str, array: Array) -> TensorSpec:
        self.by_row |= set() if self.alone else {name}
        return self.blocks(name, array)

    @property
    def places(self) -> TensorSpec | None:
        return None if self.alone else self.table(self.rows)

    def target(self, cols: int) -> TensorSpec:
        return self.out(self.layout(self.rows, cols))

    def both(self, cols: int) -> tuple[TensorSpec, TensorSpec]:
        """Two targets, whose rows the harness takes in turn."""
        self.promise = lambda case, shape: np.broadcast_to(np.repeat(case.real, 2)[: shape[0], None], shape)
        return self.target(cols), self.builder.laid_out("beside", "cache", self.layout(self.rows, cols))

    def draw_rule(self, made: DrawSpec, *, reads: str) -> Rows:
        """Add the draw; it may read ``whole`` rows of earlier tokens, and of its own run the ``keys``, these and the
        ``states``, or ``all``.
        """

        def poison(arrays: dict[str, Array], case: Case) -> None:
            table = arrays.get(TABLE)
            places = (
                [(0, int(case.values["position"]))]
                if table is None
                else [(int(row[BASE]), int(row[POSITION])) for row in table[: int(case.values["rows"])]]
            )
            whole, keys = np.zeros(SLOTS, bool), np.zeros(SLOTS, bool)
            for base in {base for base, _ in places}:
                own = [position for each, position in places if each == base]
                whole[base : base + min(own)] = True
                keys[base : base + max(own) + 1] = True
            cache = arrays["cache"]
            if reads == "all":
                cache[~keys] = np.nan
            else:
                cache[~whole, self.heads.u_at : self.heads.s_at if reads == "states" else None] = np.nan
                cache[~(whole if reads == "whole" else keys)] = np.nan

        self.alter = poison
        self.draw(made)
        return self

    def cases(self, places: Sequence[Sequence[tuple[int, int]]]) -> list[Case]:
        if self.alone:
            return [Case({"position": position}) for position in (0, 1, 15, 16, 33, 47, 63)]
        found = []
        for each in places:
            table = np.zeros_like(self.arrays[TABLE])
            table[: len(each), [BASE, POSITION]] = each
            found.append(Case({"rows": len(each)}, {TABLE: table}, np.arange(self.rows) < len(each)))
        return found


def cache_of(heads: DeltaHeads) -> Array:
    """A cache full of numbers: keys of length 1, and decays that fall within each span."""
    found = normal(3, SLOTS, heads.kept)
    found[:, heads.k_at : heads.u_at] = 0
    rows = given_rows(heads, SLOTS, seed=4)
    found[:, : heads.k_at] = rows[:, heads.k_at : heads.v_at]
    found[:, heads.k_at : heads.k_at + heads.rule.heads] = rows[:, heads.g_at : heads.g_at + heads.rule.heads]
    return found


def scores_of(rows: int, heads: DeltaHeads) -> Array:
    return normal(6, rows, heads.scores, scale=0.2)


FORMS = ("alone", "apart", "pieces")
every_form = pytest.mark.parametrize("form", FORMS)


def started(kernels: KernelOptions, rule: DeltaRule, form: str) -> tuple[Rows, dict[str, Any], list[Case]]:
    """A plan over rows of a form, what all draws of the rule are given, and its runs."""
    one = Rows(kernels, rule, alone=form == "alone")
    shared = {"rows": one.places, "kernels": kernels}
    return one, shared, one.cases(list((APART if form == "apart" else PIECES).values()))


@pytest.mark.gl
@every_setup
@every_form
def test_scores_are_those_of_float64(device: Device, kernels: KernelOptions, rule: DeltaRule, form: str) -> None:
    one, shared, cases = started(kernels, rule, form)
    heads = one.heads
    x, cache = one.matrix("x", given_rows(heads, one.rows)), one.cache("cache", cache_of(heads))
    made = delta_scores("draw", x, cache, *one.both(heads.scores), heads, **shared)
    check(device, one.draw_rule(made, reads="keys" if form == "pieces" else "whole"), *cases)


@pytest.mark.gl
@every_setup
@every_form
@pytest.mark.parametrize("queries", [False, True])
def test_what_a_state_gives_is_that_of_float64(
    device: Device, kernels: KernelOptions, rule: DeltaRule, form: str, queries: bool
) -> None:
    """Results read the run's own rows, which are stored by then; what keys need is what lies before the run."""
    one, shared, cases = started(kernels, rule, form)
    heads = one.heads
    x, cache = one.matrix("x", given_rows(heads, one.rows)), one.cache("cache", cache_of(heads))
    scores, piece = one.matrix("scores", scores_of(one.rows, heads)), ROWS if form == "pieces" else 0
    options = {"queries": queries, "piece": 0 if queries else piece, **shared}
    made = delta_recall("draw", x, scores, cache, one.target(heads.rule.values), heads, **options)
    # Rows of states of the run are stored before, and read where a span ends in the run.
    check(device, one.draw_rule(made, reads="all" if queries or piece else "whole"), *cases)


@pytest.mark.gl
@every_setup
@every_form
def test_what_is_kept_is_that_of_float64(device: Device, kernels: KernelOptions, rule: DeltaRule, form: str) -> None:
    one, shared, cases = started(kernels, rule, form)
    heads = one.heads
    x, cache = one.matrix("x", given_rows(heads, one.rows)), one.cache("cache", cache_of(heads))
    options: dict[str, Any] = {"scores": one.matrix("scores", scores_of(one.rows, heads)), **shared}
    if form == "pieces":
        options |= {"apart": one.matrix("apart", normal(7, one.rows, heads.rule.values)), "piece": ROWS}
    made = delta_row("draw", x, cache, one.target(heads.kept), heads, **options)
    check(device, one.draw_rule(made, reads="states" if form == "pieces" else "whole"), *cases)


@pytest.mark.gl
@every_kernel
def test_what_is_kept_at_first_needs_no_row_of_the_run(device: Device, kernels: KernelOptions) -> None:
    one, shared, cases = started(kernels, RULES["shared keys"], "pieces")
    heads = one.heads
    x, cache = one.matrix("x", given_rows(heads, one.rows)), one.cache("cache", cache_of(heads))
    made = delta_row("draw", x, cache, one.target(heads.kept), heads, piece=ROWS, **shared)
    check(device, one.draw_rule(made, reads="whole"), *cases)


LONG = DeltaRule(1, 2, 36, 8)
"""Heads with spans of 48 tokens, as many as the rows of a run that are solved for together."""
LONG_PIECES = {
    "from the beginning": [(0, position) for position in range(48)],
    "from the end of a span on": [(0, position) for position in range(48, 91)],
    "over the end of a span": [(0, position) for position in range(70, 117)],
    "of several sequences": [
        *((0, position) for position in range(41, 59)),
        *((64, position) for position in range(19)),
        *((100, position) for position in range(5, 13)),
    ],
    "one": [(64, 63)],
}


def long_run(kernels: KernelOptions) -> tuple[Rows, dict[str, Any], list[Case]]:
    """A plan over 48 rows that may follow each other, what its draw is given, and its runs."""
    one = Rows(kernels, LONG, rows=48)
    return one, {"rows": one.places, "piece": 48, "kernels": kernels}, one.cases(list(LONG_PIECES.values()))


def inverse_of(heads: DeltaHeads) -> Array:
    """Matrices over the rows of a run with ones on the diagonal, and zeros above it and behind the rows."""
    by_head = normal(8, 48, heads.rule.heads, 64, scale=0.2)
    lower = np.tri(48, 64, k=-1) + np.eye(48, 64) / np.where(by_head[:, 0] == 0, 1, by_head[:, 0])
    return (by_head * lower[:, None]).reshape(48, -1).astype(np.float32)


@pytest.mark.gl
@every_kernel
def test_blocks_of_rows_are_solved_for(device: Device, kernels: KernelOptions) -> None:
    """Of 16 rows and of 32, neither of which divides all the runs."""
    for chunk in (16, 32):
        one, shared, cases = long_run(kernels)
        heads = one.heads
        x, scores = one.matrix("x", given_rows(heads, 48)), one.matrix("scores", scores_of(48, heads))
        one.draw(delta_solve("draw", x, scores, one.target(heads.over_run(48)), heads, chunk=chunk, **shared))
        check(device, one, *cases)


@pytest.mark.gl
@every_kernel
@pytest.mark.parametrize("size", [16, 32])
def test_solutions_of_neighbours_are_joined(device: Device, kernels: KernelOptions, size: int) -> None:
    one, shared, cases = long_run(kernels)
    heads = one.heads
    x, scores = one.matrix("x", given_rows(heads, 48)), one.matrix("scores", scores_of(48, heads))
    solved, out = one.matrix("solved", inverse_of(heads)), one.target(heads.over_run(48))
    one.draw(delta_lower("draw", x, scores, solved, out, heads, size=size, **shared))
    check(device, one, *cases)
    one, shared, cases = long_run(kernels)
    product = one.matrix("product", normal(9, 48, heads.over_run(48)))
    solved, out = one.matrix("solved", inverse_of(heads)), one.target(heads.over_run(48))
    one.draw(delta_join("draw", solved, product, out, heads, size=size, **shared))
    check(device, one, *cases)


@pytest.mark.gl
@every_kernel
def test_what_rows_add_to_states_is_that_of_float64(device: Device, kernels: KernelOptions) -> None:
    """Tokens of the span before, which the cache has, and the rows of the run before the end of a span."""
    one, shared, cases = long_run(kernels)
    heads = one.heads
    made = delta_ends("draw", one.cache("cache", cache_of(heads)), one.target(heads.ends), heads, **shared)
    check(device, one.draw_rule(made, reads="whole"), *cases)
    one, shared, cases = long_run(kernels)
    x, solved = one.matrix("x", given_rows(heads, 48)), one.matrix("solved", inverse_of(heads))
    one.draw(delta_carry("draw", x, solved, one.target(heads.over_run(48)), heads, **shared))
    check(device, one, *cases)


@pytest.mark.gl
@every_kernel
def test_what_is_kept_of_rows_that_were_solved_for(device: Device, kernels: KernelOptions) -> None:
    one, shared, cases = long_run(kernels)
    heads, apart = one.heads, normal(7, 48, one.heads.rule.values)
    x, cache = one.matrix("x", given_rows(heads, 48)), one.cache("cache", cache_of(heads))
    ends = one.matrix("ends", normal(5, 48, heads.ends, scale=0.2))
    made = delta_row("draw", x, cache, one.target(heads.kept), heads, ends=ends, **shared)
    check(device, one.draw_rule(made, reads="whole"), *cases)
    one, shared, cases = long_run(kernels)
    x, cache = one.matrix("x", given_rows(heads, 48)), one.cache("cache", cache_of(heads))
    found = {"apart": apart, "solved": inverse_of(heads), "carry": normal(9, 48, heads.over_run(48))}
    options = {name: one.matrix(name, array) for name, array in found.items()}
    made = delta_row("draw", x, cache, one.target(heads.kept), heads, **options, **shared)
    check(device, one.draw_rule(made, reads="states"), *cases)


@pytest.mark.gl
@every_kernel
def test_queries_and_keys_are_divided_by_their_lengths(device: Device, kernels: KernelOptions) -> None:
    one = Rows(kernels, RULES["shared keys"])
    heads = one.heads
    x, out, table = one.matrix("x", given_rows(heads, ROWS)), one.target(heads.mixed), one.places
    assert table is not None
    one.draw(delta_unit("draw", x, out, heads, eps=1e-6, rows=table, kernels=kernels))
    check(device, one, *[Case({"rows": rows}, real=np.arange(ROWS) < rows) for rows in (1, 5, ROWS)])


def test_blocks_of_odd_sizes_are_refused() -> None:
    one, shared, _ = long_run(KernelOptions())
    heads = one.heads
    x, scores = one.matrix("x", given_rows(heads, 48)), one.matrix("scores", scores_of(48, heads))
    one.draw(delta_solve("draw", x, scores, one.target(heads.over_run(48)), heads, chunk=18, **shared))
    with pytest.raises(PlanError, match="draw draw: blocks of 18 rows; expected a multiple of 4"):
        one.plan.validate()


@pytest.mark.gl
@every_setup
@every_form
@pytest.mark.parametrize("unit", [True, False])
def test_queries_keys_and_values_are_those_of_float64(
    device: Device, kernels: KernelOptions, rule: DeltaRule, form: str, unit: bool
) -> None:
    one, shared, cases = started(kernels, rule, form)
    heads = one.heads
    cache, x = normal(2, SLOTS, heads.projected), normal(1, one.rows, heads.projected)
    cache[:, heads.a_at + rule.heads : heads.b_at] = 0
    x[:, heads.b_at + rule.heads : heads.z_at] = 0
    decay = np.stack([-np.linspace(0.01, 2.0, rule.heads), np.linspace(-3.0, 3.0, rule.heads)]).astype(np.float32)
    made = delta_conv(
        "draw",
        one.matrix("x", x),
        one.cache("cache", cache),
        one.row_weight("taps", normal(3, 4, rule.channels)),
        one.row_weight("decay", decay),
        one.target(heads.mixed),
        heads,
        eps=1e-6,
        unit=unit,
        **shared,
    )
    one.draw(made)
    check(device, one, *cases)


@pytest.mark.gl
@every_setup
def test_results_are_normalised_and_gated(device: Device, kernels: KernelOptions, rule: DeltaRule) -> None:
    one = Rows(kernels, rule)
    heads, table = one.heads, one.places
    x, gates = one.matrix("x", normal(1, ROWS, rule.values)), one.matrix("gates", normal(2, ROWS, heads.projected))
    gains, out = one.row_weight("gains", normal(3, 1, rule.value)), one.target(rule.values)
    one.draw(delta_norm("draw", x, gates, gains, out, heads, eps=1e-5, rows=table, kernels=kernels))
    check(device, one, *[Case({"rows": rows}, real=np.arange(ROWS) < rows) for rows in (1, 5, ROWS)])


@pytest.mark.gl
@every_kernel
def test_results_of_attention_are_gated(device: Device, kernels: KernelOptions) -> None:
    count = kernels.rows_per_draw
    one = BlockDraw(kernels, {"rows": (1, 2 * count), "row_slots": (1, 2)}, count=count)
    x, gates = one.interleaved("x", normal(1, 2 * count, 48)), one.interleaved("r", normal(2, 2 * count, 128 + 48))
    out = one.deal(OUT, 2, 48, "cache")
    one.draw(gate_heads("draw", x, gates, out, gates_at=128, slots="row_slots", kernels=kernels))
    real = np.arange(2 * count) < count + 1
    check(device, one, Case({"rows": count + 1, "row_slots": 2}, real=real))
    with pytest.raises(PlanError, match="gates from float 100 on; expected a multiple of 64"):
        gate_heads("draw", x, gates, out, gates_at=100, kernels=kernels)


@pytest.mark.gl
@every_kernel
def test_a_row_alone_is_stored_with_what_lies_aside(device: Device, kernels: KernelOptions) -> None:
    one = BlockDraw(kernels, {"position": (0, SLOTS - 1)})
    x = one.blocks("x", normal(1, 1, 200))
    one.arrays[OUT] = normal(4, SLOTS, 200)
    cache = one.out(BlockLayout.by_block((SLOTS, 200), 2048, aside=1, every=SLOTS))
    one.draw(store_row("draw", RowInterleaved((x,)), cache, kernels=kernels))
    check(device, one, *[Case({"position": position}) for position in (0, 5, 127)])


def test_what_does_not_fit_is_refused() -> None:
    one = Rows(KernelOptions(), RULES["whole blocks"])
    heads = one.heads
    x, cache = one.matrix("x", given_rows(heads, ROWS)), one.cache("cache", normal(1, SLOTS, heads.kept - 4))
    made = delta_scores("draw", x, cache, *one.both(heads.scores), heads, rows=one.places, kernels=KernelOptions())
    one.draw(made)
    with pytest.raises(
        PlanError, match=rf"draw draw: cache is \[128, {heads.kept - 4}\]; expected \[any, {heads.kept}"
    ):
        one.plan.validate()
    with pytest.raises(PlanError, match="found 3 tensors for one matrix"):
        RowInterleaved((x, x, x))
