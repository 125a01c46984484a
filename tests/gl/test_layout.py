"""Positions of elements in textures: packing and its reverse, parts, what the shader computes, and what is refused."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout, blocks_for
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import FORMATS, Layout, TexelLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.quant.formats import WORD_FORMATS

Array = np.ndarray[Any, Any]
few = settings(max_examples=25)
EDGE = st.integers(1, 40)
BIGGEST = st.sampled_from([256, 300, 2048])


def refused(message: str) -> Any:
    """Expect a PlanError of one line that is exactly this pattern."""
    return pytest.raises(PlanError, match=rf"\A{message}\Z")


def numbered(layout: TexelLayout, rows: int | None = None) -> Array:
    """A matrix whose element i, counted row by row, is i + 1, or as near as a half float has integers."""
    rows = layout.rows if rows is None else rows
    numbers = np.arange(rows * layout.cols).reshape(rows, layout.cols)
    return (numbers % (2039 if layout.format.dtype == np.float16 else 2**31) + 1).astype(layout.format.dtype)


# One element a texel


SINGLE = sorted(name for name, found in FORMATS.items() if found.channels == 1)


@st.composite
def matrices(draw: st.DrawFn) -> Layout:
    """Any matrix up to 40×40 in any texture that is large enough for it."""
    rows, cols = draw(EDGE), draw(EDGE)
    smallest = int(np.ceil(np.sqrt(rows * cols)))
    biggest = draw(st.integers(smallest, smallest + 15))
    return Layout.of((rows, cols), draw(st.sampled_from(SINGLE)), biggest)


@few
@given(matrices(), st.data())
def test_the_region_is_the_smallest_that_holds_the_part(layout: Layout, data: st.DataObject) -> None:
    rows, cols = data.draw(st.integers(1, layout.rows)), data.draw(st.integers(1, layout.cols))
    width, height = layout.region(rows, cols)
    assert 1 <= width <= layout.width
    assert 1 <= height <= layout.height
    if not layout.wrapped:
        assert (width, height) == (cols, rows)
    else:
        used = rows * layout.cols
        assert width == layout.width
        assert (height - 1) * width < used <= height * width
    assert layout.region(layout.rows, layout.cols) == (layout.width, layout.height)


@few
@given(EDGE, EDGE, st.integers(1, 60))
def test_a_matrix_fits_exactly_when_its_elements_do(rows: int, cols: int, biggest: int) -> None:
    if max(rows, cols) <= biggest or rows * cols <= biggest**2:
        layout = Layout.of((rows, cols), "r32f", biggest)
        assert max(layout.width, layout.height) <= biggest
        assert layout.width * layout.height >= rows * cols
    else:
        with refused(
            f"a {rows}×{cols} matrix has {rows * cols} elements; the largest texture here is "
            f"{biggest}×{biggest} = {biggest**2} texels"
        ):
            Layout.of((rows, cols), "r32f", biggest)


# Four elements a texel


SIZES = st.sampled_from([1, 2, 3, 4, 5, 16, 63, 64, 65, 100, 256, 2048])


def fits(rows: int, cols: int, largest: int) -> bool:
    """Whether the texels fit lines of the longest power of two, no more lines than there may be."""
    return rows * -(-cols // 4) <= 2 ** int(math.log2(largest)) * largest


@few
@given(rows=EDGE, cols=EDGE, largest=SIZES, data=st.data())
def test_the_first_rows_and_columns_by_themselves(rows: int, cols: int, largest: int, data: st.DataObject) -> None:
    if not fits(rows, cols, largest):
        return
    layout = FlatLayout.of((rows, cols), "rgba32f", largest)
    some, wide = data.draw(st.integers(1, rows)), data.draw(st.integers(1, cols))
    width, height = layout.region(some, wide)
    assert width == layout.width
    assert (height - 1) * width < some * layout.row_texels <= height * width
    assert height <= layout.height
    texels = layout.pack(numbered(layout, some))
    assert texels.shape == (height, width, 4)
    assert np.array_equal(layout.unpack(texels, some, wide), numbered(layout)[:some, :wide])


@few
@given(rows=EDGE, cols=EDGE, largest=SIZES, other=EDGE)
def test_another_view_of_the_same_texels(rows: int, cols: int, largest: int, other: int) -> None:
    if not fits(rows, cols, largest):
        return
    layout = FlatLayout.of((rows, cols), "rgba32f", largest)
    each, rest = divmod(rows * layout.row_texels, other)
    if rest:
        with refused(rf"a {rows}×{cols} matrix cannot share its texels with one of {other}×{4 * each + 4}"):
            layout.reshaped(other, 4 * each + 4)
        return
    view = layout.reshaped(other, 4 * each)
    assert (view.width, view.height, view.format) == (layout.width, layout.height, layout.format)
    assert view == FlatLayout.of((other, 4 * each), "rgba32f", largest), "a layout is found by its texels"
    packed = layout.pack(numbered(layout))
    assert np.array_equal(view.pack(view.unpack(packed, view.rows, view.cols)), packed)
    if cols % 4 == 0:  # rows without padding: the elements keep their order too
        seen = view.unpack(packed, view.rows, view.cols)
        assert np.array_equal(seen.reshape(-1), numbered(layout).reshape(-1))


# Blocks


COLS = st.sampled_from([1, 3, 4, 15, 16, 36, 63, 64, 65, 128, 129, 300, 512, 1000])


@st.composite
def blocks(draw: st.DrawFn) -> BlockLayout:
    """Blocks of every arrangement: in tiles, or the same block of all slots together."""
    shape, biggest = (draw(st.integers(1, 70)), draw(COLS)), draw(BIGGEST)
    try:
        if draw(st.booleans()):
            return BlockLayout.by_block(shape, biggest)
        tiles, pitch = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from([4, 8, 20, 32, 64]))
        return BlockLayout.of(shape, biggest, tiles=tiles, pitch=pitch)
    except PlanError:
        return BlockLayout.by_block(shape, 2048)


def by_shader(layout: BlockLayout, slot: int, block: int) -> tuple[int, int]:
    """block_origin() of shaders/common/blocks.glsl, on the numbers that it is given."""
    given = {name.removeprefix("T_"): value for name, value in layout.defines("T")}
    place = slot * given["SLOT_STEP"] + block // given["TILES"] * given["BLOCK_STEP"]
    x = (block % given["TILES"]) * given["PITCH"] + 4 * (place % given["COLUMNS"])
    return x, 4 * (place // given["COLUMNS"])


@few
@given(blocks(), st.data())
def test_parts_are_the_first_rows_and_their_region_holds_them(layout: BlockLayout, data: st.DataObject) -> None:
    rows, cols = data.draw(st.integers(1, layout.rows)), data.draw(st.integers(1, layout.cols))
    width, height = layout.region(rows, cols)
    assert width == layout.width
    assert height <= layout.height
    x, y = layout.texels_of(rows)
    assert x.max() < width
    assert height - 4 <= y.max() < height, "no line too many"
    whole = layout.pack(numbered(layout))
    assert np.array_equal(layout.unpack(whole[:height, :width], rows, cols), numbered(layout)[:rows, :cols])
    part = layout.pack(numbered(layout, rows))
    assert part.shape == (height, width, 4)
    assert np.array_equal(layout.unpack(part, rows, layout.cols), numbered(layout)[:rows])
    assert np.count_nonzero(part) == rows * layout.cols
    first = data.draw(st.integers(0, layout.rows - rows))
    for found, everything in zip(layout.texels_of(rows, first), layout.texels_of(layout.rows), strict=True):
        assert np.array_equal(found, everything[first : first + rows])


def test_a_tall_vector_gets_more_tiles_before_it_is_refused() -> None:
    assert BlockLayout.of((1, 64 * 64), 256, tiles=1, pitch=4).tiles == 1
    more = BlockLayout.of((1, 64 * 65), 256, tiles=1, pitch=4)
    assert (more.tiles, more.height) == (2, 4 * 33)
    assert BlockLayout.of((1, 64 * 64 * 64), 256, tiles=1, pitch=4).tiles == 64
    with refused("1 vectors of 262145 floats need 256×260 texels; .* is 256×256"):
        BlockLayout.of((1, 64 * 64 * 64 + 1), 256, tiles=1, pitch=4)


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
        needs = rf"a table of {rows} rows of {cols} needs \d+×\d+ texels"
        with refused(f"{needs}; the largest texture here is {biggest}×{biggest}"):
            RowLayout.of((rows, cols), "rgba16f", biggest)


# Packed weights and their constants


EDGES = st.sampled_from([1, 2, 3, 4, 5, 15, 16, 17, 36, 63, 64, 65, 127, 129, 200, 301])
WORDS = st.sampled_from(sorted(WORD_FORMATS))


@st.composite
def weights(draw: st.DrawFn) -> GemvLayout:
    """Any matrix up to 301×301 in any texture that holds it."""
    outputs, inputs, name, quad = draw(EDGES), draw(EDGES), draw(WORDS), draw(st.booleans())
    biggest = draw(BIGGEST)
    try:
        return GemvLayout.of(outputs, inputs, name, quad, biggest)
    except PlanError:
        return GemvLayout.of(outputs, inputs, name, quad, 2048)


@st.composite
def constants(draw: st.DrawFn) -> ConstantLayout:
    """The constants of up to 5256 outputs, one block a row of texels or several."""
    outputs, biggest = draw(st.one_of(EDGES, st.integers(1, 5256))), draw(st.sampled_from([96, 640, 2048]))
    scales, quad, sums = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    return ConstantLayout.of(outputs, scales, quad, biggest, sums=sums)


@pytest.mark.parametrize("layouts", [weights(), constants()], ids=["weights", "constants"])
def test_what_is_packed_comes_back_and_nothing_else_is_in_the_texture(layouts: Any) -> None:
    @few
    @given(layouts)
    def check(layout: GemvLayout | ConstantLayout) -> None:
        matrix = numbered(layout)
        texels = layout.pack(matrix)
        assert texels.shape == (layout.height, layout.width, 4)
        assert texels.flags.c_contiguous
        assert texels.dtype == matrix.dtype
        assert np.array_equal(layout.unpack(texels, layout.rows, layout.cols), matrix)
        assert np.count_nonzero(texels) == matrix.size, "padding is zero"
        assert layout.nbytes == texels.nbytes
        assert max(layout.width, layout.height) <= 2048

    check()


@few
@given(EDGES, EDGES, WORDS, st.booleans(), st.sampled_from([8, 16, 100, 128, 256, 300, 512, 2048]))
def test_weights_stay_within_the_limit_or_are_refused(
    outputs: int, inputs: int, name: str, quad: bool, biggest: int
) -> None:
    lines, line = 8 * -(-inputs // 64), 32 * WORD_FORMATS[name].piece_texels
    blocks, side_by_side = -(-outputs // 64), biggest // line
    if biggest // lines * side_by_side >= blocks:
        layout = GemvLayout.of(outputs, inputs, name, quad, biggest)
        assert max(layout.width, layout.height) <= biggest
        defined = dict(layout.defines("W"))
        assert (defined["W_WIDTH"], defined["W_HEIGHT"]) == (layout.width, layout.height)
    else:
        needs = f"a matrix of {outputs}×{inputs} weights needs {blocks * lines} lines of {line} texels"
        with refused(f"{needs}; the largest texture here is {biggest}×{biggest}"):
            GemvLayout.of(outputs, inputs, name, quad, biggest)


@few
@given(st.integers(1, 5256), st.booleans(), st.booleans(), st.sampled_from([15, 16, 31, 32, 79, 80, 95, 96, 160, 2048]))
def test_constants_stay_within_the_limit_or_are_refused(outputs: int, scales: bool, sums: bool, biggest: int) -> None:
    line, blocks = (80 if scales else 16) + (16 if sums else 0), -(-outputs // 64)
    if biggest // line * biggest >= blocks:
        layout = ConstantLayout.of(outputs, scales, True, biggest, sums=sums)
        assert max(layout.width, layout.height) <= biggest
        assert layout.cols == line // 16
    else:
        with refused(f"{outputs} constants needs? {blocks} lines of {line} texels; .*"):
            ConstantLayout.of(outputs, scales, True, biggest, sums=sums)


# Refusals


PARTS: dict[str, TexelLayout] = {
    "plain": Layout.of((5, 7), "r32f", 16),
    "wrapped": Layout.of((5, 7), "r32f", 6),
    "flat": FlatLayout.of((5, 7), "rgba32f", 64),
    "blocks": BlockLayout.of((5, 7), 2048, tiles=2),
}
TABLE = RowLayout.of((5, 7), "rgba16f", 2048)
WEIGHTS = GemvLayout.of(5, 17, "q8", True, 2048)
FLOATS = GemvLayout.of(5, 17, "f32", True, 2048)
SCALES = ConstantLayout.of(5, True, True, 2048)


@pytest.mark.parametrize("layout", PARTS.values(), ids=PARTS)
def test_rows_that_do_not_fit_are_refused(layout: TexelLayout) -> None:
    for shape in ((6, 7), (5, 6), (7, 5), (0, 7), (35,), (1, 5, 7), ()):
        with refused(rf"found an array {re.escape(str(list(shape)))}; expected \[1 to 5, 7\]"):
            layout.pack(np.zeros(shape, np.float32))
    for dtype in ("float64", "int32", ">f4", "bool"):
        if not isinstance(layout, BlockLayout):  # which rounds to its format
            with refused(rf"found an array of {dtype}; a {layout.format.name} texture holds float32"):
                layout.pack(np.zeros((5, 7), dtype))


@pytest.mark.parametrize("layout", [*PARTS.values(), TABLE], ids=[*PARTS, "table"])
def test_parts_that_are_not_there_are_refused(layout: TexelLayout) -> None:
    for rows, cols in ((6, 7), (5, 8), (0, 7), (5, -1), (10**12, 1)):
        with refused(rf"found a part of {rows}×{cols} elements; expected 1×1 to 5×7"):
            layout.region(rows, cols)


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (lambda: TABLE.pack(np.zeros((6, 7), np.float16)), r"found an array float16 .*; expected float16 \[5, 7\]"),
        (lambda: TABLE.pack(np.zeros((5, 7), np.float32)), r"found an array float32 .*; expected float16 \[5, 7\]"),
        (lambda: TABLE.pack(np.zeros(35, np.float16)), r"found an array float16 \[35\]; expected float16 \[5, 7\]"),
        (lambda: WEIGHTS.pack(np.zeros((5, 4), np.uint32)), r"found an array uint32 .*; expected uint32 \[5, 5\]"),
        (lambda: WEIGHTS.pack(np.zeros(25, np.uint32)), r"found an array uint32 \[25\]; expected uint32 \[5, 5\]"),
        (lambda: FLOATS.pack(np.zeros((5, 17), np.float32)), r"found an array float32 .*; expected float32 \[5, 20\]"),
        (lambda: FLOATS.pack(np.zeros((5, 20))), r"found an array float64 .*; expected float32 \[5, 20\]"),
        (lambda: SCALES.pack(np.zeros((4, 5), np.float32)), r"found an array \[4, 5\]; expected \[5, 5\]"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(pack: Callable[[], Array], message: str) -> None:
    with refused(message):
        pack()


def test_packed_textures_are_read_whole() -> None:
    for layout in (WEIGHTS, SCALES):
        assert layout.region(5, 5) == (layout.width, layout.height)
        for rows, cols in ((1, 5), (5, 1), (6, 5), (0, 0)):
            with refused(rf".*read whole: found {rows}×{cols}; expected 5×5"):
                layout.region(rows, cols)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda make=make, shape=shape: make(shape), f"found a {shape[0]}×{shape[1]} matrix; every edge must be .*")
            for make, shape in itertools.product(
                (
                    lambda shape: Layout.of(shape, "r32f", 16),
                    lambda shape: FlatLayout.of(shape, "rgba32f", 64),
                    lambda shape: BlockLayout.of(shape, 2048),
                    lambda shape: BlockLayout.by_block(shape, 2048),
                ),
                ((0, 1), (5, -1)),
            )
        ),
        (
            lambda: FlatLayout.of((4097, 1), "rgba32f", 64),
            "a 4097×1 matrix takes 4097 texels of four elements; the largest texture here is 64×64",
        ),
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
def test_layouts_that_cannot_be_are_refused(make: Callable[[], TexelLayout], message: str) -> None:
    with refused(message):
        make()
