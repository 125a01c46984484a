"""Heads split off and appended to caches, and windows of attention, against float64 and NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from glinfer.errors import PlanError
from glinfer.gl.context import Limits, open_device
from glinfer.models.oracle import run_draw, written_rows
from glinfer.models.plan import Plan, PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.attend import attend
from glinfer.ops.heads import Turned, append_heads, split_heads
from glinfer.ops.kernels import Kernels
from glinfer.ops.matmul import matmul
from glinfer.ops.product import Finish, Product, Strategy
from glinfer.ops.rotary import rope_table
from glinfer.ops.spec import RunValue, TensorSpec

Array = np.ndarray[Any, Any]
TOLERANCE = 2e-6
POSITIONS = 23
RUN_VALUES = [
    RunValue("position", 0, POSITIONS - 1),
    RunValue("used", 1, 99),
    RunValue("appended", 1, 999),
]
DIMS = (6, 7, 8, 10, 20)  # in no whole texels, odd, halves in whole texels, and not


class Bench:
    """A plan of some draws over random inputs, its textures filled before it runs."""

    def __init__(self, device: Any, kernels: Kernels, edge: int) -> None:
        self.device, self.kernels, self.edge = device, kernels, edge
        self.builder = PlanBuilder("bench", 1, RUN_VALUES)
        self.arrays: dict[str, Array] = {}
        self.rng = np.random.default_rng(0)

    def input(self, name: str, rows: int, cols: int) -> TensorSpec:
        return self.given(name, self.rng.standard_normal((rows, cols)).astype(np.float32))

    def given(self, name: str, array: Array) -> TensorSpec:
        self.arrays[name] = np.ascontiguousarray(array, np.float32)
        return self.builder.flat(name, "input", *array.shape, "rgba32f", self.edge)

    def out(self, name: str, rows: int, cols: int, kind: str = "activation") -> TensorSpec:
        return self.builder.flat(name, kind, rows, cols, "rgba32f", self.edge)

    def turned(self, dim: int, *, turns: bool, interleaved: bool, normed: bool) -> Turned:
        table = self.given("table", rope_table(POSITIONS, dim, theta=100.0)[0]) if turns else None
        return Turned(table, interleaved, self.input("norm", 1, dim) if normed else None, 1e-3)

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


@pytest.fixture(params=["usual", "least"])
def bench(request: pytest.FixtureRequest) -> Iterator[Callable[[], Bench]]:
    """Makes benches on one device: the usual one, or what WebGL2 guarantees, with matrices over many lines."""
    least = request.param == "least"
    kernels = Kernels(targets=4) if least else Kernels(targets=8, lookup_texture=True)
    with open_device(limits=Limits.webgl2_minimum() if least else None) as device:
        yield lambda: Bench(device, kernels, 21 if least else 2048)


def numpy_heads(x: Array, first: int, heads: int, dim: int) -> Array:
    """[heads, rows, dim]."""
    return np.stack([x[:, (first + head) * dim : (first + head + 1) * dim] for head in range(heads)])


def numpy_turned(heads: Array, norm: Array | None, position: int | None, *, interleaved: bool) -> Array:
    """What is done to heads [heads, rows, dim], by complex numbers; no position for heads that do not turn."""
    found = heads.astype(np.float64)
    if norm is not None:
        found = found / np.sqrt((found**2).mean(-1, keepdims=True) + 1e-3) * norm
    if position is None:
        return found
    dim = found.shape[-1]
    angles = (position + np.arange(found.shape[1]))[:, None] * 100.0 ** (-2.0 * np.arange(dim // 2) / dim)
    one, other = (found[..., 0::2], found[..., 1::2]) if interleaved else np.split(found, 2, axis=-1)
    points = (one + 1j * other) * np.exp(1j * angles)
    parts = [points.real, points.imag]
    return np.stack(parts, -1).reshape(found.shape) if interleaved else np.concatenate(parts, axis=-1)


def close(found: Array, expected: Array) -> bool:
    assert found.shape == expected.shape
    return bool(np.abs(found - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max()))


FORMS = [
    (dim, turns, interleaved, normed)
    for dim, turns, interleaved, normed in itertools.product(DIMS, (False, True), (False, True), (False, True))
    if not (turns and dim % 2) and (turns or not interleaved)
]


def options(form: tuple[int, bool, bool, bool]) -> Mapping[str, bool]:
    return dict(zip(("turns", "interleaved", "normed"), form[1:], strict=True))


def test_heads_are_split_normalised_and_turned(bench: Callable[[], Bench]) -> None:
    for form, (rows, first) in zip(FORMS, itertools.cycle([(5, 2), (1, 0), (4, 1)]), strict=False):
        made, dim, heads = bench(), form[0], 3
        x = made.input("x", rows, (first + heads + 1) * dim)
        turned, out = made.turned(dim, **options(form)), made.out("out", heads * rows, dim)
        made.builder.draw(
            split_heads(
                "s", "s", x, out, rows=rows, first=first, turned=turned, position="position", kernels=made.kernels
            )
        )
        plan = made.builder.build()
        runs = [{"position": position, "used": 1, "appended": 1} for position in (0, 3, POSITIONS - rows)]
        for session, values in made.run(plan, runs, np.nan):
            norm = made.arrays.get("norm")
            at = values["position"] if form[1] else None
            wanted = numpy_turned(
                numpy_heads(made.arrays["x"], first, heads, dim), norm, at, interleaved=form[2]
            ).reshape(heads * rows, dim)
            oracle = run_draw(plan.draws[0], made.arrays, values)
            assert np.abs(oracle - wanted).max() < 1e-6, (form, rows)  # the table is rounded to float32
            assert close(session.read("out"), oracle), (form, rows, first, values)


def append(made: Bench, form: tuple[int, bool, bool, bool], rows: int, heads: int, slots: int) -> Plan:
    dim, first = form[0], 1
    x = made.input("x", rows, (first + 2 * heads) * dim)
    keys, values = (made.out(name, heads * slots, dim, "cache") for name in ("keys", "values"))
    turned = made.turned(dim, **options(form))
    made.builder.draw(
        append_heads(
            "a",
            "a",
            x,
            keys,
            values,
            rows=rows,
            heads=heads,
            first=first,
            turned=turned,
            position="position",
            used="used",
            appended="appended",
            kernels=made.kernels,
        )
    )
    return made.builder.build()


def test_heads_are_appended_where_they_belong_and_nowhere_else(bench: Callable[[], Bench]) -> None:
    """After each other: all rows, some of them, at the end of the cache, and a row again that was there before."""
    heads, slots = 2, POSITIONS
    for form, rows in zip(FORMS, itertools.cycle([4, 1, 3]), strict=False):
        made, dim = bench(), form[0]
        plan = append(made, form, rows, heads, slots)
        held = {name: np.full((heads, slots, dim), 7.0) for name in ("keys", "values")}
        at = [(3, rows), (0, 1), (9, max(1, rows - 1)), (slots - rows, rows), (3, 1), (slots - 1, 1)]
        runs = [{"position": place, "used": used, "appended": heads * used} for place, used in at]
        for session, values in made.run(plan, runs, 7.0):
            position, used = values["position"], values["used"]
            x, norm = made.arrays["x"][:used], made.arrays.get("norm")
            wanted = {
                "keys": numpy_turned(
                    numpy_heads(x, 1, heads, dim), norm, position if form[1] else None, interleaved=form[2]
                ),
                "values": numpy_heads(x, 1 + heads, heads, dim),
            }
            for name, part in wanted.items():
                held[name][:, position : position + used] = part
                assert close(session.read(name), held[name].reshape(heads * slots, dim)), (form, rows, name, values)
            draw = plan.draws[0]
            places = written_rows(draw, made.arrays, values)
            by_oracle = run_draw(draw, made.arrays, values)
            for name, part in zip(draw.outputs, by_oracle, strict=True):
                assert close(session.read(name)[places], part), (form, rows, name, values)


def test_rows_that_have_no_slot_are_put_nowhere(bench: Callable[[], Bench]) -> None:
    """Not into the first slots of the next head either."""
    made, heads, slots, dim = bench(), 2, 6, 8
    plan = append(made, (dim, False, False, False), 4, heads, slots)
    for session, _ in made.run(plan, [{"position": 4, "used": 4, "appended": 8}], 7.0):
        held = np.full((heads, slots, dim), 7.0)
        held[:, 4:] = numpy_heads(made.arrays["x"][:2], 1, heads, dim)
        assert close(session.read("keys"), held.reshape(heads * slots, dim))


def refused_split(
    message: str, *, cols: int = 16, out: tuple[int, int] = (9, 4), table: int = 4, position: int = 0
) -> None:
    builder = PlanBuilder("p", 1, [])

    def flat(name: str, kind: str, rows: int, width: int) -> TensorSpec:
        return builder.flat(name, kind, rows, width, "rgba32f", 64)

    turned = Turned(flat("table", "input", 5, table))
    made = split_heads(
        "s",
        "s",
        flat("x", "input", 3, cols),
        flat("out", "activation", *out),
        rows=3,
        first=1,
        turned=turned,
        position=position,
        kernels=Kernels(),
    )
    builder.draw(made)
    with pytest.raises(PlanError, match=rf"\Adraw s: {message}\Z"):
        builder.build()


def test_heads_that_do_not_fit_are_refused_by_name() -> None:
    refused_split(r"x has 15 columns; expected 3 heads of 4", cols=15)
    refused_split(r"output has 8 rows; expected whole heads of 3", out=(8, 4))
    refused_split(r"table is \[5, 6\]; expected \[5, 4\]", table=6)
    refused_split(r"heads of 5 elements do not turn in pairs", cols=20, out=(9, 5), table=5)
    refused_split(r"position 5 is not in a table of 5 positions", position=5)


def test_caches_of_two_shapes_are_refused() -> None:
    made = Bench(None, Kernels(), 64)
    x, keys, values = made.input("x", 3, 12), made.out("k", 6, 4, "cache"), made.out("v", 7, 4, "cache")
    common: dict[str, Any] = {"rows": 3, "first": 0, "turned": Turned(), "kernels": Kernels()}
    common.update(position=0, used=1, appended=1)
    with pytest.raises(PlanError, match=r"draw a: caches \[6, 4\] and \[7, 4\] for 1 heads"):
        append_heads("a", "a", x, keys, values, heads=1, **common)
    with pytest.raises(PlanError, match=r"draw a: caches \[6, 4\] and \[6, 4\] for 4 heads"):
        append_heads("a", "a", x, keys, keys, heads=4, **common)


# Windows


def windowed(scores: Array, before: int, window: int) -> Array:
    """Scores [queries, keys] with −inf where a query does not look: written out, key by key."""
    found = scores.copy()
    for query, key in np.ndindex(*scores.shape):
        distance = before + query - key
        if distance < 0 or (window and distance >= window):
            found[query, key] = -np.inf
    return found


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("parts", [0, 1, 3])
@pytest.mark.parametrize("window", [0, 1, 2, 5, 16, 40])
def test_attention_within_a_window(bench: Callable[[], Bench], window: int, parts: int) -> None:
    """Behind what a query sees the caches hold numbers that would show."""
    heads, kv_heads, keys = 4, 2, POSITIONS
    for dim, queries in itertools.product((6, 8), (1, 5)):
        made = bench()
        q, k, v = (
            made.input(name, count, dim)
            for name, count in (("q", heads * queries), ("k", kv_heads * keys), ("v", kv_heads * keys))
        )
        out = made.out("out", heads * queries, dim)
        made.builder.draw(
            *attend(
                "mix",
                "mix",
                q,
                k,
                v,
                out,
                heads=heads,
                kv_heads=kv_heads,
                queries=queries,
                keys=keys,
                scale=0.7,
                causal="position",
                window=window,
                kernels=made.kernels,
                scratch=made.out,
                parts=parts,
            )
        )
        plan = made.builder.build()
        runs = [{"position": place, "used": 1, "appended": 1} for place in (0, 4, 11, POSITIONS - queries)]
        for session, values in made.run(plan, runs, np.nan):
            by_head = made.arrays["q"].reshape(heads, queries, dim).astype(np.float64)
            shared = [
                np.repeat(made.arrays[name].reshape(kv_heads, keys, dim), heads // kv_heads, axis=0) for name in "kv"
            ]
            wanted = [
                softmax(windowed(0.7 * a @ b.T, values["position"], window)) @ c
                for a, b, c in zip(by_head, *shared, strict=True)
            ]
            assert close(session.read("out"), np.concatenate(wanted)), (dim, queries, values)


@pytest.mark.parametrize("window", [1, 4, 30])
@pytest.mark.parametrize("kind", ["small", "packed"])
def test_scores_outside_of_a_window_are_masked(bench: Callable[[], Bench], kind: str, window: int) -> None:
    queries, keys, dim, heads = 9, 12, 6, 2
    made = bench()
    q, k = made.input("q", heads * queries, dim), made.input("k", heads * keys, dim)
    out = made.out("out", heads * queries, keys)
    product = Product(
        queries, keys, dim, transposed=True, batch=(1, 1, heads), x_steps=(heads, 1, 1), weight_steps=(heads, 1, 1)
    )
    finish = Finish(scale=0.5, causal=3, window=window)
    made.builder.draw(
        *matmul(
            "scores",
            "scores",
            q,
            k,
            out,
            product=product,
            strategy=Strategy(kind, targets=2 if kind == "packed" else 1),
            finish=finish,
            kernels=made.kernels,
            scratch=made.out,
        )
    )
    plan = made.builder.build()
    for session, _ in made.run(plan, [{"position": 0, "used": 1, "appended": 1}], np.nan):
        by_head = (made.arrays[name].reshape(heads, -1, dim).astype(np.float64) for name in "qk")
        wanted = np.concatenate([windowed(0.5 * a @ b.T, 3, window) for a, b in zip(*by_head, strict=True)])
        found, seen = session.read("out"), np.isfinite(wanted)
        assert np.array_equal(found[~seen], np.full((~seen).sum(), -1e30, np.float32))
        assert close(found[seen], wanted[seen])


def test_a_window_without_an_end_is_refused() -> None:
    made = Bench(None, Kernels(), 64)
    q = made.input("q", 4, 8)
    common: dict[str, Any] = {"heads": 1, "kv_heads": 1, "queries": 4, "keys": 4, "scale": 1.0, "window": 2}
    with pytest.raises(PlanError, match=r"draw m: a window of 2 keys needs queries that see keys up to their own"):
        attend("m", "m", q, q, q, made.out("o", 4, 8), kernels=Kernels(), scratch=made.out, **common)
