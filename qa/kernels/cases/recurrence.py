"""States that go along a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Found, KernelCase, normal, result

_KEY, _MOST_ROWS, _MOST_COLUMNS = 12, 48, 130
_EPS = 1e-6


def inputs(rng: np.random.Generator, *before: int, heads: int, key_heads: int, key: int, value: int) -> list[Array]:
    """q, k, v, g and beta of sequences [..., rows]: decays below 1, and shares between 0 and 1."""
    q, k = normal(rng, *before, key_heads, key), normal(rng, *before, key_heads, key)
    g, beta = -np.abs(normal(rng, *before, heads, scale=0.5)), 1 / (1 + np.exp(-normal(rng, *before, heads)))
    return [q, k, normal(rng, *before, heads, value), g, beta]


def expected(q: Array, k: Array, v: Array, g: Array, beta: Array, norm_eps: float | None = None) -> Array:
    """[..., S, H, D_V] by the state itself, in float64; results are scaled by the root of the elements of a key."""
    q, k, v, g, beta = (each.astype(np.float64) for each in (q, k, v, g, beta))
    if norm_eps is not None:
        q, k = (each / np.sqrt((each * each).sum(axis=-1, keepdims=True) + norm_eps) for each in (q, k))
    shared = v.shape[-2] // k.shape[-2]
    found = np.zeros(v.shape)
    for at in np.ndindex(*v.shape[:-3], v.shape[-2]):
        *where, head = at
        state = np.zeros((k.shape[-1], v.shape[-1]))
        for token in range(v.shape[-3]):
            own, key = (*where, token, head), k[(*where, token, head // shared)]
            state = state * np.exp(g[own])
            state = state + np.outer(key, beta[own] * (v[own] - key @ state))
            found[own] = q[(*where, token, head // shared)] @ state / np.sqrt(k.shape[-1])
    return found


def _check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    rows, value, grouped = min(rows, _MOST_ROWS), min(cols, _MOST_COLUMNS), form == "grouped"
    shape = {"heads": 6 if grouped else 2, "key_heads": 2, "key": _KEY, "value": value}
    arrays = [each.astype("float16" if form == "float16" else "float32") for each in inputs(rng, 2, rows, **shape)]
    norm_eps = None if grouped else _EPS
    if grouped:  # keys that are not divided by their lengths, short enough for a state that does not grow
        arrays[1] *= np.float32(0.25)
    q, k, v, g, beta = arrays
    found = result(device, "gated_delta_rule", q, k, v, g, beta, norm_eps=norm_eps)
    return [(found, expected(q, k, v, g, beta, norm_eps=norm_eps))]


def _timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
    tensors = [device.tensor(each) for each in inputs(rng, 64, heads=16, key_heads=16, key=32, value=32)]
    return lambda: device.ops.gated_delta_rule(*tensors, norm_eps=_EPS).release()


CASES = [
    KernelCase(
        *("gated_delta_rule", "recurrence", ("delta_rule",), (*FLOATS, "grouped"), _check),
        *(_timed, "64 tokens, 16 heads of 32×32"),
    )
]
