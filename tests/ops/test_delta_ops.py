"""The passes of the gated delta rule: all oracles against the state itself, and each shader against its oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from one_draw import OUT, TABLE, Array, BlockDraw, Case, check, normal
from rows_draw import KERNELS, with_kernels
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
SETUPS = [
    ("llvmpipe", "shared keys", "alone"),
    ("one by one", "keys in turn", "apart"),
    ("GPU", "whole blocks", "pieces"),
    ("mantissa, one by one", "longer keys than a span step", "pieces"),
    ("plain", "keys in turn", "alone"),
    ("one by one, looked up", "shared keys", "apart"),
    ("small points", "shared keys", "pieces"),
]
every_setup = tiered("place", range(len(SETUPS)), keep=3)
"""Kernel options, a rule, and how the rows of a run belong together."""


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


@tiered("rule", list(RULES.values())[::-1], keep=(1, 2))
def test_rows_of_the_cache_stand_for_the_state(rule: DeltaRule) -> None:
    """However a sequence is taken in, each row of the cache is the same, and so are the results of the state."""
    heads = DeltaHeads(rule)
    given = given_rows(heads, 5 * heads.span + 3)
    expected, kept = by_state(heads, given), None
    most = heads.most_together
    for pieces, form in (([1], "in turn"), ([most, 1, 3], "solved"), ([5, most - 1, 1, 1], "in turn")):
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
    for first, again in ((37, 30), (50, 33)):
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

    def given_by(self, *names: str) -> list[TensorSpec]:
        """Random inputs by their names; ``cache`` is the cache."""
        return [
            self.cache(name, cache_of(self.heads))
            if name == "cache"
            else self.matrix(name, INPUTS[name](self.heads, self.rows))
            for name in names
        ]

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


def inverse_of(heads: DeltaHeads) -> Array:
    """Matrices over the rows of a run with ones on the diagonal, and zeros above it and behind the rows."""
    by_head = normal(8, 48, heads.rule.heads, 64, scale=0.2)
    lower = np.tri(48, 64, k=-1) + np.eye(48, 64) / np.where(by_head[:, 0] == 0, 1, by_head[:, 0])
    return (by_head * lower[:, None]).reshape(48, -1).astype(np.float32)


INPUTS: dict[str, Callable[[DeltaHeads, int], Array]] = {
    "x": given_rows,
    "scores": lambda heads, rows: normal(6, rows, heads.scores, scale=0.2),
    "apart": lambda heads, rows: normal(7, rows, heads.rule.values),
    "ends": lambda heads, rows: normal(5, rows, heads.ends, scale=0.2),
    "solved": lambda heads, rows: inverse_of(heads),
    "carry": lambda heads, rows: normal(9, rows, heads.over_run(48)),
    "product": lambda heads, rows: normal(9, rows, heads.over_run(48)),
}
"""What passes leave for later ones."""


def started(place: int) -> tuple[Rows, dict[str, Any], list[Case], str]:
    """A plan over rows of a form, what all draws of the rule are given, its runs, and the form."""
    name, rule, form = SETUPS[place]
    kernels = KERNELS[name]
    one = Rows(kernels, RULES[rule], alone=form == "alone")
    shared = {"rows": one.places, "kernels": kernels}
    return one, shared, one.cases(list((APART if form == "apart" else PIECES).values())), form


@pytest.mark.gl
@every_setup
def test_scores_are_those_of_float64(device: Device, place: int) -> None:
    one, shared, cases, form = started(place)
    made = delta_scores("draw", *one.given_by("x", "cache"), *one.both(one.heads.scores), one.heads, **shared)
    check(device, one.draw_rule(made, reads="keys" if form == "pieces" else "whole"), *cases)


@pytest.mark.gl
@tiered(("place", "queries"), [(0, True), (1, False), (2, False), (2, True), (3, True), (5, True), (6, False)], keep=3)
def test_what_a_state_gives_is_that_of_float64(device: Device, place: int, queries: bool) -> None:
    """Results read the run's own rows, which are stored by then; what keys need is what lies before the run."""
    one, shared, cases, form = started(place)
    piece, inputs = ROWS if form == "pieces" else 0, one.given_by("x", "scores", "cache")
    options = {"queries": queries, "piece": 0 if queries else piece, **shared}
    made = delta_recall("draw", *inputs, one.target(one.heads.rule.values), one.heads, **options)
    # Rows of states of the run are stored before, and read where a span ends in the run.
    check(device, one.draw_rule(made, reads="all" if queries or piece else "whole"), *cases)


@pytest.mark.gl
@tiered(("place", "early"), [(0, False), (1, False), (2, False), (6, True), (3, False), (3, True), (5, False)], keep=4)
def test_what_is_kept_is_that_of_float64(device: Device, place: int, early: bool) -> None:
    """What is kept ``early`` needs no row of the run."""
    one, shared, cases, form = started(place)
    names = [] if early else ["scores", "apart"] if form == "pieces" else ["scores"]
    options = {**shared, **dict(zip(names, one.given_by(*names), strict=True))}
    if form == "pieces":
        options["piece"] = ROWS
    made = delta_row("draw", *one.given_by("x", "cache"), one.target(one.heads.kept), one.heads, **options)
    check(device, one.draw_rule(made, reads="states" if form == "pieces" and not early else "whole"), *cases)


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
LONG_DRAWS: dict[str, tuple[Callable[..., DrawSpec], str, str, dict[str, Any], str, str]] = {
    "solve in blocks of 32": (delta_solve, "x scores", "over_run", {"chunk": 32}, "", "llvmpipe"),
    "solve in blocks of 16": (delta_solve, "x scores", "over_run", {"chunk": 16}, "", "one by one"),
    "product of neighbours": (delta_lower, "x scores solved", "over_run", {"size": 16}, "", "GPU"),
    "join neighbours": (delta_join, "solved product", "over_run", {"size": 32}, "", "one by one"),
    "states at ends": (delta_ends, "cache", "ends", {}, "whole", "llvmpipe"),
    "carry": (delta_carry, "x solved", "over_run", {}, "", "GPU"),
    "keep early": (delta_row, "x cache", "kept", {"ends": ...}, "whole", "one by one"),
    "keep": (delta_row, "x cache", "kept", {"apart": ..., "solved": ..., "carry": ...}, "states", "llvmpipe"),
}
"""Builder, inputs, columns of the result, options, what of the cache is read, and kernel options."""


