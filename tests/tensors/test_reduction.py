"""Sums, largest elements and cross-entropies of rows: against NumPy, of any shape, and of awkward numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from flat_draw import FlatPlan, padding
from one_draw import normal
from tiers import tiered

from glinfer.errors import InputError, PlanError
from glinfer.gl.context import Device as Context
from glinfer.kernels.flat.stats import STATS, summarize
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Pass
from glinfer.tensors.device import Device
from qa.kernels.cases.sorting import expected

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
INF, NAN, LARGEST = np.inf, np.nan, float(np.finfo(np.float32).max)


# As NumPy has them

REDUCED = {"sum": np.sum, "max": np.max, "argmax": np.argmax}


AWKWARD = np.array(
    [
        [-3.0, -1.0, -2.0, -1.0, -5.0],  # the padding's zeros are larger than all of these
        [NAN, 1.0, 2.0, 3.0, 4.0],
        [1.0, 2.0, INF, NAN, NAN],
        [INF, 2.0, INF, 3.0, 4.0],
        [-INF, -INF, -INF, -INF, -INF],
        [-INF, 2.0, INF, 0.0, 0.0],
        [-LARGEST, -LARGEST, -LARGEST, -LARGEST, -LARGEST],
        [-INF, -LARGEST, -INF, -LARGEST, -INF],
        [-0.0, 0.0, -0.0, 0.0, -1.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [-1e30, -1e30, -1e30, -1e30, -1e30],
        [2.0, 1.0, 2.0, 1.0, 2.0],
    ],
    dtype=np.float32,
)


@tiered("spread", [1, 130], ids=["in one texel", "over parts"], keep=(0,))
@pytest.mark.parametrize("name", REDUCED)
def test_awkward_numbers_as_in_numpy(dev: Device, name: str, spread: int) -> None:
    """``spread`` repeats every element, so that ties, NaN and infinities come in several lanes, texels and parts."""
    x = np.repeat(AWKWARD, spread, axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = REDUCED[name](x, axis=-1)
    found = getattr(dev.ops, name)(dev.tensor(x)).numpy()
    if name == "sum":
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)


def test_every_nan_is_the_largest(dev: Device) -> None:
    for bits in (0x7F800001, 0x7FC00000, 0xFFC00000, 0xFF800001):
        x = np.array([1, INF, 0, 5], dtype=np.float32)
        x.view(np.uint32)[2] = bits
        assert int(dev.ops.argmax(dev.tensor(x)).numpy()) == 2, hex(bits)
        assert np.isnan(dev.ops.max(dev.tensor(x)).numpy()), hex(bits)


@pytest.mark.slow
def test_the_first_of_equals_wherever_it_lies(dev: Device) -> None:
    x = np.zeros((1540, 1540), dtype=np.float32)
    rows = np.arange(len(x))
    x[rows, rows] = 1.0  # one in every lane and every part, and as large a one in the last column
    x[:, -1] = 1.0
    np.testing.assert_array_equal(dev.ops.argmax(dev.tensor(x)).numpy(), rows)


@pytest.mark.slow
def test_long_sums_keep_their_digits(dev: Device) -> None:
    """Added one after the other in float32 these are off by 1e-3: each rounding errs to the same side."""
    x = np.full((2, 500_000), 0.1, dtype=np.float32)
    x[1] = np.random.default_rng(1).random(x.shape[1], dtype=np.float32)
    np.testing.assert_allclose(dev.ops.sum(dev.tensor(x)).numpy(), x.astype(np.float64).sum(axis=1), rtol=4e-7)


def test_cross_entropy_of_awkward_rows(dev: Device) -> None:
    rows = [[-INF] * 5, [-1e30] * 5, [-INF, 1, 2, 3, 4], [100, -100, 88, 0, 0], [-INF, 0, -INF, -INF, -INF]]
    losses = dev.ops.cross_entropy(dev.tensor(np.array(rows, np.float32)), dev.tensor(np.array([4, 1, 0, 1, 1])))
    np.testing.assert_allclose(losses.numpy(), [np.log(5), np.log(5), INF, 200, 0], rtol=1e-6)


def test_cross_entropy_leaves_rows_out(dev: Device) -> None:
    """A target that is no column has no loss, whatever its row holds."""
    logits = np.array([[1, 2, 3], [NAN, 1, 2], [INF, 0, 0], [1, 2, 3]], dtype=np.float32)
    targets = dev.tensor(np.array([-100, 3, 2**31 - 1, -(2**31)], dtype=np.int32))
    assert dev.ops.cross_entropy(dev.tensor(logits), targets).numpy().tolist() == [0, 0, 0, 0]


# In plans


@tiered(("stat", "lookup"), [*((stat, False) for stat in STATS), ("sum", True)], keep=0)
def test_statistics_and_their_merging(device: Context, stat: str, lookup: bool) -> None:
    """9 rows of 1053 columns: 264 texels, in 5 parts for many readers, which a draw merges into 1."""
    plan = FlatPlan(device)
    x = plan.input("x", normal(1, 9, 1053, offset=3.0))
    draw = Pass("s", KernelOptions(lookup_texture=lookup))
    plan.builder.draw(*summarize(draw, x, stat=stat, readers=1 << 20, scratch=plan.scratch)[1])
    errors = plan.errors()
    assert list(errors) == ["s.stats", "s.stats.1"]
    assert max(errors.values()) < 1e-6, errors


def test_draws_that_do_not_fit_are_refused(device: Context) -> None:
    plan = FlatPlan(device)
    x = plan.input("x", normal(1, 6, 8))
    given, options = Pass("s", KernelOptions()), {"readers": 1, "scratch": plan.scratch}
    with pytest.raises(PlanError, match=r"^draw s: there are no statistics 'mode'; known: sum, squares, moments, .*"):
        summarize(given, x, stat="mode", **options)
    _, (draw,) = summarize(given, x, stat="sum", **options)
    wider = dataclasses.replace(draw, outputs=(plan.scratch("y", 6, 8).name,))
    plan.refuses(lambda: wider, r"output is \[6, 8\]; expected \[6, 4\]")


# top_k


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


def test_lists_that_fit_no_texture_are_refused(small: Device) -> None:
    with small.tensor(np.zeros((800, 17), np.float32)) as x:
        with pytest.raises(InputError, match="top_k: a 6400×4 matrix takes 6400 texels"):
            small.ops.top_k(x, 17)
        assert small.memory().tensors == 1
