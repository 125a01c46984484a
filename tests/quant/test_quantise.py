"""Weights in fewer bits: what comes back, how far off it may be, and what no format can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glinfer.errors import PlanError
from glinfer.quant.formats import WORD_FORMATS
from glinfer.quant.words import ENCODINGS, FILE_INTEGERS, GROUPS, decode, encode, integer_words

Array = np.ndarray[Any, Any]
BITS = {"q16": 16, "q8": 8}
INTEGERS = pytest.mark.parametrize("name", BITS)


@st.composite
def matrices(draw: st.DrawFn) -> Array:
    """Random weights up to 9×70, with rows of very different sizes, zeros and outliers."""
    outputs, inputs = draw(st.integers(1, 9)), draw(st.sampled_from([*range(1, 20), 63, 64, 65, 70]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    matrix = random.standard_normal((outputs, inputs)) * 10.0 ** random.integers(-6, 5, (outputs, 1))
    matrix[random.random(matrix.shape) < draw(st.sampled_from([0.0, 0.1, 0.9]))] = 0
    matrix[random.random(matrix.shape) < 0.02] *= 1000
    return matrix.astype(np.float32)


def group_of(inputs: int) -> Array:
    return np.arange(inputs) // 4 % 4


def steps(weights: Array, name: str) -> Array:
    """The distance of two neighbouring numbers at each weight: the largest of its row and group, in equal parts."""
    found = np.zeros(weights.shape)
    for group in range(4):
        columns = group_of(weights.shape[1]) == group
        if columns.any():
            found[:, columns] = np.abs(weights[:, columns]).max(axis=1, keepdims=True) / (2 ** (BITS[name] - 1) - 1)
    return found


def there_and_back(weights: Array, name: str) -> Array:
    words, scales = encode(weights, name)
    return decode(words, scales, name, weights.shape[1])


@given(matrices(), st.sampled_from(ENCODINGS))
def test_words_have_the_size_that_their_format_says(weights: Array, name: str) -> None:
    words, scales = encode(weights / 1000, name)
    # A piece of 4 inputs of 4 outputs takes so many texels of four words.
    assert words.shape == (weights.shape[0], -(-weights.shape[1] // 4) * WORD_FORMATS[name].piece_texels)
    assert words.dtype == {"f32": np.float32, "f16": np.float16}.get(name, np.uint32)
    assert words.flags.c_contiguous
    if name in BITS:
        assert scales is not None
        assert scales.shape == (weights.shape[0], GROUPS)
        assert scales.dtype == np.float32
    else:
        assert scales is None


@given(matrices())
def test_float32_comes_back_bit_for_bit(weights: Array) -> None:
    back = there_and_back(weights, "f32")
    assert back.dtype == np.float64
    assert np.array_equal(back.astype(np.float32).view(np.uint32), weights.view(np.uint32))


@given(matrices())
def test_float16_comes_back_rounded_once(weights: Array) -> None:
    weights = weights / np.float32(1000)
    assert np.array_equal(there_and_back(weights, "f16"), weights.astype(np.float16).astype(np.float64))


@given(matrices())
def test_bfloat16_comes_back_rounded_once(weights: Array) -> None:
    """To the nearest of the floats with 8 bits of mantissa; what is one already stays."""
    back = there_and_back(weights, "bf16").astype(np.float32)
    assert not (back.view(np.uint32) & 0xFFFF).any()
    distance = np.abs(back.astype(np.float64) - weights)
    for step in (-0x10000, 0x10000):
        other = (back.view(np.uint32).astype(np.int64) + step).clip(0, 2**32 - 1).astype(np.uint32).view(np.float32)
        with np.errstate(invalid="ignore"):
            beyond = np.isnan(other) | (np.abs(other.astype(np.float64) - weights) >= distance)
        assert beyond[back != 0].all()
    assert np.array_equal(there_and_back(back, "bf16"), back)


@pytest.mark.parametrize(
    ("bits", "expected"), [(0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x3F808001, 0x3F81), (0xBF817FFF, 0xBF81)]
)
def test_ties_go_to_the_even_bfloat16(bits: int, expected: int) -> None:
    words, _ = encode(np.array([[bits]], np.uint32).view(np.float32), "bf16")
    assert words.tolist() == [[expected << 16, 0]]


@pytest.mark.parametrize("name", FILE_INTEGERS)
@given(st.integers(1, 9), st.sampled_from([1, 2, 3, 4, 5, 17, 63, 70]), st.integers(0, 2**32))
def test_integers_of_a_file_come_back_as_they_are(name: str, outputs: int, inputs: int, seed: int) -> None:
    random, bits = np.random.default_rng(seed), WORD_FORMATS[name].bits
    numbers = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (outputs, inputs)).astype(f"<i{bits // 8}")
    scales = random.uniform(-1, 1, outputs).astype(np.float32)
    words, by_group = integer_words(numbers, scales, name)
    assert words.dtype == np.uint32
    assert words.shape == (outputs, -(-inputs // 4) * WORD_FORMATS[name].piece_texels)
    assert np.array_equal(decode(words, by_group, name, inputs), numbers * scales.astype(np.float64)[:, None])
    padding = -inputs % 4
    assert not decode(words, by_group, name, inputs + padding)[:, inputs:].any()


@INTEGERS
@given(matrices())
def test_integers_are_off_by_half_a_step_at_most(name: str, weights: Array) -> None:
    error = np.abs(there_and_back(weights, name) - weights.astype(np.float64))
    # The encoder computes in float32, which moves the middle between two numbers by a little.
    assert (error <= steps(weights, name) * (0.5 + 2.0 ** (BITS[name] - 22))).all()


@INTEGERS
def test_the_bound_is_met_and_not_beaten_by_far(name: str) -> None:
    """That the test above can fail: of many weights some are off by nearly half a step, and on average by a quarter."""
    weights = np.random.default_rng(3).uniform(-1, 1, (40, 256)).astype(np.float32)
    error = np.abs(there_and_back(weights, name) - weights) / steps(weights, name)
    assert 0.49 < error.max() <= 0.51
    assert abs(error.mean() - 0.25) < 0.01


@INTEGERS
@pytest.mark.parametrize("place", range(4))
def test_the_largest_weights_of_both_signs_survive_in_every_place_of_a_word(name: str, place: int) -> None:
    for sign in (1, -1):
        for others in (0.0, 1.0, -1.0):
            weights = np.full((1, 4), others, dtype=np.float32)
            weights[0, place] = 3.0 * sign
            back = there_and_back(weights, name)
            assert np.abs(back - weights).max() <= 0.51 * 3.0 / (2 ** (BITS[name] - 1) - 1), weights


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 3), (5, 17), (64, 64)])
def test_zeros_stay_zeros(name: str, shape: tuple[int, int]) -> None:
    words, scales = encode(np.zeros(shape, dtype=np.float32), name)
    assert not words.view(np.uint32).any()
    assert scales is None or not scales.any()
    assert not decode(words, scales, name, shape[1]).any()


@INTEGERS
def test_a_row_of_zeros_among_others_stays_zero(name: str) -> None:
    weights = np.random.default_rng(1).standard_normal((5, 33)).astype(np.float32)
    weights[2], weights[4, group_of(33) == 1] = 0, 0
    words, scales = encode(weights, name)
    back = decode(words, scales, name, 33)
    assert not back[2].any()
    assert not back[4, group_of(33) == 1].any()
    assert scales is not None
    assert (scales == 0).sum() == GROUPS + 1
    assert np.isfinite(scales).all()


@INTEGERS
def test_each_row_and_group_has_a_scale_of_its_own(name: str) -> None:
    weights = np.random.default_rng(2).standard_normal((6, 40)).astype(np.float32)
    words, scales = encode(weights, name)
    factors = 2.0 ** np.random.default_rng(3).integers(-20, 20, (6, 4))
    scaled = (weights * factors[:, group_of(40)]).astype(np.float32)
    again, other = encode(scaled, name)
    assert np.array_equal(words, again), "powers of two move the scales alone"
    assert scales is not None
    assert other is not None
    assert np.array_equal(other, scales * factors.astype(np.float32))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("inputs", [1, 2, 3, 5, 6, 7, 61])
def test_inputs_that_fill_no_word_are_padded_with_zeros(name: str, inputs: int) -> None:
    weights = np.random.default_rng(inputs).standard_normal((3, inputs)).astype(np.float32)
    padded = np.pad(weights, ((0, 0), (0, -inputs % 4)))
    words, scales = encode(weights, name)
    expected, expected_scales = encode(padded, name)
    assert np.array_equal(words.view(np.uint32), expected.view(np.uint32))
    assert scales is expected_scales is None or np.array_equal(scales, expected_scales)
    all_inputs = decode(words, scales, name, inputs - inputs % -4)
    assert np.abs(all_inputs[:, inputs:]).max() <= np.abs(weights).max() / (1 << 8)


@pytest.mark.parametrize("name", ENCODINGS)
def test_memory_order_does_not_matter(name: str) -> None:
    weights = np.random.default_rng(5).standard_normal((7, 12)).astype(np.float32)
    expected = there_and_back(weights, name)
    for same in (np.asfortranarray(weights), np.repeat(weights, 2, axis=1)[:, ::2], weights.astype(np.float64)):
        assert np.array_equal(there_and_back(same, name), expected)


def test_what_float16_cannot_hold_is_refused() -> None:
    for largest in (65504.0, -65504.0, 65519.0):
        assert abs(there_and_back(np.array([[largest]], np.float32), "f16")[0, 0]) == 65504
    for beyond in (65520.0, -65520.0, 1e30, np.inf, np.nan):
        with pytest.raises(PlanError, match=r"\Aa weight of .* is beyond float16's 65504; use f32 or q16\Z"):
            encode(np.array([[0, beyond]], np.float32), "f16")


@INTEGERS
def test_integers_hold_every_size_of_weights(name: str) -> None:
    for size in (1e-25, 1e-10, 1e10, 3e38):
        weights = (np.array([[1, -1, 0.5, 0.25]]) * size).astype(np.float32)
        assert np.abs(there_and_back(weights, name) / size - [1, -1, 0.5, 0.25]).max() <= 0.51 / 127


@pytest.mark.parametrize("name", ["q4", "", "F16", "i8"])
def test_an_unknown_format_is_refused(name: str) -> None:
    known = "f32, f16, q16, q8, bf16"
    with pytest.raises(PlanError, match=rf"\Athere is no weight format '{name}'; expected one of {known}\Z"):
        encode(np.zeros((1, 4), np.float32), name)


@INTEGERS
def test_integers_without_their_scales_are_refused(name: str) -> None:
    with pytest.raises(PlanError, match=rf"\Aweights in {name} need their scales\Z"):
        decode(np.zeros((1, 4), np.uint32), None, name, 4)
