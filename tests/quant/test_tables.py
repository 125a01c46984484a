"""Formats of codes: their tables, blocks taken apart and put together, and what of them is not finite."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glinfer.errors import InputError
from glinfer.formats.packed import PackedTensor
from glinfer.quant.coded import canonical, carried, from_carried
from glinfer.quant.formats import BLOCK_FORMATS, GROUP_FORMS
from glinfer.quant.ggml import blocks_of, dequantize, not_finite, words_of
from glinfer.quant.groups import wide_values, wide_words
from glinfer.quant.tables import CodeTable

Array = np.ndarray[Any, Any]
TABLES = {name: form.table for name, form in GROUP_FORMS.items() if form.table is not None}
every_table = pytest.mark.parametrize("name", TABLES)
GRIDS = [name for name in TABLES if name.startswith(("IQ1", "IQ2", "IQ3"))]

pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")


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
@pytest.mark.parametrize("fused", [False, True])
def test_the_polynomial_gives_the_numbers(name: str, fused: bool) -> None:
    table = TABLES[name]
    known = [code for code, value in enumerate(table.values) if value is not None]
    assert np.array_equal(in_float32(table, fused=fused)[known], table.numbers[known])
    assert table.margin > 0.05
    assert table.polynomial[0] == round(table.polynomial[0])


def test_a_polynomial_that_is_off_is_noticed() -> None:
    table = TABLES["IQ4_NL"]
    moved = CodeTable(
        table.values, (*table.polynomial[:1], table.polynomial[1] + 0.02, *table.polynomial[2:]), centre=6
    )
    assert not np.array_equal(in_float32(moved, fused=True), moved.numbers)
    assert moved.margin < 0


@every_table
@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 9))
def test_blocks_come_back(name: str, seed: int, blocks: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (3, blocks * BLOCK_FORMATS[name].nbytes), dtype=np.uint8)
    plain = canonical(rows, name)
    assert np.array_equal(from_carried(carried(rows, name), name), plain)
    assert np.array_equal(plain, rows) or name == "TQ1_0"
    with np.errstate(all="ignore"):
        assert np.array_equal(dequantize(plain, name), dequantize(rows, name), equal_nan=True)


@every_table
def test_the_weights_are_those_that_gguf_unpacks_bit_for_bit(name: str) -> None:
    """Scales of every kind, the largest and subnormal ones too: no product is rounded."""
    rows = np.random.default_rng(7).integers(0, 256, (400, BLOCK_FORMATS[name].nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(rows, name)
        found = wide_values(wide_words(rows, name))
    finite = np.isfinite(expected)
    assert finite.mean() > 0.8
    assert np.array_equal(found[finite], expected[finite].astype(np.float64))


@pytest.mark.parametrize("name", GRIDS)
def test_every_place_of_a_grid_is_told_apart(name: str) -> None:
    """Blocks with all places in turn: were two alike, one of them would come back as the other."""
    form = BLOCK_FORMATS[name]
    rows = np.random.default_rng(1).integers(0, 256, (600, form.nbytes), dtype=np.uint8)
    codes = carried(rows, name)[:, :128]
    assert np.array_equal(from_carried(carried(rows, name), name), rows)
    width = 2 if name.startswith("IQ3") else 4  # bytes of a place
    places = len(np.unique(np.ascontiguousarray(codes).reshape(-1, width), axis=0))
    assert places > 256


@pytest.mark.parametrize("name", [name for name in TABLES if name != "MXFP4"])
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
    with np.errstate(all="ignore"):
        assert not np.isfinite(dequantize(rows[1:2], name)).all()


def test_exponents_are_too_large_only_where_numbers_are() -> None:
    rows = np.zeros((4, 2 * 17), dtype=np.uint8)
    rows[:, 17] = (252, 253, 253, 255)
    rows[:, 18] = (0x77, 0x77, 0x11, 0x01)
    assert not_finite(rows, "MXFP4").tolist() == [False, True, False, False]
    assert PackedTensor("MXFP4", rows).first_not_finite() == (1, 32)


def test_codes_that_no_block_has_do_not_pass_as_others() -> None:
    """A changed bit of a texture has to be seen in the words, whatever block it is taken for."""
    rows = np.random.default_rng(2).integers(0, 256, (1, 82), dtype=np.uint8)
    words = words_of(rows, "IQ2_S")
    words[0, 0] ^= np.uint32(0x3)
    assert not np.array_equal(words_of(blocks_of(words, "IQ2_S", 256), "IQ2_S"), words) or not np.array_equal(
        blocks_of(words, "IQ2_S", 256), rows
    )


def test_without_gguf_grids_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from glinfer.quant import coded

    coded._grid.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"^the package gguf is not installed; pip install"):
        words_of(np.zeros((1, 98), np.uint8), "IQ3_XXS")
    assert words_of(np.zeros((1, 136), np.uint8), "IQ4_XS").shape == (1, 40)
    coded._grid.cache_clear()
