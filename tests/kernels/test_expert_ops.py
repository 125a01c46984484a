"""The passes of layers with experts on the GPU against their float64 oracles, on odd shapes, kernels and formats."""

from __future__ import annotations

import dataclasses
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
from block_draw import BLOCKS, KERNELS, matrix_of, whole_blocks, with_kernels
from one_draw import OUT, TABLE, Array, BlockDraw, Case, OneDraw, check, normal
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.families.layer import Experts
from glinfer.gl.context import Device
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.packing import GemvLayout
from glinfer.kernels.flat.activate import gate
from glinfer.kernels.flat.experts import expert_weight
from glinfer.kernels.fused.expert_groups import SPAN, few_rows, group_draws, most_groups
from glinfer.kernels.fused.experts import join_rows, mix_experts, route
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.low_rank import ADAPTER, ADAPTER_WORD, CHOICE_FLOATS, LowRankSum, lora_down
from glinfer.kernels.fused.rows import padded, row_table
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Pass

pytestmark = pytest.mark.gl

ROUTERS = [
    Experts(2, 1, True),
    Experts(5, 3, False),
    Experts(9, 9, False),
    Experts(130, 8, True),
    Experts(33, 20, True),
    Experts(16, 3, True, shared=True),
    Experts(18, 16, False, shared=True),
    Experts(9, 3, True, sigmoid=True, share_eps=1e-6, biased=True, scale=1.5),
    Experts(6, 4, False, sigmoid=True, biased=True),
    Experts(5, 3, False, shared=True, sigmoid=True, scale=0.5),
    Experts(7, 0, True, shared=True),
    Experts(9, 3, True, biased=True, scale=1.5),
    Experts(6, 4, False, biased=True),
    Experts(12, 3, True, sigmoid=True, biased=True, groups=4, kept=2),
    Experts(18, 4, False, scale=1.5, groups=3, kept=1),
    Experts(256, 8, True, sigmoid=True, share_eps=1e-20, biased=True, scale=2.5, groups=8, kept=4),
]
PRODUCTS = [
    ("llvmpipe", "i8", "Q4_0"),
    ("one by one", "f16", "Q6_K"),
    ("mantissa", "q16", "IQ4_XS"),
    ("GPU", "Q8_0", "f32"),
    ("one by one, looked up", "bf16", "Q2_K"),
]
"""Kernel options, and the formats of the first and the second product."""
ADAPTERS = 3


def all_rows(rows: int, held: int | None = None) -> Case:
    return Case({"rows": rows if held is None else held}, real=np.ones(1 << 12, dtype=bool))


def choices(rows: int, experts: Experts) -> Array:
    """Different experts for each choice of a row, and weights."""
    random = np.random.default_rng(4)
    found = np.zeros((rows, experts.used, CHOICE_FLOATS), np.float32)
    found[:, :, 0] = [random.permutation(experts.count)[: experts.used] for _ in range(rows)]
    found[:, :, 1] = random.random((rows, experts.used))
    return found.reshape(rows, -1)


def bias_of(experts: Experts) -> Array:
    """Numbers that change the choice of experts, but not that of equal logits; beside some a softmax is 0."""
    return normal(8, 1, experts.count, scale=0.3 if experts.sigmoid else 2.0)


def logits_of(rows: int, experts: Experts) -> Array:
    """Logits among which are equal ones, large ones, and in the last row nothing but equal ones."""
    logits = np.round(normal(3, rows, experts.count, scale=3), 1)
    logits[0] *= 30
    logits[-1] = 0.5
    return logits


