"""GGML's blocks sorted by groups of 32 weights, and codes: no bit is lost, and the weights are those of gguf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each_case import each_case
from tiny_models import random_blocks

from glinfer.errors import InputError
from glinfer.formats.packed import PackedTensor
from glinfer.quant.coded import canonical
from glinfer.quant.formats import BLOCK_FORMATS, GROUP, GROUP_FORMS, WIDE, block_format, group_form
from glinfer.quant.ggml import dequantize, not_finite
from glinfer.quant.groups import blocks_from, groups_of, wide_values, wide_words
from glinfer.quant.tables import CodeTable

Array = np.ndarray[Any, Any]
every_form = each_case("name", GROUP_FORMS)
TABLES = {name: form.table for name, form in GROUP_FORMS.items() if form.table is not None}
every_table = each_case("name", TABLES)
gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")


def unpacked(rows: Array, name: str) -> Array:
    """The weights that the package gguf unpacks."""
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]))


@every_form
@each_case("seed", range(2))
def test_the_weights_of_wide_words_are_those_that_gguf_unpacks(name: str, seed: int) -> None:
    blocks = random_blocks(name, 4, 3 * block_format(name).weights, seed)
    expected = unpacked(blocks, name).astype(np.float64)
    assert np.ptp(expected) > 0.1
    wide = wide_words(blocks, name)
    assert wide.shape == (4, 12 * expected.shape[1] // GROUP)
    assert np.abs(wide_values(wide) - expected).max() <= 1e-6 * np.abs(expected).max()


@each_case("name", [name for name, form in BLOCK_FORMATS.items() if form.weights])
def test_floats_are_those_of_gguf_bit_for_bit(name: str) -> None:
    """Of any bytes, also with zeros that have a sign, scales that are not finite, and rows in several pieces."""
    nbytes = BLOCK_FORMATS[name].row_bytes(512)
    rows = np.random.default_rng(5).integers(0, 256, (1100, nbytes), dtype=np.uint8)
    expected, found = unpacked(rows, name), dequantize(rows, name)
    same = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
    assert same.all()
    assert np.isfinite(found).mean() > 0.9


@each_case("name", ["BF16", "Q8_ROW", "q4_0"])
def test_formats_without_groups_are_refused(name: str) -> None:
    assert set(GROUP_FORMS) == {name for name, form in BLOCK_FORMATS.items() if form.weights >= GROUP}
    with pytest.raises(InputError, match=rf"\A{name} has no groups of 32 weights; known: {', '.join(GROUP_FORMS)}\Z"):
        group_form(name)
    assert group_form(WIDE).low_bits == 8


def in_float32(table: CodeTable, *, fused: bool) -> Array:
    """What shaders/common/codes.glsl computes, with every step rounded, or only the last."""
    kind = np.float64 if fused else np.float32
    u = (np.arange(16) - table.centre).astype(kind)
    *rest, last = (kind(np.float32(each)) for each in table.polynomial)
    y = np.full_like(u, last)
    for each in rest[::-1]:
        y = (y * u + each).astype(kind)
    return np.asarray(y if len(table.polynomial) == 2 else np.floor(y.astype(np.float32) + np.float32(0.5)))


@every_table
@each_case("fused", [False, True])
def test_the_polynomial_gives_the_numbers(name: str, fused: bool) -> None:
    table = TABLES[name]
    known = [code for code, value in enumerate(table.values) if value is not None]
    assert np.array_equal(in_float32(table, fused=fused)[known], table.numbers[known])
    assert table.margin > 0.05
    assert table.polynomial[0] == round(table.polynomial[0])


@every_table
def test_blocks_of_codes_come_back(name: str) -> None:
    """Enough of them for all places of the grids."""
    rows = np.random.default_rng(1).integers(0, 256, (600, 3 * BLOCK_FORMATS[name].nbytes), dtype=np.uint8)
    plain = canonical(rows, name)
    assert np.array_equal(blocks_from(groups_of(rows, name), name), plain)
    assert np.array_equal(plain, rows) or name == "TQ1_0"
    assert np.array_equal(dequantize(plain, name), unpacked(rows, name), equal_nan=True)


@every_table
def test_the_weights_of_codes_are_those_that_gguf_unpacks_bit_for_bit(name: str) -> None:
    """Scales of every kind, the largest and subnormal ones too: no product is rounded."""
    rows = np.random.default_rng(7).integers(0, 256, (400, BLOCK_FORMATS[name].nbytes), dtype=np.uint8)
    expected = unpacked(rows, name)
    with np.errstate(all="ignore"):
        found = wide_values(wide_words(rows, name))
    finite = np.isfinite(expected)
    assert finite.mean() > 0.8
    assert np.array_equal(found[finite], expected[finite].astype(np.float64))


@each_case("name", [name for name in TABLES if name != "MXFP4"])
def test_a_scale_that_is_not_finite_is_found(name: str) -> None:
    form = BLOCK_FORMATS[name]
    rows = np.zeros((3, 4 * form.nbytes), dtype=np.uint8)
    assert not not_finite(rows, name).any()
    if name == "IQ1_M":  # four bits in each of four words
        rows[1, 2 * form.nbytes + 49 : 2 * form.nbytes + 56 : 2] = (0x00, 0x00, 0xC0, 0x70)
    else:
        start = 2 * form.nbytes + form.scales[0]
        rows[1, start : start + 2] = (0x00, 0x7C)
    assert not_finite(rows, name).tolist() == [False, True, False]
    assert PackedTensor(name, rows).first_not_finite() == (1, 2 * form.weights)
    assert not np.isfinite(dequantize(rows[1:2], name)).all()


def test_a_bfloat16_that_is_not_finite_is_found() -> None:
    bits = np.array([[0x3F80, 0x7F7F], [0x3F80, 0x7F80], [0xFF80, 0], [0x7FC1, 0], [0, 0xFFFF]], "<u2")
    assert not_finite(bits.view(np.uint8), "BF16").tolist() == [False, True, True, True, True]


def test_exponents_are_too_large_only_where_numbers_are() -> None:
    rows = np.zeros((4, 2 * 17), dtype=np.uint8)
    rows[:, 17] = (252, 253, 253, 255)
    rows[:, 18] = (0x77, 0x77, 0x11, 0x01)
    assert not_finite(rows, "MXFP4").tolist() == [False, True, False, False]
    assert PackedTensor("MXFP4", rows).first_not_finite() == (1, 32)
