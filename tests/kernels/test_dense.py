"""The float64 oracle of products over packed weights, by the formulas of norms, gates and rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_models import packed_as, random_blocks

from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.kernels import OPS
from glinfer.kernels.fused.dense import Matrix, dense_rows, format_name, turned_rows, weights_of
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.options import KernelOptions
from glinfer.program.plan import PlanBuilder
from glinfer.quant.formats import GROUP_FORMS, WIDE, WORD_FORMATS, is_scaled
from glinfer.quant.ggml import dequantize, words_of
from glinfer.quant.groups import wide_words
from glinfer.quant.words import FILE_INTEGERS, encode, integer_words

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(8)
X = RANDOM.standard_normal((5, 20)) + 0.7
W = RANDOM.standard_normal((9, 20)).astype(np.float32)
B = RANDOM.standard_normal((9, 1)).astype(np.float32)
G = RANDOM.standard_normal((1, 20)).astype(np.float32)
PLAIN = {"GROUPED": 0, "WEIGHTS": 0, "SCALED": 0, "CENTRED": 0, "GATED": 0, "ACTIVATION": 0, "INPUTS": 20, "EPS": 1e-3}
NO_PLACES = np.zeros(5, np.intp)


def rows_of(given: dict[str, Array], norms: Array | None = None, x: Array = X, **params: Any) -> Array:
    return dense_rows(given, {**PLAIN, **params}, x, norms, NO_PLACES)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def test_a_product_with_its_bias() -> None:
    assert np.allclose(rows_of({"weight": W, "consts": B}), X @ W.astype(np.float64).T + B[:, 0], rtol=1e-13)


def test_rms_norm_and_gain() -> None:
    normed = X / np.sqrt((X**2).mean(axis=1, keepdims=True) + 1e-3) * G
    expected = normed @ W.astype(np.float64).T + B[:, 0]
    assert np.allclose(rows_of({"weight": W, "consts": B, "gain": G}, NORM=1), expected, rtol=1e-12)


def test_layer_norm_by_way_of_the_weights_sums() -> None:
    """What the mean of the inputs adds is the mean times the sum of the gained weights."""
    sums = (W.astype(np.float64) @ G[0].astype(np.float64))[:, None]
    centred = X - X.mean(axis=1, keepdims=True)
    factors = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-3)
    expected = (centred * factors * G) @ W.astype(np.float64).T + B[:, 0]
    given = {"weight": W, "consts": np.concatenate([sums, B], axis=1), "gain": G}
    assert np.allclose(rows_of(given, NORM=1, CENTRED=1), expected, rtol=1e-11)
    assert np.allclose(rows_of(given, factors, CENTRED=1), expected, rtol=1e-11), "with norms computed before"
    assert not np.allclose(rows_of(given, NORM=1), expected)


@pytest.mark.parametrize(("number", "activation"), [(0, lambda x: x), (3, silu)])
def test_a_gate_lets_through_block_by_block(number: int, activation: Any) -> None:
    gate, up = (RANDOM.standard_normal((128, 20)).astype(np.float32) for _ in range(2))
    biases = RANDOM.standard_normal((256, 1)).astype(np.float32)
    weight = np.concatenate([gate[:64], up[:64], gate[64:], up[64:]])
    found = rows_of({"weight": weight, "consts": biases}, GATED=1, ACTIVATION=number)
    y = X @ weight.astype(np.float64).T + biases[:, 0]
    by_block = y.reshape(5, 2, 2, 64)
    expected = activation(by_block[:, :, 0]) * by_block[:, :, 1]
    assert found.shape == (5, 128)
    assert np.allclose(found, expected.reshape(5, 128), rtol=1e-12)


@pytest.mark.parametrize("apart", [{}, {"QUERY_TURNS": 4}], ids=["", "queries apart"])
def test_turned_pairs_are_products_of_complex_numbers(apart: dict[str, int]) -> None:
    """Of keys and queries; what lies between them stays."""
    angles = RANDOM.uniform(-3, 3, (7, 16))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(7, 32)
    y, positions = RANDOM.standard_normal((5, 112)), np.array([0, 6, 3, 3, 1])
    found = turned_rows(y, table, {"HEAD_TEXELS": 4, "KEY_TEXELS": 8, "QUERY_AT": 16, **apart}, positions)

    def turned(part: Array, first: int) -> Array:
        pairs = part.reshape(5, -1, 8, 2)
        turns = np.exp(1j * angles[positions, first : first + 8])[:, None]
        product = (pairs[..., 0] + 1j * pairs[..., 1]) * turns
        return np.stack([product.real, product.imag], axis=-1).reshape(5, -1)

    queries = turned(y[:, 64:], 8 if apart else 0)
    assert np.allclose(found[:, :32], turned(y[:, :32], 0), rtol=1e-12)
    assert np.array_equal(found[:, 32:64], y[:, 32:64])
    assert np.allclose(found[:, 64:], queries, rtol=1e-12)
    assert np.allclose(np.abs(found[:, 64:]).sum(), np.abs(queries).sum())


def drawn(name: str, inputs: int, **options: Any) -> Any:
    """A product of one row over a matrix of 70 outputs in a format."""
    plan = PlanBuilder("p", 5, [])
    kind: Any = GroupedLayout if name in (*GROUP_FORMS, WIDE) else GemvLayout
    weight = plan.laid_out("w", "weight", kind.of(70, inputs, name, True, 2048))
    consts = plan.laid_out("c", "weight", ConstantLayout.of(70, is_scaled(name), True, 2048))
    x, y = (plan.laid_out(each, "input", BlockLayout.of((1, size), 2048)) for each, size in (("x", inputs), ("y", 70)))
    return gemm("d", "d", x, Matrix(weight, consts, inputs), y, slots=None, kernels=KernelOptions(), **options)


def packed(name: str) -> tuple[Array, Array, Array]:
    """Words, constants and the weights that they stand for, of 70 rows of 256."""
    floats = np.random.default_rng(70).standard_normal((70, 256)).astype(np.float32)  # whatever tests ran before
    bias = np.ones((70, 1), np.float32)
    if name == WIDE:
        blocks = random_blocks("Q5_1", 70, 256, 1)
        return wide_words(blocks, "Q5_1"), bias, dequantize(blocks, "Q5_1")
    if name in GROUP_FORMS:
        blocks = random_blocks(name, 70, 256, 1)
        return words_of(blocks, name), bias, dequantize(blocks, name)
    if name in FILE_INTEGERS:
        rows = packed_as(floats, {"i8": "Q8_ROW", "i16": "Q16_ROW"}[name])
        numbers = np.ascontiguousarray(rows.blocks[:, :-4]).view(f"<i{WORD_FORMATS[name].bits // 8}")
        words, scales = integer_words(numbers, np.ascontiguousarray(rows.blocks[:, -4:]).view("<f4")[:, 0], name)
        return words, np.concatenate([scales, bias], axis=1), rows.floats()
    words, found = encode(floats, name)
    return words, bias if found is None else np.concatenate([found, bias], axis=1), floats


LIMITS = {
    **{"f32": 0.0, "f16": 1e-3, "bf16": 1.6e-2, "q16": 3e-4, "q8": 4e-2, "i16": 1e-6, "i8": 1e-6},
    **dict.fromkeys((*GROUP_FORMS, WIDE), 2e-6),
}
assert set(LIMITS) == {*WORD_FORMATS, *GROUP_FORMS, WIDE}


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_every_format_is_multiplied_as_what_it_stands_for(name: str, limit: float) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    draw, (words, consts, floats) = drawn(name, 256), packed(name)
    params = draw.params({})
    assert format_name(params) == name
    assert np.abs(weights_of(words, consts, params) - floats).max() <= limit
    x = RANDOM.standard_normal((1, 256))
    found = OPS["gemm"].oracle({"x": x, "weight": words, "consts": consts}, params, (1, 70))
    assert found.shape == (1, 70)
    assert np.abs(found - (x @ floats.astype(np.float64).T + 1)).max() <= 1e-12 + 256 * 4 * limit
