"""The passes of layers with experts on the GPU against their float64 oracles, on odd shapes, kernels and formats."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from block_draw import BLOCKS, FLOATS_AND_ROWS, matrix_of, whole_blocks
from one_draw import OUT, Array, BlockDraw, Case, OneDraw, check, normal
from rows_draw import KERNELS
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.families.layer import Experts
from glinfer.gl.context import Device
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.ops.flat.activate import gate
from glinfer.ops.flat.experts import expert_weight
from glinfer.ops.fused.expert_groups import (
    SPAN,
    expert_gemm,
    group_experts,
    most_groups,
    place_experts,
    tally_experts,
)
from glinfer.ops.fused.experts import CHOICE_FLOATS, join_rows, mix_experts, padded, route, rowwise_gemv
from glinfer.ops.kernels import KernelOptions

pytestmark = pytest.mark.gl

WEIGHTS = (*FLOATS_AND_ROWS, *BLOCKS)
ROUTERS = [
    Experts(2, 1, True),
    Experts(5, 3, False),
    Experts(9, 9, False),
    Experts(130, 8, True),
    Experts(33, 20, True),
    Experts(16, 3, True, shared=True),
    Experts(18, 16, False, shared=True),
]
every_kernel = tiered("kernels", KERNELS.values(), keep=(1, 3), ids=KERNELS)


def all_rows(rows: int, held: int | None = None) -> Case:
    return Case({"rows": rows if held is None else held}, real=np.ones(1 << 12, dtype=bool))


def choices(rows: int, experts: Experts) -> Array:
    """Different experts for each choice of a row, and weights."""
    random = np.random.default_rng(4)
    found = np.zeros((rows, experts.used, CHOICE_FLOATS), np.float32)
    found[:, :, 0] = [random.permutation(experts.count)[: experts.used] for _ in range(rows)]
    found[:, :, 1] = random.random((rows, experts.used))
    return found.reshape(rows, -1)


def logits_of(rows: int, experts: Experts) -> Array:
    """Logits among which are equal ones, large ones, and in the last row nothing but equal ones."""
    logits = np.round(normal(3, rows, experts.count, scale=3), 1)
    logits[0] *= 30
    logits[-1] = 0.5
    return logits


@every_kernel
@tiered("experts", ROUTERS, keep=(1, 3, 5))
def test_the_choice_of_experts(device: Device, kernels: KernelOptions, experts: Experts) -> None:
    one = BlockDraw(kernels, {"rows": (1, 5)})
    given = logits_of(5, experts.stacked)
    given[:3, -1] = (-1000, 1000, -87)  # of a shared one, whose weight is not bounded
    logits = one.blocks("logits", given)
    out = one.out(one.layout(5, CHOICE_FLOATS * experts.stacked.used))
    check(device, one.draw(route("draw", "draw", logits, out, experts, rows="rows", kernels=kernels)), all_rows(5))


def test_equal_logits_choose_the_first_experts_and_share_the_weight(device: Device) -> None:
    one, experts = BlockDraw(KernelOptions(), {"rows": (1, 1)}), Experts(7, 3, True)
    logits = one.blocks("logits", np.zeros((1, 7), np.float32))
    out = one.out(one.layout(1, 12))
    (found,) = one.draw(route("draw", "draw", logits, out, experts, rows=1, kernels=KernelOptions())).run(
        device, all_rows(1)
    )
    assert np.allclose(found.reshape(3, 4)[:, :2], [[0, 1 / 3], [1, 1 / 3], [2, 1 / 3]])


@tiered("experts", ROUTERS[:5], keep=(1,))
def test_the_weight_of_one_expert(device: Device, experts: Experts) -> None:
    for expert in (0, experts.count - 1):
        one = OneDraw()
        one.arrays["logits"] = logits_of(6, experts)
        logits, out = (
            one.builder.laid_out(name, kind, FlatLayout.of((6, cols), "rgba32f", 64))
            for name, kind, cols in (("logits", "input", experts.count), (OUT, "cache", 1))
        )
        one.draw(expert_weight("draw", "draw", logits, out, experts, expert=expert, kernels=KernelOptions()))
        check(device, one, Case({}))


@tiered("activation", ["silu", "gelu"], keep=1)
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
    one.draw(gate("d", "d", x, out, up=up, activation=activation, experts=experts, kernels=KernelOptions()))
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
    weights: str, kernels: KernelOptions, experts: Experts | None, rows: int, inputs: int, outputs: int, *, first: bool
) -> BlockDraw:
    """The first product of experts, behind a norm and with a gate, or the second one, with inputs for each."""
    one = BlockDraw(kernels, {"rows": (1, rows)})
    inputs = whole_blocks(weights, inputs) if weights in BLOCKS else inputs
    stacked = outputs if experts is None else experts.count * padded(outputs)
    matrix = matrix_of(one, weights, stacked, inputs, gain=first, gated=first and experts is not None)
    columns, width = inputs, outputs
    if experts is not None:
        columns = inputs if first else experts.used * padded(inputs)
        width = experts.used * padded(outputs)
    further = {}
    if experts is not None:
        further = {"experts": experts, "choice": one.blocks("choice", choices(rows, experts)), "apart": not first}
    x = one.blocks("x", normal(1, rows, columns) + np.float32(0.25))
    return one.draw(
        rowwise_gemv(
            "draw",
            "draw",
            x,
            matrix,
            one.out(one.layout(rows, width)),
            rows="rows",
            norm_eps=1e-5 if first else None,
            activation="silu" if first else "none",
            kernels=kernels,
            **further,  # type: ignore[arg-type]
        )
    )


@tiered("first", [True, False], keep=(0, 1), ids=["first", "second"])
@tiered("weights", WEIGHTS, keep=(0, 4, len(FLOATS_AND_ROWS) + 3))
def test_products_over_the_chosen_experts(device: Device, weights: str, first: bool) -> None:
    number = WEIGHTS.index(weights)
    kernels = list(KERNELS.values())[(number + first) % len(KERNELS)]
    experts = (Experts(3, 2, True), Experts(5, 1, True, limit=0.7, slope=1.4))[number % 2]
    one = product_draw(weights, kernels, experts, 3, (36, 70)[number % 2], (70, 40)[number % 2], first=first)
    check(device, one, all_rows(3), all_rows(3, 2), what=weights)


@every_kernel
def test_a_router_over_rows(device: Device, kernels: KernelOptions) -> None:
    check(device, product_draw("f32", kernels, None, 3, 70, 9, first=True), all_rows(3))


@every_kernel
def test_rows_are_joined(device: Device, kernels: KernelOptions) -> None:
    rows = 3 * kernels.rows_per_draw
    one = BlockDraw(kernels, {"rows": (1, rows)}, count=kernels.rows_per_draw)
    x = one.interleaved("x", normal(1, rows, 70))
    one.draw(join_rows("draw", "draw", x, one.out(one.layout(rows, 70)), rows="rows", kernels=kernels))
    check(device, one, Case({"rows": rows}, real=np.ones(rows, dtype=bool)))


@tiered("adds", [True, False], keep=(0, 1), ids=["adds", "residual"])
@every_kernel
def test_what_the_chosen_experts_gave_is_added_up(device: Device, kernels: KernelOptions, adds: bool) -> None:
    """Of the last slot all rows but the first are padding, to which nothing is added, whatever their parts hold."""
    count, experts, cols = kernels.rows_per_draw, Experts(40, 18, True), 70
    rows, held = 3 * count, 2 * count + 1
    one = BlockDraw(kernels, {"rows": (1, rows), "row_slots": (1, 3)}, count=count)
    parts = normal(2, rows, experts.used, padded(cols))
    parts[:, :, cols:] = 0
    parts[held:] = np.nan
    choice = choices(rows, experts)
    choice[held:] = np.nan
    x, chosen = one.blocks("x", parts.reshape(rows, -1)), one.blocks("choice", choice)
    if adds:
        one.arrays[OUT] = normal(7, rows, cols)
    residual = None if adds else one.interleaved("r", normal(6, rows, cols))
    one.draw(
        mix_experts(
            "draw",
            "draw",
            x,
            chosen,
            one.deal(OUT, 3, cols, "cache"),
            experts,
            residual=residual,
            slots="row_slots",
            rows="rows",
            kernels=kernels,
        )
    )
    check(device, one, Case({"rows": held, "row_slots": 3}, real=np.ones(rows, dtype=bool)))


def test_a_matrix_without_whole_blocks_for_each_expert_is_refused() -> None:
    one, experts = BlockDraw(KernelOptions(), {"rows": (1, 1)}), Experts(3, 1, True)
    x, choice = one.blocks("x", normal(1, 1, 8)), one.blocks("choice", choices(1, experts))
    matrix, out = matrix_of(one, "f32", 128, 8), one.out(one.layout(1, 64))
    with pytest.raises(PlanError, match=r"\Adraw d: w has no whole blocks for each of 3 experts\Z"):
        rowwise_gemv("d", "d", x, matrix, out, rows=1, kernels=KernelOptions(), experts=experts, choice=choice)


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


@every_kernel
@tiered(("experts", "rows"), GROUPED, keep=(1, 2))
def test_choices_are_dealt_to_groups_of_their_experts(
    device: Device, kernels: KernelOptions, experts: Experts, rows: int
) -> None:
    """With rows behind those that count, which are NaN; every choice has a place of its own, that its group names."""
    targets, held = kernels.rows_per_draw, rows - 2
    one, choice, tally = groups_draw(kernels, experts, rows, held)
    given = one.blocks("choice", choice)
    out = one.out(one.layout(len(tally), experts.count))
    one.draw(tally_experts("draw", given, out, experts, rows="rows", kernels=kernels))
    (found,) = check(device, one, all_rows(held))
    assert np.array_equal(found, tally)
    made = {}
    shared = {"targets": targets, "rows": "rows", "kernels": kernels}
    groups = most_groups(rows, targets, experts)
    shapes = {"places": (place_experts, rows, experts.used), "groups": (group_experts, groups, targets)}
    for name, (build, slots, each) in shapes.items():
        one, choice, tally = groups_draw(kernels, experts, rows, held)
        given, counts = one.blocks("choice", choice), one.blocks("tally", tally)
        out = one.out(one.layout(slots, CHOICE_FLOATS * each))
        one.draw(build("draw", given, counts, out, experts, **shared))  # type: ignore[operator]
        (found,) = check(device, one, all_rows(held))
        made[name] = found.reshape(-1, CHOICE_FLOATS)
    places, members = made["places"][: held * experts.used], made["groups"]
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


def grouped_draw(
    weights: str, kernels: KernelOptions, experts: Experts, rows: int, inputs: int, outputs: int, *, first: bool
) -> BlockDraw:
    """The first product of groups, behind a norm and with a gate, or the second one, on interleaved rows."""
    targets = kernels.rows_per_draw
    groups = most_groups(rows, targets, experts) + 1
    one = BlockDraw(kernels, {"rows": (1, rows)}, count=targets)
    inputs = whole_blocks(weights, inputs) if weights in BLOCKS else inputs
    matrix = matrix_of(one, weights, experts.count * padded(outputs), inputs, gain=first, gated=first)
    members = np.zeros((groups, targets, CHOICE_FLOATS), np.float32)
    numbers, at = choices(rows, experts).reshape(rows, experts.used, -1)[:, :, 0].astype(int), 0
    for expert in range(experts.count):
        own = np.nonzero(numbers == expert)[0]
        for start in range(0, len(own), targets):
            few = own[start : start + targets]
            members[at, :, 1] = expert
            members[at, : len(few), 0], members[at, : len(few), 2] = few, 1
            at += 1
    x = (
        one.blocks("x", normal(1, rows, inputs) + np.float32(0.25))
        if first
        else one.interleaved("x", normal(1, groups * targets, inputs))
    )
    one.by_row.clear()
    return one.draw(
        expert_gemm(
            "draw",
            "draw",
            x,
            matrix,
            one.blocks("chosen", members.reshape(groups, -1)),
            one.deal(OUT, groups, padded(outputs), "cache"),
            experts,
            norm_eps=1e-5 if first else None,
            activation="silu" if first else "none",
            kernels=kernels,
        )
    )


@tiered("first", [True, False], keep=(0, 1), ids=["first", "second"])
@tiered("weights", WEIGHTS, keep=(0, 4, len(FLOATS_AND_ROWS) + 3))
def test_products_over_groups_of_one_expert(device: Device, weights: str, first: bool) -> None:
    number = WEIGHTS.index(weights)
    kernels = list(KERNELS.values())[(number + first) % len(KERNELS)]
    experts = (Experts(3, 2, True), Experts(5, 1, True, limit=0.7, slope=1.4))[number % 2]
    one = grouped_draw(weights, kernels, experts, 5, (36, 70)[number % 2], (70, 40)[number % 2], first=first)
    check(device, one, all_rows(5), what=weights)


@every_kernel
def test_every_kernel_over_groups(device: Device, kernels: KernelOptions) -> None:
    for first in (True, False):
        check(device, grouped_draw("f32", kernels, Experts(3, 2, True), 5, 70, 40, first=first), all_rows(5))


@every_kernel
def test_what_groups_gave_is_added_up(device: Device, kernels: KernelOptions) -> None:
    count, experts, cols = kernels.rows_per_draw, Experts(40, 18, True), 70
    rows, held = 3 * count, 2 * count + 1
    one = BlockDraw(kernels, {"rows": (1, rows), "row_slots": (1, 3)}, count=count)
    groups = most_groups(held, count, experts)
    x = one.interleaved("x", normal(2, groups * count, cols))
    choice = choices(rows, experts)
    places = np.random.default_rng(9).permutation(groups * count)[: held * experts.used]
    choice.reshape(rows, experts.used, -1)[:held, :, 2] = places.reshape(held, -1)
    choice[held:] = np.nan
    residual = one.interleaved("r", normal(6, rows, cols))
    one.draw(
        mix_experts(
            "draw",
            "draw",
            x,
            one.blocks("choice", choice),
            one.deal(OUT, 3, cols, "cache"),
            experts,
            residual=residual,
            slots="row_slots",
            rows="rows",
            kernels=kernels,
        )
    )
    real = np.ones(max(rows, groups * count), dtype=bool)
    one.by_row.clear()
    check(device, one, Case({"rows": held, "row_slots": 3}, real=real))
