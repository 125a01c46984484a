"""Operators of tensors against NumPy: ``+ - * / @``, ``-x``, ``.T``, slices and ``reshape``."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from each_case import each_case

import glinfer
from glinfer.errors import ContextError, InputError
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device

pytestmark = pytest.mark.gl

BINARY = (operator.add, operator.sub, operator.mul, operator.truediv)
OTHERS: tuple[Any, ...] = (3, np.float32(0.3), np.float64(0.1), [1, 2, 3, 4, 5, 6, 7])
ARRAY = np.linspace(-2, 3, 21, dtype=np.float32).reshape(3, 7)


def same(found: Any, expected: Any) -> None:
    assert isinstance(found, glinfer.Tensor)
    with found:
        assert found.shape == np.shape(expected)
        assert relative_error(found.numpy(), np.asarray(expected, np.float64)) <= 1e-6


@each_case("shape, other", [((3, 7), (3, 7)), ((5,), (2, 1, 5))])
def test_tensors_and_arrays(dev: Device, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    x, y = (rng.uniform(0.5, 2, each).astype(np.float32) for each in (shape, other))
    with dev.tensor(x) as left, dev.tensor(y) as right:
        for function in BINARY:
            same(function(left, right), function(x, y))
            same(function(left, y), function(x, y))
            same(function(x, right), function(x, y))
        assert dev.memory().tensors == 2, "what is made of an array is released again"


def test_numbers(dev: Device) -> None:
    """On both sides, and none of them changes the type of a half float."""
    with dev.tensor(ARRAY) as x, dev.tensor(ARRAY.astype(np.float16)) as half:
        for other in OTHERS:
            for function in BINARY:
                same(function(x, other), function(ARRAY, np.float32(other)))
                if function is not operator.truediv:  # ARRAY has zeros
                    same(function(other, x), function(np.float32(other), ARRAY))
        for found, dtype in (
            (half * 2, "float16"),
            (half + half, "float16"),
            (half + x, "float32"),
            (-half, "float16"),
        ):
            assert (found.dtype, found.numpy().dtype) == (dtype, dtype)
            found.release()
        same(1 / dev.tensor(ARRAY + 7), 1 / (ARRAY + 7))


def test_products_and_parts(dev: Device) -> None:
    y = np.linspace(1, 2, 35, dtype=np.float32).reshape(7, 5)
    with dev.tensor(ARRAY) as x, dev.tensor(y) as right:
        same(x @ right, ARRAY @ y)
        same(x @ y, ARRAY @ y)
        same(ARRAY @ right, ARRAY @ y)
        same(x @ y[:, 0], ARRAY @ y[:, 0])
        same(-x, -ARRAY)
        same(x.T, ARRAY.T)
        same(right.T @ x.T, y.T @ ARRAY.T)
        same(x[1:3], ARRAY[1:3])
        same(x[:, ::-2], ARRAY[:, ::-2])
        same(x.reshape(7, -1), ARRAY.reshape(7, -1))
        with dev.tensor(np.arange(30, dtype=np.float32).reshape(2, 3, 5)) as cube:
            same(cube.T, np.arange(30, dtype=np.float32).reshape(2, 3, 5).T)
        total = x
        total += 1
        same(total, ARRAY + 1)
        same(x, ARRAY)


def test_what_does_not_go_together(dev: Device) -> None:
    x, whole = dev.tensor(ARRAY), dev.tensor([[1, 2, 3]])
    for function, message in (
        (lambda: x + np.zeros(6, np.float32), r"add: \[3, 7\] and \[6\] do not broadcast"),
        (lambda: x @ x, "matmul: "),
        (lambda: whole + 1, "add: x is .* of int32; expected float32 or float16"),
        (lambda: 1 - whole, "subtract: y is .* of int32; expected float32 or float16"),
        (lambda: -whole, "scale: x is .* of int32"),
        (lambda: x * np.zeros(7), "tensor: found an array of float64, which textures cannot hold"),
        (lambda: x * dev.tensor(np.ones((3, 32), np.float32), "Q8_0"), "multiply: y is .*; dequantize it first"),
    ):
        with pytest.raises(InputError, match=rf"\A{message}"):
            function()
    for other in ("2", None, True, {}, 2j):
        with pytest.raises(TypeError, match="unsupported operand"):
            x + other
    assert dev.memory().tensors <= 3


def test_what_was_closed_is_not_entered_again() -> None:
    with glinfer.Device() as device:
        kept, released = device.tensor(ARRAY), device.tensor(ARRAY)
        assert repr(device) == f"<Device: 2 tensors; {device.description}>"
        released.release()
        with pytest.raises(InputError, match="was released"):
            released.__enter__()
    assert repr(device) == f"<Device: closed; {device.description}>"
    assert repr(kept) == "Tensor(shape=(3, 7), dtype=float32, released)"
    with pytest.raises(InputError, match="was released with its device"):
        kept.__enter__()
    with pytest.raises(ContextError, match="this device was closed"):
        device.__enter__()
