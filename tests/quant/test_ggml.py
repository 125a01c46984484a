"""Packed formats without a GPU: blocks to words and back, what a file's rows are, packing, and what is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case

from glinfer.errors import InputError
from glinfer.quant import ggml
from glinfer.quant.coded import _grid, canonical
from glinfer.quant.formats import BLOCK_FORMATS
from glinfer.quant.ggml import PACKABLE, blocks_of, dequantize, inputs_of, pack, words_of
from glinfer.quant.groups import groups_of

Array = np.ndarray[Any, Any]
WEIGHTS_GLSL = Path(__file__).resolve().parents[2] / "shaders" / "common" / "weights.glsl"
ROW_FORMATS = ("Q8_ROW", "Q16_ROW")
GGML = [name for name in BLOCK_FORMATS if name not in ROW_FORMATS]
# The largest error of weights from -1 to 1: half a step; Q4_0 and Q5_0 have no step for one end, so a whole one.
PACKED = {
    **{"Q4_0": 1 / 8 + 1e-3, "Q4_1": 1 / 15 + 1e-3, "Q5_0": 1 / 16 + 1e-3, "Q5_1": 1 / 31 + 1e-3},
    **{"Q8_0": 1 / 254 + 1e-3, "BF16": 1 / 256, "Q8_ROW": 1 / 254 + 1e-6, "Q16_ROW": 1 / 65534 + 1e-6},
}


@pytest.fixture(scope="module")
def gguf() -> Any:
    return pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")


def random_rows(seed: int, name: str, rows: int, units: int) -> tuple[Array, int]:
    """Rows of random bytes, and their weights; ``units`` blocks, or weights where a block is a row, each."""
    form = BLOCK_FORMATS[name]
    inputs = units * form.weights if form.weights else units
    return np.random.default_rng(seed).integers(0, 256, (rows, form.row_bytes(inputs)), dtype=np.uint8), inputs


@each_case("name", BLOCK_FORMATS)
@each_case("seed, rows, units", [(1, 1, 1), (2, 5, 3), (3, 2, 16), (4, 1, 41)])
def test_words_give_the_blocks_back(name: str, seed: int, rows: int, units: int) -> None:
    blocks, inputs = random_rows(seed, name, rows, units)
    assert inputs_of(blocks, name) == inputs
    words, blocks = words_of(blocks, name), canonical(blocks, name)
    assert words.dtype == np.uint32
    assert words.shape == (rows, sum(BLOCK_FORMATS[name].section_texels(inputs)) * 4)
    assert np.array_equal(blocks_of(words, name, inputs), blocks)


@each_case("name", ("Q4_1", "Q6_K", "Q8_ROW"))
def test_words_of_pieces_are_those_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, inputs = random_rows(5, name, 23, 3)
    whole = words_of(blocks, name)
    monkeypatch.setattr(ggml, "PIECE_WEIGHTS", 4 * inputs)  # the last piece has fewer rows
    assert np.array_equal(words_of(np.asfortranarray(blocks), name), whole)


@each_case("name", BLOCK_FORMATS)
def test_a_section_begins_where_the_shader_is_told(name: str) -> None:
    form = BLOCK_FORMATS[name]
    inputs = 5 * form.weights if form.weights else 37
    defines = dict(form.defines(inputs))
    assert defines["FORMAT"] == form.number
    row = words_of(random_rows(1, name, 1, 5 if form.weights else 37)[0], name)[0]
    blocks, _ = random_rows(1, name, 1, 5 if form.weights else 37)
    scales_at = 4 * int(defines["SCALES_AT"])
    if form.groups is None:
        assert np.array_equal(row.view(np.uint8)[: inputs * form.nbytes], blocks[0, : inputs * form.nbytes])
        assert form.weights or np.array_equal(row[scales_at : scales_at + 1].view(np.uint8), blocks[0, -4:])
        return
    groups = groups_of(blocks, name)
    assert np.array_equal(row[: groups.low.size], groups.low.reshape(-1))
    assert np.array_equal(row[4 * int(defines["HIGH_AT"]) :][: groups.high.size], groups.high.reshape(-1))
    scales = row[scales_at:].view(f"<u{form.groups.scale_bytes}")
    assert np.array_equal(scales[: groups.scale.size], groups.scale.reshape(-1))
    assert np.array_equal(row[4 * int(defines["SHARED_AT"]) :][: groups.shared.size], groups.shared.reshape(-1))


def test_the_shader_numbers_the_formats_as_python_does() -> None:
    named = re.findall(r"^#define (\w+) (\d+)$", WEIGHTS_GLSL.read_text("utf-8"), flags=re.MULTILINE)
    numbers = {name: int(number) for name, number in named if name in BLOCK_FORMATS}
    assert numbers == {name: form.number for name, form in BLOCK_FORMATS.items() if form.groups is None}
    assert sorted(form.number for form in BLOCK_FORMATS.values()) == list(range(1, len(BLOCK_FORMATS) + 1))


@each_case("name", PACKED)
@each_case("shape", [(1, 64), (3, 2, 96)])
def test_packed_weights_are_near(gguf: Any, name: str, shape: tuple[int, ...]) -> None:
    weights = np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)
    blocks = pack(weights, name)
    assert blocks.dtype == np.uint8
    assert blocks.shape == (*shape[:-1], BLOCK_FORMATS[name].row_bytes(shape[-1]))
    found = dequantize(blocks.reshape(-1, blocks.shape[-1]), name).reshape(shape)
    assert np.abs(found - weights).max() <= PACKED[name]
    assert np.array_equal(words_of(weights, name), words_of(blocks, name))


@each_case("name", ROW_FORMATS)
def test_rows_of_integers_keep_zeros_and_their_largest_weight(name: str) -> None:
    weights = np.array([[0.0, 0.0, 0.0], [0.0, 2.5, -5.0], [1e38, -3e38, 0.0]])
    found = dequantize(pack(weights, name), name)
    assert np.array_equal(found == 0, weights == 0)
    assert found[1, 2] == pytest.approx(-5.0, rel=1e-6)
    assert found[2, 1] == pytest.approx(-3e38, rel=1e-6)


def test_a_row_of_integers_is_integers_and_a_float() -> None:
    for name, integers, scale, weights in (
        ("Q8_ROW", np.array([1, -128, 127], np.int8), 0.5, [0.5, -64.0, 63.5]),
        ("Q16_ROW", np.array([-32768, 3], "<i2"), -2.0, [65536.0, -6.0]),
    ):
        row = np.concatenate([integers.view(np.uint8), np.array([scale], "<f4").view(np.uint8)])
        assert dequantize(row[None], name).tolist() == [weights]


@each_case(
    ("values", "name", "message"),
    [
        (np.zeros((2, 33)), "Q4_0", "a row of 33 weights is not a whole number of Q4_0 blocks of 32"),
        (np.zeros((2, 19), np.uint8), "Q4_0", "a row of 19 bytes is not a whole number of Q4_0 blocks of 18 bytes"),
        (np.zeros((2, 4), np.uint8), "Q8_ROW", "a row of 4 bytes is not Q8_ROW"),
        (np.zeros((0, 32)), "Q8_0", r"found an array \[0, 32\] for Q8_0; expected rows of weights"),
        (np.float32(1.0), "Q8_0", r"found an array \[\] for Q8_0"),
        (np.zeros((2, 32)), "Q9_9", "there is no packed format 'Q9_9'; known: BF16, Q4_0"),
        (np.zeros((2, 256)), "q6_k", "there is no packed format 'q6_k'"),
        (np.full((1, 32), np.nan), "Q8_0", "a weight to be packed as Q8_0 is not finite"),
        (np.full((1, 32), 1e300), "Q8_ROW", "a weight to be packed as Q8_ROW is not finite"),
        (np.full((1, 32), 1e-3 + 0j), "Q8_0", "found an array of complex128 to be packed as Q8_0"),
    ],
)
def test_what_is_no_rows_of_weights_is_refused(values: Array, name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        words_of(np.asarray(values), name)


@each_case(
    ("name", "largest"), [("Q4_0", 6e5), ("Q4_1", 7e4), ("Q5_0", 2e6), ("Q5_1", 7e4), ("Q8_0", 9e6), ("BF16", 3.4e38)]
)
def test_weights_beyond_the_scales_are_refused(gguf: Any, name: str, largest: float) -> None:
    weights = np.full((1, 32), -largest)
    with pytest.raises(InputError, match=rf"^a weight of \S+ is too large for {name}; scale the weights down"):
        pack(weights, name)
    assert np.isfinite(dequantize(pack(weights / 2, name), name)).all()


def test_formats_of_grids_are_not_packed(gguf: Any) -> None:
    for name in set(GGML) - set(PACKABLE):
        with pytest.raises(InputError, match=f"^floats cannot be packed as {name}; give its blocks as bytes"):
            pack(np.zeros((1, 256)), name)


def test_without_gguf_only_its_formats_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    grid = np.zeros((1, 98), np.uint8)
    for refused in (
        lambda: pack(np.zeros((1, 32)), "Q4_0"),
        lambda: words_of(grid, "IQ3_XXS"),
        lambda: dequantize(grid, "IQ3_XXS"),
    ):
        _grid.cache_clear()
        with pytest.raises(
            InputError, match=r"^GGML's formats need the package gguf, which is not installed; .*pip install"
        ):
            refused()
    _grid.cache_clear()
    assert words_of(np.zeros((1, 136), np.uint8), "IQ4_XS").shape == (1, 40)
    blocks = np.zeros((1, 18), np.uint8)
    assert np.array_equal(blocks_of(words_of(blocks, "Q4_0"), "Q4_0", 32), blocks)
    assert dequantize(pack(np.ones((1, 3)), "Q8_ROW"), "Q8_ROW") == pytest.approx(np.ones((1, 3)))
