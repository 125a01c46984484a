"""The float64 oracle is itself checked: each op against plain loops, the whole against published probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from goldens import ModelWriter, gab_records
from hypothesis import given
from hypothesis import strategies as st

from glinfer.config import ModelConfig
from glinfer.formats import load_checkpoint, random_checkpoint
from glinfer.kernels.published.linear import ACTIVATIONS, linear
from glinfer.kernels.published.softmax import softmax
from glinfer.kernels.spec import DrawSpec, RunValue
from glinfer.lower.plain.gab import PROBS, TOKENS, reference_plan
from glinfer.program.oracle import final_tensors, relative_error, run_draw, run_plan
from glinfer.program.plan import PlanBuilder

Array = np.ndarray[Any, Any]
Lists = list[list[float]]
ROWS, USED, HEADS, WIDTH, OTHER = 5, 3, 3, 2, 7
DIM = HEADS * WIDTH


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found: Array, expected: Lists) -> bool:
    assert found.dtype == np.float64
    assert found.shape == (len(expected), len(expected[0]))
    return bool(np.allclose(found, np.array(expected), rtol=1e-12, atol=1e-12))


class Draw:
    """One op with its inputs: ``run`` gives what the oracle says for ``USED`` rows in use."""

    def __init__(self) -> None:
        self.plan = PlanBuilder("one", ROWS, [RunValue("rows", 1, ROWS, usual="tokens")])
        self.arrays: dict[str, Array] = {}

    def input(self, name: str, array: Array) -> Any:
        self.arrays[name] = array
        return self.plan.input(name, *array.shape, "r32i" if array.dtype == np.int32 else "r32f")

    def run(self, spec: DrawSpec, rows: int = USED) -> Array:
        return run_draw(spec, self.arrays, {"rows": rows})


# Each op, by loops that share nothing with it


def gelu_by_integral(x: float) -> float:
    """x times the area under the bell curve up to x, by Simpson's rule."""
    steps = 4000
    width = (x + 12.0) / steps
    bell = [math.exp(-((-12.0 + i * width) ** 2) / 2) for i in range(steps + 1)]
    area = width / 3 * (bell[0] + bell[-1] + 4 * sum(bell[1:-1:2]) + 2 * sum(bell[2:-1:2]))
    return x * area / math.sqrt(2 * math.pi)


def gelu_by_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def silu_by_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(x / 2))


def tanh_by_exp(x: float) -> float:
    return math.expm1(2 * x) / (math.exp(2 * x) + 1)


BY_OTHER_WAYS = {
    "none": lambda x: x,
    "gelu_new": gelu_by_tanh,
    "gelu": gelu_by_integral,
    "silu": silu_by_tanh,
    "tanh": tanh_by_exp,
    "relu2": lambda x: x * x if x > 0 else 0.0,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("bias", "residual", "last_row"), [(False, False, True), (True, True, False)])
def test_linear(activation: str, bias: bool, residual: bool, last_row: bool) -> None:
    draw = Draw()
    height = 1 if last_row else ROWS
    x, w, b, r = random(1, ROWS, DIM), random(2, OTHER, DIM), random(3, 1, OTHER), random(4, height, OTHER)
    inputs = draw.input("x", x), draw.input("w", w), draw.plan.activation("out", height, OTHER)
    options = {"bias": draw.input("b", b) if bias else None, "residual": draw.input("r", r) if residual else None}
    found = draw.run(linear("linear", "linear", *inputs, **options, activation=activation, last_row=last_row))
    expected = []
    for row in [USED - 1] if last_row else range(USED):
        line = []
        for out in range(OTHER):
            total = sum(float(x[row, i]) * float(w[out, i]) for i in range(DIM)) + float(b[0, out]) * bias
            line.append(BY_OTHER_WAYS[activation](total) + float(r[len(expected), out]) * residual)
        expected.append(line)
    assert found.shape == (1 if last_row else USED, OTHER)
    assert np.allclose(found, expected, rtol=1e-10, atol=1e-10)


def softmax_of(numbers: list[float]) -> list[float]:
    """By 1 / Σ exp(other − this), which needs no largest."""
    return [1 / math.fsum(math.exp(other - this) for other in numbers) for this in numbers]