@tiered(
    ("name", "experts"),
    list(
        zip(cycle(("llvmpipe", "one by one", "plain", "GPU", "mantissa", "plain", "one by one")), ROUTERS, strict=False)
    ),
    keep=(3, 5, 7, 11, 13, 14),
)
def test_the_choice_of_experts(device: Device, name: str, experts: Experts) -> None:
    one = BlockDraw(KERNELS[name], {"rows": (1, 5)})
    given = logits_of(5, experts.stacked)
    given[:4, -1] = (-1000, 1000, -87, -2)  # of a shared one, whose weight is not bounded
    logits = one.blocks("logits", given)
    out = one.out(one.layout(5, CHOICE_FLOATS * experts.stacked.used))
    bias = one.row_weight("bias", bias_of(experts)) if experts.biased else None
    factors = normal(9, 1, experts.count) if experts.normed else None
    scales = None if factors is None else one.row_weight("scales", factors)
    one.draw(route(one.of("rows"), logits, out, experts, bias=bias, scales=scales))
    equal = all_rows(5).changed(logits=np.zeros_like(given))
    (_, found) = check(device, one, all_rows(5), equal)
    first = found.reshape(5, -1, CHOICE_FLOATS)[:, : experts.used, 0]
    ranks = bias_of(experts)[0] if experts.biased else np.zeros(experts.count)
    groups = np.split(np.arange(experts.count), experts.groups or 1)
    kept = sorted(groups, key=lambda group: -sum(sorted(ranks[group])[-2:]))[: experts.kept or 1]
    expected = sorted(np.concatenate(kept), key=lambda expert: (-ranks[expert], expert))
    assert (first == expected[: experts.used]).all(), "of equal logits the first experts, or those of the largest bias"


@pytest.mark.parametrize("share_eps", [1e-20, 1e-6, 0.0])
def test_tiny_sigmoids_are_divided_by_their_sum_and_the_constant(device: Device, share_eps: float) -> None:
    one = BlockDraw(KERNELS["plain"], {"rows": (1, 1)})
    experts = Experts(3, 2, True, sigmoid=True, share_eps=share_eps)
    logits = one.blocks("logits", np.array([[-40.0, -39.0, -60.0]], np.float32) - (0 if share_eps else 30))
    one.draw(route(one.of("rows"), logits, one.out(one.layout(1, 2 * CHOICE_FLOATS)), experts))
    (found,) = check(device, one, all_rows(1))
    choices = found.reshape(2, CHOICE_FLOATS)
    assert choices[:, 0].tolist() == [1, 0]
    # Sigmoids of -39 and -40 are their exponentials to within 1e-17.
    tiny = np.exp([-39.0, -40.0]) if share_eps else np.exp([1.0, 0.0])
    np.testing.assert_allclose(choices[:, 1], tiny / (tiny.sum() + share_eps), rtol=1e-5)


@tiered("experts", (*ROUTERS[1:4], *ROUTERS[7:9], *ROUTERS[11:]))
def test_the_weight_of_one_expert(device: Device, experts: Experts) -> None:
    for expert in (0, experts.count - 1):
        one = OneDraw()
        one.arrays["logits"] = logits_of(6, experts)
        logits, out = (
            one.builder.laid_out(name, kind, FlatLayout.of((6, cols), "rgba32f", 64))
            for name, kind, cols in (("logits", "input", experts.count), (OUT, "cache", 1))
        )
        bias = None
        if experts.biased:
            one.arrays["bias"] = bias_of(experts)
            bias = one.builder.laid_out("bias", "input", FlatLayout.of((1, experts.count), "rgba32f", 64))
        draw = Pass("draw", KernelOptions())
        one.draw(expert_weight(draw, logits, out, experts, expert=expert, bias=bias))
        check(device, one, Case({}))


