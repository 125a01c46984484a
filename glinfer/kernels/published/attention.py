"""Causal self-attention, one head at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Parts, Shapes, TensorSpec, float64, given, op

MASKED = -1e30
"""The score of an unseen key: far below any other, and finite, so that a softmax gives it an exact 0, never NaN."""


def attention_scores(
    name: str, kind: str, q: TensorSpec, k: TensorSpec, out: TensorSpec, *, head: int, head_dim: int
) -> DrawSpec:
    """``out[i, j] = q[i]·k[j] / sqrt(head_dim)`` for j ≤ i, a very low number above the diagonal.

    q, k [S, D]; the head's columns begin at head × head_dim; out [S, S], of which rows × rows are written.
    """
    inputs, scale = (("q", q.name), ("k", k.name)), 1.0 / math.sqrt(head_dim)
    defines = (("DIM", q.shape[1]), ("HEAD_DIM", head_dim), ("CONTEXT", out.shape[1]), ("SCALE", scale))
    uniforms = (("head", head),)
    return DrawSpec(name, kind, "attention_scores", inputs, (out.name,), ("rows", "rows"), defines, uniforms)


def attention_values(name: str, kind: str, probs: TensorSpec, v: TensorSpec, out: TensorSpec, *, head: int) -> DrawSpec:
    """``out = probs @ v[:, head]``: probs [S, S], v [S, D], out [S, head_dim]."""
    inputs, size = (("probs", probs.name), ("v", v.name)), ("rows", out.shape[1])
    defines = (("DIM", v.shape[1]), ("HEAD_DIM", out.shape[1]), ("CONTEXT", probs.shape[1]))
    uniforms, per_run = (("head", head),), (("rows", "rows"),)
    return DrawSpec(name, kind, "attention_values", inputs, (out.name,), size, defines, uniforms, per_run)


def concat_head(
    name: str, kind: str, mixed: TensorSpec, so_far: TensorSpec | None, out: TensorSpec, *, head: int
) -> DrawSpec:
    """Copy one head's output into its columns: mixed [S, head_dim], so_far and out [S, D].

    ``so_far`` holds the previous heads; it is another tensor than ``out`` (a pass cannot sample its own
    target), and None for the first head.
    """
    inputs = (("mixed", mixed.name), *([] if so_far is None else [("so_far", so_far.name)]))
    defines = (("DIM", out.shape[1]), ("HEAD_DIM", mixed.shape[1]), *given(FIRST=so_far is None))
    size, uniforms = ("rows", out.shape[1]), (("head", head),)
    return DrawSpec(name, kind, "concat_head", inputs, (out.name,), size, defines, uniforms)


def _check_head(shapes: Shapes, params: Params) -> None:
    shapes.require(
        params["head"] >= 0 and (params["head"] + 1) * params["HEAD_DIM"] <= params["DIM"],
        f"head {params['head']} of width {params['HEAD_DIM']} lies outside {params['DIM']} columns",
    )


def _check_scores(shapes: Shapes, params: Params) -> None:
    shapes.expect(("q", "k"), shapes.rows("output"), params["DIM"])
    shapes.expect("output", shapes.rows("q"), params["CONTEXT"])
    _check_head(shapes, params)


def _check_values(shapes: Shapes, params: Params) -> None:
    shapes.expect("probs", shapes.rows("v"), params["CONTEXT"])
    shapes.expect("v", shapes.rows("output"), params["DIM"])
    shapes.expect("output", shapes.rows("v"), params["HEAD_DIM"])
    _check_head(shapes, params)


def _check_concat(shapes: Shapes, params: Params) -> None:
    shapes.expect("mixed", shapes.rows("output"), params["HEAD_DIM"])
    shapes.expect("so_far", shapes.rows("output"), params["DIM"])
    shapes.expect("output", shapes.rows("mixed"), params["DIM"])
    shapes.require(bool(params.get("FIRST")) != ("so_far" in shapes.by_name), "exactly the first head has no so_far")
    _check_head(shapes, params)


def _head_columns(params: Params) -> slice:
    start = int(params["head"]) * int(params["HEAD_DIM"])
    return slice(start, start + int(params["HEAD_DIM"]))


def _of_head(*samplers: str) -> Parts:
    return lambda params: dict.fromkeys(samplers, Part(share=params["HEAD_DIM"] / params["DIM"]))


@op("attention_scores", ("q", "k"), (), _check_scores, parts=_of_head("q", "k"))
def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    q, k = float64(inputs, ["q", "k"])
    columns = _head_columns(params)
    scores = q[: size[0], columns] @ k[: size[1], columns].T * params["SCALE"]
    rows, cols = np.indices(size)
    return np.where(cols > rows, MASKED, scores)


@op("attention_values", ("probs", "v"), (), _check_values, parts=_of_head("v"))
def _oracle_values(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    probs, v = float64(inputs, ["probs", "v"])
    rows = int(params["rows"])
    return np.asarray(probs[: size[0], :rows] @ v[:rows, _head_columns(params)])


def _of_others(params: Params) -> Mapping[str, Part]:
    return {"so_far": Part(share=1 - params["HEAD_DIM"] / params["DIM"])}


@op("concat_head", ("mixed",), ("so_far",), _check_concat, parts=_of_others)
def _oracle_concat(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    so_far = float64(inputs, ["so_far"])[0][: size[0]] if "so_far" in inputs else np.zeros(size)
    joined = np.array(so_far)
    joined[:, _head_columns(params)] = float64(inputs, ["mixed"])[0][: size[0]]
    return joined
