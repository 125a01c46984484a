"""Sums, differences, products and multiples, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_draw import check_sizes, check_timed, drawn, holds, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glinfer.errors import InputError, PlanError
from glinfer.models.oracle import relative_error
from glinfer.models.plan import PlanBuilder
from glinfer.ops.flat.elementwise import OPERATIONS, arithmetic, broadcast_axes, scale
from glinfer.ops.flat.strided import Axis
from glinfer.ops.spec import DrawSpec, TensorSpec
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import normal
from qa.kernels.cases.elementwise import CASES, FUNCTIONS

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_kernel_is_right(dev: Device, rng: np.random.Generator, case: Any) -> None:
    check_sizes(dev, rng, case, ((1, 1), (5, 1), (2, 67), (257, 36)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_kernel_with_small_textures(small: Device, rng: np.random.Generator, case: Any) -> None:
    for found, expected in case.check(small, rng, 41, 77, "float16"):
        assert relative_error(found, expected) <= case.tolerance


@pytest.mark.slow
def test_what_is_timed_releases_its_results(dev: Device, rng: np.random.Generator) -> None:
    check_timed(dev, rng, CASES)


@st.composite
def shape_pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes that broadcast: edges of one, some of which are 1, and some missing in front."""
    whole = draw(st.lists(st.integers(1, 6), max_size=4))
    pair = []
    for _ in range(2):
        edges = [draw(st.sampled_from([1, edge, edge])) for edge in whole]
        pair.append(edges[draw(st.integers(0, len(edges))) :])
    return pair[0], pair[1]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=shape_pairs(), operation=st.sampled_from(sorted(OPERATIONS)), forms=st.tuples(*[st.booleans()] * 2))