@tiered("activation", ["silu", "gelu"])
def test_gates_are_bounded_above_and_what_they_multiply_on_both_sides(device: Device, activation: str) -> None:
    """With a NaN staying one, whichever of the two it is in."""
    one, experts = OneDraw(), Experts(2, 1, True, limit=7.0, slope=1.702)
    edge = np.array([-1e30, -90, -8, -7, -6.9999, -1, -0.5, 0, 0.5, 6.9999, 7, 7.0001, 90, 1e30], np.float32)
    gates, ups = (np.ascontiguousarray(each) for each in np.broadcast_arrays(edge[:, None], edge))
    x, up, out = (
        one.builder.laid_out(name, kind, FlatLayout.of(gates.shape, "rgba32f", 64))
        for name, kind in (("x", "input"), ("up", "input"), (OUT, "cache"))
    )
    one.arrays |= {"x": gates, "up": ups}
    one.draw(gate(Pass("d", KernelOptions()), x, out, up=up, activation=activation, experts=experts))
    (found,) = check(device, one, Case({}))
    bounded = np.minimum(edge[:, None], 7.0).astype(np.float64), np.clip(edge, -7, 7).astype(np.float64) + 1
    if activation == "silu":
        expected = bounded[1] * bounded[0] / (1 + np.exp(-np.maximum(1.702 * bounded[0], -700)))
        assert np.abs(found - expected).max() <= 1e-5
    holed = {
        name: np.where(np.eye(len(edge), k=k, dtype=bool), np.float32(np.nan), gates)
        for name, k in (("x", 1), ("up", -1))
    }
    (found,) = one.run(device, Case({}).changed(**holed))
    assert np.array_equal(np.isnan(found), np.isnan(holed["x"]) | np.isnan(holed["up"]))


def product_draw(
    weights: str,
    kernels: KernelOptions,
    experts: Experts | None,
    rows: int,
    inputs: int,
    outputs: int,
    *,
    first: bool,
    grouped: bool = False,
    ranks: int = 0,
    by_row: bool = False,
) -> BlockDraw:
    """The first product of experts, behind a norm and with a gate, or the second one, with inputs for each.

    Each row is computed by itself, or with ``grouped`` together with those that chose its expert. With ``ranks`` three
    adapters add to it, one to all rows or ``by_row`` each to its own.
    """
    ranges = {"rows": (1, rows)} | ({ADAPTER: (0, ADAPTERS)} if ranks and not by_row else {})
    one = BlockDraw(kernels, ranges, count=kernels.rows_per_draw if grouped else 1)
    inputs = whole_blocks(weights, inputs) if weights in BLOCKS else inputs
    stacked = outputs if experts is None else experts.count * padded(outputs)
    matrix = matrix_of(one, weights, stacked, inputs, gain=first, gated=first and experts is not None)
    how: dict[str, Any] = {"activation": "silu" if first else "none"}
    how["norm_eps"] = 1e-5 if first else None
    x: Any = None if grouped and not first else one.blocks("x", inputs_of(rows, inputs, experts, apart=not first))
    if grouped:
        assert experts is not None
        members = members_of(rows, experts, kernels.rows_per_draw)
        if x is None:
            x = one.interleaved("x", normal(1, len(members) * kernels.rows_per_draw, inputs))
        one.by_row.clear()
        chosen = one.blocks("chosen", members.reshape(len(members), -1))
        out = one.deal(OUT, len(members), padded(outputs), "cache")
        return one.draw(gemm(one.of(len(members)), x, matrix, out, experts=experts, chosen=chosen, **how))
    width = outputs
    if experts is not None:
        width = experts.used * padded(outputs)
        how |= {"experts": experts, "choice": one.blocks("choice", choices(rows, experts)), "apart": not first}
    if ranks:
        low_rank = adapters_of(one, experts, rows, matrix.weight.shape[0], ranks, by_row=by_row)
        matrix = dataclasses.replace(matrix, low_rank=low_rank)
    return one.draw(gemm(one.of("rows"), x, matrix, one.out(one.layout(rows, width)), **how))


def inputs_of(rows: int, inputs: int, experts: Experts | None, *, apart: bool) -> Array:
    """Rows of inputs, or with ``apart`` of the inputs of each chosen expert."""
    columns = experts.used * padded(inputs) if apart and experts is not None else inputs
    return normal(1, rows, columns) + np.float32(0.25)


def members_of(rows: int, experts: Experts, targets: int) -> Array:
    """The rows of groups of one expert each, and one group more, which has none."""
    members = np.zeros((most_groups(rows, targets, experts) + 1, targets, CHOICE_FLOATS), np.float32)
    numbers, at = choices(rows, experts).reshape(rows, experts.used, -1)[:, :, 0].astype(int), 0
    for expert in range(experts.count):
        own = np.nonzero(numbers == expert)[0]
        for start in range(0, len(own), targets):
            few = own[start : start + targets]
            members[at, :, 1] = expert
            members[at, : len(few), 0], members[at, : len(few), 2] = few, 1
            at += 1
    return members


