"""Kernels along sequences: causal convolutions, and the gated delta rule with its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glinfer.kernels.flat.delta import gated_delta
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device
from qa.kernels.cases.attention import attended
from qa.kernels.cases.recurrence import expected, inputs

pytestmark = pytest.mark.gl


def test_keys_of_any_length_are_taken_as_they_are(dev: Device) -> None:
    arrays = inputs(np.random.default_rng(2), 6, heads=2, key_heads=1, key=4, value=4)
    arrays[1] *= 0.3
    with dev.ops.gated_delta_rule(*map(dev.tensor, arrays), scale=2.0) as y:
        assert np.abs(y.numpy() - 2.0 * np.sqrt(4) * expected(*arrays)).max() < 1e-5


@pytest.mark.slow
def test_the_oracle_is_what_transformers_computes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = pytest.importorskip(
        "transformers.models.qwen3_5.modeling_qwen3_5", reason="transformers without Qwen 3.5 is installed"
    )
    arrays = inputs(np.random.default_rng(3), 90, heads=4, key_heads=4, key=16, value=24)
    q, k, v, g, beta = (torch.from_numpy(each.astype(np.float32))[None] for each in arrays)
    wide = [each.astype(np.float64) for each in arrays]
    q_wide, k_wide = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in wide[:2])
    found, state = gated_delta(q_wide / 4.0, k_wide, *wide[2:])
    assert np.abs(found - expected(*arrays, norm_eps=1e-6)).max() < 1e-12
    for rule in (module.torch_recurrent_gated_delta_rule, module.torch_chunk_gated_delta_rule):
        settings = {"g": g, "beta": beta, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        theirs, last = rule(q, k, v, **settings)
        assert np.abs(theirs[0].numpy() - found).max() < 1e-5
        assert np.abs(last[0].numpy() - state).max() < 1e-5


# Attention on tensors


Array = np.ndarray[Any, Any]
TOLERANCE = 2e-6


def operands(heads: int, kv_heads: int, queries: int, keys: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    shapes = (heads, queries, 8), (kv_heads, keys, 8), (kv_heads, keys, 6)
    q, k, v = (rng.standard_normal(each).astype(np.float32) for each in shapes)
    return q, k, v


def test_keys_of_few_queries_come_in_parts(dev: Device) -> None:
    """And no query sees the last of them."""
    for shape, offset in (((4, 2, 3, 150), 100), ((1, 1, 2, 67), 1)):
        q, k, v = operands(*shape)
        with dev.ops.attention(*map(dev.tensor, (q, k, v)), causal=True, offset=offset) as y:
            assert relative_error(y.numpy(), attended(q, k, v, offset)[2]) <= TOLERANCE


def test_large_scores_do_not_overflow(dev: Device) -> None:
    q, k, v = operands(4, 2, 5, 5)
    mixed = attended(1e4 * q, k, v, 0)[2]
    with dev.tensor(1e4 * q) as a, dev.tensor(k) as b, dev.tensor(v) as c, dev.ops.attention(a, b, c, causal=True) as y:
        # Scores of 10⁴ carry errors of 10⁻³, which exp makes as large in the weights.
        assert relative_error(y.numpy(), mixed) <= 5e-3


def test_the_largest_score_has_all_of_the_weight_however_small_it_is(dev: Device) -> None:
    q, k = np.full((1, 1, 1, 4), 1e16, np.float32), np.full((1, 1, 2, 4), -1e16, np.float32)
    k[0, 0, 1] *= 2
    v = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    with dev.tensor(q) as a, dev.tensor(k) as b, dev.tensor(v) as c, dev.ops.attention(a, b, c) as y:
        assert np.array_equal(y.numpy(), v[:, :, :1])


def test_rows_that_no_query_sees_may_hold_anything(dev: Device) -> None:
    q, k, v = operands(2, 2, 3, 7)
    mixed = attended(q, k[:, :3], v[:, :3], 0)[2]
    k[:, 3:], v[:, 3:] = np.nan, np.inf
    with dev.tensor(q) as a, dev.tensor(k) as b, dev.tensor(v) as c, dev.ops.attention(a, b, c, causal=True) as y:
        assert relative_error(y.numpy(), mixed) <= TOLERANCE