def test_broadcasting(dev: Device, shapes: Any, operation: str, forms: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(3)
    x, y = (
        normal(rng, *shape).astype(np.float16 if half else np.float32)
        for shape, half in zip(shapes, forms, strict=True)
    )
    expected = FUNCTIONS[operation](x, y, dtype=np.float32)
    with dev.tensor(x) as left, dev.tensor(y) as right:
        assert holds(getattr(dev.ops, operation)(left, right), np.asarray(expected))


def test_a_tensor_with_itself_and_one_number_with_many(dev: Device, rng: np.random.Generator) -> None:
    x, one = normal(rng, 3, 5), np.float32(1.5)
    tensor, number = dev.tensor(x), dev.tensor(one)
    assert holds(dev.ops.add(tensor, tensor), x + x)
    assert holds(dev.ops.subtract(number, tensor), one - x)
    assert holds(dev.ops.multiply(number, number), np.float32(2.25))
    assert holds(dev.ops.scale(number, 2), np.float32(3))


def test_extremes(dev: Device) -> None:
    """Infinities, NaN, overflow, cancellation, and half floats whose sum and product no half float holds."""
    inf, nan, most = np.inf, np.nan, np.finfo(np.float32).max
    x = np.array([inf, inf, nan, most, most, 1.0, -0.0, 16777216.0, 1e-30, 0.0], np.float32)
    y = np.array([inf, 1.0, 1.0, most, -most, -1.0, 0.0, 1.0, 1e30, inf], np.float32)
    left, right = dev.tensor(x), dev.tensor(y)
    with np.errstate(all="ignore"):
        for name, function in FUNCTIONS.items():
            with getattr(dev.ops, name)(left, right) as z:
                assert np.array_equal(z.numpy(), function(x, y), equal_nan=True), name
    half = np.array([60000, -60000, 65504, 6e-8], np.float16)
    tensor = dev.tensor(half)
    assert holds(dev.ops.add(tensor, tensor), half.astype(np.float32) * 2)
    assert holds(dev.ops.multiply(tensor, tensor), half.astype(np.float32) ** 2)
    assert holds(dev.ops.scale(tensor, 1e30), half.astype(np.float32) * np.float32(1e30))


def test_a_single_column_does_not_fill_the_padding(dev: Device) -> None:
    """A column of infinities: 0 · inf in the padding would be NaN, and spread from there."""
    column = np.full((3, 1), np.inf, np.float32)
    row = np.arange(1, 8, dtype=np.float32)
    assert holds(dev.ops.multiply(dev.tensor(column), dev.tensor(row)), column * row)
    assert holds(dev.ops.subtract(dev.tensor(row), dev.tensor(column)), row - column)
    one = dev.tensor(np.array(7.0, np.float32))
    assert holds(dev.ops.add(one, dev.tensor(np.zeros((2, 6), np.float32))), np.full((2, 6), 7, np.float32))


def test_out_and_draws(dev: Device, rng: np.random.Generator) -> None:
    x, y = normal(rng, 4, 6), normal(rng, 6)
    left, right, out = dev.tensor(x), dev.tensor(y), dev.tensor(np.zeros((4, 6), np.float32))
    before = dev.draws_issued
    assert dev.ops.add_bias(left, right, out=out) is out
    assert same_bits(out.numpy(), x + y)
    assert dev.ops.scale(left, -1.0, out=out) is out
    assert same_bits(out.numpy(), -x)
    assert dev.ops.residual_add(left, left, out=out) is out
    assert dev.draws_issued == before + 3


def test_what_has_the_shape_of_the_result_is_fetched_where_it_lies(dev: Device) -> None:
    builder = PlanBuilder("none", 1, [])
    size = dev.context.limits.max_texture_size

    def defines(x: tuple[int, int], y: tuple[int, int]) -> list[int | float]:
        tensors = [
            builder.flat(name, "activation", *shape, "rgba32f", size)
            for name, shape in (("x", x), ("y", y), ("z", (6, 8)))
        ]
        found = dict(arithmetic("a", "a", *tensors, operation="add", kernels=dev.kernels).defines)
        return [found[name] for name in ("X_DIRECT", "X_ACROSS", "Y_DIRECT", "Y_ACROSS", "AXES")]

    assert defines((6, 8), (6, 8)) == [1, 1, 1, 1, 1]
    assert defines((6, 8), (1, 8)) == [1, 1, 0, 1, 1]
    assert defines((6, 1), (1, 8)) == [0, 0, 0, 1, 1]


def test_broadcast_axes() -> None:
    assert broadcast_axes((5, 4, 3), (5, 4, 3)) == [Axis(20, 1, 1)]
    assert broadcast_axes((5, 4, 3), (3,)) == [Axis(20, 1, 0)]
    assert broadcast_axes((), (2, 2)) == [Axis(2, 0, 1)]
    assert broadcast_axes((5, 1, 3), (4, 1)) == [Axis(5, 1, 0), Axis(4, 0, 1)]
    assert broadcast_axes((7,), (1,)) == [Axis(1, 0, 0)]


# In plans


@pytest.mark.slow
def test_draws_in_plans_agree_with_their_oracles(dev: Device, rng: np.random.Generator) -> None:
    x, y, column = normal(rng, 6, 5), normal(rng, 1, 5), normal(rng, 6, 1)
    kernels = dev.kernels
    for operation in OPERATIONS:
        for other in (x, y, column):
            for arrays in ({"x": x, "y": other}, {"x": other, "y": x}):

                def build(a: TensorSpec, b: TensorSpec, out: TensorSpec, operation: str = operation) -> Any:
                    return arithmetic("d", "d", a, b, out, operation=operation, kernels=kernels, rows=4)

                found, expected = drawn(dev, build, arrays, (6, 5))
                assert expected.shape == (4, 5)
                assert relative_error(found, expected) <= 1e-6
    axes = [Axis(2, 3, 0), Axis(3, 0, 1)]
    found, expected = drawn(
        dev,
        lambda a, b, out: arithmetic("d", "d", a, b, out, operation="add", axes=axes, kernels=kernels),
        {"x": x, "y": x},
        (6, 5),
    )
    assert np.array_equal(found, x[[0, 0, 0, 3, 3, 3]] + x[[0, 1, 2, 0, 1, 2]])  # x walks on as y begins again
    assert relative_error(found, expected) <= 1e-6


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_a_plan_scales_by_what_the_run_says(dev: Device, rng: np.random.Generator, factor: float) -> None:
    x = normal(rng, 6, 5)
    found, expected = drawn(
        dev,
        lambda a, out: scale("d", "d", a, out, factor="by", kernels=dev.kernels, rows=3),
        {"x": x},
        (6, 5),
        values={"by": factor},
    )
    assert np.array_equal(found, x[:3] * np.float32(factor))
    assert relative_error(found, expected) <= 1e-6


@pytest.mark.parametrize(
    ("shapes", "axes", "message"),
    [
        (((6, 5), (1, 4)), [Axis(6, 1, 0)], r"y is \[1, 4\]; expected \[any, 1\]"),
        (((3, 5), (6, 5)), [Axis(6, 1, 1)], "it reads rows 0 to 5 of x, which has 3"),
        (((6, 5), (6, 5)), [Axis(2, 4, 0), Axis(4, 1, 1)], "output has 6 rows; the axes do not divide them"),
    ],
)
def test_what_no_draw_can_be_built_of(dev: Device, shapes: Any, axes: list[Axis], message: str) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in zip("xy", shapes, strict=True)}

    def build(x: TensorSpec, y: TensorSpec, out: TensorSpec) -> DrawSpec:
        return arithmetic("d", "d", x, y, out, operation="add", axes=axes, kernels=dev.kernels)

    with pytest.raises(PlanError, match=rf"\Adraw d: {message}\Z"):
        drawn(dev, build, arrays, (6, 5))


