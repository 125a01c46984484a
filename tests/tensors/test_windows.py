"""Windows of scores in the products of reference plans, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tiers import tiered

from glinfer.gl.context import Limits, open_device
from glinfer.models.plan import Plan, PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.flat.matmul import matmul
from glinfer.ops.flat.product import Finish, Product, Strategy
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import RunValue, TensorSpec

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
TOLERANCE = 2e-6
POSITIONS = 23
RUN_VALUES = [RunValue("position", 0, POSITIONS - 1)]


class Bench:
    """A plan of some draws over random inputs, its textures filled before it runs."""

    def __init__(self, device: Any, kernels: KernelOptions, edge: int) -> None:
        self.device, self.kernels, self.edge = device, kernels, edge
        self.builder = PlanBuilder("bench", 1, RUN_VALUES)
        self.arrays: dict[str, Array] = {}
        self.rng = np.random.default_rng(0)

    def input(self, name: str, rows: int, cols: int) -> TensorSpec:
        self.arrays[name] = self.rng.standard_normal((rows, cols)).astype(np.float32)
        return self.builder.flat(name, "input", rows, cols, "rgba32f", self.edge)

    def out(self, name: str, rows: int, cols: int, kind: str = "activation") -> TensorSpec:
        return self.builder.flat(name, kind, rows, cols, "rgba32f", self.edge)

    def run(self, plan: Plan, runs: list[dict[str, int]], fill: float) -> Iterator[tuple[Session, dict[str, int]]]:
        """Run a plan with some values after each other, over outputs that hold one number at the beginning."""
        session = Session(plan, {}, self.device)
        try:
            for tensor in plan.tensors:
                if tensor.kind != "input":
                    session.texture(tensor.name).fill(fill)
            for name, array in self.arrays.items():
                session.write(name, array)
            for values in runs:
                session.run(values)
                yield session, values
        finally:
            session.release()


@pytest.fixture(params=["usual", pytest.param("least", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest) -> Iterator[Callable[[], Bench]]:
    """Makes benches on one device: the usual one, or what WebGL2 guarantees, with matrices over many lines."""
    least = request.param == "least"
    kernels = KernelOptions(rows_per_draw=4) if least else KernelOptions(rows_per_draw=8, lookup_texture=True)
    with open_device(limits=Limits.webgl2_minimum() if least else None) as device:
        yield lambda: Bench(device, kernels, 21 if least else 2048)


def close(found: Array, expected: Array) -> bool:
    assert found.shape == expected.shape
    return bool(np.abs(found - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max()))


def windowed(scores: Array, before: int, window: int) -> Array:
    """Scores [queries, keys] with −inf where a query does not look: written out, key by key."""
    found = scores.copy()
    for query, key in np.ndindex(*scores.shape):
        distance = before + query - key
        if distance < 0 or (window and distance >= window):
            found[query, key] = -np.inf
    return found


@tiered(("kind", "window"), [("small", 4), ("packed", 1), ("packed", 30)])
def test_scores_outside_of_a_window_are_masked(bench: Callable[[], Bench], kind: str, window: int) -> None:
    queries, keys, dim, heads = 9, 12, 6, 2
    made = bench()
    q, k = made.input("q", heads * queries, dim), made.input("k", heads * keys, dim)
    out = made.out("out", heads * queries, keys)
    product = Product(
        queries, keys, dim, transposed=True, batch=(1, 1, heads), x_steps=(heads, 1, 1), weight_steps=(heads, 1, 1)
    )
    strategy, finish = Strategy(kind, targets=2 if kind == "packed" else 1), Finish(scale=0.5, causal=3, window=window)
    options = {"product": product, "strategy": strategy, "finish": finish, "kernels": made.kernels}
    made.builder.draw(*matmul("scores", "scores", q, k, out, scratch=made.out, **options))
    plan = made.builder.build()
    for session, _ in made.run(plan, [{"position": 0}], np.nan):
        by_head = (made.arrays[name].reshape(heads, -1, dim).astype(np.float64) for name in "qk")
        wanted = np.concatenate([windowed(0.5 * a @ b.T, 3, window) for a, b in zip(*by_head, strict=True)])
        found, seen = session.read("out"), np.isfinite(wanted)
        assert np.array_equal(found[~seen], np.full((~seen).sum(), -1e30, np.float32))
        assert close(found[seen], wanted[seen])
