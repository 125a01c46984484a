"""Softmax along rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, TensorSpec, float64, op


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


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["STRIDE"])
    shapes.expect("output", shapes.rows("x"), params["STRIDE"])
    cols, stride = params["cols"], params["STRIDE"]
    shapes.require(1 <= cols <= stride, f"softmax over {cols} columns of a matrix of {stride}")


@op("softmax", ("x",), (), _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    x = x[: size[0], : int(params["cols"])]
    exponents = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))
