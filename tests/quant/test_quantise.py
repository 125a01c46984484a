"""Weights in fewer bits: what comes back, how far off it may be, and what no format can hold."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from each_case import each_case

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BYTES, BlockLayout
from glinfer.kernels.spec import TensorSpec
from glinfer.program.oracle import relative_error, rounding, stored
from glinfer.quant import threads
from glinfer.quant.bytes import LEAST, factors_of, from_bytes, scales_for, to_bytes
from glinfer.quant.formats import WORD_FORMATS
from glinfer.quant.threads import in_threads
from glinfer.quant.words import ENCODINGS, FILE_INTEGERS, GROUPS, decode, encode, integer_words

Array = np.ndarray[Any, Any]
BITS = {"q16": 16, "q8": 8}
INTEGERS = each_case("name", BITS)


def matrix(seed: int) -> Array:
    """Random weights up to 9×70, with rows of very different sizes, zeros and outliers."""
    random = np.random.default_rng(seed)
    inputs = (1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 70)[seed % 12]
    made = random.standard_normal((1 + seed % 9, inputs)) * 10.0 ** random.integers(-6, 5, (1 + seed % 9, 1))
    made[random.random(made.shape) < (0.0, 0.1, 0.9)[seed % 3]] = 0
    made[random.random(made.shape) < 0.02] *= 1000
    return made.astype(np.float32)


every_matrix = each_case("weights", [matrix(seed) for seed in range(24)])


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


@every_matrix
def test_floats_come_back_bit_for_bit_or_rounded_once(weights: Array) -> None:
    back = there_and_back(weights, "f32")
    assert back.dtype == np.float64
    assert np.array_equal(back.astype(np.float32).view(np.uint32), weights.view(np.uint32))
    small = weights / np.float32(1000)
    assert np.array_equal(there_and_back(small, "f16"), small.astype(np.float16).astype(np.float64))


@every_matrix
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


@each_case(
    ("bits", "expected"), [(0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x3F808001, 0x3F81), (0xBF817FFF, 0xBF81)]
)
def test_ties_go_to_the_even_bfloat16(bits: int, expected: int) -> None:
    words, _ = encode(np.array([[bits]], np.uint32).view(np.float32), "bf16")
    assert words.tolist() == [[expected << 16, 0]]


@each_case("name", FILE_INTEGERS)
@each_case("outputs, inputs", [(1, 1), (9, 2), (3, 3), (4, 4), (5, 5), (2, 17), (7, 63), (9, 70)])
def test_integers_of_a_file_come_back_as_they_are(name: str, outputs: int, inputs: int) -> None:
    random, bits = np.random.default_rng(inputs), WORD_FORMATS[name].bits
    numbers = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (outputs, inputs)).astype(f"<i{bits // 8}")
    scales = random.uniform(-1, 1, outputs).astype(np.float32)
    words, by_group = integer_words(numbers, scales, name)
    assert words.dtype == np.uint32
    assert words.shape == (outputs, -(-inputs // 4) * WORD_FORMATS[name].piece_texels)
    assert np.array_equal(decode(words, by_group, name, inputs), numbers * scales.astype(np.float64)[:, None])
    padding = -inputs % 4
    assert not decode(words, by_group, name, inputs + padding)[:, inputs:].any()


@INTEGERS
@every_matrix
def test_integers_are_off_by_half_a_step_at_most(name: str, weights: Array) -> None:
    error = np.abs(there_and_back(weights, name) - weights.astype(np.float64))
    # The encoder computes in float32, which moves the middle between two numbers by a little.
    assert (error <= steps(weights, name) * (0.5 + 2.0 ** (BITS[name] - 22))).all()


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


@each_case("name", ENCODINGS)
@each_case("inputs", [1, 2, 3, 5, 6, 7, 61])
def test_inputs_that_fill_no_word_are_padded_with_zeros(name: str, inputs: int) -> None:
    weights = np.random.default_rng(inputs).standard_normal((3, inputs)).astype(np.float32)
    padded = np.pad(weights, ((0, 0), (0, -inputs % 4)))
    words, scales = encode(np.asfortranarray(weights), name)
    expected, expected_scales = encode(padded, name)
    assert np.array_equal(words.view(np.uint32), expected.view(np.uint32))
    assert scales is expected_scales is None or np.array_equal(scales, expected_scales)
    all_inputs = decode(words, scales, name, inputs - inputs % -4)
    assert np.abs(all_inputs[:, inputs:]).max() <= np.abs(weights).max() / (1 << 8)


def test_what_float16_cannot_hold_is_refused() -> None:
    for largest in (65504.0, -65504.0, 65519.0):
        assert abs(there_and_back(np.array([[largest]], np.float32), "f16")[0, 0]) == 65504
    for beyond in (65520.0, -65520.0, 1e30, np.inf, np.nan):
        with pytest.raises(PlanError, match=r"\Aa weight of .* is beyond float16's 65504; use f32 or q16\Z"):
            encode(np.array([[0, beyond]], np.float32), "f16")


def test_weights_too_small_for_a_scale_become_zero() -> None:
    for name in ("q8", "q16"):
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            words, scales = encode(np.full((1, 16), 1e-40, np.float32), name)
        assert not decode(words, scales, name, 16).any()


def test_an_unknown_format_and_integers_without_their_scales_are_refused() -> None:
    for name in ("q4", "", "F16"):
        expected = rf"\Athere is no weight format '{name}'; expected one of f32, f16, q16, q8, bf16\Z"
        with pytest.raises(PlanError, match=expected):
            encode(np.zeros((1, 4), np.float32), name)
    for name in BITS:
        with pytest.raises(PlanError, match=rf"\Aweights in {name} need their scales\Z"):
            decode(np.zeros((1, 4), np.uint32), None, name, 4)


# Floats in bytes with a scale for each 32


LAYOUT = BlockLayout.by_block((3, 100), 2048, format_name=BYTES)
TENSOR = TensorSpec("x", (3, 100), "cache", BYTES, LAYOUT)


@each_case("seed, size", enumerate([-28, -7.3, -0.5, 0, 0.25, 11, 36.5, 37]))
def test_numbers_are_within_half_a_step_and_keep_their_bits(seed: int, size: float) -> None:
    values = (np.random.default_rng(seed).standard_normal((2, 96)) * 10.0**size).astype(np.float32)
    numbers, scales = to_bytes(values)
    assert (numbers.dtype, scales.dtype, scales.shape) == (np.int8, np.uint16, (2, 3))
    found = from_bytes(numbers, scales)
    groups = values.reshape(2, 3, 32)
    steps = np.abs(groups).max(axis=-1, keepdims=True) / 127 * (1 + 2.0**-7)
    assert (np.abs(found.reshape(2, 3, 32).astype(float) - groups) <= steps * 0.501).all()
    assert np.abs(numbers.astype(int)).max() in (126, 127)
    again, same = to_bytes(found)
    assert np.array_equal(again, numbers)
    assert np.array_equal(same, scales)


def test_a_scale_is_the_largest_value_by_127_rounded_up() -> None:
    peaks = np.array([127.0, 1.0, 1e-31, 0.0, np.nan, np.inf], np.float32)
    bits = scales_for(peaks)
    factors = factors_of(bits)
    assert factors[0] == pytest.approx(1.0, rel=2.0**-7)
    assert factors[1] >= np.float32(1 / 127)
    assert factors[1] - np.float32(1 / 127) < factors[1] * 2.0**-7
    assert not bits[2:4].any()
    assert peaks[2] < LEAST
    assert np.isnan(factors[4:]).all()


def test_a_layout_of_bytes() -> None:
    made = BlockLayout.by_block((30, 100), 2048, every=30, format_name=BYTES)
    halves = BlockLayout.by_block((30, 100), 2048, every=30, format_name="rgba16f")
    assert (made.blocks, made.scale_blocks, halves.blocks) == (3, 1, 2)
    assert dict(made.defines("X"))["X_SCALES_AT"] == 2
    matrix = np.random.default_rng(0).normal(size=(30, 100)).astype(np.float32)
    texels = made.pack(matrix)
    assert (texels.dtype, texels.nbytes) == (np.int8, made.nbytes)
    held = made.unpack(texels, 30, 100)
    padded = np.pad(matrix, [(0, 0), (0, 28)])
    assert np.array_equal(held, from_bytes(*to_bytes(padded))[:, :100])
    assert np.array_equal(made.pack(held), texels)
    assert np.isnan(made.unpack(np.full_like(texels, -1), 30, 100)).all()


def test_the_oracle_allows_half_a_step_and_no_more() -> None:
    values = np.random.default_rng(1).normal(size=(3, 100))
    held = stored(values, TENSOR)
    numbers, allowed = rounding(values, TENSOR)
    assert relative_error(held, numbers, allowed) == 0
    steps = np.repeat(factors_of(to_bytes(np.pad(values, [(0, 0), (0, 28)]))[1]), 32, axis=1)[:, :100]
    for beside in (held + steps, held - steps):
        wrong = np.abs(beside - values) > 0.51 * steps
        assert wrong.mean() > 0.9
        assert (np.abs(beside - numbers) > allowed)[wrong].all()
    values[1, 70] = np.inf
    numbers, allowed = rounding(values, TENSOR)
    assert np.array_equal(np.isnan(numbers), np.isnan(stored(values, TENSOR)))
    assert np.isnan(numbers[1, 64:96]).all()


# Calls in threads


@each_case("cores", [1, 3])
def test_each_item_is_taken_once(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    found: list[int] = []
    seen: set[int] = set()
    in_threads(lambda _: seen.add(threading.get_ident()), range(3))
    assert cores > 1 or seen == {threading.get_ident()}, "one core takes no thread"
    in_threads(found.append, range(50))
    assert sorted(found) == list(range(50))
    in_threads(found.append, [])
    assert len(found) == 50


def test_an_error_is_raised_and_no_further_call_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 2)
    begun, failed, before = list[int](), threading.Event(), threading.active_count()

    def call(item: int) -> None:
        begun.append(item)
        if item == 1:
            failed.set()
            raise MemoryError
        if item > 1:
            failed.wait(60)

    with pytest.raises(MemoryError):
        in_threads(call, range(10_000))
    assert len(begun) < 10_000
    assert threading.active_count() == before
