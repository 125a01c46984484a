"""Short convolutions on the GPU: the passes of fast plans and the one of the reference plan, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from one_draw import OUT, TABLE, Array, BlockDraw, Case, check, normal
from rows_draw import KERNELS, first_rows, stored, with_kernels
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels.fused.convolve import PARTS, short_conv, store_gated
from glinfer.kernels.fused.rows import BASE, POSITION, RowInterleaved, padded
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused.rows import slots_for

pytestmark = pytest.mark.gl

SHAPES = [(1, 1, False), (17, 3, False), (64, 4, True), (150, 3, True), (70, 6, False)]
"""Width, length and whether there is a bias."""
SLOTS = 128
PLACES = {
    "from the beginning": [(0, position) for position in range(5)],
    "in the middle": [(0, position) for position in range(5, 24)],
    "to the end": [(64, position) for position in range(45, 64)],
    "other sequences": [(64 * (row % 2), 7 * row % 64) for row in range(19)],
    "one": [(64, 1)],
}


def joined(seed: int, rows: int, width: int, *, read: Sequence[int]) -> Array:
    """B | C | x of some rows, each of whole blocks that end with zeros; NaN in the parts that nobody reads."""
    parts = np.zeros((rows, PARTS, padded(width)), np.float32)
    parts[:, :, :width] = normal(seed, rows, PARTS, width)
    for number in set(range(PARTS)) - set(read):
        parts[:, number] = np.nan
    return parts.reshape(rows, -1)


def over(kernels: KernelOptions, rows: int, **further: tuple[float, float]) -> tuple[BlockDraw, int]:
    """A plan over so many rows, rounded up to whole slots."""
    count = kernels.rows_per_draw
    slots = slots_for(rows, count)
    return BlockDraw(kernels, {"rows": (1, slots * count), "row_slots": (1, slots), **further}, count=count), slots


def seen_only(arrays: dict[str, Array], places: Sequence[tuple[int, int]], length: int) -> None:
    """Make NaN of every row of the cache that no row of the run sees."""
    seen = np.zeros(len(arrays["cache"]), dtype=bool)
    for base, position in places:
        seen[base + max(0, position - length + 1) : base + position + 1] = True
    arrays["cache"][~seen] = np.nan


def conv_draw(kernels: KernelOptions, rows: int, width: int, length: int, *, biased: bool) -> BlockDraw:
    """The convolution of many rows, each at a place of its own, or for 0 of one row alone."""
    table = None
    if rows:
        one, slots = over(kernels, rows)
        x = one.interleaved("x", joined(1, slots * one.count, width, read=[1]))
        out = one.deal(OUT, slots, width, "cache")
        table = one.table(slots * one.count)
    else:
        one = BlockDraw(kernels, {"position": (0, SLOTS - 1)})
        x = RowInterleaved((one.blocks("x", joined(1, 1, width, read=[1])),))
        out = RowInterleaved((one.out(one.layout(1, width)),))

    def alter(arrays: dict[str, Array], case: Case) -> None:
        held = arrays[TABLE][: len(case.real)][case.real] if rows else []
        places = [(int(info[BASE]), int(info[POSITION])) for info in held]
        seen_only(arrays, places if rows else [(0, int(case.values["position"]))], length)

    one.alter = alter
    cache, taps = one.cache("cache", normal(2, SLOTS, width)), one.row_weight("taps", normal(3, length + biased, width))
    return one.draw(short_conv(one.of("row_slots" if rows else 1), x, cache, taps, out, table, length=length))


def at_places(one: BlockDraw, places: Sequence[tuple[int, int]]) -> Case:
    return first_rows(one, len(places), **stored(one, places).arrays)


@tiered("place", range(len(SHAPES)), keep=(1, 3))
def test_convolutions_of_rows_agree_with_float64(device: Device, place: int) -> None:
    """What a row does not see is NaN: tokens of other sequences, and those after its own."""
    width, length, biased = SHAPES[place]
    name = ("plain", "llvmpipe", "GPU", "one by one", "mantissa")[place]
    one = conv_draw(KERNELS[name], 19, width, length, biased=biased)
    check(device, one, *[at_places(one, places) for places in PLACES.values()])


@tiered(("name", "shape"), [("one by one", SHAPES[3]), ("llvmpipe", SHAPES[2])])
def test_a_row_alone_has_the_bits_that_it_has_among_others(device: Device, name: str, shape: Any) -> None:
    kernels, (width, length, biased) = KERNELS[name], shape
    one, many = (conv_draw(kernels, rows, width, length, biased=biased) for rows in (0, 19))
    places = [(0, position) for position in range(19)]
    together = check(device, many, at_places(many, places))[0]
    x = many.arrays["x"]
    found = check(device, one, *[Case({"position": place}, {"x": x[place : place + 1]}) for place in range(19)])
    assert np.array_equal(np.concatenate(found), together[:19])


@tiered(
    ("name", "together", "widths"),
    [("llvmpipe", True, [150]), ("one by one", False, [70]), ("GPU", False, [1, 150])],
    keep=2,
)
def test_rows_are_multiplied_and_stored(device: Device, name: str, together: bool, widths: list[int]) -> None:
    """Nothing beside them changes, which is asked of every run."""
    kernels = KERNELS[name]
    for width in widths:
        one, slots = over(kernels, 19, strip_first=(0, SLOTS - 1))
        x, table = one.interleaved("x", joined(1, slots * one.count, width, read=[0, 2])), one.table(slots * one.count)
        cache = one.out(BlockLayout.by_block((SLOTS, width), 2048, every=64))
        one.arrays[OUT] = normal(4, SLOTS, width)
        one.draw(store_gated(one.of("rows"), x, cache, table, together=together))
        assert one.spec.cover == ("strip" if together else kernels.cover)
        names = [name for name in PLACES if not together or name != "other sequences"]
        check(device, one, *[stored(one, PLACES[name]) for name in names])


@with_kernels("GPU", "one by one")
def test_a_row_alone_is_multiplied_and_stored(device: Device, kernels: KernelOptions) -> None:
    one = BlockDraw(kernels, {"position": (0, SLOTS - 1)})
    x = RowInterleaved((one.blocks("x", joined(1, 1, 70, read=[0, 2])),))
    cache = one.out(BlockLayout.by_block((SLOTS, 70), 2048, every=64))
    one.arrays[OUT] = normal(4, SLOTS, 70)
    one.draw(store_gated(one.of(), x, cache))
    check(device, one, *[Case({"position": position}) for position in (0, 5, 127)])


def test_what_does_not_fit_is_refused() -> None:
    one = BlockDraw(KernelOptions(), {"position": (0, SLOTS - 1)})
    x, out = RowInterleaved((one.blocks("x", normal(1, 1, 3 * 64)),)), RowInterleaved((one.out(one.layout(1, 64)),))
    taps, cache = one.row_weight("taps", normal(3, 4, 64)), one.cache("cache", normal(2, SLOTS, 60))
    one.draw(short_conv(one.of(), x, cache, taps, out, length=3))
    with pytest.raises(PlanError, match=r"\Adraw draw: cache is \[128, 60\]; expected \[any, 64\]\Z"):
        one.plan.validate()
