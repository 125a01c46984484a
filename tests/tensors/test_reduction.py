"""Sums, largest elements and cross-entropies of rows: against NumPy, of any shape, and of awkward numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_draw import RowsPlan, padding, worst
from one_draw import normal
from tiers import tiered

from glinfer.errors import InputError, PlanError
from glinfer.gl.context import Device as Context
from glinfer.ops.flat.normalize import cross_entropy
from glinfer.ops.flat.stats import STATS, Causal, largest_column, merge_stats, row_stats, stat_column, summarize
from glinfer.ops.kernels import KernelOptions
from glinfer.tensors.device import Device
from qa.kernels.cases.case import KernelCase
from qa.kernels.cases.reduction import CASES

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
INF, NAN, LARGEST = np.inf, np.nan, float(np.finfo(np.float32).max)
# Of one part, of a few, and of so many that a draw of its own merges them.
SHAPES = [(1, 1), (5, 3), (13, 128), (3, 514), (40, 1539), (1, 300001)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_cases(dev: Device, case: KernelCase) -> None:
    for rows, cols in SHAPES:
        assert worst(dev, case, rows, cols, "float32") <= min(case.tolerance, 1e-6), (rows, cols)
    assert worst(dev, case, 3, 514, "float16") <= min(case.tolerance, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_cases_in_small_textures(small: Device, case: KernelCase) -> None:
    for rows, cols in ((7, 1030), (60, 250)):
        assert worst(small, case, rows, cols, "float32") <= min(case.tolerance, 1e-6), (rows, cols)


# As NumPy has them

REDUCED = {"sum": np.sum, "max": np.max, "argmax": np.argmax}


@pytest.mark.parametrize("name", REDUCED)
def test_axes_as_in_numpy(dev: Device, name: str) -> None:
    reduce = getattr(dev.ops, name)
    for shape in ((7,), (1,), (2, 3, 6), (3, 1, 2, 5)):
        x = np.round(normal(1, *shape, scale=9.0))
        tensor = dev.tensor(x)
        for keepdims in (False, True):
            expected = np.asarray(REDUCED[name](x, axis=-1, keepdims=keepdims))
            y = reduce(tensor, keepdims=keepdims)
            assert (y.shape, y.dtype) == (expected.shape, "int32" if name == "argmax" else "float32")
            np.testing.assert_array_equal(y.numpy(), expected)
            assert not padding(y).any()
    view = dev.tensor(np.round(normal(1, 4, 12))).reshape(3, 2, 8)
    np.testing.assert_array_equal(reduce(view).numpy(), REDUCED[name](view.numpy(), axis=-1))


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


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0xFFC00000, 0xFF800001])
def test_every_nan_is_the_largest(dev: Device, bits: int) -> None:
    x = np.array([1, INF, 0, 5], dtype=np.float32)
    x.view(np.uint32)[2] = bits
    assert int(dev.ops.argmax(dev.tensor(x)).numpy()) == 2
    assert np.isnan(dev.ops.max(dev.tensor(x)).numpy())


def test_the_first_of_equals_wherever_it_lies(dev: Device) -> None:
    x = np.zeros((1540, 1540), dtype=np.float32)
    rows = np.arange(len(x))
    x[rows, rows] = 1.0  # one in every lane and every part, and as large a one in the last column
    x[:, -1] = 1.0
    np.testing.assert_array_equal(dev.ops.argmax(dev.tensor(x)).numpy(), rows)


def test_long_sums_keep_their_digits(dev: Device) -> None:
    """Added one after the other in float32 these are off by 1e-3: each rounding errs to the same side."""
    x = np.full((2, 500_000), 0.1, dtype=np.float32)
    x[1] = np.random.default_rng(1).random(x.shape[1], dtype=np.float32)
    np.testing.assert_allclose(dev.ops.sum(dev.tensor(x)).numpy(), x.astype(np.float64).sum(axis=1), rtol=4e-7)


def test_cross_entropy_of_awkward_rows(dev: Device) -> None:
    rows = [[-INF] * 5, [-1e30] * 5, [-INF, 1, 2, 3, 4], [100, -100, 88, 0, 0], [-INF, 0, -INF, -INF, -INF]]
    losses = dev.ops.cross_entropy(dev.tensor(np.array(rows, np.float32)), dev.tensor(np.array([4, 1, 0, 1, 1])))
    np.testing.assert_allclose(losses.numpy(), [np.log(5), np.log(5), INF, 200, 0], rtol=1e-6)


@pytest.mark.slow
def test_cross_entropy_leaves_rows_out(dev: Device) -> None:
    logits = np.array([[1, 2, 3], [NAN, 1, 2], [INF, 0, 0], [1, 2, 3], [NAN, 1, 2]], dtype=np.float32)
    targets = dev.tensor(np.array([-100, 3, 2**31 - 1, -(2**31), 1], dtype=np.int32))
    losses = dev.ops.cross_entropy(dev.tensor(logits), targets)
    np.testing.assert_array_equal(losses.numpy(), [0, 0, 0, 0, NAN])
    batch = normal(1, 2, 3, 7)
    wanted = np.array([[0, 6, 3], [-1, 2, 7]], dtype=np.int32)
    found = dev.ops.cross_entropy(dev.tensor(batch), dev.tensor(wanted))
    assert found.shape == (2, 3)
    assert not padding(found).any()
    exact = np.log(np.exp(batch.astype(np.float64)).sum(axis=-1))
    exact -= np.take_along_axis(batch, wanted.clip(0, 6)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found.numpy(), np.where((wanted >= 0) & (wanted < 7), exact, 0.0), rtol=1e-6)
    one = dev.ops.cross_entropy(dev.tensor(batch[0, 0]), dev.tensor(np.int32(2)))
    assert one.shape == ()
    np.testing.assert_allclose(one.numpy(), np.log(np.exp(batch[0, 0]).sum()) - batch[0, 0, 2], rtol=1e-6)


# Draws, results and refusals


@tiered(("shape", "draws"), [((512, 512), 2), ((1, 70001), 2), ((1, 300001), 3), ((16385, 1025), 3)], keep=(1,))
def test_draws(dev: Device, shape: tuple[int, int], draws: int) -> None:
    """Two, but where one fragment would have too many parts to merge, or all of them together."""
    x = np.random.default_rng(1).integers(0, 255, shape, dtype=np.uint8).astype(np.float16)
    before = dev.draws_issued
    y = dev.ops.sum(dev.tensor(x))
    assert dev.draws_issued - before == draws
    np.testing.assert_allclose(y.numpy(), x.sum(axis=1, dtype=np.float64), rtol=1e-6)


@pytest.mark.slow
def test_results_go_where_they_should(dev: Device) -> None:
    x = dev.tensor(normal(1, 3, 6))
    for call, dtype in ((dev.ops.sum, "float32"), (dev.ops.max, "float32"), (dev.ops.argmax, "int32")):
        out = dev.tensor(np.ones(3, dtype=dtype))
        assert call(x, out=out) is out
        np.testing.assert_array_equal(out.numpy(), call(x).numpy())
    with pytest.raises(InputError, match=r"^argmax: out is \[3\] of float32; the result is \[3\] of int32$"):
        dev.ops.argmax(x, out=dev.tensor(np.ones(3, dtype=np.float32)))
    with pytest.raises(InputError, match=r"^sum: out is \[3\] of float32; the result is \[3, 1\] of float32$"):
        dev.ops.sum(x, keepdims=True, out=dev.tensor(np.ones(3, dtype=np.float32)))


def test_refusals(dev: Device) -> None:
    x = dev.tensor(normal(1, 3, 7))
    with pytest.raises(InputError, match=r"^sum: x is a single number, without axes; expected at least one axis$"):
        dev.ops.sum(dev.tensor(np.float32(1)))
    with pytest.raises(InputError, match=r"^max: x is \[2\] of int32; expected float32 or float16$"):
        dev.ops.max(dev.tensor(np.array([1, 2])))
    expected = r"^cross_entropy: logits is \[3, 7\] and targets \[4\] of int32; expected targets \[3\] of int32$"
    with pytest.raises(InputError, match=expected):
        dev.ops.cross_entropy(x, dev.tensor(np.array([1, 2, 3, 4])))
    with pytest.raises(InputError, match=r"targets \[3\] of float32; expected targets \[3\] of int32$"):
        dev.ops.cross_entropy(x, dev.tensor(np.array([1, 2, 3], dtype=np.float32)))
    with pytest.raises(InputError, match=r"^argmax: x is \[16777217\]; expected at most 16777216 columns"):
        dev.ops.argmax(dev.tensor(np.zeros((1 << 24) + 1, dtype=np.float16)))


# In plans


@tiered("lookup", [False, True], ids=["texelFetch", "texture"])
@tiered("stat", STATS, keep=(0, 1))
def test_statistics_and_their_merging(device: Context, stat: str, lookup: bool) -> None:
    """7 of 9 rows of 53 columns: 14 texels, in 5 parts of 3, merged into 2 and then into 1."""
    kernels = KernelOptions(lookup_texture=lookup)
    plan = RowsPlan(device, 7, 9)
    x = plan.matrix("x", normal(1, 9, 53, offset=3.0))
    parts, fewer, one = (plan.scratch(f"parts{count}", 9, 4 * count) for count in (5, 2, 1))
    plan.builder.draw(
        row_stats("stats", "stats", x, parts, stat=stat, kernels=kernels, rows="rows"),
        merge_stats("merge", "stats", parts, fewer, stat=stat, kernels=kernels, rows="rows"),
        merge_stats("finish", "stats", fewer, one, stat=stat, kernels=kernels, rows="rows"),
    )
    errors = plan.errors()
    assert list(errors) == ["stats", "merge", "finish"]
    assert max(errors.values()) < 1e-6, errors


def test_what_is_read_off_statistics_in_a_plan(device: Context) -> None:
    kernels = KernelOptions()
    plan = RowsPlan(device, 6, 6)
    x = plan.matrix("x", normal(1, 6, 1030, offset=1.0))
    targets = plan.vector("targets", np.array([[0, 1029, 513], [-1, 1030, 7]], dtype=np.int32))
    for stat in ("sum", "largest", "exponents"):
        stats, draws = summarize(stat, stat, x, stat=stat, readers=6, scratch=plan.scratch, kernels=kernels)
        plan.builder.draw(*draws)
        out = plan.scratch(f"{stat}.out", 2, 3)
        if stat == "exponents":
            plan.builder.draw(cross_entropy(stat, stat, x, stats, targets, out, kernels=kernels))
            continue
        plan.builder.draw(stat_column(stat, stat, stats, out, stat=stat, kernels=kernels))
        if stat == "largest":
            where = plan.whole_numbers("where", 6, 1)
            plan.builder.draw(largest_column("where", stat, stats, where, cols=1030, kernels=kernels))
    errors = plan.errors()
    assert set(errors) == {"sum.stats", "sum", "largest.stats", "largest", "where", "exponents.stats", "exponents"}
    assert max(errors.values()) < 1e-6, errors


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda plan, x, out: row_stats("s", "s", x, out, stat="mode", kernels=KernelOptions()),
            "no statistics 'mode'",
        ),
        (
            lambda plan, x, out: row_stats("s", "s", x, out, stat="sum", kernels=KernelOptions(), causal=Causal(1, 0)),
            "only exponents can stop at a column",
        ),
        (
            lambda plan, x, out: stat_column("s", "s", x, out, stat="moments", kernels=KernelOptions()),
            "expected sum or largest",
        ),
        (
            lambda plan, x, out: largest_column("s", "s", x, out, cols=1 << 25, kernels=KernelOptions()),
            "rows of 33554432 columns; expected at most 16777216",
        ),
        (
            lambda plan, x, out: row_stats("s", "s", x, plan.scratch("y", 4, 4), stat="sum", kernels=KernelOptions()),
            r"output is \[4, 4\]; expected \[6, 4\]",
        ),
        (
            lambda plan, x, out: stat_column("s", "s", x, plan.scratch("y", 2, 4), stat="sum", kernels=KernelOptions()),
            r"stats is \[6, 8\]; expected \[8, any\]",
        ),
    ],
)
def test_plans_that_do_not_fit(device: Context, wrong: Callable[..., Any], message: str) -> None:
    plan = RowsPlan(device, 6, 6)
    x, out = plan.matrix("x", normal(1, 6, 8)), plan.scratch("out", 6, 4)

    def build() -> None:
        plan.builder.draw(wrong(plan, x, out))
        plan.builder.build()

    with pytest.raises(PlanError, match=rf"^draw s: .*{message}"):
        build()
