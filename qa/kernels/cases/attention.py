"""Attention in steps and fused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from glinfer.kernels.published.attention import MASKED
from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import Found, KernelCase, normal

FORMS = ("float32", "float16", "causal", "grouped")
_MAX_KEYS = 300
_MAX_HEAD_WIDTH = 80


def attended(q: Array, k: Array, v: Array, offset: int | None) -> tuple[Array, Array, Array]:
    """Scores, weights and weighted sums [..., H, S, …] of q [..., H, S, D] with k and v [..., G, T, …], float64.

    With ``offset`` query s sees keys up to offset + s.
    """
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    shared = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, shared, axis=-3), np.repeat(v, shared, axis=-3)
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if offset is not None:
        keys, queries = np.arange(scores.shape[-1]), np.arange(scores.shape[-2])
        scores = np.where(keys[None, :] > queries[:, None] + offset, MASKED, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return scores, weights, weights @ v


def _operands(rng: np.random.Generator, rows: int, cols: int, form: str) -> tuple[Array, Array, Array, int | None]:
    """Heads of ``cols`` numbers, ``rows`` keys, and a causal offset: fewer queries than keys where there is one."""
    keys, width = min(rows, _MAX_KEYS), min(cols, _MAX_HEAD_WIDTH)
    heads, kv_heads = (6, 2) if form == "grouped" else (2, 2)
    causal = form in ("causal", "grouped")
    queries = max(1, keys - 3) if causal else min(keys, 7)
    q, k, v = (
        normal(rng, 2, heads, queries, width),
        normal(rng, 2, kv_heads, keys, width),
        normal(rng, 2, kv_heads, keys, width + 1),
    )
    if form == "float16":
        q, k, v = (each.astype(form) for each in (q, k, v))
    return q, k, v, keys - queries if causal else None


def _check_scores(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    q, k, v, offset = _operands(rng, rows, cols, form)
    with (
        device.tensor(q) as left,
        device.tensor(k) as right,
        device.ops.attention_scores(left, right, causal=offset is not None, offset=offset or 0) as scores,
    ):
        found, expected = scores.numpy(), attended(q, k, v, offset)[0]
    masked = expected == MASKED
    # What is masked is compared exactly, and apart: it would dwarf every error of the others.
    return [
        (np.where(masked, 0.0, found), np.where(masked, 0.0, expected)),
        (found[masked] == np.float32(MASKED), masked[masked]),
    ]


def _check_values(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    q, k, v, offset = _operands(rng, rows, cols, form)
    probs = attended(q, k, v, offset)[1].astype(q.dtype)
    mixed = probs.astype(np.float64) @ np.repeat(v.astype(np.float64), q.shape[-3] // v.shape[-3], axis=-3)
    with device.tensor(probs) as left, device.tensor(v) as right, device.ops.attention_values(left, right) as y:
        return [(y.numpy(), mixed)]


def _check_fused(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    q, k, v, offset = _operands(rng, rows, cols, form)
    with (
        device.tensor(q) as queries,
        device.tensor(k) as keys,
        device.tensor(v) as values,
        device.ops.attention(queries, keys, values, causal=offset is not None, offset=offset or 0) as y,
    ):
        return [(y.numpy(), attended(q, k, v, offset)[2])]


def _timed(call: str) -> Callable[[Device, np.random.Generator], Callable[[], object]]:
    def timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        q, k, v = (device.tensor(normal(rng, 8, 128, 64)) for _ in range(3))
        probs = device.tensor(normal(rng, 8, 128, 128))
        calls: dict[str, Callable[[], object]] = {
            "attention_scores": lambda: device.ops.attention_scores(q, k, causal=True).release(),
            "attention_values": lambda: device.ops.attention_values(probs, v).release(),
            "attention": lambda: device.ops.attention(q, k, v, causal=True).release(),
        }
        return calls[call]

    return timed


_AT = "8 heads of 128 tokens, 64 wide"
_PRODUCT = ("matmul", "matvec", "finish")
CASES = [
    KernelCase("attention_scores", "attention", _PRODUCT, FORMS, _check_scores, _timed("attention_scores"), _AT),
    KernelCase("attention_values", "attention", _PRODUCT, FORMS, _check_values, _timed("attention_values"), _AT),
    KernelCase("attention", "attention", ("attend", "weave"), FORMS, _check_fused, _timed("attention"), _AT),
]
