"""Products of matrices against NumPy's float64: every strategy, broadcasting, and what must not leak in."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tiers import tiered

from glinfer.errors import InputError
from glinfer.gl.context import Limits
from glinfer.models.oracle import relative_error
from glinfer.ops.flat.matmul_choice import candidates, choose
from glinfer.ops.flat.product import STRATEGIES, Product, Strategy
from glinfer.ops.kernels import KernelOptions
from glinfer.tensors.device import Device
from glinfer.tensors.matmul import batch_of, joined

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-6


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def check(dev: Device, x: Array, y: Array, **options: Any) -> Array:
    expected = np.asarray(x.astype(np.float64) @ y.astype(np.float64))
    with dev.tensor(x) as left, dev.tensor(y) as right, dev.ops.matmul(left, right, **options) as product:
        found = product.numpy()
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    # The error of a sum of float32 numbers grows with the root of how many there are.
    assert relative_error(found, expected) <= TOLERANCE + 5e-8 * x.shape[-1] ** 0.5
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_agrees_with_numpy(dev: Device, strategy: str) -> None:
    shapes = [(1, 1, 1), (1, 33, 257), (1, 5, 3)] if strategy == "matvec" else [(2, 1, 1), (9, 7, 13), (31, 33, 65)]
    for m, n, k in shapes:
        check(dev, normal(m, k), normal(k, n), strategy=strategy)


@tiered(
    "strategy",
    [
        Strategy("packed", targets=2),
        Strategy("packed", targets=4),
        Strategy("packed", targets=8),
        Strategy("split_k", parts=7),
        Strategy("reduce", parts=7),
        Strategy("reduce", parts=1000),
    ],
    ids=lambda strategy: f"{strategy.name}-{strategy.targets}-{strategy.parts}",
    keep=(0, 1),
)
def test_targets_and_parts_of_any_number(dev: Device, strategy: Strategy) -> None:
    check(dev, normal(11, 70), normal(70, 6), strategy=strategy)


@tiered(
    ("x", "y"),
    [
        ((5,), (5,)),
        ((5,), (5, 7)),
        ((3, 5), (5,)),
        ((2, 3, 5), (5,)),
        ((5,), (2, 5, 3)),
        ((2, 3, 5), (5, 6)),
        ((2, 3, 5), (2, 5, 6)),
        ((3, 5), (2, 5, 6)),
        ((4, 1, 3, 6), (3, 6, 5)),
        ((2, 1, 3, 2, 7), (1, 4, 1, 7, 3)),
        ((2, 1, 2, 1, 3, 4), (1, 3, 1, 2, 4, 5)),
        ((1, 1), (1, 1)),
    ],
    keep=(0, 5, 9),
    ids=str,
)
def test_axes_broadcast_as_numpy_has_them(dev: Device, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    check(dev, normal(*x), normal(*y, seed=1))


@pytest.mark.slow
def test_more_axes_than_a_draw_has_are_copied(dev: Device) -> None:
    x, y = (2, 1, 2, 1, 2, 3, 4), (1, 2, 1, 3, 1, 4, 5)
    assert batch_of(x[:-2], y[:-2]) is None
    check(dev, normal(*x), normal(*y))


def test_rows_that_meet_the_same_weight_become_one_matrix() -> None:
    batch = batch_of((4, 6), ())
    assert batch is not None
    product = Product(3, 5, 7, batch=batch.sizes, x_steps=batch.x_steps, weight_steps=batch.y_steps)
    assert joined(product) == Product(72, 5, 7)
    batch = batch_of((4, 6), (4, 1))
    assert batch is not None
    product = Product(3, 5, 7, batch=batch.sizes, x_steps=batch.x_steps, weight_steps=batch.y_steps)
    assert joined(product) == Product(18, 5, 7, batch=(1, 4, 1), x_steps=(0, 1, 0), weight_steps=(0, 1, 0))


@tiered("strategy", STRATEGIES, keep=(0, 3))
def test_what_lies_behind_a_matrix_does_not_leak_in(dev: Device, strategy: str) -> None:
    # Sums over 5: the fourth texel of a step belongs to the next matrix, which is full of infinities.
    m = 1 if strategy == "matvec" else 4
    x, y = normal(m, 5), np.full((2, 5, 6), np.inf, dtype=np.float32)
    y[0] = normal(5, 6)
    with dev.tensor(x) as left, dev.tensor(y) as both, dev.ops.slice(both, 0) as right:
        assert right.shape == (5, 6)
        with dev.ops.matmul(left, right, strategy=strategy) as product:
            assert relative_error(product.numpy(), x.astype(np.float64) @ y[0]) <= TOLERANCE
    if strategy != "matvec":
        with dev.tensor(np.stack([x, x])) as left, dev.tensor(y) as both, dev.ops.matmul(left, both) as product:
            assert np.isfinite(product.numpy()[0]).all()


def test_infinities_and_nans_give_what_numpy_gives(dev: Device) -> None:
    x, y = normal(3, 6), normal(6, 5)
    x[0, 5], y[5, 1], y[2, 3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = x @ y
    with dev.tensor(x) as left, dev.tensor(y) as right, dev.ops.matmul(left, right) as product:
        found = product.numpy()
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(np.isinf(found), np.isinf(expected))


@tiered("strategy", [*STRATEGIES, None], keep=(0, 3))
def test_everything_is_done_to_the_sums(dev: Device, strategy: str | None) -> None:
    m = 1 if strategy == "matvec" else 6
    x, weight, bias, residual = normal(m, 37), normal(7, 37), normal(7), normal(m, 7)
    z = x.astype(np.float64) @ weight.T + bias
    expected = z / (1.0 + np.exp(-z)) + residual
    with dev.tensor(x) as a, dev.tensor(weight) as b, dev.tensor(bias) as c, dev.tensor(residual) as d:
        y = dev.ops.linear(a, b, bias=c, activation="silu", residual=d, strategy=strategy)
        assert relative_error(y.numpy(), expected) <= TOLERANCE
        again = dev.ops.linear(a, b, bias=c, activation="silu", residual=d, strategy=strategy, out=y)
        assert again is y
        y.release()
    assert dev.memory().textures == 0


@pytest.mark.slow
def test_dot_is_numpys(dev: Device) -> None:
    for shape_x, shape_y in [
        ((4,), (4,)),
        ((2, 3, 4), (5, 2, 4, 3)),
        ((3, 4), (4, 2)),
        ((2, 3), ()),
        ((), (2, 3)),
        ((4,), (2, 4, 3)),
    ]:
        x, y = normal(*shape_x), normal(*shape_y, seed=1)
        expected = np.asarray(np.dot(x.astype(np.float64), y.astype(np.float64)))
        with dev.tensor(x) as left, dev.tensor(y) as right, dev.ops.dot(left, right) as product:
            assert product.shape == expected.shape
            assert relative_error(product.numpy(), expected) <= TOLERANCE
    assert dev.memory().tensors == 0


@pytest.mark.slow
def test_matrices_larger_than_a_line_of_the_largest_texture() -> None:
    with Device(limits=dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=64)) as small:
        for strategy in ("packed", "small", "reduce"):
            check(small, normal(33, 130), normal(130, 67), strategy=strategy)
        assert small.kernels.rows_per_draw == 4
    with Device() as large:
        check(large, normal(2, 70001), normal(70001, 3))


def test_without_blending_nothing_blends(dev: Device) -> None:
    dev.blends_floats = False
    product = Product(4, 4, 100_000)
    assert "split_k" not in {strategy.name for strategy in candidates(product, dev.kernels, blends=False)}
    check(dev, normal(4, 4096), normal(4096, 4))
    told = pytest.raises(InputError, match=r"^strategy split_k cannot compute 1 products of 4×64 and 64×4 here; leave")
    with dev.tensor(normal(4, 64)) as x, dev.tensor(normal(64, 4)) as y, told:
        dev.ops.matmul(x, y, strategy="split_k")
    assert dev.memory().textures == 0


def test_the_choice_is_among_what_can_be_computed() -> None:
    for kernels in (
        KernelOptions(rows_per_draw=4),
        KernelOptions(rows_per_draw=8, lookup_texture=True),
        KernelOptions(quad=False),
    ):
        for blends in (False, True):
            for shape in ((1, 1, 1), (1, 512, 512), (1, 4, 99999), (64, 64, 64), (2000, 3, 9), (5, 3, 40000)):
                product = Product(*shape)
                assert choose(product, kernels, blends=blends) in candidates(product, kernels, blends=blends)
    layer, llvmpipe = Product(1, 2048, 2048, transposed=True), KernelOptions(product_table="llvmpipe")
    assert choose(layer, llvmpipe, blends=True).name == "matvec"
    assert choose(dataclasses.replace(layer, table_format="Q4_K"), llvmpipe, blends=True).name == "reduce"


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((3, 4), (5, 6), r"matmul: x is \[3, 4\] and y is \[5, 6\]; they sum over 4 and 5 elements"),
        ((3, 4), (5,), r"matmul: x is \[3, 4\] and y is \[5\]; they sum over 4 and 5 elements"),
        ((2, 3, 4), (3, 4, 5), r"matmul: x is \[2, 3, 4\] and y is \[3, 4, 5\]; their leading axes do not broadcast"),
        ((), (4, 5), r"matmul: x is \[\] and y is \[4, 5\]; both need an axis to sum over"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_both_named(dev: Device, x: Any, y: Any, message: str) -> None:
    with (
        dev.tensor(normal(*x)) as left,
        dev.tensor(normal(*y)) as right,
        pytest.raises(InputError, match=f"^{message}$"),
    ):
        dev.ops.matmul(left, right)


def test_what_is_no_option_is_refused(dev: Device) -> None:
    with dev.tensor(normal(3, 4)) as x, dev.tensor(normal(4, 5)) as y, dev.tensor([1, 2, 3]) as whole:
        with pytest.raises(
            InputError, match=r"^there is no strategy 'fast'; known: packed, small, split_k, reduce, matvec$"
        ):
            dev.ops.matmul(x, y, strategy="fast")
        with pytest.raises(InputError, match=r"^strategy matvec cannot compute 1 products of 3×4 and 4×5 here; "):
            dev.ops.matmul(x, y, strategy="matvec")
        with pytest.raises(
            InputError, match=r"^matmul: there is no activation 'relu'; known: none, gelu_new, gelu, silu, tanh$"
        ):
            dev.ops.matmul(x, y, activation="relu")
        with pytest.raises(InputError, match=r"^matmul: bias is \[3, 4\]; expected \[5\]$"):
            dev.ops.matmul(x, y, bias=x)
        with pytest.raises(InputError, match=r"^matmul: residual is \[3, 4\]; expected \[3, 5\], as the result$"):
            dev.ops.matmul(x, y, residual=x)
        with pytest.raises(InputError, match=r"^matmul: y is \[3\] of int32; expected float32 or float16$"):
            dev.ops.matmul(x, whole)
        with pytest.raises(
            InputError, match=r"^linear: x is \[3, 4\] and weight is \[4, 5\]; they sum over 4 and 5 elements$"
        ):
            dev.ops.linear(x, y)
        with pytest.raises(InputError, match=r"^draw matmul: 8 targets take as many rows; found matrices of 3$"):
            dev.ops.matmul(x, y, strategy=Strategy("packed", targets=8))
    assert dev.memory().tensors == 0


def test_results_are_released_when_a_call_fails(dev: Device) -> None:
    with dev.tensor(normal(3, 4)) as x, dev.tensor(normal(4, 5)) as y:
        before = dev.memory()
        with pytest.raises(InputError):
            dev.ops.matmul(x, y, strategy=Strategy("packed", targets=8))
        assert dev.memory().tensors == before.tensors
