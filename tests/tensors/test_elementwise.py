"""Sums, differences, products and multiples, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_draw import drawn, holds, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glinfer.errors import InputError, PlanError
from glinfer.models.oracle import relative_error
from glinfer.ops.flat.elementwise import OPERATIONS, arithmetic, scale
from glinfer.ops.flat.strided import Axis
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import normal
from qa.kernels.cases.elementwise import FUNCTIONS

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@st.composite
def shape_pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes that broadcast: edges of one, some of which are 1, and some missing in front."""
    whole = draw(st.lists(st.integers(1, 6), max_size=4))
    pair = []
    for _ in range(2):
        edges = [draw(st.sampled_from([1, edge, edge])) for edge in whole]
        pair.append(edges[draw(st.integers(0, len(edges))) :])
    return pair[0], pair[1]


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_extremes(dev: Device) -> None:
    """Infinities, NaN, overflow, cancellation, and half floats whose sum and product no half float holds."""
    inf, nan, most = np.inf, np.nan, np.finfo(np.float32).max
    x = np.resize(np.array([inf, inf, nan, most, most, 1.0, -0.0, 16777216.0, 1e-30, 0.0], np.float32), (5, 7))
    y = np.resize(np.array([inf, 1.0, 1.0, most, -most, -1.0, 0.0, 1.0, 1e30, inf], np.float32), (5, 7))
    left, right = dev.tensor(x), dev.tensor(y)
    with np.errstate(all="ignore"):
        for name, function in FUNCTIONS.items():
            with getattr(dev.ops, name)(left, right) as z:
                digits = 1e-6 if name == "divide" else 0.0  # GPUs round quotients less exactly
                assert np.allclose(z.numpy(), function(x, y), rtol=digits, atol=0, equal_nan=True), name
    half = np.array([60000, -60000, 65504, 6e-8], np.float16)
    tensor = dev.tensor(half)
    assert holds(dev.ops.multiply(tensor, tensor), half.astype(np.float32) ** 2)


def test_a_single_column_does_not_fill_the_padding(dev: Device) -> None:
    """A column of infinities: 0 · inf in the padding would be NaN, and spread from there."""
    column = np.full((3, 1), np.inf, np.float32)
    row = np.arange(1, 8, dtype=np.float32)
    assert holds(dev.ops.multiply(dev.tensor(column), dev.tensor(row)), column * row)
    assert holds(dev.ops.subtract(dev.tensor(row), dev.tensor(column)), row - column)
    assert holds(dev.ops.divide(dev.tensor(row), dev.tensor(row)), np.ones(7, np.float32)), "0 / 0 in the padding"
    one = dev.tensor(np.array(7.0, np.float32))
    assert holds(dev.ops.add(one, dev.tensor(np.zeros((2, 6), np.float32))), np.full((2, 6), 7, np.float32))


def test_a_call_is_one_draw_into_out(dev: Device, rng: np.random.Generator) -> None:
    x, y = normal(rng, 4, 6), normal(rng, 6)
    left, right, out = dev.tensor(x), dev.tensor(y), dev.tensor(np.zeros((4, 6), np.float32))
    before = dev.draws_issued
    assert dev.ops.add_bias(left, right, out=out) is out
    assert same_bits(out.numpy(), x + y)
    assert dev.ops.scale(left, -1.0, out=out) is out
    assert same_bits(out.numpy(), -x)
    assert dev.draws_issued == before + 2


# In plans


def test_a_plan_scales(dev: Device, rng: np.random.Generator) -> None:
    x = normal(rng, 6, 5)
    found, expected = drawn(dev, lambda a, y: scale("d", "d", a, y, factor=0.3, kernels=dev.kernels), {"x": x}, x.shape)
    assert np.array_equal(found, x * np.float32(0.3))
    assert relative_error(found, expected) <= 1e-6


def test_draws_that_do_not_fit_are_refused(dev: Device) -> None:
    for shapes, operation, axes, message in (
        (((6, 5), (1, 4)), "add", [Axis(6, 1, 0)], r"y is \[1, 4\]; expected \[any, 1\]"),
        (((3, 5), (6, 5)), "add", [Axis(6, 1, 1)], "it reads rows 0 to 5 of x, which has 3"),
        (((6, 5), (6, 5)), "add", [Axis(2, 4, 0), Axis(4, 1, 1)], "output has 6 rows; the axes do not divide them"),
        (((6, 5), (6, 5)), "power", None, "operation 'power'; known: add, subtract, multiply, divide"),
    ):
        options = {"operation": operation, "kernels": dev.kernels, **({"axes": axes} if axes else {})}
        arrays = {name: np.zeros(shape, np.float32) for name, shape in zip("xy", shapes, strict=True)}
        with pytest.raises(PlanError, match=rf"\Adraw d: {message}\Z"):
            drawn(dev, lambda x, y, out, more=options: arithmetic("d", "d", x, y, out, **more), arrays, (6, 5))


# What is refused


REFUSED: list[tuple[Callable[[Any, Tensor, Tensor, Tensor], object], str]] = [
    (
        lambda o, x, y, i: o.add(x, y),
        "add: [2, 3] and [3, 2] do not broadcast; expected equal edges from the last one on, or edges of 1",
    ),
    (lambda o, x, y, i: o.multiply(x, i), "multiply: y is [2, 3] of int32; expected float32 or float16"),
    (lambda o, x, y, i: o.add_bias(x, y), "add_bias: x is [2, 3] and bias is [3, 2]; expected [..., D] and [D]"),
    (lambda o, x, y, i: o.residual_add(x, y), "residual_add: x is [2, 3] and residual is [3, 2]; expected one shape"),
    *(
        (
            lambda o, x, y, i, factor=factor: o.scale(x, factor),
            f"scale: factor is {factor!r}; expected a finite number that float32 holds",
        )
        for factor in (np.inf, float("nan"), 1e39, True, "2", None)
    ),
]


def test_bad_calls_are_refused(dev: Device) -> None:
    x, y = (dev.tensor(np.zeros(shape, np.float32)) for shape in ((2, 3), (3, 2)))
    whole = dev.tensor(np.zeros((2, 3), np.int32))
    for run, message in REFUSED:
        with pytest.raises(InputError) as raised:
            run(dev.ops, x, y, whole)
        assert str(raised.value) == message
    many, others = dev.zeros((2, 1, 2, 1, 2, 1, 5)), dev.zeros((1, 2, 1, 2, 1, 2, 5))
    message = r"\Aadd: \[2, 1, .*, 5\] and .* broadcast along 6 leading axes .* at most 5 .*\Z"
    with pytest.raises(InputError, match=message):
        dev.ops.add(many, others)
