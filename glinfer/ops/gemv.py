"""Matrix–vector products over packed weights, for one token at a time: one fragment, four outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.blocks import BlockLayout, blocks_for
from glinfer.gl.layout import Extent
from glinfer.gl.packing import PIECES, ConstantLayout, GemvLayout
from glinfer.ops.kernels import Kernels
from glinfer.ops.linear import ACTIVATIONS, activate
from glinfer.ops.quantise import decode
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register

WEIGHTS = {"f32": 0, "f16": 1, "q16": 2, "q8": 3}
"""Weight formats, to the number that shaders/common/unpack.glsl knows."""


def gemv(
    name: str,
    kind: str,
    x: TensorSpec,
    weight: TensorSpec,
    consts: TensorSpec,
    out: TensorSpec,
    *,
    first: Extent = 0,
    norm_eps: float | None = None,
    residual: TensorSpec | None = None,
    activation: str = "none",
    kernels: Kernels,
    parts: int = 1,
    adds: bool = False,
) -> DrawSpec:
    """``out[first] = activation(norm · weight @ x + bias) + residual``, of one vector.

    x [1, IN] and residual [1, OUT] in blocks, weight [OUT, words] and consts [OUT, 5 or 1] packed, out [slots, OUT]
    in blocks, of which slot ``first`` is written. With ``norm_eps`` norm is 1 / sqrt(mean(x²) + eps), which is
    RMSNorm, and LayerNorm where x has mean zero.

    With ``adds`` the product is added by blending to what out holds, so that out is its own residual; ``parts``
    instances may then share the inputs out, without norm or activation.
    """
    if activation not in ACTIVATIONS:
        raise PlanError(f"draw {name}: activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    layouts = (x.layout, weight.layout, consts.layout, out.layout)
    x_layout, weight_layout, consts_layout, out_layout = layouts
    if not (
        isinstance(x_layout, BlockLayout)
        and isinstance(weight_layout, GemvLayout)
        and isinstance(consts_layout, ConstantLayout)
        and isinstance(out_layout, BlockLayout)
    ):
        raise PlanError(f"draw {name}: expected vectors in blocks, and packed weights and constants")
    inputs = [("x", x.name), ("weight", weight.name), ("consts", consts.name)]
    steps = 4 * blocks_for(x.shape[1])
    defines: list[tuple[str, int | float]] = [
        *x_layout.defines("X"),
        *weight_layout.defines("WEIGHT"),
        *consts_layout.defines("CONSTS"),
        *out_layout.defines("OUT"),
        ("WEIGHTS", WEIGHTS[weight_layout.weights]),
        ("SCALED", int(consts_layout.cols == 5)),
        ("STEPS", steps),
        ("UNROLL", math.gcd(steps // parts, kernels.unroll)),
        ("QUAD", int(weight_layout.quad)),
        ("MANTISSA", int(kernels.mantissa)),
        ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ("ACTIVATION", ACTIVATIONS[activation]),
    ]
    if norm_eps is not None:
        defines += [("NORM", 1), ("DIM", x.shape[1]), ("EPS", float(norm_eps))]
    if parts > 1:
        defines.append(("PARTS", parts))
    if residual is not None:
        inputs.append(("residual", residual.name))
        defines.append(("RESIDUAL", 1))
    return DrawSpec(
        name=name,
        kind=kind,
        op="gemv",
        inputs=tuple(inputs),
        outputs=(out.name,),
        size=(1, out.shape[1]),
        defines=tuple(defines),
        uniforms=(("share", steps // parts),),
        first=first,
        cover=kernels.cover,
        instances=parts,
        adds=adds,
    )


def format_name(params: Params) -> str:
    """The weight format that a draw was built for."""
    return next(name for name, number in WEIGHTS.items() if number == params["WEIGHTS"])


def _check(shapes: Shapes, params: Params) -> None:
    outputs = shapes.by_name["output"][1]
    shapes.expect("x", 1, None)
    shapes.expect("weight", outputs, None)
    shapes.expect("consts", outputs, 5 if params["SCALED"] else 1)
    shapes.expect("residual", 1, outputs)
    words = PIECES[format_name(params)] * -(-shapes.by_name["x"][1] // 4)
    shapes.expect("weight", outputs, words)
    parts = int(params.get("PARTS", 1))
    shapes.require(params["STEPS"] % (parts * int(params["UNROLL"])) == 0, f"{params['STEPS']} steps in {parts} parts")
    shapes.require(
        parts == 1 or not (params["ACTIVATION"] or params.get("NORM") or "residual" in shapes.by_name),
        "parts are added up without norm, activation or residual",
    )
    shapes.require(params["STEPS"] == 4 * blocks_for(shapes.by_name["x"][1]), "STEPS does not fit x")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    consts = inputs["consts"]
    name = format_name(params)
    weight = decode(inputs["weight"], consts[:, :4] if params["SCALED"] else None, name, x.shape[1])
    y: Array = x @ weight.T
    if params.get("NORM"):
        y = y / math.sqrt(float(np.mean(x**2)) + params["EPS"])
    y = activate(y + consts[:, -1].astype(np.float64), int(params["ACTIVATION"]))
    for added in {"residual", "output"} & set(inputs):
        y = y + float64(inputs, [added])[0]
    return y


register(Op("gemv", ("x", "weight", "consts"), ("residual",), _check, _oracle, either=("weight",)))