@pytest.mark.parametrize("rows_in_use", [False, True])
def test_softmax_of_whole_rows(rows_in_use: bool) -> None:
    draw = Draw()
    x, used = random(1, ROWS, OTHER), USED if rows_in_use else ROWS
    x[used:] = np.nan
    spec = softmax("s", "s", draw.input("x", x), draw.plan.activation("out", ROWS, OTHER), rows_in_use=rows_in_use)
    assert close(draw.run(spec), [softmax_of([float(value) for value in row]) for row in x[:used]])


# The whole plan


def test_running_a_plan_yields_every_draw_in_order() -> None:
    config = ModelConfig(7, 4, 2, 1, 5)
    plan = reference_plan(config)
    tokens = {TOKENS: np.array([[3], [6]], dtype=np.int32)}
    ran = list(run_plan(plan, random_checkpoint(config, seed=1).tensors, tokens, {"rows": 2}))
    assert [draw for draw, _ in ran] == list(plan.draws)
    assert all(result.shape == draw.extent({"rows": 2}) for draw, result in ran)
    assert set(tokens) == {TOKENS}, "the caller's inputs are not to be added to"


@pytest.mark.parametrize("model", ["tiny", "odd"])
def test_the_plan_gives_the_published_probabilities(golden_model: ModelWriter, model: str) -> None:
    checkpoint = load_checkpoint(golden_model(model))
    plan = reference_plan(checkpoint.config)
    for case in gab_records(model):
        ids = case["tokens"]
        tokens = {TOKENS: np.array(ids, dtype=np.int32)[:, None]}
        found = final_tensors(plan, checkpoint.tensors, tokens, {"rows": len(ids)})[PROBS][0]
        assert np.abs(found - np.array(case["cpu_probs"])).max() <= 1e-6, f"{model} {len(ids)} tokens"
        assert int(found.argmax()) == case["argmax"]
        assert case.get("draw_calls", len(plan.draws)) == len(plan.draws)


# How a result is judged


def error(found: Any, expected: Any) -> float:
    return relative_error(np.array(found, dtype=float), np.array(expected, dtype=float))


@pytest.mark.parametrize(
    ("found", "expected", "judged"),
    [
        ([1, 2], [1, 2], 0.0),
        ([0, 0], [0, 0], 0.0),
        ([], [], 0.0),
        ([1, 3], [1, 2], 0.5),
        ([1.5, 100], [1, 100], 0.005),  # relative to the largest of the tensor
        ([1.5, -100], [1, -100], 0.005),
        ([0.1], [0], math.inf),  # nothing to be relative to
        ([1.5, -1e30], [1, -1e30], 0.5),  # a mask is no part of the scale,
        ([1, -1.1e30], [1, -1e30], 0.1),  # and is compared with itself
        ([1, 1], [1, -1e30], 1.0),
        ([1, -1e30], [1, 1], 1e30),
        ([math.nan, 1], [1, 1], math.inf),
        ([1, 1], [math.nan, 1], math.inf),
        ([math.nan, 1], [math.nan, 1], 0.0),
        ([math.nan, 1.5], [math.nan, 1], 0.5),
        ([math.inf, 1], [math.inf, 1], 0.0),
        ([math.inf, 1], [-math.inf, 1], math.inf),
        ([math.inf, 1], [5, 1], math.inf),
        ([5, 1], [math.inf, 1], math.inf),
        ([-0.0], [0.0], 0.0),
    ],
)
def test_relative_error(found: list[float], expected: list[float], judged: float) -> None:
    result = error(found, expected)
    assert result == judged or math.isclose(result, judged, rel_tol=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.integers(0, 7), st.floats(1e-3, 1e3))
def test_a_difference_is_found_wherever_it_is(values: list[float], place: int, by: float) -> None:
    found = list(values)
    found[place % len(found)] += by
    scale = max(abs(value) for value in values)
    expected = math.inf if scale == 0 else abs(found[place % len(found)] - values[place % len(found)]) / scale
    assert math.isclose(error(found, values), expected, rel_tol=1e-9)
