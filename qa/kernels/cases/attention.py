"""Attention in steps and fused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glinfer.kernels.published.attention import MASKED
from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Check, Found, KernelCase, normal, result, timed

FORMS = (*FLOATS, "causal", "grouped")
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
    shapes = (heads, queries, width), (kv_heads, keys, width), (kv_heads, keys, width + 1)
    q, k, v = (normal(rng, 2, *shape) for shape in shapes)
    if form == "float16":
        q, k, v = (each.astype(form) for each in (q, k, v))
    return q, k, v, keys - queries if causal else None


def _check_scores(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    q, k, v, offset = _operands(rng, rows, cols, form)
    found = result(device, "attention_scores", q, k, causal=offset is not None, offset=offset or 0)
    expected = attended(q, k, v, offset)[0]
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
    return [(result(device, "attention_values", probs, v), mixed)]


def _check_fused(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    q, k, v, offset = _operands(rng, rows, cols, form)
    found = result(device, "attention", q, k, v, causal=offset is not None, offset=offset or 0)
    return [(found, attended(q, k, v, offset)[2])]


def _case(kernel: str, shaders: tuple[str, ...], check: Check, *shapes: tuple[int, ...], **options: Any) -> KernelCase:
    return KernelCase(
        kernel, "attention", shaders, FORMS, check, timed(kernel, *shapes, **options), "8 heads of 128 tokens, 64 wide"
    )


_PRODUCT, _HEADS = ("matmul", "matvec", "finish"), (8, 128, 64)
CASES = [
    _case("attention_scores", _PRODUCT, _check_scores, _HEADS, _HEADS, causal=True),
    _case("attention_values", _PRODUCT, _check_values, (8, 128, 128), _HEADS),
    _case("attention", ("attend", "weave"), _check_fused, _HEADS, _HEADS, _HEADS, causal=True),
]
