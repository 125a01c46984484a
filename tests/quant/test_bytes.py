"""Floats in bytes with a scale for each 32: how near they are, which numbers there are none for, and bits that stay."""

from __future__ import annotations

import numpy as np
import pytest
from each_case import each_case

from glinfer.gl.layouts.blocks import BYTES, BlockLayout
from glinfer.kernels.spec import TensorSpec
from glinfer.program.oracle import relative_error, rounding, stored
from glinfer.quant.bytes import LEAST, factors_of, from_bytes, scales_for, to_bytes

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


def test_a_group_with_what_is_no_number_has_none() -> None:
    values = np.ones((1, 96), np.float32)
    values[0, 40] = np.nan
    found = from_bytes(*to_bytes(values))
    assert np.isnan(found[0, 32:64]).all()
    assert np.isfinite(found[0, :32]).all()
    assert np.isfinite(found[0, 64:]).all()


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
