"""The gated delta rule and the scan of Mamba-2 over whole sequences, linear attentions with a state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.kernels.flat.draws import flat_draw
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, given, op

DELTA_EPS = 1e-6
"""Added to the sum of squares before queries and keys are divided by its root, as in training."""
MAX_KEY_ELEMENTS = 256
"""Limit for the elements of a key: a fragment holds a texel of the state for each."""


def delta_rule(
    draw: Pass,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    g: TensorSpec,
    beta: TensorSpec,
    out: TensorSpec,
    *,
    sequence: int,
    scale: float,
    norm_eps: float | None = None,
    in_turn: bool = False,
    scan: bool = False,
) -> DrawSpec:
    """``out[t] = scale · Sᵀ q[t]`` for each head, where ``S = exp(g) · S``, then ``S += k ⊗ beta · (v - Sᵀ k)``.

    Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, equation 10), in the recurrent form. The work grows with the
    square of a sequence's length, because each element of the result updates its column of S from the first token on.

    Args:
        q, k: [rows · key heads, D_K]; each key head serves the same number of value heads.
        v, out: [rows · heads, D_V].
        g, beta: [rows, heads]; the logarithm of the decay, and the share of a correction that is written.
        sequence: rows of each sequence, which begins with S = 0.
        scale: factor of the results.
        norm_eps: divide each q and k by ``sqrt(Σ x² + norm_eps)`` first; None for no division.
        in_turn: whether value head h uses key head ``h mod key heads``; otherwise value heads that share a key head
            are adjacent.
        scan: whether ``beta · v`` is written instead of a correction (Mamba-2, Dao and Gu 2024).

    Raises:
        PlanError: a tensor has another layout, or keys have more than :data:`MAX_KEY_ELEMENTS` elements.
    """
    if k.shape[1] > MAX_KEY_ELEMENTS:
        raise PlanError(f"draw {draw.name}: keys of {k.shape[1]} elements; expected at most {MAX_KEY_ELEMENTS}")
    rows, heads = beta.shape
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    defines = [
        ("HEADS", heads),
        ("KEY_HEADS", max(1, k.shape[0] // rows)),
        ("IN_TURN", int(in_turn)),
        ("SEQUENCE", sequence),
        ("SCALE", float(scale)),
        ("NORMALIZE", int(norm_eps is not None)),
        ("EPS", float(norm_eps or 0.0)),
        *given(SCAN=scan),
    ]
    return flat_draw(draw, "delta_rule", inputs, [out], defines=defines)


def sigmoid(draw: Pass, x: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out = 1 / (1 + exp(-x))``, element by element; x and out [R, C]."""
    return flat_draw(draw, "squash", {"x": x}, [out], defines=[("DECAY", 0)])


def log_decay(draw: Pass, x: TensorSpec, rate: TensorSpec, shift: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out = -exp(rate) * log(1 + exp(x + shift))``, logarithms of decays; x and out [R, C], the others [1, C]."""
    return flat_draw(draw, "squash", {"x": x, "rate": rate, "shift": shift}, [out], defines=[("DECAY", 1)])


def softplus(draw: Pass, x: TensorSpec, shift: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out = log(1 + exp(x + shift))``, the steps of a scan; x and out [R, C], shift [1, C]."""
    return flat_draw(draw, "squash", {"x": x, "shift": shift}, [out], defines=[("DECAY", 2)])


def _check_squash(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    shapes.expect("x", rows, cols)
    shapes.expect(("rate", "shift"), 1, cols)


@op("squash", ("x",), ("rate", "shift"), _check_squash)
def _oracle_squash(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x = float64(inputs, ["x"])[0][: size[0]]
    if params["DECAY"] == 2:
        return np.asarray(np.logaddexp(0.0, x + float64(inputs, ["shift"])[0]))
    if params["DECAY"]:
        rate, shift = float64(inputs, ["rate", "shift"])
        return np.asarray(-np.exp(rate) * np.logaddexp(0.0, x + shift))
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def _check(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    heads, key_heads = int(params["HEADS"]), int(params["KEY_HEADS"])
    shapes.require(rows % heads == 0, f"{rows} rows of results; expected a multiple of {heads} heads")
    shapes.require(heads % key_heads == 0, f"{heads} heads of values cannot share {key_heads} of keys")
    shapes.expect("v", rows, cols)
    shapes.expect(("q", "k"), rows // heads * key_heads, shapes.by_name["k"][1])
    shapes.expect(("g", "beta"), rows // heads, heads)


@op("delta_rule", ("q", "k", "v", "g", "beta"), (), _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    q, k, v, g, beta = float64(inputs, ["q", "k", "v", "g", "beta"])
    rows, heads = beta.shape
    q, k = (each.reshape(rows, int(params["KEY_HEADS"]), -1) for each in (q, k))
    if params["NORMALIZE"]:
        q, k = (each / np.sqrt((each**2).sum(axis=-1, keepdims=True) + params["EPS"]) for each in (q, k))
    q, k = (of_values(each, heads, in_turn=bool(params["IN_TURN"])) for each in (q, k))
    found, length = np.zeros((rows, heads, size[1])), int(params["SEQUENCE"])
    for first in range(0, rows, length):
        part = slice(first, first + length)
        of_heads = v.reshape(rows, heads, -1)[part]
        found[part] = gated_delta(q[part], k[part], of_heads, g[part], beta[part], scan="SCAN" in params)[0]
    return params["SCALE"] * found.reshape(size)


def of_values(vectors: Array, heads: int, *, in_turn: bool) -> Array:
    """For an oracle: queries or keys [rows, key heads, elements], repeated for each of ``heads`` value heads."""
    shared = heads // vectors.shape[1]
    return np.tile(vectors, (1, shared, 1)) if in_turn else np.repeat(vectors, shared, axis=1)


def gated_delta(q: Array, k: Array, v: Array, g: Array, beta: Array, *, scan: bool = False) -> tuple[Array, Array]:
    """For an oracle: the results [T, H, D_V] of T tokens, and the state [H, D_K, D_V] after them.

    q and k [T, H, D_K], v [T, H, D_V], g and beta [T, H]. A ``scan`` writes values times beta instead of corrections.
    """
    found, state = np.zeros(v.shape), np.zeros((*k.shape[1:], v.shape[-1]))
    for token in range(len(v)):
        state = state * np.exp(g[token])[:, None, None]
        known = 0.0 if scan else np.einsum("hkv,hk->hv", state, k[token])
        change = beta[token][:, None] * (v[token] - known)
        state = state + k[token][:, :, None] * change[:, None]
        found[token] = np.einsum("hkv,hk->hv", state, q[token])
    return found, state
