"""GGML's blocks sorted by groups of 32 weights: no bit is lost, and the weights are those that gguf unpacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import random_blocks

from glinfer.errors import InputError
from glinfer.quant.coded import canonical
from glinfer.quant.formats import (
    BLOCK_FORMATS,
    BYTES,
    FOUR_BITS,
    GROUP,
    GROUP_FORMS,
    HALF,
    PAIR,
    POWER,
    SIGNED_BYTES,
    SIX_BITS,
    WIDE,
    block_format,
    group_form,
)
from glinfer.quant.ggml import dequantize
from glinfer.quant.groups import Groups, blocks_from, groups_of, wide_values, wide_words

Array = np.ndarray[Any, Any]
every_form = pytest.mark.parametrize("name", GROUP_FORMS)


def random_rows(name: str, rows: int, blocks: int, seed: int) -> Array:
    """Rows of random bytes, scales and all."""
    made = np.random.default_rng(seed).integers(0, 256, (rows, blocks * block_format(name).nbytes), dtype=np.uint8)
    return canonical(made, name)


def halves(words: Array) -> Array:
    return (words & 0xFFFF).astype("<u2").view("<f2").astype(np.float64)


def numbers_in(groups: Groups, name: str) -> Array:
    """[rows, groups, 32]: the numbers, bit by bit as the head of the module says."""
    form, found = GROUP_FORMS[name], np.zeros((*groups.low.shape[:2], GROUP), dtype=np.int64)
    low, high = (each.astype(np.int64) for each in (groups.low, groups.high))
    for i in range(GROUP):
        if form.low_bits == 8:
            found[..., i] = (low[..., i // 4] >> (8 * (i % 4))) & 255
            found[..., i] -= 256 * (found[..., i] > 127)
            continue
        found[..., i] = (low[..., i % 16 // 4] >> (8 * (i % 4) + 4 * (i // 16))) & 15
        if form.high_words == 1:
            found[..., i] |= ((high[..., 0] >> (8 * (i % 4) + i // 4)) & 1) << 4
        elif form.high_words == 2:
            found[..., i] |= ((high[..., i // 16] >> (8 * (i % 4) + 2 * (i % 16 // 4))) & 3) << 4
    return found - form.offset if form.table is None else form.table.numbers.astype(np.int64)[found]


def values_in(groups: Groups, name: str) -> Array:
    """[rows, inputs] in float64: numbers, scales and minima."""
    form, words = GROUP_FORMS[name], groups.scale
    numbers = numbers_in(groups, name).astype(np.float64).reshape(*words.shape, 2, 16)
    one = np.ones(words.shape)
    if form.scales in (HALF, PAIR):
        d, least = halves(words), halves(words >> np.uint32(16)) if form.scales == PAIR else 0 * one
        scales, added = [d, d], [least, least]
    elif form.scales == POWER:
        d = words.view(np.float32).astype(np.float64)
        scales, added = [d, d], [0 * one] * 2
    elif form.scales == SIGNED_BYTES:
        assert form.table is not None
        d = halves(np.repeat(groups.shared[..., 0], 8, axis=1)) * form.table.unit
        scales = [d * (words >> np.uint32(at)).astype(np.uint8).view(np.int8) for at in (0, 8)]
        added = [0 * one] * 2
    elif form.scales == BYTES:
        factors = [((words >> np.uint32(shift)) & 255).astype(np.int64) for shift in (16, 24)]
        signed = [each - 32 if name == "Q3_K" else each - 256 * (each > 127) for each in factors]
        scales, added = [halves(words) * each for each in signed], [0 * one] * 2
    else:
        d, least = (halves(np.repeat(groups.shared[..., 0], 8, axis=1) >> np.uint32(shift)) for shift in (0, 16))
        bits = {SIX_BITS: ((0, 0), (8, 8)), FOUR_BITS: ((0, 8), (4, 12))}[form.scales]
        mask = 63 if form.scales == SIX_BITS else 15
        small, minima = ([((words >> np.uint32(at)) & mask).astype(np.float64) for at in each] for each in bits)
        scales, added = [d * each for each in small], [-least * each for each in minima]
    found = numbers * np.stack(scales, axis=-1)[..., None] + np.stack(added, axis=-1)[..., None]
    return found.reshape(len(words), -1)


def test_every_format_of_whole_blocks_can_be_sorted() -> None:
    assert set(GROUP_FORMS) == {name for name, form in BLOCK_FORMATS.items() if form.weights >= GROUP}


@every_form
@given(rows=st.integers(1, 5), blocks=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_no_bit_is_lost(name: str, rows: int, blocks: int, seed: int) -> None:
    data = random_rows(name, rows, blocks, seed)
    groups = groups_of(data, name)
    count, form = blocks * block_format(name).weights // GROUP, group_form(name)
    assert groups.low.shape == (rows, count, form.low_words)
    assert groups.high.shape == (rows, count, form.high_words)
    assert groups.scale.shape == (rows, count)
    assert groups.shared.size == (rows * blocks if form.shared else 0)
    assert {each.dtype for each in (groups.low, groups.high, groups.scale, groups.shared)} == {np.dtype(np.uint32)}
    assert np.array_equal(blocks_from(groups, name), data)


@pytest.mark.parametrize("name", [name for name in GROUP_FORMS if name != "TQ1_0"])  # whose bytes may mean the same
def test_every_bit_of_a_block_is_somewhere(name: str) -> None:
    """Flipping one changes what it was sorted into, and nothing that belongs to another block of the row."""
    nbytes, per_block = block_format(name).nbytes, block_format(name).weights // GROUP
    data = random_rows(name, 1, 2, 3)
    before = groups_of(data, name)
    for bit in range(8 * nbytes):
        changed = data.copy()
        changed[0, nbytes + bit // 8] ^= 1 << (bit % 8)
        after = groups_of(changed, name)
        pairs = [(getattr(before, part), getattr(after, part)) for part in ("low", "high", "scale", "shared")]
        assert any(not np.array_equal(one, two) for one, two in pairs), bit
        assert all(np.array_equal(one[:, :per_block], two[:, :per_block]) for one, two in pairs[:3]), bit


@every_form
@pytest.mark.parametrize("seed", range(3))
def test_the_weights_are_those_that_gguf_unpacks(name: str, seed: int) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    blocks = random_blocks(name, 4, 3 * block_format(name).weights, seed)
    expected = dequantize(blocks, name).astype(np.float64)
    assert np.ptp(expected) > 0.1
    largest = np.abs(expected).max()
    assert np.abs(values_in(groups_of(blocks, name), name) - expected).max() <= 1e-6 * largest
    wide = wide_words(blocks, name)
    assert wide.shape == (4, 12 * expected.shape[1] // GROUP)
    assert np.abs(wide_values(wide) - expected).max() <= 1e-6 * largest


@pytest.mark.parametrize("name", ["BF16", "Q8_ROW", "F16", "", "q4_0"])
def test_formats_without_groups_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"\A{name} has no groups of 32 weights; known: {', '.join(GROUP_FORMS)}\Z"):
        group_form(name)
    assert group_form(WIDE).low_bits == 8
