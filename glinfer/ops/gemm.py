"""Matrix products over packed weights for many rows at once: one fragment, four outputs of several rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.blocks import BlockLayout, blocks_for
from glinfer.gl.layout import Extent
from glinfer.gl.packing import PIECES, ConstantLayout, GemvLayout
from glinfer.ops.gemv import WEIGHTS, format_name
from glinfer.ops.kernels import Kernels
from glinfer.ops.linear import ACTIVATIONS, activate
from glinfer.ops.norm import norm_floats
from glinfer.ops.quantise import decode
from glinfer.ops.rows import Dealt, check_same, dealt, gathered, optional_names
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register


def gemm(
    name: str,
    kind: str,
    x: Dealt | TensorSpec,
    weight: TensorSpec,
    consts: TensorSpec,
    out: Dealt,
    *,
    slots: Extent,
    norm_eps: float | None = None,
    norms: TensorSpec | None = None,
    residual: Dealt | None = None,
    activation: str = "none",
    kernels: Kernels,
    parts: int = 1,
    adds: bool = False,
) -> DrawSpec:
    """``out[r] = activation(norm[r] · weight @ x[r] + bias) + residual[r]`` of the rows of the first ``slots`` slots.

    The weights and constants are those of :func:`glinfer.ops.gemv.gemv`, and so is what a row gives. x and residual are
    dealt as out is, or x is one tensor with a row a slot. With ``norm_eps`` norm is 1 / sqrt(mean(x²) + eps), with
    ``norms`` what :func:`glinfer.ops.norm.row_norms` has left. ``parts`` and ``adds`` as there.
    """
    if activation not in ACTIVATIONS:
        raise PlanError(f"draw {name}: activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    together = isinstance(x, TensorSpec)
    x_layout, weight_layout, consts_layout = x.layout, weight.layout, consts.layout
    if not (
        isinstance(x_layout, BlockLayout)
        and isinstance(weight_layout, GemvLayout)
        and isinstance(consts_layout, ConstantLayout)
    ):
        raise PlanError(f"draw {name}: expected rows in blocks, and packed weights and constants")
    steps = 4 * blocks_for(x_layout.cols)
    defines: list[tuple[str, int | float]] = [
        *x_layout.defines("X"),
        *weight_layout.defines("WEIGHT"),
        *consts_layout.defines("CONSTS"),
        *out.layout.defines("OUT"),
        ("ROWS", len(out.tensors)),
        ("TOGETHER", int(together)),
        ("WEIGHTS", WEIGHTS[weight_layout.weights]),
        ("SCALED", int(consts_layout.cols == 5)),
        ("STEPS", steps),
        ("QUAD", int(weight_layout.quad)),
        ("MANTISSA", int(kernels.mantissa)),
        ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ("ACTIVATION", ACTIVATIONS[activation]),
    ]
    inputs = [("x", x.name)] if isinstance(x, TensorSpec) else list(x.inputs())
    inputs += [("weight", weight.name), ("consts", consts.name)]
    if norm_eps is not None:
        defines += [("NORM", 1), ("DIM", x_layout.cols), ("EPS", float(norm_eps))]
    if norms is not None:
        if not isinstance(norms.layout, BlockLayout) or norm_eps is not None:
            raise PlanError(f"draw {name}: norms lie in blocks, and are not computed twice")
        defines += [("NORMS", 1), *norms.layout.defines("NORMS")]
        inputs.append(("norms", norms.name))
    if parts > 1:
        defines.append(("PARTS", parts))
    if residual is not None:
        inputs += residual.inputs("r")
        defines.append(("RESIDUAL", 1))
    return DrawSpec(
        name=name,
        kind=kind,
        op="gemm",
        inputs=tuple(inputs),
        outputs=out.names,
        size=(slots, out.cols),
        defines=tuple(defines),
        uniforms=(("share", steps // parts),),
        cover=kernels.cover,
        largest_cell=kernels.largest_cell,
        instances=parts,
        adds=adds,
    )


def _x(shapes: Shapes, params: Params) -> str:
    return "x" if params["TOGETHER"] else "x0"


def _check(shapes: Shapes, params: Params) -> None:
    slots, outputs = shapes.by_name["output"]
    rows, inputs = int(params["ROWS"]), shapes.by_name[_x(shapes, params)][1]
    if params["TOGETHER"]:
        shapes.require(shapes.rows("x") >= slots * rows, f"x has {shapes.rows('x')} rows for {slots} slots of {rows}")
    else:
        check_same(shapes, params, slots, inputs)
    shapes.expect("weight", outputs, PIECES[format_name(params)] * -(-inputs // 4))
    shapes.expect("consts", outputs, 5 if params["SCALED"] else 1)
    shapes.expect("norms", slots, norm_floats(rows))
    for name in optional_names("r"):
        shapes.expect(name, slots, outputs)
    parts = int(params.get("PARTS", 1))
    shapes.require(params["STEPS"] % parts == 0, f"{params['STEPS']} steps in {parts} parts")
    shapes.require(
        parts == 1 or not (params["ACTIVATION"] or params.get("NORM") or params.get("NORMS") or "r0" in shapes.by_name),
        "parts are added up without norm, activation or residual",
    )
    shapes.require(params["STEPS"] == 4 * blocks_for(inputs), "STEPS does not fit x")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = int(params["ROWS"])
    count = size[0] * rows
    x = (float64(inputs, ["x"])[0] if params["TOGETHER"] else gathered(inputs, rows))[:count]
    consts = inputs["consts"]
    weight = decode(inputs["weight"], consts[:, :4] if params["SCALED"] else None, format_name(params), x.shape[1])
    y: Array = x @ weight.T
    if params.get("NORM"):
        y = y / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + params["EPS"])
    if params.get("NORMS"):
        norms = float64(inputs, ["norms"])[0][: size[0]].reshape(size[0], -1, 4, 4)[:, :, 0]  # one member's
        y = y * norms.reshape(size[0], -1)[:, :rows].reshape(-1, 1)
    y = activate(y + consts[:, -1].astype(np.float64), int(params["ACTIVATION"]))
    if "r0" in inputs:
        y = y + gathered(inputs, rows, "r")[:count]
    y = dealt(y, rows)
    return y + float64(inputs, ["output"])[0] if "output" in inputs else y


register(
    Op(
        "gemm",
        ("weight", "consts"),
        ("x", *optional_names(), *optional_names("r"), "norms"),
        _check,
        _oracle,
        either=("weight",),
    )
)


def shared_parts(inputs: int, part_steps: int) -> int:
    """Into how many instances the steps of a product of so many inputs are shared out, each of about ``part_steps``."""
    steps = 4 * blocks_for(inputs)
    return steps // math.gcd(steps, part_steps) if part_steps else 1
