"""Assignment to rows, slices and elements, against NumPy's own: bits, what stays, overlaps, views, what is refused."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from each_case import each_case
from flat_draw import padding
from tiers import tiered

import glinfer
from glinfer.errors import ContextError, InputError
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device
from qa.kernels.cases.movement import elements

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
s_ = np.s_
INDICES: list[tuple[str, tuple[int, ...], Any]] = [
    ("float32", (5, 7), s_[:, 3:7]),
    ("int32", (5, 7), s_[::-2, 1:6:2]),
    ("float32", (5, 8), s_[1:4]),
    ("float32", (300, 70), s_[250:100:-7, 60:3:-5]),
    ("float32", (), s_[()]),
    ("float16", (9,), s_[-7:5]),
    ("float16", (4, 5, 6), s_[1, ::-1, 1:5]),
    ("float32", (4, 5, 6), s_[..., 0]),
    ("int32", (4, 5, 6), s_[::2, None, 3]),
    ("float32", (2, 3, 4, 5), s_[:, 1:, 2:3]),
    ("float32", (2, 3, 4, 5, 6, 7), s_[0:2, 1:2, ::3, 1:5:2, 1:6, 2:5]),
    ("float16", (6, 4), s_[...]),
]


def changed(array: Array, index: Any, value: Any) -> Array:
    """What NumPy makes of it."""
    copy = np.array(array)
    copy[index] = value
    return copy


def values_for(rng: np.random.Generator, dtype: str, part: tuple[int, ...]) -> list[Any]:
    """A value of the part's shape, a number, and a row or a column for all of it."""
    found: list[Any] = [elements(rng, dtype, *part), 5]
    if part:
        found += [elements(rng, dtype, part[-1]), elements(rng, dtype, *part[:-1], 1)]
    return found


@tiered(("dtype", "shape", "index"), INDICES, keep=1, ids=str)
def test_a_part_becomes_what_numpy_makes_it(dev: Device, dtype: str, shape: tuple[int, ...], index: Any) -> None:
    rng = np.random.default_rng(1)
    array = elements(rng, dtype, *shape)
    for value in values_for(rng, dtype, array[index].shape):
        x = dev.tensor(array)
        x[index] = value
        assert same_bits(x.numpy(), changed(array, index, value))
        assert not padding(x).any()
    x, given = dev.tensor(array), dev.tensor(value)
    assert dev.ops.assign(x, index, given) is x
    assert same_bits(x.numpy(), changed(array, index, value))
    del x, given
    assert dev.memory().tensors == 0


def test_what_stays_keeps_its_bits_and_its_texture(dev: Device) -> None:
    array = np.arange(24, dtype=np.uint32).reshape(3, 8).view(np.float32)  # subnormal numbers
    array.view(np.uint32)[0, 0] = 0x7FC01234
    x = dev.tensor(array)
    texture, before = x.storage.texture(), dev.draws_issued
    x[1] = np.ones(8, np.float32)
    assert dev.draws_issued == before + 1
    x[2, 1:3] = 4
    assert dev.draws_issued == before + 3
    assert x.storage.texture() is texture
    expected = changed(changed(array, 1, 1), s_[2, 1:3], 4)
    if "llvmpipe" in dev.description:
        assert same_bits(x.numpy(), expected)
    assert x.numpy()[1:, 1:3].tolist() == expected[1:, 1:3].tolist()


@pytest.mark.slow
def test_another_place_of_the_same_size_takes_no_new_program(dev: Device) -> None:
    x = dev.zeros((41, 10))
    x[3], x[3, 2:5] = 1, 2
    programs = len(dev.programs)
    for row in range(20):
        x[row], x[row, 4:7] = row, -1
    assert len(dev.programs) == programs
    assert x.numpy()[:20, 0].tolist() == list(range(20))


def test_views_see_it_and_copies_do_not(dev: Device) -> None:
    x = dev.zeros((4, 8))
    view, part = x.reshape(8, 4), x[1]
    view[2] = 7  # the first half of row 1
    assert x.numpy()[1].tolist() == [7.0] * 4 + [0.0] * 4
    part[0] = 5
    assert not part.numpy()[1:].any()
    assert x.numpy()[1, 0] == 7
    ragged = dev.zeros((2, 6)).reshape(4, 3)  # other texels, so a copy
    ragged[0] = 1
    assert ragged.numpy().sum() == 3


def test_a_value_that_shares_elements_counts_as_it_was(dev: Device) -> None:
    array = elements(np.random.default_rng(5), "float32", 6, 4)
    x = dev.tensor(array)
    x[::-1] = x
    assert same_bits(x.numpy(), array[::-1])
    x = dev.tensor(array)
    x[1:, 1:] = x[:-1, :-1]
    assert same_bits(x.numpy(), changed(array, s_[1:, 1:], array[:-1, :-1]))


@pytest.mark.slow
def test_values_of_another_type(dev: Device) -> None:
    numbers = np.float32([1.0005, 65520, -7e-8, np.nan, 2049])
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    for value in (numbers, numbers.astype(np.float64), dev.tensor(numbers)):
        x = dev.zeros((2, 5), "float16")
        x[1] = value
        assert np.array_equal(x.numpy()[1], halves, equal_nan=True), "renderers choose the bits of NaN"
    whole = dev.zeros(3, "int32")
    whole[1:] = np.int64([-(2**31), 5])
    floats = dev.zeros(3)
    floats[:] = whole
    assert floats.numpy().tolist() == [0, -(2**31), 5]
    floats[0] = np.float16(0.5)
    assert floats.numpy()[0] == 0.5


# Operators of tensors against NumPy


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
    for other in ("2", None, True, {}, 2j):
        with pytest.raises(TypeError, match="unsupported operand"):
            x + other
    for unclear in (lambda: x == x, lambda: x != ARRAY, lambda: bool(x), lambda: x in [whole]):
        with pytest.raises(TypeError, match=r"; (compare their|use its) elements, as in x\.numpy\(\)") as raised:
            unclear()
        assert isinstance(raised.value, InputError)
    assert {x: 1}[x] == 1
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
