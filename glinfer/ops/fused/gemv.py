"""Matrix–vector products over packed weights, for one token at a time: one fragment, four outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.fused.dense import Matrix, Turning, check_dense, dense_defines, dense_inputs, dense_rows
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register


def gemv(
    name: str,
    kind: str,
    x: TensorSpec,
    matrix: Matrix,
    out: TensorSpec,
    *,
    first: Extent = 0,
    norm_eps: float | None = None,
    turning: Turning | None = None,
    residual: TensorSpec | None = None,
    activation: str = "none",
    kernels: KernelOptions,
    parts: int = 1,
    adds: bool = False,
) -> DrawSpec:
    """``out[first] = activation(norm · weight @ (gain · x) + bias) + residual`` for one vector.

    x [1, IN], residual [1, OUT] and out [slots, OUT] lie in blocks; slot ``first`` of out is written. With ``norm_eps``
    norm is 1 / sqrt(mean(x²) + eps): RMSNorm (Zhang and Sennrich 2019), or LayerNorm if x has mean zero or the
    constants hold the weights' sums. A gated matrix gives ``out = activation(gate) · up``. With ``turning`` queries and
    keys are turned by the run value position.

    With ``adds`` blending adds the product to what out holds, so that out is its own residual; then ``parts`` instances
    may share the inputs, without norm or activation.
    """
    if not isinstance(x.layout, BlockLayout) or not isinstance(out.layout, BlockLayout):
        raise PlanError(f"draw {name}: expected vectors in blocks")
    inputs = [("x", x.name), *dense_inputs(matrix, turning)]
    defines = dense_defines(
        name, x.layout, matrix, out.layout, norm_eps=norm_eps, activation=activation, kernels=kernels
    )
    steps = int(dict(defines)["STEPS"])
    if not isinstance(matrix.weight.layout, GroupedLayout):
        defines.append(("UNROLL", math.gcd(steps // parts, kernels.unroll)))
    if turning is not None:
        defines += turning.defines(name)
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
        per_run=() if turning is None else (("position", "position"),),
        first=first,
        cover=kernels.cover,
        instances=parts,
        adds=adds,
    )


def _check(shapes: Shapes, params: Params) -> None:
    outputs = shapes.by_name["output"][1]
    shapes.expect("x", 1, params["INPUTS"])
    shapes.expect("residual", 1, outputs)
    check_dense(shapes, params, outputs, residual="residual" in shapes.by_name)
    if params.get("ROPE"):
        shapes.require(params["position"] < shapes.rows("rope"), f"there is no position {params['position']}")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    y = dense_rows(inputs, params, x, None, np.array([int(params.get("position", 0))]))[:, : size[1]]
    for added in {"residual", "output"} & set(inputs):
        y = y + float64(inputs, [added])[0]
    return y


register(Op("gemv", ("x", "weight", "consts"), ("gain", "rope", "residual"), _check, _oracle, either=("weight",)))
