"""Passes over the rows in use: token and position embedding, LayerNorm and softmax."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, TensorSpec, float64, looked_up, op


def embed(name: str, tokens: TensorSpec, wte: TensorSpec, wpe: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out[r] = wte[tokens[r]] + wpe[r]`` for the rows in use.

    tokens [S, 1] int32, wte [V, D], wpe [S, D], out [S, D].
    """
    inputs = (("tokens", tokens.name), ("token_embedding", wte.name), ("position_embedding", wpe.name))
    defines = (("VOCAB", wte.shape[0]), ("DIM", wte.shape[1]))
    return DrawSpec(name, name, "embed", inputs, (out.name,), ("rows", out.shape[1]), defines)


def _check_embed(shapes: Shapes, params: Params) -> None:
    shapes.expect("tokens", None, 1)
    shapes.expect("token_embedding", params["VOCAB"], params["DIM"])
    shapes.expect("position_embedding", shapes.rows("output"), params["DIM"])
    shapes.expect("output", shapes.rows("tokens"), params["DIM"])


_TABLES = ("token_embedding", "position_embedding")


@op("embed", ("tokens", *_TABLES), (), _check_embed, ("tokens",), parts=looked_up(*_TABLES))
def _oracle_embed(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    ids = np.asarray(inputs["tokens"])[: size[0], 0]
    wte, wpe = float64(inputs, ["token_embedding", "position_embedding"])
    known = (ids >= 0) & (ids < params["VOCAB"])
    rows = np.where(known[:, None], wte[np.where(known, ids, 0)], 0.0)
    return rows + wpe[: size[0]]


def layer_norm(
    name: str, kind: str, x: TensorSpec, weight: TensorSpec, bias: TensorSpec, out: TensorSpec, *, eps: float
) -> DrawSpec:
    """LayerNorm over the last axis (Ba et al. 2016), for the rows in use.

    x [S, D], weight and bias [1, D], out [S, D].
    """
    inputs, defines = (("x", x.name), ("weight", weight.name), ("bias", bias.name)), (("DIM", x.shape[1]), ("EPS", eps))
    return DrawSpec(name, kind, "layer_norm", inputs, (out.name,), ("rows", out.shape[1]), defines)


def _check_norm(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["DIM"])
    shapes.expect(("weight", "bias"), 1, params["DIM"])
    shapes.expect("output", shapes.rows("x"), params["DIM"])


@op("layer_norm", ("x", "weight", "bias"), (), _check_norm)
def _oracle_norm(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, weight, bias = float64(inputs, ["x", "weight", "bias"])
    x = x[: size[0]]
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.mean(centred**2, axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + params["EPS"]) * weight + bias)


def softmax(
    name: str, kind: str, x: TensorSpec, out: TensorSpec, *, causal_square: bool = False, rows_in_use: bool = False
) -> DrawSpec:
    """Stable softmax of each row of x [R, C].

    It covers all rows; with ``rows_in_use`` the first ``rows``; with ``causal_square`` the first rows × rows.
    """
    rows, cols = "rows" if causal_square or rows_in_use else x.shape[0], "rows" if causal_square else x.shape[1]
    uniforms, per_run = ((), (("cols", "rows"),)) if causal_square else ((("cols", x.shape[1]),), ())
    defines = (("STRIDE", x.shape[1]),)
    return DrawSpec(name, kind, "softmax", (("x", x.name),), (out.name,), (rows, cols), defines, uniforms, per_run)


def _check_softmax(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["STRIDE"])
    shapes.expect("output", shapes.rows("x"), params["STRIDE"])
    cols, stride = params["cols"], params["STRIDE"]
    shapes.require(1 <= cols <= stride, f"softmax over {cols} columns of a matrix of {stride}")


@op("softmax", ("x",), (), _check_softmax)
def _oracle_softmax(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    x = x[: size[0], : int(params["cols"])]
    exponents = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))
