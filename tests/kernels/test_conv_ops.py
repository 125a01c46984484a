"""Short convolutions on the GPU: the passes of fast plans and the one of the reference plan, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS, first_rows, over, stored, with_kernels
from one_draw import OUT, TABLE, Array, BlockDraw, Case, check, normal
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels.fused.convolve import PARTS, short_conv
from glinfer.kernels.fused.rows import BASE, POSITION, RowInterleaved, padded
from glinfer.kernels.fused.tiles import store_rows
from glinfer.kernels.options import KernelOptions

pytestmark = pytest.mark.gl

SHAPES = [(1, 2, False), (17, 3, False), (64, 4, True), (150, 3, True), (70, 6, False)]
"""Width, length and whether there is a bias."""
RING, EVERY = 16, 64
"""Slots of a sequence in the cache, fewer than the rows of a run, and in the table."""
SLOTS = 2 * RING
TOGETHER = {
    "from the beginning": [(0, position) for position in range(5)],
    "in the middle": [(0, position) for position in range(5, 24)],
    "to the end": [(EVERY, position) for position in range(45, 64)],
    "a sequence after another": [*((0, place) for place in range(9, 25)), *((EVERY, place) for place in range(2, 5))],
    "one": [(EVERY, 1)],
}
"""Rows that follow each other; a sequence begins with a slot."""
APART = {
    "other sequences": [(EVERY * (row % 2), 7 * row % 64) for row in range(19)],
    "idle": [(EVERY + 32, 5), (0, 3)],
}


def joined(seed: int, rows: int, width: int, *, read: Sequence[int]) -> Array:
    """B | C | x of some rows, each of whole blocks that end with zeros; NaN in the parts that nobody reads."""
    parts = np.zeros((rows, PARTS, padded(width)), np.float32)
    parts[:, :, :width] = normal(seed, rows, PARTS, width)
    for number in set(range(PARTS)) - set(read):
        parts[:, number] = np.nan
    return parts.reshape(rows, -1)


def rings(width: int) -> BlockLayout:
    """The layout of the rings."""
    return BlockLayout.by_block((SLOTS, width), 2048, every=RING, rolls=True)


def slot_of(base: int, position: int) -> int:
    """The slot of a token in the rings."""
    return base // EVERY * RING + (base % EVERY + position) % RING


def seen_only(arrays: dict[str, Array], places: Sequence[tuple[int, int]], length: int, *, together: bool) -> None:
    """Make NaN of every slot of the rings that no row of the run sees."""
    seen = np.zeros(SLOTS, dtype=bool)
    for row, (base, position) in enumerate(places):
        for back in range(min(length - 1, position) + 1):
            own = together and back <= row and places[row - back] == (base, position - back)
            seen[slot_of(base, position - back)] |= not own
    arrays["inputs"][~seen] = np.nan


def conv_draw(
    kernels: KernelOptions, rows: int, width: int, length: int, *, biased: bool, together: bool = False
) -> BlockDraw:
    """The convolution of many rows, each at its own position, or for 0 of one row alone."""
    how: dict[str, Any] = {"length": length, "every": EVERY, "together": together}
    one, slots, capacity = over(kernels, rows, **({} if rows else {"position": (0, EVERY - 1)}))
    x = one.interleaved("x", joined(1, capacity, width, read=range(PARTS) if together else [1]))
    out, table = one.deal(OUT, slots, width, "cache"), one.table(capacity) if rows else None

    def alter(arrays: dict[str, Array], case: Case) -> None:
        held = arrays[TABLE][: len(case.real)][case.real] if rows else []
        places = [(int(info[BASE]), int(info[POSITION])) for info in held]
        seen_only(arrays, places if rows else [(0, int(case.values["position"]))], length, together=together)

    one.alter = alter
    inputs, taps = normal(2, SLOTS, width), one.row_weight("taps", normal(3, length + biased, width))
    return one.draw(short_conv(one.of(), x, one.whole("inputs", inputs, rings(width)), taps, out, table, **how))


def at_positions(one: BlockDraw, places: Sequence[tuple[int, int]]) -> Case:
    return first_rows(one, len(places), **stored(one, places).arrays)


@tiered(
    ("place", "together"),
    [(place, together) for place in range(len(SHAPES)) for together in (True, False)],
    keep=(2, 7),
)
def test_convolutions_of_rows_agree_with_float64(device: Device, place: int, together: bool) -> None:
    """What a row does not see is NaN: tokens of other sequences, those after its own, and those of the run itself."""
    width, length, biased = SHAPES[place]
    name = ("plain", "llvmpipe", "GPU", "one by one", "mantissa")[place]
    one = conv_draw(KERNELS[name], 19, width, length, biased=biased, together=together)
    cases = TOGETHER if together else {**TOGETHER, **APART}
    check(device, one, *[at_positions(one, places) for places in cases.values()])


@tiered(("name", "shape"), [("one by one", SHAPES[3]), ("llvmpipe", SHAPES[2])])
def test_a_row_alone_has_the_bits_that_it_has_among_others(device: Device, name: str, shape: Any) -> None:
    """Alone it reads the products that rows before have left in the ring; among others it makes them again."""
    kernels, (width, length, biased) = KERNELS[name], shape
    one = conv_draw(kernels, 0, width, length, biased=biased)
    many = conv_draw(kernels, 19, width, length, biased=biased, together=True)
    together = check(device, many, at_positions(many, [(0, position) for position in range(19)]))[0]
    x = many.arrays["x"]
    b, _, given = x.reshape(len(x), PARTS, -1)[:, :, :width].transpose(1, 0, 2)
    cases, inputs = [], np.zeros((SLOTS, width), np.float32)
    for place in range(19):
        inputs[place % RING] = b[place] * given[place]
        cases.append(Case({"position": place}, {"x": x[place : place + 1], "inputs": inputs.copy()}))
    assert np.array_equal(np.concatenate(check(device, one, *cases)), together[:19])


@tiered(
    ("name", "together", "widths"),
    [("llvmpipe", True, [150]), ("one by one", False, [70]), ("GPU", True, [1, 150])],
    keep=2,
)
def test_rows_are_multiplied_and_stored(device: Device, name: str, together: bool, widths: list[int]) -> None:
    """Nothing beside them changes; of rows of a sequence that exceed its ring the last are stored."""
    kernels, places = KERNELS[name], TOGETHER if together else {"few": TOGETHER["in the middle"][:RING], **APART}
    for width in widths:
        one, _, capacity = over(kernels, 19, **{f"last.{RING}": (1, RING), f"first_row.{RING}": (0, 19)})
        x, table = one.interleaved("x", joined(1, capacity, width, read=[0, 2])), one.table(capacity)
        cache = one.out(rings(width))
        one.arrays[OUT] = normal(4, SLOTS, width)
        one.draw(store_rows(one.of("rows"), x, cache, table, together=together, ring=(RING, EVERY), gated=True))
        cases = []
        for each in places.values():
            case, last = stored(one, each), min(len(each), RING)
            first = len(each) - last if together else 0
            values = {**case.values, f"last.{RING}": last, f"first_row.{RING}": first}
            cases.append(Case(values, case.arrays, case.real))

        def promise(case: Case, shape: tuple[int, int]) -> Array:
            first = int(case.values[f"first_row.{RING}"])
            table = case.arrays[TABLE][first:][: shape[0]]
            slots = [slot_of(int(info[BASE]), int(info[POSITION])) for info in table]
            last = [slot not in slots[row + 1 :] for row, slot in enumerate(slots)]
            return np.broadcast_to(np.array(last)[:, None] & case.real[first:][: shape[0], None], shape)

        one.promise = promise
        check(device, one, *cases)


@with_kernels("GPU", "one by one")
def test_a_row_alone_is_multiplied_and_stored(device: Device, kernels: KernelOptions) -> None:
    one = BlockDraw(kernels, {"slot": (0, RING - 1)})
    x = RowInterleaved((one.blocks("x", joined(1, 1, 70, read=[0, 2])),))
    cache = one.out(rings(70))
    one.arrays[OUT] = normal(4, SLOTS, 70)
    one.draw(store_rows(one.of(), x, cache, first="slot", gated=True))
    check(device, one, *[Case({"slot": slot}) for slot in (0, 5, RING - 1)])


def test_what_does_not_fit_is_refused() -> None:
    one = BlockDraw(KernelOptions(), {"position": (0, SLOTS - 1)})
    x, out = RowInterleaved((one.blocks("x", normal(1, 1, 3 * 64)),)), RowInterleaved((one.out(one.layout(1, 64)),))
    taps, cache = one.row_weight("taps", normal(3, 4, 64)), one.cache("inputs", normal(2, SLOTS, 60))
    one.draw(short_conv(one.of(), x, cache, taps, out, length=3, every=EVERY))
    with pytest.raises(PlanError, match=r"\Adraw draw: inputs is \[32, 60\]; expected \[any, 64\]\Z"):
        one.plan.validate()
