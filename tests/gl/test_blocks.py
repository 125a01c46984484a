"""Vectors in blocks and tables of rows: where each float lies, there and back, and what does not fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout, blocks_for

Array = np.ndarray[Any, Any]
COLS = st.sampled_from([1, 3, 4, 15, 16, 36, 63, 64, 65, 128, 129, 300, 512, 1000])
few = settings(max_examples=25)
BIGGEST = st.sampled_from([256, 300, 2048])


@st.composite
def layouts(draw: st.DrawFn) -> BlockLayout:
    """Blocks of every arrangement: in tiles, or the same block of all slots together."""
    shape, biggest = (draw(st.integers(1, 70)), draw(COLS)), draw(BIGGEST)
    try:
        if draw(st.booleans()):
            return BlockLayout.by_block(shape, biggest)
        tiles, pitch = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from([4, 8, 20, 32, 64]))
        return BlockLayout.of(shape, biggest, tiles=tiles, pitch=pitch)
    except PlanError:
        return BlockLayout.by_block(shape, 2048)


@st.composite
def tables(draw: st.DrawFn) -> RowLayout:
    """Tables in one stack of rows or more."""
    rows, cols, name = draw(st.integers(1, 60)), draw(st.integers(1, 30)), draw(st.sampled_from(["rgba32f", "rgba16f"]))
    try:
        return RowLayout.of((rows, cols), name, draw(st.integers(1, 64)))
    except PlanError:
        return RowLayout.of((rows, cols), name, 2048)


def numbered(layout: BlockLayout | RowLayout, rows: int | None = None) -> Array:
    """A matrix whose element i, counted row by row, is i + 1."""
    rows = layout.rows if rows is None else rows
    return np.arange(1, rows * layout.cols + 1).reshape(rows, layout.cols).astype(layout.format.dtype)


def by_shader(layout: BlockLayout, slot: int, block: int) -> tuple[int, int]:
    """block_origin() of shaders/common/blocks.glsl, on the numbers that it is given."""
    given = {name.removeprefix("T_"): value for name, value in layout.defines("T")}
    place = slot * given["SLOT_STEP"] + block // given["TILES"] * given["BLOCK_STEP"]
    x = (block % given["TILES"]) * given["PITCH"] + 4 * (place % given["COLUMNS"])
    return x, 4 * (place // given["COLUMNS"])


# Blocks


@few
@given(layouts(), st.data())
def test_parts_are_the_first_rows_and_their_region_holds_them(layout: BlockLayout, data: st.DataObject) -> None:
    rows, cols = data.draw(st.integers(1, layout.rows)), data.draw(st.integers(1, layout.cols))
    width, height = layout.region(rows, cols)
    assert width == layout.width
    assert height <= layout.height
    x, y = layout.places(rows)
    assert x.max() < width
    assert height - 4 <= y.max() < height, "no line too many"
    whole = layout.pack(numbered(layout))
    assert np.array_equal(layout.unpack(whole[:height, :width], rows, cols), numbered(layout)[:rows, :cols])
    part = layout.pack(numbered(layout, rows))
    assert part.shape == (height, width, 4)
    assert np.array_equal(layout.unpack(part, rows, layout.cols), numbered(layout)[:rows])
    assert np.count_nonzero(part) == rows * layout.cols
    first = data.draw(st.integers(0, layout.rows - rows))
    later = layout.places(rows, first)
    everything = layout.places(layout.rows)
    assert all(
        np.array_equal(found, all_of[first : first + rows]) for found, all_of in zip(later, everything, strict=True)
    )


def test_a_tall_vector_gets_more_tiles_before_it_is_refused() -> None:
    assert BlockLayout.of((1, 64 * 64), 256, tiles=1, pitch=4).tiles == 1
    more = BlockLayout.of((1, 64 * 65), 256, tiles=1, pitch=4)
    assert (more.tiles, more.height) == (2, 4 * 33)
    assert BlockLayout.of((1, 64 * 64 * 64), 256, tiles=1, pitch=4).tiles == 64
    with pytest.raises(PlanError, match=r"\A1 vectors of 262145 floats need 256×260 texels; .* is 256×256\Z"):
        BlockLayout.of((1, 64 * 64 * 64 + 1), 256, tiles=1, pitch=4)


# What is kept once for several slots


@st.composite
def caches(draw: st.DrawFn) -> BlockLayout:
    """Caches of which the last blocks of a slot are kept once for every few slots."""
    cols = draw(st.sampled_from([65, 128, 176, 300, 512]))
    aside, every = draw(st.integers(1, blocks_for(cols) - 1)), draw(st.sampled_from([1, 16, 64, 100]))
    return BlockLayout.by_block(
        (draw(st.integers(1, 200)), cols), draw(st.sampled_from([256, 2048])), aside=aside, every=every
    )


@few
@given(caches())
def test_what_is_kept_aside_lies_behind_the_rest(layout: BlockLayout) -> None:
    """Where the shader looks for it, by aside_origin() of shaders/common/blocks.glsl, and once for every few slots."""
    given = {name.removeprefix("T_"): value for name, value in layout.defines("T")}
    kept = given["ASIDE"]
    assert kept == layout.blocks - layout.aside
    plain = BlockLayout.by_block((layout.rows, 64 * kept), 2048 if layout.width > 256 else 256)
    seen = {}
    for slot in {0, layout.rows // 2, layout.rows - 1, min(layout.rows - 1, layout.every)}:
        for block in range(layout.blocks):
            x, y = (int(part) for part in layout.origin(slot, block))
            if block < kept:
                assert (x, y) == by_shader(layout, slot, block)
                assert (x, y) == tuple(int(part) for part in plain.origin(slot, block)), "as without anything aside"
                assert y < given["ASIDE_LINE"]
            else:
                place = (block - kept) * given["ASIDE_SLOTS"] + slot // given["EVERY"]
                assert (x, y) == (4 * (place % given["COLUMNS"]), given["ASIDE_LINE"] + 4 * (place // given["COLUMNS"]))
                assert y + 4 <= layout.height
                assert x + 4 <= layout.width
                seen.setdefault((x, y), set()).add((slot // layout.every, block))
    assert all(len(owners) == 1 for owners in seen.values())
    assert layout.kept_height == plain.height == given["ASIDE_LINE"]
    assert layout.region(1, layout.cols) == (layout.width, layout.height)


def test_a_cache_of_keys_and_values_takes_little_more_than_they_do() -> None:
    layout = BlockLayout.by_block((2048, 3 * 512), 2048, aside=8, every=2048)
    assert layout.nbytes == 2048 * 2 * 512 * 4 + 4 * 2048 * 16
    assert layout.aside_slots == 1
    assert BlockLayout.by_block((2048, 3 * 512), 2048, aside=8, every=512).aside_slots == 4
    assert "T_ASIDE" not in dict(BlockLayout.by_block((64, 64), 2048).defines("T"))


# Tables


@few
@given(st.integers(1, 10_000), st.integers(1, 600), st.sampled_from([5, 64, 2048]))
def test_tables_stay_within_the_limit_or_are_refused(rows: int, cols: int, biggest: int) -> None:
    texels = -(-cols // 4)
    if biggest // texels * biggest >= rows:
        layout = RowLayout.of((rows, cols), "rgba16f", biggest)
        assert max(layout.width, layout.height) <= biggest
        assert layout.texels == texels
    else:
        message = rf"\Aa table of {rows} rows of {cols} needs \d+×\d+ texels; the largest texture here is "
        with pytest.raises(PlanError, match=rf"{message}{biggest}×{biggest}\Z"):
            RowLayout.of((rows, cols), "rgba16f", biggest)


# Refusals


VECTORS = BlockLayout.of((5, 70), 2048, tiles=2)
TABLE = RowLayout.of((5, 7), "rgba16f", 2048)


def test_arrays_and_parts_that_do_not_fit_are_refused() -> None:
    for shape in ((6, 70), (5, 69), (0, 70), (70,), (1, 5, 70)):
        with pytest.raises(PlanError, match=r"\Afound an array \[.*\]; expected \[1 to 5, 70\]\Z"):
            VECTORS.pack(np.zeros(shape, np.float32))
    for matrix in (np.zeros((6, 7), np.float16), np.zeros((5, 7), np.float32), np.zeros(35, np.float16)):
        with pytest.raises(PlanError, match=r"\Afound an array float(16|32) \[.*\]; expected float16 \[5, 7\]\Z"):
            TABLE.pack(matrix)
    for layout, rows, cols in itertools.product((VECTORS, TABLE), (6, 0, -1, 1), (71, 0)):
        with pytest.raises(PlanError, match=rf"\Afound a part of {rows}×{cols} elements; expected 1×1 to 5×\d+\Z"):
            layout.region(rows, cols)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockLayout.of((5, 0), 2048), "found a 5×0 matrix; every edge must be at least 1"),
        (lambda: BlockLayout.by_block((0, 5), 2048), "found a 0×5 matrix; every edge must be at least 1"),
        (lambda: BlockLayout.of((1, 5), 2048, pitch=6), "tiles 6 texels apart; expected a multiple of 4"),
        (
            lambda: BlockLayout.by_block((2048, 100_000), 2048),
            "2048 vectors of 100000 floats need 2048×25008 texels; the largest texture here is 2048×2048",
        ),
        (
            lambda: BlockLayout.of((17, 1100), 64, tiles=4),
            "17 vectors of 1100 floats need 64×80 texels; the largest texture here is 64×64",
        ),
    ],
)
def test_layouts_that_cannot_be_are_refused(make: Callable[[], BlockLayout], message: str) -> None:
    with pytest.raises(PlanError, match=rf"\A{message}\Z"):
        make()
