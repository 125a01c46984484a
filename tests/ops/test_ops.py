"""Every op on the GPU against its float64 oracle, on shapes and values chosen to break it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_draw import OUT, TOLERANCE, normal
from one_draw import check as check_cases
from published_draw import (
    PublishedDraw,
    concat_draw,
    embed_draw,
    every_form,
    layer_norm_draw,
    linear_draw,
    scores_draw,
    softmax_draw,
    values_draw,
)
from tiers import tiered

from glinfer.gl.context import Device, open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.models.oracle import relative_error
from glinfer.models.session import Session
from glinfer.ops.published.attention import MASKED
from glinfer.ops.published.embed import embed
from glinfer.ops.published.layer_norm import layer_norm
from glinfer.ops.published.linear import ACTIVATIONS, linear
from glinfer.ops.published.softmax import softmax

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
ONES = np.ones((1, 1), dtype=np.float32)

# (rows in use, rows, heads, head width, vocabulary or other width, head): all of 1, odd, prime, powers of two,
# one row of many, every row, the first and the last head.
NATURAL = [(1, 1, 1, 1, 1, 0), (6, 11, 3, 5, 13, 0), (8, 8, 2, 8, 64, 1)]
WRAPPED = [(1, 7, 3, 5, 37, 2), (5, 13, 7, 1, 127, 6), (23, 41, 2, 1, 3, 1)]
ON_DESKTOP = (1, 7, 3, 5, 37, 2)  # one is enough: the shaders are the same files


@pytest.fixture(params=["es", pytest.param("desktop", marks=pytest.mark.desktop)])
def either(request: pytest.FixtureRequest) -> Iterator[Device]:
    with open_device(api=request.param) as opened:
        yield opened


def tightest_edge(one: PublishedDraw) -> int:
    """The edge of the smallest textures into which the tensors fit, some of them wrapped."""
    return math.isqrt(max(rows * cols for rows, cols in (tensor.shape for tensor in one.plan.tensors)) - 1) + 1


def wrap_tightly(device: Device, one: PublishedDraw) -> None:
    device.limits = dataclasses.replace(device.driver_limits, max_texture_size=tightest_edge(one))


def check(device: Device, one: PublishedDraw, what: str = "") -> Array:
    return check_cases(device, one, one.case, what=what)[0]


@tiered("shape", NATURAL, keep=(1,), ids=str)
def test_every_form_agrees_with_float64(device: Device, shape: tuple[int, ...]) -> None:
    for name, make in every_form(*shape):
        check(device, make(), name)


@tiered("shape", WRAPPED, keep=0, ids=str)
def test_every_form_agrees_with_float64_when_wrapped(device: Device, shape: tuple[int, ...]) -> None:
    for name, make in every_form(*shape):
        wrap_tightly(device, make())
        check(device, make(), name)


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.parametrize("wrapped", [False, True], ids=["natural", "wrapped"])
def test_every_form_agrees_with_float64_on_desktop(wrapped: bool) -> None:
    with open_device(api="desktop") as device:
        for name, make in every_form(*ON_DESKTOP):
            if wrapped:
                wrap_tightly(device, make())
            check(device, make(), name)


def test_those_shapes_wrap_every_tensor_that_can() -> None:
    wrapped = set()
    for shape in WRAPPED:
        for name, make in every_form(*shape):
            for tensor in make().plan.tensors:
                if Layout.of(tensor.shape, tensor.format, tightest_edge(make())).wrapped:
                    wrapped.add((name.split()[0], tensor.name))
    # Square matrices are left out: one that does not fit as it is does not fit wrapped either.
    assert wrapped >= {
        *(("linear", name) for name in ("x", "w", "b", "r", "out")),
        *(("softmax", name) for name in ("x", "out")),
        *(("layer_norm", name) for name in ("x", "w", "b", "out")),
        *(("embed", name) for name in ("tokens", "wte", "wpe", "out")),
        *(("attention_scores", name) for name in ("q", "k")),
        *(("attention_values", name) for name in ("v",)),
        *(("concat_head", name) for name in ("m", "s", "out")),
    }


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_shapes_agree_with_float64(device: Device, data: st.DataObject) -> None:
    max_rows, heads = data.draw(st.integers(1, 17), "max_rows"), data.draw(st.integers(1, 5), "heads")
    rows, head = data.draw(st.integers(1, max_rows), "rows"), data.draw(st.integers(0, heads - 1), "head")
    width, other = data.draw(st.integers(1, 19), "head width"), data.draw(st.integers(1, 70), "other width")
    forms = dict(every_form(rows, max_rows, heads, width, other, head))
    one = forms[data.draw(st.sampled_from(sorted(forms)), "form")]()
    device.limits = device.driver_limits
    if data.draw(st.booleans(), "wrapped"):
        wrap_tightly(device, one)
    check(device, one)


@tiered("form", ["", "bias residual gelu_new"], keep=(1,))
def test_long_sums_stay_accurate(device: Device, form: str) -> None:
    activation = "gelu_new" if "gelu_new" in form else "none"
    options: dict[str, Any] = {"bias": "bias" in form, "residual": "residual" in form, "activation": activation}
    check(device, linear_draw(2, 3, 2049, 5, last_row=False, **options))
    check(device, softmax_draw(2, 3, 5257))
    check(device, layer_norm_draw(2, 3, 2049))


def test_the_padding_of_a_wrapped_target_is_not_written(device: Device) -> None:
    device.limits = dataclasses.replace(device.driver_limits, max_texture_size=8)
    for cols in (57, 60, 63):  # the last line of the target holds 1, 4 and 7 elements
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


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("biggest", [2048, 6])
def test_last_row_is_the_last_row_in_use(device: Device, rows: int, biggest: int) -> None:
    device.limits = dataclasses.replace(device.driver_limits, max_texture_size=biggest)
    one = PublishedDraw(rows, 5)
    x = np.arange(1, 6, dtype=np.float32)[:, None].repeat(7, axis=1)
    one.draw(
        linear(
            "draw",
            "draw",
            one.input("x", x),
            one.weight("w", np.eye(3, 7, dtype=np.float32)),
            one.out(1, 3),
            last_row=True,
        )
    )
    assert one.found(device).tolist() == [[rows] * 3]


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


def activated(device: Device, values: Array, activation: str) -> tuple[Array, Array]:
    """An activation alone, of many values at once: by the GPU and in float64."""
    one = PublishedDraw(len(values), len(values))
    x = one.input("x", values.astype(np.float32)[:, None])
    one.draw(linear("draw", "draw", x, one.weight("w", ONES), one.out(len(values), 1), activation=activation))
    return one.found(device)[:, 0], one.wanted()[:, 0]


HUGE = np.array([10, 30, 100, 1e3, 1e4, 1e10, 1e13, 1e20, 1e30, 3e38])


LARGE_FROM = {"gelu": 10, "gelu_new": 10, "silu": 100}  # silu(10) is 9.9995


@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS) - {"none", "tanh"}))
def test_an_activation_of_large_numbers_is_the_number_or_nothing(either: Device, activation: str) -> None:
    huge = HUGE[np.searchsorted(HUGE, LARGE_FROM[activation]) :]
    found, _ = activated(either, huge, activation)
    assert np.array_equal(found, huge.astype(np.float32))
    found, _ = activated(either, -huge, activation)
    assert np.isfinite(found).all()
    assert (np.abs(found) <= np.where(huge < 30, 1e-20, 0)).all(), found


def test_tanh_of_large_numbers_is_one(either: Device) -> None:
    for sign in (1, -1):
        found, _ = activated(either, sign * HUGE[np.searchsorted(HUGE, 10) :], "tanh")
        assert (found == sign).all()


@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS) - {"none"}))
def test_an_activation_is_accurate_everywhere(either: Device, activation: str) -> None:
    values = np.concatenate([np.linspace(-12, 12, 2401), [0.0, -0.0, 1e-6, -1e-6, 1e-30, -1e-30]])
    found, expected = activated(either, values, activation)
    # GELU is the number itself from 5 on; silu is not yet at 12, where a float32 has steps of 1e-6.
    bound = 3e-7 * np.maximum(np.abs(expected), 1.0) if activation == "silu" else 5e-7
    assert (np.abs(found - expected) <= bound).all()
    assert (found[values == 0] == 0).all()


@pytest.mark.parametrize(
    ("activation", "lowest", "relative"),
    [
        ("gelu", -8.0, 1e-5),
        ("gelu", -4.0, 3e-6),
        ("gelu_new", -4.0, 3e-6),
        ("silu", -80.0, 1e-5),
        ("silu", -12.0, 3e-6),
    ],
)
def test_the_negative_tail_of_an_activation_keeps_its_digits(
    device: Device, activation: str, lowest: float, relative: float
) -> None:
    found, expected = activated(device, np.linspace(lowest, -0.01, 1500), activation)
    assert np.abs(found / expected - 1).max() <= relative


def test_the_two_forms_of_gelu_are_not_the_same(device: Device) -> None:
    values = np.linspace(-3, 3, 61)
    difference = activated(device, values, "gelu")[0] - activated(device, values, "gelu_new")[0]
    assert 1e-4 < np.abs(difference).max() < 1e-3


# softmax


def softmax_of(device: Device, matrix: Array) -> Array:
    one = PublishedDraw(len(matrix), len(matrix))
    x = one.input("x", matrix.astype(np.float32))
    one.draw(softmax("draw", "draw", x, one.out(*matrix.shape)))
    return check(device, one)


@pytest.mark.parametrize("cols", [1, 2, 3, 64, 301])
def test_softmax_of_equal_numbers_is_uniform(either: Device, cols: int) -> None:
    levels = np.array([0.0, 1.0, -1.0, 88.0, 1e4, -1e4, MASKED, -MASKED, 3e38, -3e38, 1e-40])
    found = softmax_of(either, levels[:, None].repeat(cols, axis=1))
    assert (found == np.float32(1) / np.float32(cols)).all()


def test_softmax_of_huge_numbers_is_exact(either: Device) -> None:
    big = [[1e4, 0, -1e4], [3e38, -3e38, 0], [-3e38, -3e38, -1e38], [MASKED, 0, MASKED], [200, 200, -200]]
    found = softmax_of(either, np.array(big))
    assert found.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0.5, 0.5, 0]]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_softmax_finds_the_largest_wherever_it_is(device: Device, place: int) -> None:
    row = np.full((1, 7), -50.0)
    row[0, place] = 150.0  # exp(150) overflows: without the largest subtracted this is NaN
    assert softmax_of(device, row)[0].tolist() == [float(i == place) for i in range(7)]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 57)])
def test_softmax_rows_sum_to_one(device: Device, shape: tuple[int, int]) -> None:
    assert np.abs(softmax_of(device, normal(5, *shape, scale=10.0)).sum(axis=1, dtype=np.float64) - 1).max() <= 1e-6


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_an_all_masked_row_of_attention_is_uniform_over_the_rows_in_use(device: Device, rows: int) -> None:
    one = PublishedDraw(rows, 6)
    x = one.input("x", np.full((6, 6), MASKED, dtype=np.float32), (rows, rows))
    one.draw(softmax("draw", "draw", x, one.out(6, 6), causal_square=True))
    assert (check(device, one) == np.float32(1) / np.float32(rows)).all()


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


@pytest.mark.parametrize("dim", [1, 3, 15, 64, 513])
def test_layer_norm_of_a_constant_row_is_its_bias(either: Device, dim: int) -> None:
    one = PublishedDraw(9, 9)
    levels = np.array([0, 1, -1, 0.1, 7.7, 1 / 3, 1e4, 1e10, -1e-30], dtype=np.float32)
    x = one.input("x", levels[:, None].repeat(dim, axis=1))
    weight, bias = one.weight("w", normal(1, dim, scale=100.0)), one.weight("b", normal(2, dim))
    one.draw(layer_norm("draw", "draw", x, weight, bias, one.out(9, dim), eps=1e-5))
    assert np.array_equal(one.found(either), np.tile(one.arrays["b"], (9, 1)))


@pytest.mark.parametrize("offset", [0.0, 1.0, -100.0, 1000.0])
def test_layer_norm_far_from_zero_keeps_its_digits(device: Device, offset: float) -> None:
    found, expected = normalised(device, normal(7, 3, 512) + np.float32(offset))
    assert relative_error(found, expected) <= TOLERANCE


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1e4, 1e8])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_layer_norm_at_every_scale_and_eps(device: Device, scale: float, eps: float) -> None:
    found, expected = normalised(device, normal(7, 3, 33, scale=scale), eps)
    assert relative_error(found, expected) <= TOLERANCE


def test_layer_norm_of_one_outlier(device: Device) -> None:
    for place in (0, 6, 12):
        row = np.full((1, 13), 0.25)
        row[0, place] = 1e4
        found, expected = normalised(device, row)
        assert relative_error(found, expected) <= TOLERANCE


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


def test_embed_takes_every_id_of_the_vocabulary(device: Device) -> None:
    one = embed_draw(37, 37, 37, 4)
    one.arrays["tokens"] = np.arange(37, dtype=np.int32)[::-1, None].copy()
    assert np.array_equal(check(device, one), one.arrays["wte"][::-1] + one.arrays["wpe"])


# attention


def test_scores_above_the_diagonal_are_masked_and_below_are_products(either: Device) -> None:
    found = check(either, scores_draw(5, 7, 3, 4, 2))
    above = np.triu(np.ones((5, 5), dtype=bool), 1)
    assert (found[above] == np.float32(MASKED)).all()
    assert (np.abs(found[~above]) < 100).all()


@tiered("heads", [1, 2, 5])
def test_each_head_sees_only_its_own_columns(device: Device, heads: int) -> None:
    for head in range(heads):
        for one in (scores_draw(3, 4, heads, 3, head), values_draw(3, 4, heads, 3, head)):
            others = [column for column in range(3 * heads) if column // 3 != head]
            for name in set(one.arrays) - {"p"}:
                one.arrays[name][:, others] = np.nan
            check(device, one, f"head {head} of {heads}")


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_joining_the_heads_one_by_one_is_concatenation(device: Device, heads: int) -> None:
    parts = [normal(head, 3, 4) for head in range(heads)]
    joined = np.full((3, 4 * heads), 99, dtype=np.float32)
    for head, part in enumerate(parts):
        one = concat_draw(3, 3, heads, 4, head, first=head == 0)
        one.arrays["m"] = part
        if head:
            one.arrays["s"] = joined
        joined = check(device, one)
        assert (joined[:, 4 * (head + 1) :] == 0).all()
    assert np.array_equal(joined, np.concatenate(parts, axis=1))


def test_values_weigh_only_the_rows_in_use(device: Device) -> None:
    one = values_draw(2, 6, 2, 3, 1)
    one.arrays["p"][:2, :2] = [[1, 0], [0.25, 0.75]]
    v = one.arrays["v"][:2, 3:]
    assert np.allclose(check(device, one), [v[0], 0.25 * v[0] + 0.75 * v[1]], rtol=1e-6)
