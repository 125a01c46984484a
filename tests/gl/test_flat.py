"""Where the elements of tensors lie, four a texel: every place is said twice, by the layout and by plain counting."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import FlatLayout

few = settings(max_examples=25)
edges = st.integers(1, 40)
sizes = st.sampled_from([1, 2, 3, 4, 5, 16, 63, 64, 65, 100, 256, 2048])


def refused(message: str) -> Any:
    """Expect a PlanError of one line that is exactly this pattern."""
    return pytest.raises(PlanError, match=rf"\A{message}\Z")


def counted(layout: FlatLayout, rows: int | None = None) -> np.ndarray[Any, Any]:
    """A matrix whose every element is another number, none of them 0."""
    rows = layout.rows if rows is None else rows
    return np.arange(1, rows * layout.cols + 1).reshape(rows, layout.cols).astype(layout.format.dtype)


def largest_power(number: int) -> int:
    return 2 ** int(math.log2(number))


def fits(rows: int, cols: int, largest: int) -> bool:
    """Whether the texels fit lines of the longest power of two, no more lines than there may be."""
    return rows * -(-cols // 4) <= largest_power(largest) * largest


@few
@given(rows=edges, cols=edges, largest=sizes, data=st.data())
def test_the_first_rows_and_columns_by_themselves(rows: int, cols: int, largest: int, data: st.DataObject) -> None:
    if not fits(rows, cols, largest):
        return
    layout = FlatLayout.of((rows, cols), "rgba32f", largest)
    some, wide = data.draw(st.integers(1, rows)), data.draw(st.integers(1, cols))
    width, height = layout.region(some, wide)
    assert width == layout.width
    assert (height - 1) * width < some * layout.row_texels <= height * width
    assert height <= layout.height
    texels = layout.pack(counted(layout, some))
    assert texels.shape == (height, width, 4)
    assert np.array_equal(layout.unpack(texels, some, wide), counted(layout)[:some, :wide])


@few
@given(rows=edges, cols=edges, largest=sizes, other=edges)
def test_another_view_of_the_same_texels(rows: int, cols: int, largest: int, other: int) -> None:
    if not fits(rows, cols, largest):
        return
    layout = FlatLayout.of((rows, cols), "rgba32f", largest)
    texels = rows * layout.row_texels
    if texels % other:
        with refused(
            rf"a {rows}×{cols} matrix cannot share its texels with one of {other}×{4 * (texels // other) + 4}"
        ):
            layout.seen_as(other, 4 * (texels // other) + 4)
        return
    view = layout.seen_as(other, 4 * (texels // other))
    assert (view.width, view.height, view.format) == (layout.width, layout.height, layout.format)
    assert view == FlatLayout.of((other, 4 * (texels // other)), "rgba32f", largest), "a layout is found by its texels"
    packed = layout.pack(counted(layout))
    assert np.array_equal(view.pack(view.unpack(packed, view.rows, view.cols)), packed)
    if cols % 4 == 0:  # rows without padding: the elements keep their order too
        seen = view.unpack(packed, view.rows, view.cols)
        assert np.array_equal(seen.reshape(-1), counted(layout).reshape(-1))


def test_what_does_not_fit_is_refused() -> None:
    message = "a 4097×1 matrix takes 4097 texels of four elements; the largest texture here is 64×64"
    with refused(message):
        FlatLayout.of((4097, 1), "rgba32f", 64)
    for rows, cols in ((0, 1), (1, 0), (-1, 4)):
        with refused(rf"found a {rows}×{cols} matrix; every edge must be at least 1"):
            FlatLayout.of((rows, cols), "rgba32f", 64)
    layout = FlatLayout.of((3, 5), "rgba32f", 64)
    for shape in ((3, 4), (4, 5), (0, 5), (5,), (1, 3, 5)):
        with refused(rf"found an array {re.escape(str(list(shape)))}; expected \[1 to 3, 5\]"):
            layout.pack(np.zeros(shape, np.float32))
    with refused("found an array of float64; a rgba32f texture holds float32"):
        layout.pack(np.zeros((3, 5)))
    for part in ((0, 1), (1, 0), (4, 5), (3, 6)):
        with refused(f"found a part of {part[0]}×{part[1]} elements; expected 1×1 to 3×5"):
            layout.region(*part)
