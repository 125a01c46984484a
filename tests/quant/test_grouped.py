"""Matrices in GGML's blocks as textures: there and back, where shaders look for each word, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each_case import each_case

from glinfer.errors import InputError, PlanError
from glinfer.gl.layouts.grouped import GroupedLayout, words_for
from glinfer.quant.formats import GROUP_FORMS, WIDE, block_format
from glinfer.quant.ggml import words_of

Array = np.ndarray[Any, Any]
SHAPES = [  # rows, blocks, quad, the largest texture
    *[(1, 1, True, 2048), (3, 9, False, 384), (16, 5, True, 384), (17, 4, False, 1000)],
    *[(64, 2, True, 1000), (65, 3, False, 2048), (129, 8, True, 384), (200, 1, False, 1000)],
]
every_form = each_case("name", [*GROUP_FORMS, WIDE])


def unit(name: str) -> int:
    """Weights of a block."""
    return 32 if name == WIDE else block_format(name).weights


def random_words(name: str, rows: int, inputs: int, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if name == WIDE:
        return random.integers(0, 2**32, (rows, 12 * inputs // 32), dtype=np.uint32)
    return words_of(random.integers(0, 256, (rows, block_format(name).row_bytes(inputs)), dtype=np.uint8), name)


@each_case("rows, blocks, quad, biggest", SHAPES)
@every_form
def test_words_come_back(name: str, rows: int, blocks: int, quad: bool, biggest: int) -> None:
    inputs = blocks * unit(name)
    layout = GroupedLayout.of(rows, inputs, name, quad, biggest)
    words = random_words(name, rows, inputs, seed=blocks)
    assert (layout.rows, layout.cols) == words.shape == (rows, words_for(name, inputs))
    texels = layout.pack(words)
    assert texels.shape == (layout.height, layout.width, 4)
    assert texels.dtype == np.uint32
    assert texels.flags.c_contiguous
    assert max(texels.shape) <= biggest
    assert layout.nbytes == texels.nbytes
    assert np.array_equal(layout.unpack(texels, *words.shape), words)
    assert not layout.pack(np.zeros_like(words)).any()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match=r"\Aa matrix of 64×512 weights needs 8 lines of 144 texels; .* is 100×100\Z"):
        GroupedLayout.of(64, 512, "Q4_0", True, 100)
    with pytest.raises(InputError, match=r"\ABF16 has no groups of 32 weights; "):
        GroupedLayout.of(64, 512, "BF16", True, 100)
    layout = GroupedLayout.of(5, 64, "Q8_0", True, 2048)
    assert layout.region(5, layout.cols) == (layout.width, layout.height)
    for part in ((4, layout.cols), (5, 1)):
        with pytest.raises(PlanError, match=r"read whole: found \d+×\d+; expected 5×"):
            layout.region(*part)
    for wrong in (np.zeros((5, 1), np.uint32), np.zeros((5, layout.cols), np.float32)):
        with pytest.raises(PlanError, match=r"\Afound an array \S+ \[.*\]; expected uint32 \[5, "):
            layout.pack(wrong)
