"""Products of matrices against NumPy's float64: every strategy, broadcasting, and what must not leak in."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from flat_draw import FlatPlan
from tiers import tiered

from glinfer.errors import InputError
from glinfer.kernels.flat.matmul import matmul
from glinfer.kernels.flat.matmul_choice import LETTERS, MANY_ROWS, ONE_ROW, candidates, choose
from glinfer.kernels.flat.product import STRATEGIES, Finish, Product, Strategy
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Pass
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device

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


@tiered(
    "strategy",
    [
        Strategy("packed", targets=2),
        Strategy("packed", targets=8),
        Strategy("split_k", parts=7),
        Strategy("reduce", parts=1000),
    ],
    ids=lambda strategy: f"{strategy.name}-{strategy.targets}-{strategy.parts}",
)
def test_targets_and_parts_of_any_number(dev: Device, strategy: Strategy) -> None:
    check(dev, normal(11, 70), normal(70, 6), strategy=strategy)


def test_axes_broadcast_as_numpy_has_them(dev: Device) -> None:
    """Of more axes than a draw has, which are copied, too."""
    for x, y in (((2, 1, 3, 2, 7), (1, 4, 1, 7, 3)), ((2, 1, 2, 1, 2, 3, 4), (1, 2, 1, 3, 1, 4, 5))):
        check(dev, normal(*x), normal(*y, seed=1))


@tiered("strategy", STRATEGIES, keep=(4,))
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


@tiered("strategy", [None, *STRATEGIES])
def test_bias_activation_and_residual_are_applied_to_the_sums(dev: Device, strategy: str | None) -> None:
    m = 1 if strategy == "matvec" else 6
    x, weight, bias, residual = normal(m, 37), normal(7, 37), normal(7), normal(m, 7)
    z = x.astype(np.float64) @ weight.T + bias
    expected = z / (1.0 + np.exp(-z)) + residual
    with dev.tensor(x) as a, dev.tensor(weight) as b, dev.tensor(bias) as c, dev.tensor(residual) as d:
        y = dev.ops.linear(a, b, bias=c, activation="silu", residual=d, strategy=strategy)
        assert relative_error(y.numpy(), expected) <= TOLERANCE
        assert dev.ops.linear(a, b, bias=c, activation="silu", residual=d, strategy=strategy, out=y) is y
        y.release()
    assert dev.memory().textures == 0


def test_without_blending_nothing_blends(dev: Device) -> None:
    dev.blends_floats = False
    product = Product(4, 4, 100_000)
    assert "split_k" not in {strategy.name for strategy in candidates(product, dev.kernels, blends=False)}
    check(dev, normal(4, 4096), normal(4096, 4))
    refusal = pytest.raises(
        InputError, match=r"^matmul: strategy split_k cannot compute 1 products of 4×64 and 64×4 here; omit"
    )
    with dev.tensor(normal(4, 64)) as x, dev.tensor(normal(64, 4)) as y, refusal:
        dev.ops.matmul(x, y, strategy="split_k")
    assert dev.memory().textures == 0


def test_the_maps_are_rectangles_of_known_letters() -> None:
    for lines in (*ONE_ROW.values(), *MANY_ROWS.values()):
        assert len({len(line) for line in lines}) == 1
        assert set("".join(lines)) <= set(LETTERS)
    assert set(LETTERS.values()) == set(STRATEGIES)


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


@tiered(("kind", "window"), [("small", 4), ("packed", 1), ("packed", 30)])
def test_scores_outside_of_a_window_are_masked(dev: Device, small: Device, kind: str, window: int) -> None:
    """Scores of reference plans, key by key; in textures of 64 texels the matrices take several lines."""
    queries, keys, dim, heads = 9, 12, 70, 2
    product = Product(queries, keys, dim, True, None, (1, 1, heads), (heads, 1, 1), (heads, 1, 1))
    strategy = Strategy(kind, targets=2 if kind == "packed" else 1)
    for device in (dev, small):
        plan = FlatPlan(device.context)
        q, k = normal(heads, queries, dim), normal(heads, keys, dim, seed=1)
        specs = [plan.input(name, array.reshape(-1, dim)) for name, array in (("q", q), ("k", k))]
        finish, out = Finish(scale=0.5, causal=3, window=window), plan.scratch("out", heads * queries, keys)
        options: dict[str, Any] = {"product": product, "strategy": strategy, "finish": finish, "scratch": plan.scratch}
        plan.builder.draw(*matmul(Pass("scores", device.kernels), *specs, out, **options))
        wanted = 0.5 * q.astype(np.float64) @ k.swapaxes(1, 2)
        for head, query, key in np.ndindex(*wanted.shape):
            if not 0 <= 3 + query - key < window:
                wanted[head, query, key] = -1e30
        with plan.session(device.context, plan.case) as session:
            plan.bind(session, plan.arrays)
            session.run({})
            found = session.read("out").reshape(wanted.shape)
        hidden = wanted == -1e30
        assert np.array_equal(found[hidden], np.full(hidden.sum(), -1e30, np.float32))
        assert relative_error(found[~hidden], wanted[~hidden]) <= 2e-6
