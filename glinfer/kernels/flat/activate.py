"""Activations, and gates: activations multiplied by another tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.families.layer import Experts
from glinfer.kernels.flat.draws import flat_draw, same_shape
from glinfer.kernels.published.linear import activate, activation_number
from glinfer.kernels.routing import gate_defines, gated
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, op


def activation(draw: Pass, x: TensorSpec, out: TensorSpec, *, activation: str) -> DrawSpec:
    """``out = activation(x)``, element by element; x and out [R, C], computed in float32."""
    defines = [("ACTIVATION", activation_number(draw.name, activation))]
    return flat_draw(draw, "activation", {"x": x}, [out], defines=defines)


@op("activation", ("x",), (), same_shape)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    return np.asarray(activate(x[: size[0]], int(params["ACTIVATION"])))


def xielu(draw: Pass, x: TensorSpec, positive: TensorSpec, negative: TensorSpec, out: TensorSpec) -> DrawSpec:
    """``out = xIELU(x)``, x and out [R, C]; positive and negative [1, 1] are learned numbers, see :func:`xielu_of`."""
    return flat_draw(draw, "xielu", {"x": x, "positive": positive, "negative": negative}, [out])


def xielu_of(x: Array, positive: float, negative: float) -> Array:
    """For an oracle: a · x² + x / 2 above 0 and b · (exp(x) - 1 - x) + x / 2 below (Huang and Schlag 2024).

    The learned numbers p and n give a = softplus(p) and b = 1 / 2 + softplus(n). transformers limits x to at most -1e-6
    in exp, which changes results by less than b · 1e-6.
    """
    least = np.minimum(x, 0.0)
    below = (0.5 + np.logaddexp(0.0, negative)) * (np.expm1(least) - least)
    return np.asarray(np.where(x > 0, np.logaddexp(0.0, positive) * x**2, below) + 0.5 * x)


def _check_xielu(shapes: Shapes, params: Params) -> None:
    same_shape(shapes, params)
    shapes.expect(("positive", "negative"), 1, 1)


@op("xielu", ("x", "positive", "negative"), (), _check_xielu)
def _oracle_xielu(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, positive, negative = float64(inputs, ["x", "positive", "negative"])
    return xielu_of(x[: size[0]], positive[0, 0], negative[0, 0])


def gate(
    draw: Pass,
    x: TensorSpec,
    out: TensorSpec,
    *,
    up: TensorSpec | None = None,
    activation: str,
    gate_first: bool = True,
    experts: Experts | None = None,
) -> DrawSpec:
    """``out = activation(gate) * up`` [R, N], computed in float32.

    The gate is x and up a separate tensor, both [R, N]; or x [R, 2·N] has both in each row, the gate in its first
    half, or without ``gate_first`` in its second. ``experts`` may bound both, see
    :class:`glinfer.families.layer.Experts`.
    """
    defines = [
        ("ACTIVATION", activation_number(draw.name, activation)),
        ("PACKED", int(up is None)),
        ("GATE_FIRST", int(gate_first)),
        *gate_defines(experts),
    ]
    return flat_draw(draw, "gate", {"x": x, "up": up}, [out], defines=defines)


def _check_gate(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    shapes.expect("x", rows, 2 * cols if params["PACKED"] else cols)
    shapes.expect("up", rows, cols)


@op("gate", ("x",), ("up",), _check_gate)
def _oracle_gate(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, cols = size
    (x,) = float64(inputs, ["x"])
    if params["PACKED"]:
        first, second = x[:rows, :cols], x[:rows, cols:]
        gates, ups = (first, second) if params["GATE_FIRST"] else (second, first)
    else:
        gates, ups = x[:rows], float64(inputs, ["up"])[0][:rows]
    return gated(gates, ups, params)