def adapters_of(
    one: BlockDraw, experts: Experts | None, rows: int, outputs: int, ranks: int, *, by_row: bool
) -> LowRankSum:
    """What three adapters add to a product of so many outputs; the inner vectors of the rows are an input."""
    count, used = (1, 1) if experts is None else (experts.count, experts.used)
    table = one.table(rows) if by_row else None
    layout = GemvLayout.of(outputs, ADAPTERS * ranks, "f32", False, one.edge)
    up = one.weight("b", normal(12, outputs, ADAPTERS * ranks, scale=ranks**-0.5), layout)
    inner = one.blocks("t", normal(13, rows, used * ranks))
    return LowRankSum(up, up, inner, ADAPTERS, False, table, count, used)


@tiered("place", range(len(PRODUCTS)))
@pytest.mark.parametrize("grouped", [False, True], ids=["by row", "in groups"])
def test_products_over_the_chosen_experts(device: Device, place: int, grouped: bool) -> None:
    """The first product, which a gate ends, and the second."""
    name, *formats = PRODUCTS[place]
    kernels, experts = KERNELS[name], (Experts(5, 1, True, limit=0.7, slope=1.4), Experts(3, 2, True))[place % 2]
    rows = 5 if grouped else 3
    for weights, first in zip(formats, (True, False), strict=True):
        one = product_draw(weights, kernels, experts, rows, 70, 40, first=first, grouped=grouped)
        check(device, one, *[all_rows(rows)] if grouped else [all_rows(3), all_rows(3, 2)], what=weights)


@with_kernels("GPU", "one by one")
def test_a_router_over_rows(device: Device, kernels: KernelOptions) -> None:
    check(device, product_draw("f32", kernels, None, 3, 70, 9, first=True), all_rows(3))


def adapted_rows(rows: int, *, adapter: int | None) -> Case:
    """So many rows, all with one adapter or each with its own, some with none."""
    case = all_rows(rows)
    if adapter is not None:
        return dataclasses.replace(case, values={**case.values, ADAPTER: adapter})
    table = row_table(rows)
    table[:, ADAPTER_WORD] = (np.arange(rows) * 3 + 1) % (ADAPTERS + 1)
    return dataclasses.replace(case, arrays={TABLE: table})


@tiered(("name", "first"), [("llvmpipe", True), ("one by one", False), ("GPU", False), ("mantissa", True)], keep=2)
def test_adapters_of_chosen_experts_are_added(device: Device, name: str, first: bool) -> None:
    """One for all rows, none, and each row's own; the router's have no experts."""
    experts, kernels, (inputs, outputs) = Experts(3, 2, True), KERNELS[name], ((70, 40), (36, 70))[first]
    if first:
        one = product_draw("f32", kernels, experts, 4, inputs, outputs, first=first, ranks=32)
        check(device, one, *(adapted_rows(4, adapter=number) for number in (0, 2, 3)))
        plain = product_draw("f32", kernels, experts, 4, inputs, outputs, first=first)
        none, expected = one.run(device, adapted_rows(4, adapter=0)), plain.run(device, all_rows(4))
        assert np.array_equal(none[0], expected[0])
        one = product_draw("f32", kernels, None, 4, 70, 9, first=True, ranks=16, by_row=True)
        check(device, one, adapted_rows(4, adapter=None))
    else:
        one = product_draw("f32", kernels, experts, 4, inputs, outputs, first=first, ranks=16, by_row=True)
        check(device, one, adapted_rows(4, adapter=None))


