"""Matrix products with bias, activation and residual."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register

ACTIVATIONS = {"none": 0, "gelu_new": 1, "gelu": 2, "silu": 3}
"""Hugging Face's names of activations, and the number that shaders/common/activation.glsl knows each by."""


def linear(
    name: str,
    kind: str,
    x: TensorSpec,
    weight: TensorSpec,
    out: TensorSpec,
    *,
    bias: TensorSpec | None = None,
    residual: TensorSpec | None = None,
    activation: str = "none",
    last_row: bool = False,
) -> DrawSpec:
    """``out = activation(x @ weight.T + bias) + residual`` for the rows in use.

    x [S, IN], weight [OUT, IN], bias [1, OUT], residual and out [S, OUT]. With ``last_row`` only the last row
    in use is computed, into row 0 of out [1, OUT].
    """
    if activation not in ACTIVATIONS:
        raise PlanError(f"draw {name}: activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    inputs = [("x", x.name), ("weight", weight.name)]
    defines = [("IN", x.shape[1]), ("OUT", weight.shape[0]), ("ACTIVATION", ACTIVATIONS[activation])]
    if bias is not None:
        inputs.append(("bias", bias.name))
        defines.append(("BIAS", 1))
    if residual is not None:
        inputs.append(("residual", residual.name))
        defines.append(("RESIDUAL", 1))
    if last_row:
        defines.append(("LAST_ROW", 1))
    return DrawSpec(
        name=name,
        kind=kind,
        op="linear",
        inputs=tuple(inputs),
        outputs=(out.name,),
        size=(1 if last_row else "rows", out.shape[1]),
        defines=tuple(defines),
        per_run=(("rows", "rows"),) if last_row else (),
    )


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["IN"])
    shapes.expect("weight", params["OUT"], params["IN"])
    shapes.expect("bias", 1, params["OUT"])
    rows = shapes.rows("x")
    if params.get("LAST_ROW"):
        shapes.require(params["rows"] <= rows, f"the last of {params['rows']} rows of a matrix of {rows}")
        rows = 1
    shapes.expect("residual", rows, params["OUT"])
    shapes.expect("output", rows, params["OUT"])


def _gelu_erf(x: Array) -> Array:
    # NumPy has no erf, and the oracle must not lean on the approximation that it judges.
    return np.asarray(0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2.0)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def activate(x: Array, activation: int) -> Array:
    """The activation of that number in :data:`ACTIVATIONS`, float64."""
    if activation == ACTIVATIONS["gelu_new"]:
        return _gelu_tanh(x)
    if activation == ACTIVATIONS["silu"]:
        return np.asarray(x / (1.0 + np.exp(np.minimum(-x, 700.0))))
    return _gelu_erf(x) if activation == ACTIVATIONS["gelu"] else x


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, weight = float64(inputs, ["x", "weight"])
    rows = slice(int(params["rows"]) - 1, int(params["rows"])) if params.get("LAST_ROW") else slice(size[0])
    y: Array = x[rows] @ weight.T
    if "bias" in inputs:
        y = y + inputs["bias"]
    y = activate(y, int(params["ACTIVATION"]))
    if "residual" in inputs:
        y = y + float64(inputs, ["residual"])[0][: size[0]]
    return y


register(Op("linear", ("x", "weight"), ("bias", "residual"), _check, _oracle))
