"""Packed weights and their constants: there and back, where the shader looks for them, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glinfer.errors import PlanError
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.quant.formats import WORD_FORMATS

Array = np.ndarray[Any, Any]
few = settings(max_examples=25)
EDGES = st.sampled_from([1, 2, 3, 4, 5, 15, 16, 17, 36, 63, 64, 65, 127, 129, 200, 301])
FORMATS = st.sampled_from(sorted(WORD_FORMATS))
BYTES = {"f32": 4, "f16": 2, "q16": 2, "q8": 1, "bf16": 2, "i16": 2, "i8": 1}
BIGGEST = st.sampled_from([256, 300, 2048])


def defined(layout: GemvLayout | ConstantLayout) -> dict[str, int]:
    return {name.removeprefix("W_"): value for name, value in layout.defines("W")}


@st.composite
def weights(draw: st.DrawFn) -> GemvLayout:
    """Any matrix up to 301×301 in any texture that holds it."""
    outputs, inputs, name, quad = draw(EDGES), draw(EDGES), draw(FORMATS), draw(st.booleans())
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


def numbered(layout: GemvLayout | ConstantLayout) -> Array:
    """A matrix whose element i, counted row by row, is i + 1, or as near as a half float has whole numbers."""
    numbers = np.arange(layout.rows * layout.cols).reshape(layout.rows, layout.cols)
    return (numbers % (2039 if layout.format.dtype == np.float16 else 2**31) + 1).astype(layout.format.dtype)


# Weights


@few
@given(weights())
def test_weights_come_back_and_nothing_else_is_in_the_texture(layout: GemvLayout) -> None:
    words = numbered(layout)
    texels = layout.pack(words)
    assert texels.shape == (layout.height, layout.width, 4)
    assert texels.flags.c_contiguous
    assert texels.dtype == words.dtype
    assert np.array_equal(layout.unpack(texels, layout.rows, layout.cols), words)
    assert np.count_nonzero(texels) == words.size, "padding is zero"
    assert layout.nbytes == texels.nbytes


@few
@given(EDGES, EDGES, FORMATS, st.booleans(), st.sampled_from([8, 16, 100, 128, 256, 300, 512, 2048]))
def test_weights_stay_within_the_limit_or_are_refused(
    outputs: int, inputs: int, name: str, quad: bool, biggest: int
) -> None:
    lines, line = 8 * -(-inputs // 64), 32 * WORD_FORMATS[name].piece_texels
    blocks, side_by_side = -(-outputs // 64), biggest // line
    if biggest // lines * side_by_side >= blocks:
        layout = GemvLayout.of(outputs, inputs, name, quad, biggest)
        assert max(layout.width, layout.height) <= biggest
        assert defined(layout)["WIDTH"] == layout.width
        assert defined(layout)["HEIGHT"] == layout.height
    else:
        with pytest.raises(PlanError) as caught:
            GemvLayout.of(outputs, inputs, name, quad, biggest)
        assert str(caught.value) == (
            f"a matrix of {outputs}×{inputs} weights needs {blocks * lines} lines of {line} texels; "
            f"the largest texture here is {biggest}×{biggest}"
        )


def test_texture_memory_is_that_of_the_format() -> None:
    for name, size in BYTES.items():
        assert GemvLayout.of(512, 512, name, True, 2048).nbytes == 512 * 512 * size


# Constants


@few
@given(constants())
def test_constants_come_back_and_nothing_else_is_in_the_texture(layout: ConstantLayout) -> None:
    matrix = numbered(layout)
    texels = layout.pack(matrix)
    assert texels.shape == (layout.height, layout.width, 4)
    assert texels.dtype == np.float32
    assert texels.flags.c_contiguous
    assert np.array_equal(layout.unpack(texels, layout.rows, layout.cols), matrix)
    assert np.count_nonzero(texels) == matrix.size
    assert layout.nbytes == texels.nbytes
    assert max(layout.width, layout.height) <= 2048


@few
@given(st.integers(1, 5256), st.booleans(), st.booleans(), st.sampled_from([15, 16, 31, 32, 79, 80, 95, 96, 160, 2048]))
def test_constants_stay_within_the_limit_or_are_refused(outputs: int, scales: bool, sums: bool, biggest: int) -> None:
    line, blocks = (80 if scales else 16) + (16 if sums else 0), -(-outputs // 64)
    if biggest // line * biggest >= blocks:
        layout = ConstantLayout.of(outputs, scales, True, biggest, sums=sums)
        assert max(layout.width, layout.height) <= biggest
        assert layout.cols == line // 16
    else:
        with pytest.raises(PlanError, match=rf"^{outputs} constants needs? {blocks} lines of {line} texels; "):
            ConstantLayout.of(outputs, scales, True, biggest, sums=sums)


# Refusals


WEIGHTS = GemvLayout.of(5, 17, "q8", True, 2048)
FLOATS = GemvLayout.of(5, 17, "f32", True, 2048)
SCALES = ConstantLayout.of(5, True, True, 2048)


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (lambda: WEIGHTS.pack(np.zeros((5, 4), np.uint32)), r"found an array uint32 .*; expected uint32 \[5, 5\]"),
        (lambda: WEIGHTS.pack(np.zeros(25, np.uint32)), r"found an array uint32 \[25\]; expected uint32 \[5, 5\]"),
        (lambda: FLOATS.pack(np.zeros((5, 17), np.float32)), r"found an array float32 .*; expected float32 \[5, 20\]"),
        (lambda: FLOATS.pack(np.zeros((5, 20))), r"found an array float64 .*; expected float32 \[5, 20\]"),
        (lambda: SCALES.pack(np.zeros((4, 5), np.float32)), r"found an array \[4, 5\]; expected \[5, 5\]"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(pack: Callable[[], Array], message: str) -> None:
    with pytest.raises(PlanError, match=rf"\A{message}\Z"):
        pack()


def test_packed_textures_are_read_whole() -> None:
    for layout in (WEIGHTS, SCALES):
        assert layout.region(5, 5) == (layout.width, layout.height)
        for rows, cols in ((1, 5), (5, 1), (6, 5), (0, 0)):
            with pytest.raises(PlanError, match=rf"read whole: found {rows}×{cols}; expected 5×5\Z"):
                layout.region(rows, cols)
