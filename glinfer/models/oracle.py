"""The second executor of a plan: float64 NumPy, op by op, with no GL anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from glinfer.models.plan import Plan
from glinfer.ops import OPS, DrawSpec
from glinfer.ops.spec import Array


def run_draw(draw: DrawSpec, inputs: Mapping[str, Array], values: Mapping[str, int]) -> Array:
    """What one draw should write: float64 (rows, cols) of its extent, from its inputs by tensor name."""
    by_sampler = {sampler: inputs[tensor] for sampler, tensor in draw.inputs}
    return OPS[draw.op].oracle(by_sampler, draw.params(values), draw.extent(values))


def run_plan(
    plan: Plan, weights: Mapping[str, Array], inputs: Mapping[str, Array], values: Mapping[str, int]
) -> Iterator[tuple[DrawSpec, Array]]:
    """Run every draw in order, yielding each with what it wrote.

    ``weights`` by tensor name, vectors or matrices; ``inputs`` by tensor name, of the rows in use.
    """
    state: dict[str, Array] = dict(inputs)
    for tensor in plan.of_kind("weight"):
        state[tensor.name] = np.asarray(weights[tensor.name]).reshape(tensor.shape)
    for draw in plan.draws:
        state[draw.outputs[0]] = run_draw(draw, state, values)
        yield draw, state[draw.outputs[0]]


def final_tensors(
    plan: Plan, weights: Mapping[str, Array], inputs: Mapping[str, Array], values: Mapping[str, int]
) -> dict[str, Array]:
    """What every activation holds at the end of a run."""
    return {draw.outputs[0]: result for draw, result in run_plan(plan, weights, inputs, values)}


MASK_LIMIT = 1e29
"""Values beyond this are masks (−1e30), compared with themselves and not part of a tensor's scale."""


def relative_error(found: Array, expected: Array) -> float:
    """The largest |found − expected|, relative to the largest unmasked |expected| of the tensor.

    Infinite where one of them is NaN and the other is not, and where an infinity is missed.
    """
    expected = np.asarray(expected, dtype=np.float64)
    found = np.asarray(found, dtype=np.float64)
    magnitude = np.abs(expected)
    unmasked = magnitude[magnitude < MASK_LIMIT]
    scale = np.maximum(magnitude, unmasked.max() if unmasked.size else 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(found == expected, 0.0, np.abs(found - expected) / scale)
    both_nan = np.isnan(found) & np.isnan(expected)
    error = np.where(both_nan, 0.0, np.where(np.isnan(error), np.inf, error))
    return float(error.max(initial=0.0))
