"""Caches of keys and values in bytes: the pass that rounds rows into them, and attention over them, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_draw import (
    Attention,
    Run,
    heads_of,
    row_scores_draw,
    row_values_draw,
    tile_scores_draw,
    tile_values_draw,
)
from block_draw import KERNELS, store_draw, stored
from one_draw import OUT, Array, BlockDraw, Case, check, normal
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BYTES, BlockLayout
from glinfer.kernels.fused.cached import cached_scores
from glinfer.kernels.fused.rows import RowInterleaved
from glinfer.kernels.fused.tiles import store_rows
from glinfer.kernels.options import KernelOptions
from glinfer.program.oracle import relative_error, rounding
from glinfer.quant.bytes import from_bytes, to_bytes

pytestmark = pytest.mark.gl

HEADS = [(2, 40, 2, 0), (4, 64, 2, 37), (3, 17, 3, 0), (6, 33, 2, 5)]
"""Heads, their width, heads of keys and window: in one block, over the ends of blocks, and padded."""
heads_in_kernels = tiered(
    ("name", "heads"), [("one by one", HEADS[1]), ("llvmpipe", HEADS[0]), ("GPU", HEADS[2]), ("one by one", HEADS[3])]
)
PLACES = {
    "after each other": [(64, position) for position in range(9, 28)],
    "one": [(0, 127)],
    "apart": [(64 * (row % 2), 5 * row % 64) for row in range(11)],
}


def kept(device: Device, one: BlockDraw, case: Case) -> tuple[Array, Array]:
    """What the draw leaves in the cache, checked against float64, and what NumPy rounds to bytes."""
    (found,), expected = one.run(device, case), one.expected(case)
    promised = case.real[: len(expected)]
    found, expected = found[promised], expected[promised]
    numbers, allowed = rounding(expected, one.plan.table[OUT])
    assert relative_error(found, numbers, allowed) <= 1e-6
    padded = np.pad(expected, [(0, 0), (0, -expected.shape[1] % 32)])
    return found, from_bytes(*to_bytes(padded))[:, : expected.shape[1]]


@tiered(("name", "together"), [("llvmpipe", True), ("one by one", False), ("GPU", False), ("mantissa", True)], keep=2)
def test_rows_are_rounded_into_bytes_wherever_they_belong(device: Device, name: str, together: bool) -> None:
    one = store_draw(KERNELS[name], 170, 19, 128, together=together, in_bytes=True)
    for name, places in PLACES.items():
        if not together or name != "apart":
            found, expected = kept(device, one, stored(one, places))
            assert (found == expected).mean() > 0.99  # a quotient may be on the other side of a half


def alone(kernels: KernelOptions, cols: int) -> BlockDraw:
    one = BlockDraw(kernels, {"position": (0, 63)})
    x = RowInterleaved((one.blocks("x", normal(1, 1, cols if cols % 32 else cols + 70)),))
    cache = one.out(BlockLayout.by_block((64, cols), one.edge, format_name=BYTES))
    one.arrays[OUT] = normal(2, 64, cols)
    return one.draw(store_rows(one.of(), x, cache))


@tiered(("name", "cols"), [("one by one", 33), ("llvmpipe", 1100), ("one by one", 64), ("llvmpipe", 1)])
def test_a_row_alone_is_rounded_too(device: Device, name: str, cols: int) -> None:
    for position in (0, 17, 63):
        found, expected = kept(device, alone(KERNELS[name], cols), Case({"position": position}))
        assert (found == expected).mean() > 0.95


def test_numbers_of_all_sizes_and_those_that_are_none(device: Device) -> None:
    one = alone(KernelOptions(), 320)
    row = normal(3, 1, 390)
    sizes = [1e-38, 1e-31, 1e-20, 1.0, 65504.0, 1e30, 3e38, 0.0]
    for group, size in enumerate(sizes):
        row[0, 32 * group : 32 * group + 32] = np.linspace(-size, size, 32)
    row[0, 256 + 3], row[0, 288 + 31] = np.nan, -np.inf
    (found,) = one.run(device, Case({"position": 5}, {"x": row}))
    for group, size in enumerate(sizes):
        own, given = found[0, 32 * group :][:32], row[0, 32 * group :][:32]
        step = 0.0 if size < 1e-30 else size / 254 * 1.01
        assert (np.abs(own - given) <= max(step, 1e-30)).all()
    assert np.isnan(found[0, 256:]).all(), "a group with one of them has no number at all"


ALONE = [(Run(0, position),) for position in (0, 16, 69, 129)]
MANY = [(Run(0, 60, 19),), (Run(64, 3, 19),), (Run(0, 100, 1),)]
SEQUENCES = [(Run(0, 40), Run(64, 0), Run(128, 63))]


@heads_in_kernels
def test_attention_agrees_with_float64(device: Device, name: str, heads: Any) -> None:
    """Of one query, of many queries of a sequence, and of a query of each of many sequences."""
    count, width, kv, window = heads
    options: dict[str, Any] = {"kv": kv, "window": window, "in_bytes": True}
    of_row, of_tiles = (row_scores_draw, row_values_draw), (tile_scores_draw, tile_values_draw)
    for both, rows, runs in ((of_row, 0, ALONE), (of_tiles, 24, MANY), (of_row, 3, SEQUENCES)):
        for make in both:
            made: Attention = make(KERNELS[name], count, width, rows, **options)
            check(device, made.one, *[made.case(*each) for each in runs])


def test_what_does_not_fit_is_refused() -> None:
    one = BlockDraw(KernelOptions(), {"position": (0, 63), "score_slots": (1, 1)})
    made = heads_of(2, 16, 2, 0, 0.0)
    cache, out = one.in_bytes("cache", normal(1, 64, made.queries_at)), one.out(one.layout(1, 128))
    one.draw(cached_scores(one.of(), cache, out, made))
    with pytest.raises(PlanError, match="queries must be given for a cache in bytes"):
        _ = one.plan
    for cols, kept in ((134, 200), (134, 128 - 1)):
        one = BlockDraw(KernelOptions(), {"position": (0, 63)})
        x = RowInterleaved((one.blocks("x", normal(1, 1, cols)),))
        cache = one.out(BlockLayout.by_block((64, kept), one.edge, format_name=BYTES))
        with pytest.raises(PlanError, match=f"x has {cols} columns; the cache stores {kept}"):
            _ = one.draw(store_rows(one.of(), x, cache)).plan
