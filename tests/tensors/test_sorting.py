"""top_k: every order, every k, and what is no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flat_draw import padding
from tiers import tiered

from glinfer.errors import InputError
from glinfer.tensors.device import Device
from qa.kernels.cases.sorting import expected

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]


def assert_top_k(device: Device, x: Array, k: int) -> tuple[Array, Array]:
    """Values bit for bit those of x, indices those of a stable sort; nothing stays behind."""
    with device.tensor(x) as tensor:
        before = device.memory().tensors
        values, indices = device.ops.top_k(tensor, k)
        found = values.numpy(), indices.numpy()
        assert device.memory().tensors == before + 2
        assert not any(padding(result).any() for result in (values, indices))
        values.release()
        indices.release()
    assert (values.dtype, indices.dtype) == ("float32", "int32")
    order = expected(x, k)[1].astype(np.int64)
    np.testing.assert_array_equal(found[1], order)
    wanted = np.take_along_axis(x.astype(np.float32), order, axis=-1)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found[0]), ~number)
    np.testing.assert_array_equal(found[0][number].view(np.uint32), wanted[number].view(np.uint32))
    return found


def rows_of_every_kind(n: int) -> Array:
    """Rows in which a merge takes its elements from one side, from both by turns, or meets nothing but ties."""
    falling, random = np.arange(n, 0, -1.0), np.random.default_rng(3)
    turns = np.where(np.arange(n) // 16 % 2 == 0, 2 * falling, 2 * falling[::-1] + 1)
    block = np.where(np.arange(n) // 16 == 2, 1e6, 0.0) + falling
    ties = np.tile([1.0, 2.0, 2.0, 1.0], n)[:n]
    shuffled = [random.permutation(falling) for _ in range(4)]
    rows = [falling, falling[::-1], turns, turns[::-1], block, ties, np.zeros(n), np.repeat(falling, 7)[:n], *shuffled]
    return np.stack(rows).astype(np.float32)


@tiered("k", [1, 5, 16, 65, 203], keep=(3,))
def test_every_order_and_every_k(dev: Device, k: int) -> None:
    assert_top_k(dev, rows_of_every_kind(203), k)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_what_is_no_number_zeros_of_both_signs_and_the_smallest_numbers(dev: Device) -> None:
    rng = np.random.default_rng(5)
    numbers = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0, 0x80000000, 1, 0x80000001]
    numbers += [0x7F7FFFFF, 0xFF7FFFFF, 0x007FFFFF, 0x00800000, 0x807FFFFF, 0x80800000, 0x3F800000, 0xBF800000]
    odd = np.array(numbers, np.uint32).view(np.float32)
    x = rng.choice(odd, (40, 61))
    x[0], x[1], x[2] = np.nan, -np.inf, -0.0
    assert_top_k(dev, x, 61)
    values, indices = assert_top_k(dev, np.array([[-np.inf, np.nan, -0.0, np.inf, 0.0, -1.0]], np.float32), 6)
    assert indices.tolist() == [[1, 3, 2, 4, 5, 0]]
    assert np.signbit(values[0, 2:4]).tolist() == [True, False]


@pytest.mark.slow
def test_half_floats_of_every_kind(dev: Device) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert_top_k(dev, np.random.default_rng(6).permutation(every)[None, :4000], 100)


def test_lists_that_fit_no_texture_are_refused(small: Device) -> None:
    with small.tensor(np.zeros((800, 17), np.float32)) as x:
        with pytest.raises(InputError, match="top_k: a 6400×4 matrix takes 6400 texels"):
            small.ops.top_k(x, 17)
        assert small.memory().tensors == 1


def test_bad_calls_are_refused(dev: Device) -> None:
    with dev.tensor(np.zeros((3, 5), np.float32)) as x:
        for k in (0, -1, 6, True, 2.0, None):
            with pytest.raises(InputError) as refused:
                dev.ops.top_k(x, k)
            assert str(refused.value) == f"top_k: k is {k!r} and x is [3, 5]; expected k from 1 to 5"
        assert dev.memory().tensors == 1
    for values, message in (
        ([3, 1, 2], r"x is \[3\] of int32; expected float32 or"),
        (1.5, "x is a single number; expected at least one axis"),
    ):
        with dev.tensor(values) as x, pytest.raises(InputError, match=f"top_k: {message}"):
            dev.ops.top_k(x, 1)
