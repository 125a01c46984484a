"""How the float64 oracle runs a plan, and how a result is judged by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from glinfer.config import ModelConfig
from glinfer.formats import random_checkpoint
from glinfer.kernels.fused.dense import rotated_rows
from glinfer.lower.plain.gab import TOKENS, reference_plan
from glinfer.program.oracle import relative_error, run_plan


def test_running_a_plan_yields_every_draw_in_order() -> None:
    config = ModelConfig(7, 4, 2, 1, 5)
    plan = reference_plan(config)
    tokens = {TOKENS: np.array([[3], [6]], dtype=np.int32)}
    ran = list(run_plan(plan, random_checkpoint(config, seed=1).tensors, tokens, {"rows": 2}))
    assert [draw for draw, _ in ran] == list(plan.draws)
    assert all(result.shape == draw.extent({"rows": 2}) for draw, result in ran)
    assert set(tokens) == {TOKENS}, "the caller's inputs are not to be added to"


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


@pytest.mark.parametrize("apart", [{}, {"QUERY_TURNS": 4}], ids=["", "queries apart"])
def test_turned_pairs_are_products_of_complex_numbers(apart: dict[str, int]) -> None:
    """Of keys and queries; what lies between them stays."""
    random = np.random.default_rng(8)
    angles = random.uniform(-3, 3, (7, 16))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(7, 32)
    y, positions = random.standard_normal((5, 112)), np.array([0, 6, 3, 3, 1])
    found = rotated_rows(y, table, {"HEAD_TEXELS": 4, "KEY_TEXELS": 8, "QUERY_AT": 16, **apart}, positions)

    def rotated(part: np.ndarray[Any, Any], first: int) -> np.ndarray[Any, Any]:
        pairs = part.reshape(5, -1, 8, 2)
        turns = np.exp(1j * angles[positions, first : first + 8])[:, None]
        product = (pairs[..., 0] + 1j * pairs[..., 1]) * turns
        return np.stack([product.real, product.imag], axis=-1).reshape(5, -1)

    assert np.allclose(found[:, :32], rotated(y[:, :32], 0), rtol=1e-12)
    assert np.array_equal(found[:, 32:64], y[:, 32:64])
    assert np.allclose(found[:, 64:], rotated(y[:, 64:], 8 if apart else 0), rtol=1e-12)
