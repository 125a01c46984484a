"""Matrix products with bias, activation and residual."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Shapes, TensorSpec, float64, given, op

ACTIVATIONS = {"none": 0, "gelu_new": 1, "gelu": 2, "silu": 3, "tanh": 4, "relu2": 5}
"""Hugging Face's names of activations, and their numbers in shaders/common/activation.glsl."""


def activation_number(draw: str, activation: str) -> int:
    """The number of an activation in shaders/common/activation.glsl.

    Raises:
        PlanError: there is no such activation.
    """
    if activation not in ACTIVATIONS:
        raise PlanError(f"draw {draw}: activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


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
    tensors = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    inputs = [(sampler, tensor.name) for sampler, tensor in tensors.items() if tensor is not None]
    defines = (
        *(("IN", x.shape[1]), ("OUT", weight.shape[0]), ("ACTIVATION", activation_number(name, activation))),
        *given(BIAS=bias, RESIDUAL=residual, LAST_ROW=last_row),
    )
    size, per_run = (1 if last_row else "rows", out.shape[1]), (("rows", "rows"),) if last_row else ()
    return DrawSpec(name, kind, "linear", tuple(inputs), (out.name,), size, defines, per_run=per_run)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["IN"])
    shapes.expect("weight", params["OUT"], params["IN"])
    shapes.expect("bias", 1, params["OUT"])
    rows = shapes.rows("x")
    if params.get("LAST_ROW"):
        shapes.require(params["rows"] <= rows, f"the last of {params['rows']} rows of a matrix of {rows}")
        rows = 1
    shapes.expect(("residual", "output"), rows, params["OUT"])


def _gelu_erf(x: Array) -> Array:
    # NumPy has no erf, and the oracle must not use the approximation that it checks.
    return np.asarray(0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2.0)))


def _sigmoid(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # NumPy warns of a NaN, and keeps it
        return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def _gelu_tanh(x: Array) -> Array:
    # 0.5 (1 + tanh(u)) is sigmoid(2u), which keeps the digits that 1 + tanh(u) loses below -6.
    return x * _sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


_FUNCTIONS = {ACTIVATIONS["gelu_new"]: _gelu_tanh, ACTIVATIONS["gelu"]: _gelu_erf, ACTIVATIONS["silu"]: _silu}


def activate(x: Array, activation: int) -> Array:
    """The activation with this number in :data:`ACTIVATIONS`, float64.

    At -Inf the result is the limit, 0 for all but tanh, because the formulas give -Inf · 0.
    """
    if activation == ACTIVATIONS["none"]:
        return x
    if activation == ACTIVATIONS["tanh"]:
        return np.tanh(x)
    if activation == ACTIVATIONS["relu2"]:
        return np.asarray(np.maximum(x, 0.0) ** 2)
    function = _FUNCTIONS[activation]
    return np.where(x == -np.inf, -0.0, function(np.maximum(x, -1e100)))


def soft_cap(x: Array, cap: float) -> Array:
    """x bounded by cap · tanh(x / cap), float64 (Bello et al. 2017; the logits of Gemma 2)."""
    return np.asarray(cap * np.tanh(x / cap))


def _parts(params: Params) -> Mapping[str, Part]:
    return {"x": Part(1)} if params.get("LAST_ROW") else {}


@op("linear", ("x", "weight"), ("bias", "residual"), _check, parts=_parts)
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