def test_an_unknown_operation(dev: Device) -> None:
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(PlanError, match="draw d: operation 'divide'; known: add, subtract, multiply"):
        drawn(
            dev,
            lambda a, b, out: arithmetic("d", "d", a, b, out, operation="divide", kernels=dev.kernels),
            {"x": x, "y": x},
            (2, 2),
        )


# What is refused


REFUSED: list[tuple[Callable[[Any, Tensor, Tensor, Tensor], object], str]] = [
    (
        lambda o, x, y, i: o.add(x, y),
        "add: [2, 3] and [3, 2] do not broadcast; expected equal edges from the last one on, or edges of 1",
    ),
    (lambda o, x, y, i: o.multiply(x, i), "multiply: y is [2, 3] of int32; expected float32 or float16"),
    (lambda o, x, y, i: o.add_bias(x, y), "add_bias: x is [2, 3] and bias is [3, 2]; expected [..., D] and [D]"),
    (lambda o, x, y, i: o.residual_add(x, y), "residual_add: x is [2, 3] and residual is [3, 2]; expected one shape"),
    (lambda o, x, y, i: o.scale(i, 2.0), "scale: x is [2, 3] of int32; expected float32 or float16"),
    *(
        (
            lambda o, x, y, i, factor=factor: o.scale(x, factor),
            f"scale: factor is {factor!r}; expected a finite number that float32 holds",
        )
        for factor in (np.inf, float("nan"), 1e39, True, "2", None, 10**400)
    ),
    (
        lambda o, x, y, i: o.subtract(x, x, out=y),
        "subtract: out is [3, 2] of float32; the result is [2, 3] of float32",
    ),
]


def test_what_is_refused(dev: Device) -> None:
    x, y = (dev.tensor(np.zeros(shape, np.float32)) for shape in ((2, 3), (3, 2)))
    whole = dev.tensor(np.zeros((2, 3), np.int32))
    for run, message in REFUSED:
        with pytest.raises(InputError) as raised:
            run(dev.ops, x, y, whole)
        assert str(raised.value) == message


def test_too_many_axes(dev: Device) -> None:
    x = dev.tensor(np.zeros((2, 1, 2, 1, 2, 1, 5), np.float32))
    y = dev.tensor(np.zeros((1, 2, 1, 2, 1, 2, 5), np.float32))
    with pytest.raises(
        InputError, match=r"\Aadd: \[2, 1, .*, 5\] and .* broadcast along 6 leading axes .* at most 5 .*\Z"
    ):
        dev.ops.add(x, y)
