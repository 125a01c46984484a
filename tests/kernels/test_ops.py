"""Every op on the GPU against its float64 oracle, on shapes and values chosen to break it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from one_draw import OUT, TOLERANCE, normal
from one_draw import check as check_cases
from published_draw import (
    PublishedDraw,
    every_form,
    layer_norm_draw,
    linear_draw,
    scores_draw,
    softmax_draw,
    values_draw,
)
from tiers import tiered

from glinfer.gl.context import Device
from glinfer.kernels.published.attention import MASKED
from glinfer.kernels.published.linear import linear
from glinfer.kernels.published.rows import embed, layer_norm, softmax
from glinfer.program.oracle import relative_error
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
ONES = np.ones((1, 1), dtype=np.float32)

# (rows in use, rows, heads, head width, vocabulary or other width, head): all of 1, odd, prime, powers of two,
# one row of many, every row, the first and the last head.
NATURAL = [(1, 1, 1, 1, 1, 0), (6, 11, 3, 5, 13, 0), (8, 8, 2, 8, 64, 1)]
WRAPPED = [(1, 7, 3, 5, 37, 2), (5, 13, 7, 1, 127, 6), (23, 41, 2, 1, 3, 1)]


def tightest_edge(one: PublishedDraw) -> int:
    """The edge of the smallest textures into which the tensors fit, some of them wrapped."""
    return math.isqrt(max(rows * cols for rows, cols in (tensor.shape for tensor in one.plan.tensors)) - 1) + 1


def check(device: Device, one: PublishedDraw, what: str = "") -> Array:
    return check_cases(device, one, one.case, what=what)[0]


@tiered("shape", [*NATURAL, *WRAPPED], keep=(1, 3))
def test_every_form_agrees_with_float64(device: Device, shape: tuple[int, ...]) -> None:
    for name, make in every_form(*shape):
        if shape in WRAPPED:
            device.limits = dataclasses.replace(device.driver_limits, max_texture_size=tightest_edge(make()))
        check(device, make(), name)


def test_long_sums_stay_accurate(device: Device) -> None:
    options: dict[str, Any] = {"bias": True, "residual": True, "activation": "gelu_new"}
    check(device, linear_draw(2, 3, 2049, 5, last_row=False, **options))
    check(device, softmax_draw(2, 3, 5257))
    check(device, layer_norm_draw(2, 3, 2049))


def test_the_padding_of_a_wrapped_target_is_not_written(device: Device) -> None:
    device.limits = dataclasses.replace(device.driver_limits, max_texture_size=8)
    for cols in (57, 63):  # the last line of the target holds 1 and 7 elements
        one = softmax_draw(1, 1, cols)
        session = Session(one.plan, one.arrays, device)
        session.write("x", one.arrays["x"])
        target = session.texture(OUT)
        assert (target.layout.width, target.layout.height) == (8, 8)
        target.fill(-7.0)
        session.run(one.case.values)
        texels = target.framebuffer.read(0, 8, 8).reshape(-1)
        assert (texels[:cols] >= 0).all()
        assert (texels[cols:] == -7.0).all()


# linear


def test_bias_comes_before_the_activation_and_the_residual_after(device: Device) -> None:
    one = PublishedDraw(1, 1)
    one.draw(
        linear(
            "draw",
            "draw",
            one.input("x", ONES),
            one.weight("w", ONES),
            one.out(1, 1),
            bias=one.weight("b", np.array([-101.0], dtype=np.float32)),
            residual=one.input("r", ONES * 7),
            activation="gelu_new",
        )
    )
    assert one.found(device)[0, 0] == 7.0  # gelu(1 - 101) + 7; any other order gives -93 or a gelu of 7


# softmax


def softmax_of(device: Device, matrix: Array) -> Array:
    one = PublishedDraw(len(matrix), len(matrix))
    x = one.input("x", matrix.astype(np.float32))
    one.draw(softmax("draw", "draw", x, one.out(*matrix.shape)))
    return check(device, one)


@pytest.mark.parametrize("cols", [1, 301])
def test_softmax_of_equal_numbers_is_uniform(device: Device, cols: int) -> None:
    levels = np.array([0.0, 1.0, -1.0, 88.0, 1e4, -1e4, MASKED, -MASKED, 3e38, -3e38, 1e-40])
    found = softmax_of(device, levels[:, None].repeat(cols, axis=1))
    assert (found == np.float32(1) / np.float32(cols)).all()


def test_softmax_of_huge_numbers_is_exact(device: Device) -> None:
    big = [
        [1e4, 0, -1e4],
        [-50, 150, -50],
        [3e38, -3e38, 0],
        [-3e38, -3e38, -1e38],
        [MASKED, 0, MASKED],
        [200, 200, -200],
    ]
    found = softmax_of(device, np.array(big))
    assert found.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0.5, 0.5, 0]]


def test_an_all_masked_row_of_attention_is_uniform_over_the_rows_in_use(device: Device) -> None:
    one = PublishedDraw(2, 6)
    x = one.input("x", np.full((6, 6), MASKED, dtype=np.float32), (2, 2))
    one.draw(softmax("draw", "draw", x, one.out(6, 6), causal_square=True))
    assert (check(device, one) == 0.5).all()


# layer_norm


def normalised(device: Device, matrix: Array, eps: float = 1e-5) -> tuple[Array, Array]:
    """LayerNorm with weight 1 and bias 0, by the GPU and in float64."""
    rows, dim = matrix.shape
    one = PublishedDraw(rows, rows)
    x = one.input("x", matrix.astype(np.float32))
    weight = one.weight("w", np.ones(dim, dtype=np.float32))
    bias = one.weight("b", np.zeros(dim, dtype=np.float32))
    one.draw(layer_norm("draw", "draw", x, weight, bias, one.out(rows, dim), eps=eps))
    return one.found(device), one.wanted()


@pytest.mark.parametrize("dim", [1, 513])
def test_layer_norm_of_a_constant_row_is_its_bias(device: Device, dim: int) -> None:
    one = PublishedDraw(9, 9)
    levels = np.array([0, 1, -1, 0.1, 7.7, 1 / 3, 1e4, 1e10, -1e-30], dtype=np.float32)
    x = one.input("x", levels[:, None].repeat(dim, axis=1))
    weight, bias = one.weight("w", normal(1, dim, scale=100.0)), one.weight("b", normal(2, dim))
    one.draw(layer_norm("draw", "draw", x, weight, bias, one.out(9, dim), eps=1e-5))
    assert np.array_equal(one.found(device), np.tile(one.arrays["b"], (9, 1)))


def test_layer_norm_keeps_its_digits_far_from_zero_at_every_scale_and_with_an_outlier(device: Device) -> None:
    rows, outlier = normal(7, 3, 512), np.full((1, 13), 0.25)
    outlier[0, 6] = 1e4
    cases = [(rows + np.float32(offset), 1e-5) for offset in (0.0, -100.0, 1000.0)]
    cases += [(rows * scale, eps) for scale in (1e-6, 1e8) for eps in (1e-12, 0.5)]
    for matrix, eps in (*cases, (outlier, 1e-5)):
        found, expected = normalised(device, matrix, eps)
        assert relative_error(found, expected) <= TOLERANCE, eps


# embed


@pytest.mark.parametrize("biggest", [2048, 9])
def test_an_id_outside_the_vocabulary_gives_the_position_alone(device: Device, biggest: int) -> None:
    device.limits = dataclasses.replace(device.driver_limits, max_texture_size=biggest)
    one = PublishedDraw(11, 11)
    # Times 4 columns, ±2³⁰ + 1 overflows 32 bits to the first element of row 1.
    ids = [0, 6, 7, -1, 8, 2**31 - 1, -(2**31), 300, 2**30 + 1, -(2**30) + 1, 3]
    tokens = one.input("tokens", np.array(ids, dtype=np.int32)[:, None])
    wte, wpe = one.weight("wte", normal(1, 7, 4)), one.weight("wpe", normal(2, 11, 4))
    one.draw(embed("draw", tokens, wte, wpe, one.out(11, 4)))
    expected = one.arrays["wpe"].copy()
    for row, token in ((0, 0), (1, 6), (10, 3)):
        expected[row] += one.arrays["wte"][token]
    assert np.array_equal(one.found(device), expected)
    assert np.allclose(one.wanted(), expected, rtol=1e-6)


# attention


def test_scores_above_the_diagonal_are_masked_and_below_are_products(device: Device) -> None:
    found = check(device, scores_draw(5, 7, 3, 4, 2))
    above = np.triu(np.ones((5, 5), dtype=bool), 1)
    assert (found[above] == np.float32(MASKED)).all()
    assert (np.abs(found[~above]) < 100).all()


def test_each_head_sees_only_its_own_columns(device: Device) -> None:
    for head in range(3):
        for one in (scores_draw(3, 4, 3, 3, head), values_draw(3, 4, 3, 3, head)):
            others = [column for column in range(9) if column // 3 != head]
            for name in set(one.arrays) - {"p"}:
                one.arrays[name][:, others] = np.nan
            check(device, one, f"head {head}")
