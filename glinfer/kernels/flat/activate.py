"""Activations, and gates: activations multiplied by another tensor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.families.layer import Experts
from glinfer.kernels.flat.draws import flat_draw
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.published.linear import ACTIVATIONS, activate
from glinfer.kernels.routing import gate_defines, gated
from glinfer.kernels.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register


def activation_number(draw: str, activation: str) -> int:
    """The number of an activation in shaders/common/activation.glsl.

    Raises:
        PlanError: there is no such activation.
    """
    if activation not in ACTIVATIONS:
        raise PlanError(f"draw {draw}: activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def activation(
    name: str, kind: str, x: TensorSpec, out: TensorSpec, *, activation: str, kernels: KernelOptions
) -> DrawSpec:
    """``out = activation(x)``, element by element; x and out [R, C], computed in float32.

    Raises:
        PlanError: there is no such activation, or a tensor has another layout.
    """
    defines = [("ACTIVATION", activation_number(name, activation))]
    return flat_draw(name, kind, "activation", [("x", x)], [out], kernels=kernels, defines=defines)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", *shapes.by_name["x"])


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    return np.asarray(activate(x[: size[0]], int(params["ACTIVATION"])))


def gate(
    name: str,
    kind: str,
    x: TensorSpec,
    out: TensorSpec,
    *,
    up: TensorSpec | None = None,
    activation: str,
    gate_first: bool = True,
    experts: Experts | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """``out = activation(gate) * up`` [R, N], computed in float32.

    The gate is x and up a separate tensor, both [R, N]; or x [R, 2·N] has both in each row, the gate in its first
    half, or without ``gate_first`` in its second. ``experts`` may bound both, see
    :class:`glinfer.families.layer.Experts`.

    Raises:
        PlanError: there is no such activation, or a tensor has another layout.
    """
    defines = [
        ("ACTIVATION", activation_number(name, activation)),
        ("PACKED", int(up is None)),
        ("GATE_FIRST", int(gate_first)),
        *gate_defines(experts),
    ]
    inputs = [("x", x)] if up is None else [("x", x), ("up", up)]
    return flat_draw(name, kind, "gate", inputs, [out], kernels=kernels, defines=defines)


def _check_gate(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    shapes.expect("x", rows, 2 * cols if params["PACKED"] else cols)
    shapes.expect("up", rows, cols)


def _oracle_gate(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, cols = size
    (x,) = float64(inputs, ["x"])
    if params["PACKED"]:
        first, second = x[:rows, :cols], x[:rows, cols:]
        gates, ups = (first, second) if params["GATE_FIRST"] else (second, first)
    else:
        gates, ups = x[:rows], float64(inputs, ["up"])[0][:rows]
    return gated(gates, ups, params)


register(Op("activation", ("x",), (), _check, _oracle))
register(Op("gate", ("x",), ("up",), _check_gate, _oracle_gate))
