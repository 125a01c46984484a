"""What LoRA adapters add to products, on the GPU: against float64, on odd shapes, with every row's own adapter."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from block_draw import BLOCKS, KERNELS, product_draw, whole_blocks
from one_draw import OUT, TABLE, Array, BlockDraw, Case, check, normal
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.gl.layouts.packing import GemvLayout
from glinfer.kernels.fused.dense import Matrix, parts_of_steps
from glinfer.kernels.fused.low_rank import ADAPTER, ADAPTER_WORD, RANK_STEP, LowRankSum, lora_down
from glinfer.kernels.fused.rows import row_table
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import TensorSpec
from glinfer.lower.fused.rows import slots_for

pytestmark = pytest.mark.gl

ADAPTERS = 3
SIZES = [(3, 17, 16), (65, 128, 32), (130, 70, 48), (201, 36, 16), (1, 1, 16), (67, 260, 80)]
"""Outputs, inputs and ranks."""


def packed(one: BlockDraw, name: str, array: Array) -> TensorSpec:
    padded = np.pad(array, ((0, 0), (0, -array.shape[1] % 4)))
    return one.weight(name, padded, GemvLayout.of(*array.shape, "f32", False, one.edge))


def low_rank_of(
    one: BlockDraw, rows: int, outputs: int, inputs: int, ranks: int, *, biased: bool = False, table: Any = None
) -> LowRankSum:
    """Random matrices of three adapters; their inner vectors are an input unless they are the output."""
    each = ranks + (RANK_STEP if biased else 0)
    down = packed(one, "a", normal(11, ADAPTERS * ranks, inputs, scale=inputs**-0.5))
    up = packed(one, "b", normal(12, outputs, ADAPTERS * each, scale=ranks**-0.5))
    inner = one.blocks("t", normal(13, rows, ranks))
    return LowRankSum(down, up, inner, ADAPTERS, biased, table)


def only(array: Array, number: int, each: int, axis: int) -> Array:
    """A matrix of all adapters with NaN for those that no row has."""
    found = np.full_like(array, np.nan)
    if number:
        places = [slice(None), slice(None)]
        places[axis] = slice((number - 1) * each, number * each)
        found[tuple(places)] = array[tuple(places)]
    return found


def down_draw(
    kernels: KernelOptions, inputs: int, ranks: int, rows: int, *, by_row: bool = False, together: bool = False
) -> BlockDraw:
    """The inner vectors of at most so many rows."""
    count = 1 if together else kernels.rows_per_draw
    slots = slots_for(rows, count)
    ranges = {"rows": (1, slots * count)} | ({} if by_row else {ADAPTER: (0, ADAPTERS)})
    one = BlockDraw(kernels, ranges, count=count)
    array = normal(1, slots * count, inputs)
    if together:
        one.by_row.add("x")
        x: Any = one.blocks("x", array)
    else:
        x = one.interleaved("x", array)
    table = one.table(slots * count) if by_row else None
    out = one.builder.laid_out(OUT, "cache", one.layout(slots * count, ranks))
    down = packed(one, "a", normal(11, ADAPTERS * ranks, inputs, scale=inputs**-0.5))
    low_rank = LowRankSum(down, down, out, ADAPTERS, False, table)
    parts = parts_of_steps(4 * -(-inputs // 64), kernels.part_steps)
    return one.draw(lora_down(one.of("rows"), x, low_rank, parts=parts))


def run_of(rows: int, capacity: int, *, adapter: int | None = None) -> Case:
    real = np.arange(capacity) < rows
    if adapter is not None:
        return Case({"rows": rows, ADAPTER: adapter}, {}, real)
    table = row_table(capacity)
    table[:, ADAPTER_WORD] = (np.arange(capacity) * 7 + 1) % (ADAPTERS + 1)
    return Case({"rows": rows}, {TABLE: table}, real)


@tiered("name", ["GPU", "one by one", "llvmpipe"])
def test_inner_vectors(device: Device, name: str) -> None:
    kernels, place = KERNELS[name], list(KERNELS).index(name)
    _, inputs, ranks = SIZES[place % len(SIZES)]
    for form in ({}, {"together": True}):
        one = down_draw(kernels, inputs, ranks, 19, by_row=True, **form)
        capacity = len(one.arrays[TABLE])
        check(device, one, *(run_of(rows, capacity) for rows in (1, 9, capacity)), what=f"{name} {form}")
    one = down_draw(kernels, inputs, ranks, 5)
    weights = one.arrays["a"]
    capacity = kernels.rows_per_draw * slots_for(5, kernels.rows_per_draw)
    for number in (0, 2):
        one.arrays["a"] = only(weights, number, ranks, 0)
        found = check(device, one, run_of(5, capacity, adapter=number))[0]
        assert np.any(found) == bool(number)


GEMV_FORMS: list[dict[str, Any]] = [
    {"norm": True, "activation": "gelu"},
    {"norm": True, "biased": True, "gated": True, "activation": "silu"},
    {"adds": True, "parts": True},
    {"norm": True, "biased": True, "centred": True, "gain": True},
    {"residual": True},
    {"norm": True, "gain": True, "gated": True, "activation": "gelu_new"},
]


def product(
    kernels: KernelOptions, weights: str, size: tuple[int, int, int], form: dict[str, Any], rows: int = 0
) -> BlockDraw:
    """A product of one vector, or of at most ``rows`` rows with adapters of their own."""
    outputs, inputs, ranks = size
    inputs = whole_blocks(weights, inputs) if weights in BLOCKS else inputs
    outputs = 64 * -(-outputs // 64) if form.get("gated") else outputs
    options = {name: value for name, value in form.items() if name != "biased"}

    def adapt(one: BlockDraw, matrix: Matrix, capacity: int) -> Matrix:
        table = one.table(capacity) if rows else None
        biased, total = form.get("biased", False), matrix.weight.shape[0]
        low_rank = low_rank_of(one, capacity, total, inputs, ranks, biased=biased, table=table)
        del one.arrays["a"]  # the product does not read it
        one.builder._tensors.pop(low_rank.down)
        return dataclasses.replace(matrix, low_rank=low_rank)

    return product_draw(weights, kernels, outputs, inputs, rows, adapt=adapt, adapters=ADAPTERS, **options)


@tiered("name", ["one by one", "llvmpipe", "GPU", "mantissa"])
def test_products_of_one_row(device: Device, name: str) -> None:
    place = list(KERNELS).index(name)
    for number, weights in enumerate(("q8", "Q4_1")):
        form, size = GEMV_FORMS[(place + number) % len(GEMV_FORMS)], SIZES[(place + 2 * number) % len(SIZES)]
        one = product(KERNELS[name], weights, size, form)
        up, inner = one.arrays["b"], one.arrays["t"]
        for adapter in (0, 2):
            each = up.shape[1] // ADAPTERS
            one.arrays["b"] = only(up, adapter, each, 1)
            one.arrays["t"] = inner if adapter else np.full_like(inner, np.nan)
            check(device, one, Case({"position": 0, ADAPTER: adapter}), what=f"{name} {weights} {form} {size}")


@tiered(
    ("name", "weights"), [("llvmpipe", "f32"), ("one by one", "Q8_0"), ("GPU", "Q8_0"), ("mantissa, one by one", "f32")]
)
def test_products_of_rows_with_adapters_of_their_own(device: Device, name: str, weights: str) -> None:
    place, kernels = list(KERNELS).index(name), KERNELS[name]
    form, size = GEMV_FORMS[place % len(GEMV_FORMS)], SIZES[place % len(SIZES)]
    one = product(kernels, weights, size, form, rows=11)
    capacity = len(one.arrays[TABLE])
    case = run_of(capacity, capacity)
    case.values = {**case.values, "row_slots": capacity // kernels.rows_per_draw}
    check(device, one, case, what=f"{name} {weights} {form} {size}")


def test_what_does_not_fit_is_refused() -> None:
    kernels = KernelOptions()
    with pytest.raises(PlanError, match="no groups of 15 rows"):
        _ = down_draw(kernels, 17, 15, 5).plan
    one = down_draw(kernels, 17, 16, 5)
    inner = next(each for each in one.builder._tensors if each.name == OUT)
    with pytest.raises(PlanError, match="float32, without quads"):
        lora_down(one.of(), inner, LowRankSum(inner, inner, inner, 1))