@tiered(("name", "apart"), [("llvmpipe", True), ("one by one", False), ("GPU", True)], keep=2)
def test_inner_vectors_of_chosen_experts(device: Device, name: str, apart: bool) -> None:
    kernels = KERNELS[name]
    experts, rows, ranks = (Experts(3, 2, True), Experts(40, 18, True))[apart], 4, 48
    for by_row in (not apart,):
        one = BlockDraw(kernels, {"rows": (1, rows)} | ({} if by_row else {ADAPTER: (0, ADAPTERS)}))
        x = one.blocks("x", inputs_of(rows, 70, experts, apart=apart))
        matrices = normal(11, ADAPTERS * experts.count * ranks, 72, scale=0.1)
        matrices[:, 70:] = 0
        down = one.weight("a", matrices, GemvLayout.of(len(matrices), 70, "f32", False, one.edge))
        out = one.out(one.layout(rows, experts.used * ranks))
        table = one.table(rows) if by_row else None
        low_rank = LowRankSum(down, down, out, ADAPTERS, False, table, experts.count, experts.used)
        choice = one.blocks("choice", choices(rows, experts))
        one.draw(lora_down(one.of("rows"), x, low_rank, choice=choice, apart=70 if apart else 0))
        for adapter in (None,) if by_row else (0, 3):
            found = check(device, one, adapted_rows(rows, adapter=adapter))[0]
            assert np.any(found) == (adapter != 0)


@with_kernels("one by one", "llvmpipe")
def test_rows_are_joined(device: Device, kernels: KernelOptions) -> None:
    rows = 3 * kernels.rows_per_draw
    one = BlockDraw(kernels, {"rows": (1, rows)}, count=kernels.rows_per_draw)
    x = one.interleaved("x", normal(1, rows, 70))
    one.draw(join_rows(one.of("rows"), x, one.out(one.layout(rows, 70))))
    check(device, one, Case({"rows": rows}, real=np.ones(rows, dtype=bool)))


@tiered(
    ("name", "adds", "grouped", "biased"),
    [
        ("llvmpipe", True, False, True),
        ("one by one", False, True, False),
        ("GPU", False, False, True),
        ("mantissa, one by one", True, False, False),
    ],
    keep=2,
)
def test_what_the_chosen_experts_gave_is_added_up(
    device: Device, name: str, adds: bool, grouped: bool, biased: bool
) -> None:
    """Of the last slot all rows but the first are padding, to which nothing is added, whatever their parts hold."""
    kernels, experts, cols = KERNELS[name], Experts(40, 18, True), 70
    count = kernels.rows_per_draw
    rows, held = 3 * count, 2 * count + 1
    one = BlockDraw(kernels, {"rows": (1, rows), "row_slots": (1, 3)}, count=count)
    choice, real = choices(rows, experts), np.ones(rows, dtype=bool)
    if grouped:
        slots = most_groups(held, count, experts) * count
        x: Any = one.interleaved("x", normal(2, slots, cols))
        places = np.random.default_rng(9).permutation(slots)[: held * experts.used]
        choice.reshape(rows, experts.used, -1)[:held, :, 2] = places.reshape(held, -1)
        real = np.ones(max(rows, slots), dtype=bool)
    else:
        parts = normal(2, rows, experts.used, padded(cols))
        parts[:, :, cols:] = 0
        parts[held:] = np.nan
        x = one.blocks("x", parts.reshape(rows, -1))
    choice[held:] = np.nan
    if adds:
        one.arrays[OUT] = normal(7, rows, cols)
    residual = None if adds else one.interleaved("r", normal(6, rows, cols))
    one.by_row.discard("x")
    chosen, out = one.blocks("choice", choice), one.deal(OUT, 3, cols, "cache")
    bias = one.row_weight("bias", normal(8, 1, cols)) if biased else None
    one.draw(mix_experts(one.of(), x, chosen, out, experts, residual=residual, rows="rows", bias=bias))
    if grouped:
        one.by_row.clear()
    check(device, one, Case({"rows": held, "row_slots": 3}, real=real))


def test_a_matrix_without_whole_blocks_for_each_expert_is_refused() -> None:
    one, experts = BlockDraw(KernelOptions(), {"rows": (1, 1)}), Experts(3, 1, True)
    x, choice = one.blocks("x", normal(1, 1, 8)), one.blocks("choice", choices(1, experts))
    matrix, out = matrix_of(one, "f32", 128, 8), one.out(one.layout(1, 64))
    with pytest.raises(PlanError, match=r"\Adraw draw: w has no whole blocks for each of 3 experts\Z"):
        gemm(one.of(), x, matrix, out, experts=experts, choice=choice)


