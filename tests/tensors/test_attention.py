"""Attention on tensors: heads that share keys, masks, and the fused form, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glinfer.errors import InputError
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device
from qa.kernels.cases.attention import attended

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
TOLERANCE = 2e-6

# (leading axes, heads, heads of keys, queries, keys, width of keys, width of values, keys before query 0)
SHAPES = [
    ((), 1, 1, 1, 1, 1, 1, 0),
    ((), 4, 2, 5, 5, 8, 8, 0),
    ((2,), 6, 2, 3, 9, 12, 5, 6),
    ((3, 2), 2, 1, 7, 7, 33, 70, 0),
    ((), 4, 2, 3, 150, 20, 18, 100),  # so many keys for so few queries that they are split into parts
    ((), 1, 1, 2, 67, 3, 3, 1),  # parts of which no query sees the last
]


def operands(shape: tuple[Any, ...], seed: int = 0) -> tuple[Array, Array, Array]:
    leading, heads, kv_heads, queries, keys, width, value_width, _ = shape
    rng = np.random.default_rng(seed)
    shapes = (heads, queries, width), (kv_heads, keys, width), (kv_heads, keys, value_width)
    q, k, v = (rng.standard_normal((*leading, *each)).astype(np.float32) for each in shapes)
    return q, k, v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "causal"), [(SHAPES[1], True), *((shape, shape[-1] > 0) for shape in SHAPES)], ids=str
)
def test_in_steps_and_fused_it_agrees_with_float64(dev: Device, shape: tuple[Any, ...], causal: bool) -> None:
    q, k, v = operands(shape)
    options: dict[str, Any] = {"causal": causal, "offset": shape[-1]}
    _, weights, mixed = attended(q, k, v, shape[-1] if causal else None)
    with dev.tensor(q) as a, dev.tensor(k) as b, dev.tensor(v) as c:
        with (
            dev.ops.attention_scores(a, b, **options) as scores,
            dev.ops.softmax(scores) as probs,
            dev.ops.attention_values(probs, c) as y,
        ):
            assert relative_error(probs.numpy(), weights) <= TOLERANCE
            assert relative_error(y.numpy(), mixed) <= TOLERANCE
        with dev.ops.attention(a, b, c, **options) as y:
            assert y.shape == mixed.shape
            assert relative_error(y.numpy(), mixed) <= TOLERANCE
    assert dev.memory().tensors == 0


def test_large_scores_do_not_overflow(dev: Device) -> None:
    q, k, v = operands(SHAPES[1])
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
    q, k, v = operands(((), 2, 2, 3, 7, 6, 6, 0))
    mixed = attended(q, k[:, :3], v[:, :3], 0)[2]
    k[:, 3:], v[:, 3:] = np.nan, np.inf
    with dev.tensor(q) as a, dev.tensor(k) as b, dev.tensor(v) as c, dev.ops.attention(a, b, c, causal=True) as y:
        assert relative_error(y.numpy(), mixed) <= TOLERANCE


def test_bad_calls_are_refused(dev: Device) -> None:
    q, k, narrow = dev.zeros((4, 3, 8)), dev.zeros((3, 5, 8)), dev.zeros((2, 5, 6))
    for run, message in (
        (
            lambda: dev.ops.attention_scores(q, k),
            r"attention_scores: found \[4, 3, 8\] and \[3, 5, 8\]; expected \[\.\.\., heads, ",
        ),
        (lambda: dev.ops.attention(q, k, k), r"attention: found \[4, 3, 8\] and \[3, 5, 8\]; "),
        (
            lambda: dev.ops.attention_scores(q, narrow),
            r"attention_scores: q is \[4, 3, 8\] and k is \[2, 5, 6\]; their last axes differ$",
        ),
        (
            lambda: dev.ops.attention_values(q, narrow),
            r"attention_values: probs is \[4, 3, 8\] and v is \[2, 5, 6\]; they differ",
        ),
        (
            lambda: dev.ops.attention(q, q, q, causal=True, offset=-1),
            "attention: offset is -1; expected the number of keys before that of query 0",
        ),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            run()
