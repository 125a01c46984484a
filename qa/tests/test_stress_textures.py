"""What ``python -m qa stress`` fills textures with: sizes within limits and a bounded memory, and random bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from glinfer.gl.layouts.matrix import FORMATS
from qa.stress.textures import MAX_TEXTURE_BYTES, SIZES, comparable, difference, random_size, random_texels


def test_sizes_keep_within_the_limits() -> None:
    rng = np.random.default_rng(3)
    for which, edge in itertools.product(SIZES, (1, 2, 3, 64, 16384)):
        width, height = random_size(rng, which, edge)
        assert 1 <= width <= edge
        assert 1 <= height <= edge
        assert 16 * width * height <= MAX_TEXTURE_BYTES
        if which == "odd":
            assert width % 2 == height % 2 == 1


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_texels_are_random_bits(form: object) -> None:
    rng = np.random.default_rng(2)
    texels = random_texels(rng, 301, 200, form)
    assert texels.shape == (200, 301, form.channels)
    assert texels.dtype == np.dtype(form.dtype)
    ones = np.unpackbits(np.ascontiguousarray(texels).view(np.uint8)).mean()
    assert ones == pytest.approx(0.5, abs=0.01)
    if texels.dtype.kind == "f":
        assert np.isnan(texels).any()
        tiny = np.finfo(texels.dtype).tiny
        assert ((texels != 0) & (np.abs(texels) < tiny)).any(), "denormals are among them"
    if form.name == "rgba16f":  # which is read back through float32
        with np.errstate(invalid="ignore"):
            through = texels.astype(np.float32).astype(np.float16)
        assert difference(comparable(through), comparable(texels)) == ""
        assert difference(comparable(through) + np.float16(1), comparable(texels)) != ""
    else:
        assert comparable(texels) is texels


def test_the_first_difference_is_named() -> None:
    texels = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    other = texels.copy()
    other[1, 2, 3] = -1
    assert difference(texels, texels.copy()) == ""
    assert difference(other, texels) == (
        "1 of 24 elements differ, the first at texel (2, 1), channel 3: found 0xFFFFFFFF; expected 0x00000017"
    )


def test_bits_are_compared_and_not_numbers() -> None:
    zeros = np.zeros((1, 2, 1), dtype=np.float32)
    assert difference(-zeros, zeros).startswith("2 of 2 elements differ")
    nans = np.full((1, 2, 1), np.nan, dtype=np.float32)
    assert difference(nans, nans.copy()) == ""