def groups_draw(kernels: KernelOptions, experts: Experts, rows: int, held: int) -> tuple[BlockDraw, Array, Array]:
    """Choices of ``rows`` rows, of which ``held`` count, and how many fell on each expert."""
    one, choice = BlockDraw(kernels, {"rows": (1, rows)}), choices(rows, experts)
    numbers = choice.reshape(rows, experts.used, -1)[:held, :, 0].astype(int)
    parts = [numbers, *(numbers[start : start + SPAN] for start in range(0, rows, SPAN))]
    tally = np.stack([np.bincount(each.reshape(-1), minlength=experts.count) for each in parts]).astype(np.float32)
    choice[held:] = np.nan
    return one, choice, tally


GROUPED = [
    (Experts(2, 1, True), 50),
    (Experts(5, 3, True), 7),
    (Experts(130, 8, True), 35),
    (Experts(33, 20, True), 18),
]


@tiered("place", range(len(GROUPED)), keep=(1,))
def test_choices_are_dealt_to_groups_of_their_experts(device: Device, place: int) -> None:
    """With rows behind those that count, which are NaN; every choice has its own row in a group, which names it."""
    kernels = KERNELS[("GPU", "llvmpipe", "one by one", "mantissa")[place]]
    experts, rows = GROUPED[place]
    targets, held = kernels.rows_per_draw, rows - 2
    groups, made = most_groups(rows, targets, experts), []
    tally = groups_draw(kernels, experts, rows, held)[2]
    shapes = tally.shape, (rows, CHOICE_FLOATS * experts.used), (groups, CHOICE_FLOATS * targets)
    for number, shape in enumerate(shapes):
        one, choice, _ = groups_draw(kernels, experts, rows, held)
        given, out = one.blocks("choice", choice), one.out(one.layout(*shape))
        tensors = given, one.blocks("tally", tally) if number else out, out, out
        draws = group_draws(one.of("rows"), *tensors, experts, targets=targets)
        made += check(device, one.draw(draws[number]), all_rows(held))
    assert np.array_equal(made[0], tally)
    places, members = (each.reshape(-1, CHOICE_FLOATS) for each in made[1:])
    places = places[: held * experts.used]
    at = places[:, 2].astype(int)
    assert len(set(at)) == len(at)
    assert np.array_equal(members[at, 0], np.repeat(np.arange(held), experts.used))
    assert np.array_equal(members[at, 1], places[:, 0])
    assert np.array_equal(np.flatnonzero(members[:, 2]), np.sort(at))


def test_groups_hold_the_worst_choice() -> None:
    """Every expert but one has a group with a single row."""
    assert most_groups(1, 8, Experts(32, 4, True)) == 4
    assert most_groups(9, 8, Experts(4, 1, True)) == 4  # 6, 1, 1 and 1 rows; 4 groups
    assert most_groups(512, 8, Experts(32, 4, True)) == 284
    for experts, targets in ((Experts(3, 2, True), 2), (Experts(4, 1, True), 4)):
        for rows in range(1, 9):
            worst = 0
            for counts in product(range(rows + 1), repeat=experts.count):
                if sum(counts) == rows * experts.used:
                    worst = max(worst, sum(-(-count // targets) for count in counts))
            assert most_groups(rows, targets, experts) >= worst


def test_few_rows_go_one_by_one_where_that_was_measured() -> None:
    """In whole slots, more of them where an expert has fewer rows, and where a group costs more than it computes."""
    kernels = KernelOptions(rows_per_draw=8, product_table="llvmpipe")
    few = few_rows(512, Experts(8, 2, True), 256, 256, kernels)
    assert few == 24
    assert few_rows(512, Experts(32, 2, True), 256, 256, kernels) > few
    assert few_rows(512, Experts(8, 2, True), 128, 128, kernels) > few
    assert few_rows(512, Experts(8, 2, True), 4096, 4096, kernels) == 8
    assert few_rows(512, Experts(8, 2, True), 256, 256, KernelOptions(rows_per_draw=8)) == 0
