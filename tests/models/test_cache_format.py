"""Half-float caches without a GPU: plans, layouts, what the oracle keeps, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import in_floats, tiny

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import TensorSpec
from glinfer.lower.feed import runs
from glinfer.lower.fused.rows import SCORES, batch_plan, chunk_plan
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.program.oracle import final_tensors, relative_error, rounding, stored
from glinfer.program.plan import Plan

HALVES = TensorSpec("x", (1, 1), "cache", "rgba16f")
FLOATS = TensorSpec("x", (1, 1), "cache", "rgba32f")
LARGEST, BEYOND = 65519.99, 65520.0


def plans(family: str, cache: str) -> list[Plan]:
    """Every fast plan: a token, a chunk, a chunk that is scored, a batch."""
    options = PlanOptions(tiny(family), "f32", KernelOptions(), 2048, cache=cache)
    return [
        fast_plan(options),
        chunk_plan(options, rows=9, cache_slots=64, export_residual=True),
        chunk_plan(options, rows=9, cache_slots=64, likelihoods=True),
        batch_plan(options, sequences=3, capacity=64),
    ]


def test_a_layout_of_half_floats() -> None:
    made = BlockLayout.by_block((30, 100), 2048, aside=1, every=30, format_name="rgba16f")
    matrix = np.random.default_rng(0).normal(size=(30, 100)).astype(np.float32)
    matrix[:, 64:] = matrix[29, 64:]
    texels = made.pack(matrix)
    assert (texels.dtype, texels.nbytes) == (np.float16, made.nbytes)
    assert np.array_equal(made.unpack(texels, 30, 100), matrix.astype(np.float16))
    for value in (np.inf, -np.inf, np.nan, 65504.0):
        matrix[3, 5] = value
        assert np.array_equal(made.unpack(made.pack(matrix), 30, 100)[3, 5], np.float16(value), equal_nan=True)
    matrix[3, 5] = -70000
    with pytest.raises(PlanError, match=r"^found -70000; float16 ends at 65504$"):
        made.pack(matrix)


@settings(max_examples=25)
@given(st.lists(st.floats(-LARGEST, LARGEST), min_size=1, max_size=20))
def test_what_is_kept_is_the_nearest_half_float_within_what_is_allowed(values: list[float]) -> None:
    array = np.array(values)
    kept = stored(array, HALVES)
    assert np.array_equal(kept, array.astype(np.float16).astype(np.float64))
    expected, allowed = rounding(array, HALVES)
    assert np.array_equal(expected, array)
    assert relative_error(kept, expected, allowed) == 0
    assert (allowed <= np.maximum(np.abs(array) * 2.0**-10, 2.0**-25)).all()


def test_beyond_their_range_there_is_no_number() -> None:
    values = np.array([LARGEST, BEYOND, -BEYOND, 1e30, np.inf, np.nan, -LARGEST])
    assert np.array_equal(np.isnan(stored(values, HALVES)), [False, True, True, True, True, True, False])
    assert np.array_equal(np.isnan(rounding(values, HALVES)[0]), [False, True, True, True, True, True, False])
    assert stored(values, FLOATS) is values
    assert rounding(values, FLOATS) == (values, 0.0)


@pytest.mark.parametrize("family", ["gab", "mistral", "lfm2", "qwen3_5_text"])
def test_the_oracle_rounds_what_caches_hold(family: str) -> None:
    """A chunk that is scored: nearly, but not just, what it gives over caches of floats; rings keep those."""
    checkpoint = in_floats(tiny(family))
    layers = map(checkpoint.config.layer, range(checkpoint.config.num_hidden_layers))
    name = next(f"h.{layer}.{of.branch}.cache" for layer, of in enumerate(layers) if of.attends)
    found = []
    for cache in ("f32", "f16"):
        plan = plans(family, cache)[2]
        ((inputs, values),) = runs(plan, [3, 1, 4, 1, 5])
        tensors = final_tensors(plan, FoldedWeights(checkpoint, "f32"), inputs, values)
        held = tensors[name]
        assert np.array_equal(held, held.astype(np.float16)) == (cache == "f16")
        found.append(tensors[f"{SCORES}.0"][0])
    assert not np.array_equal(*found)
    assert relative_error(found[1], found[0]) < 0.05
