"""Matrix–vector products over packed weights, for one token at a time: one fragment, four outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.fused.dense import (
    Matrix,
    RawRows,
    Turning,
    check_dense,
    check_raw,
    check_raw_input,
    dense_defines,
    dense_inputs,
    dense_rows,
    finished_rows,
    raw_rows,
    sums_of,
)
from glinfer.ops.fused.low_rank import LORA_SAMPLERS
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, looked_up, register


def gemv(
    name: str,
    kind: str,
    x: TensorSpec | RawRows,
    matrix: Matrix,
    out: TensorSpec,
    *,
    first: Extent = 0,
    norm_eps: float | None = None,
    turning: Turning | None = None,
    residual: TensorSpec | None = None,
    activation: str = "none",
    cap: float = 0.0,
    kernels: KernelOptions,
    parts: int = 1,
    adds: bool = False,
    clears: str = "",
    raw: bool = False,
) -> DrawSpec:
    """``out[first] = activation(norm · weight @ (gain · x) + bias) + residual`` for one vector.

    x [1, IN], residual [1, OUT] and out [slots, OUT] are in blocks; slot ``first`` of out is written. With ``norm_eps``
    norm is 1 / sqrt(mean(x²) + eps): RMSNorm (Zhang and Sennrich 2019), or LayerNorm if x has mean zero or the
    constants hold the weights' sums. A gated matrix gives ``out = activation(gate) · up``. With ``turning`` queries and
    keys are rotated by the run value position. ``cap`` is the bound c of a final c · tanh(y / c); 0 for none.

    With ``adds`` blending adds the product to out, its own residual, or to zero after ``clears``. Then ``parts``
    instances may share the inputs, without activation or gate; each computes the norm of all inputs. With ``raw`` out
    is the sums of a :class:`RawRows`; this product finishes a RawRows as ``x``.
    """
    row = x.sums if isinstance(x, RawRows) else x
    if (
        not isinstance(row, TensorSpec)
        or not isinstance(row.layout, BlockLayout)
        or not isinstance(out.layout, BlockLayout)
    ):
        raise PlanError(f"draw {name}: expected vectors in blocks")
    inputs = [("x", row.name), *dense_inputs(matrix, turning, raw=raw)]
    defines = dense_defines(
        name,
        row.layout,
        matrix,
        out.layout,
        norm_eps=norm_eps,
        activation=activation,
        cap=cap,
        kernels=kernels,
        raw=raw,
    )
    if isinstance(x, RawRows):
        inputs += x.inputs
        defines += x.defines(name)
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
        op="raw_gemv" if raw else "gemv",
        shader="gemv",
        inputs=tuple(inputs),
        outputs=(out.name,),
        size=(1, out.shape[1]),
        defines=tuple(defines),
        uniforms=(("share", steps // parts),),
        per_run=(
            *(() if turning is None else (("position", turning.run_value),)),
            *(() if matrix.low_rank is None else matrix.low_rank.per_run),
        ),
        first=first,
        cover=kernels.cover,
        instances=parts,
        adds=adds,
        clears=clears,
    )


def _check(shapes: Shapes, params: Params) -> None:
    outputs = shapes.by_name["output"][1]
    if params.get("RAW_INPUT"):
        check_raw_input(shapes, params, ["x"], 1)
    else:
        shapes.expect("x", 1, params["INPUTS"])
    shapes.expect("residual", 1, outputs)
    check_dense(shapes, params, outputs, residual="residual" in shapes.by_name)
    if params.get("ROPE"):
        shapes.require(params["position"] < shapes.rows("rope"), f"there is no position {params['position']}")


def _check_raw(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", 1, params["INPUTS"])
    check_raw(shapes, params)


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    if params.get("RAW_INPUT"):
        x = finished_rows(x, inputs.get("x_consts"), params)
    y = dense_rows(inputs, params, x, None, np.array([int(params.get("position", 0))]))[:, : size[1]]
    for added in {"residual", "output"} & set(inputs):
        y = y + float64(inputs, [added])[0]
    return y


def _oracle_raw(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    return raw_rows(sums_of(inputs, params, x), x, params)


register(
    Op(
        "raw_gemv",
        ("x", "weight"),
        ("consts", "gain", *LORA_SAMPLERS),
        _check_raw,
        _oracle_raw,
        either=("weight",),
        regions=("x", "output"),
    )
)
register(
    Op(
        "gemv",
        ("x", "weight", "consts"),
        ("gain", "rope", "residual", "x_consts", *LORA_SAMPLERS),
        _check,
        _oracle,
        either=("weight",),
        regions=("x", "residual", "output"),
        parts=looked_up("rope"),
    )
)
