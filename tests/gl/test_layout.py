"""How matrices lie in textures: packing and its reverse, parts, wrapped edges, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glinfer.errors import PlanError
from glinfer.gl.layouts.matrix import FORMATS, Layout

few = settings(max_examples=25)
EDGE = st.integers(1, 40)
SINGLE = sorted(name for name, found in FORMATS.items() if found.channels == 1)
"""The formats of matrices with one element a texel, which is what Layout is about."""


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any matrix up to 40×40 in any texture that is large enough for it."""
    rows, cols = draw(EDGE), draw(EDGE)
    smallest = int(np.ceil(np.sqrt(rows * cols)))
    biggest = draw(st.integers(smallest, smallest + 15))
    return Layout.of((rows, cols), draw(st.sampled_from(SINGLE)), biggest)


@few
@given(layouts(), st.data())
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
    fits = max(rows, cols) <= biggest or rows * cols <= biggest**2
    if fits:
        layout = Layout.of((rows, cols), "r32f", biggest)
        assert max(layout.width, layout.height) <= biggest
        assert layout.width * layout.height >= rows * cols
    else:
        with pytest.raises(PlanError) as caught:
            Layout.of((rows, cols), "r32f", biggest)
        assert str(caught.value) == (
            f"a {rows}×{cols} matrix has {rows * cols} elements; the largest texture here is "
            f"{biggest}×{biggest} = {biggest**2} texels"
        )


@pytest.mark.parametrize("biggest", [16, 6])
def test_what_does_not_fit_is_refused(biggest: int) -> None:
    layout = Layout.of((5, 7), "r32f", biggest)
    for shape in ((6, 7), (5, 6), (7, 5), (0, 7), (35,), (1, 5, 7), ()):
        with pytest.raises(PlanError, match=rf"^found an array {re.escape(str(list(shape)))}; expected \[1 to 5, 7\]$"):
            layout.pack(np.zeros(shape, np.float32))
    for dtype in ("float64", "int32", ">f4", "bool"):
        with pytest.raises(PlanError, match=rf"^found an array of {dtype}; a r32f texture holds float32$"):
            layout.pack(np.zeros((5, 7), dtype))
    for rows, cols in ((6, 7), (5, 8), (0, 7), (5, -1), (10**12, 1)):
        with pytest.raises(PlanError, match=rf"^found a part of {rows}×{cols} elements; expected 1×1 to 5×7$"):
            layout.region(rows, cols)
    for rows, cols in ((0, 1), (5, -1)):
        with pytest.raises(PlanError, match=rf"^found a {rows}×{cols} matrix; every edge must be at least 1$"):
            Layout.of((rows, cols), "r32f", biggest)