@pytest.mark.gl
@tiered("turn", range(2))
@pytest.mark.parametrize("name", LONG_DRAWS)
def test_passes_over_a_long_run_are_those_of_float64(device: Device, name: str, turn: int) -> None:
    """Blocks of neither size divide all the runs; in the slow tests with other kernel options."""
    build, inputs, cols, given, reads, kernels_name = LONG_DRAWS[name]
    kernels = KERNELS[kernels_name if turn == 0 else "mantissa, one by one"]
    one = Rows(kernels, LONG, rows=48)
    heads, shared = one.heads, {"rows": one.places, "piece": 48, "kernels": kernels}
    cases = one.cases(list(LONG_PIECES.values()))
    options = {key: one.given_by(key)[0] if value is ... else value for key, value in given.items()}
    out = one.target(heads.over_run(48) if cols == "over_run" else getattr(heads, cols))
    made = build("draw", *one.given_by(*inputs.split()), out, heads, **options, **shared)
    check(device, one.draw_rule(made, reads=reads) if reads else one.draw(made), *cases)


@pytest.mark.gl
@with_kernels("one by one", "llvmpipe")
def test_queries_and_keys_are_divided_by_their_lengths(device: Device, kernels: KernelOptions) -> None:
    one = Rows(kernels, RULES["shared keys"])
    (x,), out, table = one.given_by("x"), one.target(one.heads.mixed), one.places
    assert table is not None
    one.draw(delta_unit("draw", x, out, one.heads, eps=1e-6, rows=table, kernels=kernels))
    check(device, one, *[Case({"rows": rows}, real=np.arange(ROWS) < rows) for rows in (1, 5, ROWS)])


@pytest.mark.gl
@every_setup
def test_queries_keys_and_values_are_those_of_float64(device: Device, place: int) -> None:
    one, shared, cases, _ = started(place)
    heads, rule = one.heads, one.heads.rule
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
        unit=place % 2 == 0,
        **shared,
    )
    one.draw(made)
    check(device, one, *cases)


@pytest.mark.gl
@tiered("place", [2, 3, 1])
def test_results_are_normalised_and_gated(device: Device, place: int) -> None:
    kernels, rule = KERNELS[SETUPS[place][0]], RULES[SETUPS[place][1]]
    one = Rows(kernels, rule)
    heads, table = one.heads, one.places
    x, gates = one.matrix("x", normal(1, ROWS, rule.values)), one.matrix("gates", normal(2, ROWS, heads.projected))
    gains, out = one.row_weight("gains", normal(3, 1, rule.value)), one.target(rule.values)
    one.draw(delta_norm("draw", x, gates, gains, out, heads, eps=1e-5, rows=table, kernels=kernels))
    check(device, one, *[Case({"rows": rows}, real=np.arange(ROWS) < rows) for rows in (1, 5, ROWS)])


@pytest.mark.gl
@with_kernels("llvmpipe", "mantissa")
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
@with_kernels("one by one", "GPU")
def test_a_row_alone_is_stored_with_what_lies_aside(device: Device, kernels: KernelOptions) -> None:
    one = BlockDraw(kernels, {"position": (0, SLOTS - 1)})
    x = one.blocks("x", normal(1, 1, 200))
    one.arrays[OUT] = normal(4, SLOTS, 200)
    cache = one.out(BlockLayout.by_block((SLOTS, 200), 2048, aside=1, every=SLOTS))
    one.draw(store_row("draw", RowInterleaved((x,)), cache, kernels=kernels))
    check(device, one, *[Case({"position": position}) for position in (0, 5, 127)])


def test_what_does_not_fit_is_refused() -> None:
    kernels = KernelOptions()
    one = Rows(kernels, LONG, rows=48)
    inputs, out = one.given_by("x", "scores"), one.target(one.heads.over_run(48))
    one.draw(delta_solve("draw", *inputs, out, one.heads, chunk=18, rows=one.places, piece=48, kernels=kernels))
    with pytest.raises(PlanError, match="draw draw: blocks of 18 rows; expected a multiple of 4"):
        one.plan.validate()
    one = Rows(kernels, RULES["whole blocks"])
    heads, (x,) = one.heads, one.given_by("x")
    cache = one.cache("cache", normal(1, SLOTS, heads.kept - 4))
    one.draw(delta_scores("draw", x, cache, *one.both(heads.scores), heads, rows=one.places, kernels=kernels))
    message = rf"draw draw: cache is \[128, {heads.kept - 4}\]; expected \[any, {heads.kept}"
    with pytest.raises(PlanError, match=message):
        one.plan.validate()
    with pytest.raises(PlanError, match="found 3 tensors for one matrix"):
        RowInterleaved((x, x, x))
