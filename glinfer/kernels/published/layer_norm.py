"""LayerNorm of the rows in use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, TensorSpec, float64, op


def layer_norm(
    name: str, kind: str, x: TensorSpec, weight: TensorSpec, bias: TensorSpec, out: TensorSpec, *, eps: float
) -> DrawSpec:
    """LayerNorm over the last axis (Ba et al. 2016), for the rows in use.

    x [S, D], weight and bias [1, D], out [S, D].
    """
    inputs, defines = (("x", x.name), ("weight", weight.name), ("bias", bias.name)), (("DIM", x.shape[1]), ("EPS", eps))
    return DrawSpec(name, kind, "layer_norm", inputs, (out.name,), ("rows", out.shape[1]), defines)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["DIM"])
    shapes.expect("weight", 1, params["DIM"])
    shapes.expect("bias", 1, params["DIM"])
    shapes.expect("output", shapes.rows("x"), params["DIM"])


@op("layer_norm", ("x", "weight", "bias"), (), _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, weight, bias = float64(inputs, ["x", "weight", "bias"])
    x = x[: size[0]]
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.mean(centred**2, axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + params["EPS"]) * weight + bias)
