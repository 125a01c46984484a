"""Matrix products over packed weights for many rows at once: one fragment, four outputs of several rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout
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
from glinfer.ops.fused.norms import norm_floats
from glinfer.ops.fused.rows import (
    RowInterleaved,
    check_same,
    deinterleaved,
    gathered,
    input_names,
    optional_names,
    table_layout,
    turned_by,
)
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, looked_up, register


def gemm(
    name: str,
    kind: str,
    x: RowInterleaved | TensorSpec | RawRows,
    matrix: Matrix,
    out: RowInterleaved,
    *,
    slots: Extent,
    norm_eps: float | None = None,
    norms: TensorSpec | None = None,
    turning: Turning | None = None,
    rows: TensorSpec | None = None,
    residual: RowInterleaved | None = None,
    activation: str = "none",
    cap: float = 0.0,
    kernels: KernelOptions,
    parts: int = 1,
    adds: bool = False,
    clears: str = "",
    raw: bool = False,
) -> DrawSpec:
    """``out[r] = activation(norm[r] · weight @ (gain · x[r]) + bias) + residual[r]`` for the rows of ``slots`` slots.

    Each row is computed as :func:`glinfer.ops.fused.gemv.gemv` computes one vector; ``parts``, ``adds``, ``clears``,
    ``cap``, ``raw`` and :class:`RawRows` as x mean the same. x and residual are interleaved like out, or x is one
    tensor with a row a slot. With ``norm_eps`` norm is 1 / sqrt(mean(x²) + eps); ``norms`` is the output of
    :func:`glinfer.ops.fused.norms.row_norms` instead. With ``turning`` the table ``rows`` gives the positions.
    """
    read = x.sums if isinstance(x, RawRows) else x
    together = isinstance(read, TensorSpec)
    x_layout = read.layout
    if not isinstance(x_layout, BlockLayout) or (together and isinstance(x, RawRows)):
        raise PlanError(f"draw {name}: expected rows in blocks")
    defines = dense_defines(
        name,
        x_layout,
        matrix,
        out.layout,
        norm_eps=norm_eps,
        activation=activation,
        cap=cap,
        kernels=kernels,
        raw=raw,
    )
    steps = int(dict(defines)["STEPS"])
    defines += [("ROWS", len(out.tensors)), ("TOGETHER", int(together))]
    inputs = [("x", read.name)] if isinstance(read, TensorSpec) else list(read.inputs())
    inputs += dense_inputs(matrix, turning, raw=raw)
    if isinstance(x, RawRows):
        inputs += x.inputs
        defines += x.defines(name)
    if norms is not None:
        if not isinstance(norms.layout, BlockLayout) or norm_eps is not None:
            raise PlanError(f"draw {name}: norms must be in blocks, and need no norm_eps")
        defines += [("NORMS", 1), *norms.layout.defines("NORMS")]
        inputs.append(("norms", norms.name))
    if turning is not None:
        if rows is None:
            raise PlanError(f"draw {name}: rotary positions need the table of rows")
        defines += turning.defines(name)
    table = rows if turning is not None else None if matrix.low_rank is None else matrix.low_rank.rows
    if table is not None:
        defines += table_layout(table).defines("ROWS")
        inputs.append(("rows", table.name))
    if parts > 1:
        defines.append(("PARTS", parts))
    if residual is not None:
        inputs += residual.inputs("r")
        defines.append(("RESIDUAL", 1))
    return DrawSpec(
        name=name,
        kind=kind,
        op="raw_gemm" if raw else "gemm",
        shader="gemm",
        inputs=tuple(inputs),
        outputs=out.names,
        size=(slots, out.cols),
        defines=tuple(defines),
        uniforms=(("share", steps // parts),),
        per_run=() if matrix.low_rank is None else matrix.low_rank.per_run,
        cover=kernels.cover,
        largest_cell=kernels.largest_cell,
        instances=parts,
        adds=adds,
        clears=clears,
    )


def _check(shapes: Shapes, params: Params) -> None:
    slots, outputs = shapes.by_name["output"]
    rows, inputs = int(params["ROWS"]), int(params["INPUTS"])
    if params["TOGETHER"]:
        shapes.expect("x", None, inputs)
        shapes.require(shapes.rows("x") >= slots * rows, f"x has {shapes.rows('x')} rows for {slots} slots of {rows}")
    elif params.get("RAW_INPUT"):
        check_raw_input(shapes, params, input_names(rows), slots)
    else:
        check_same(shapes, params, slots, inputs)
    if "norms" in shapes.by_name:
        shapes.expect("norms", slots, norm_floats(rows, centred=bool(params["CENTRED"])))
    for name in optional_names("r"):
        shapes.expect(name, slots, outputs)
    check_dense(shapes, params, outputs, residual="r0" in shapes.by_name)
    if "lora_t" in shapes.by_name:
        found = shapes.rows("lora_t")
        shapes.require(found >= slots * rows, f"lora_t has {found} rows for {slots} slots of {rows}")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = int(params["ROWS"])
    count = size[0] * rows
    x = (float64(inputs, ["x"])[0] if params["TOGETHER"] else gathered(inputs, rows))[:count]
    x = np.pad(x, [(0, count - len(x)), (0, 0)])  # padding rows fill the last slot
    if params.get("RAW_INPUT"):
        x = finished_rows(x, inputs.get("x_consts"), params)
    norms = None
    if params.get("NORMS"):
        found = float64(inputs, ["norms"])[0][: size[0], : norm_floats(rows)]
        by_member = found.reshape(size[0], -1, 4, 4)[:, :, 0]  # one member's
        norms = by_member.reshape(size[0], -1)[:, :rows].reshape(-1, 1)
    positions = np.zeros(count, np.intp)
    if params.get("ROPE"):  # padding rows may be beyond the last position
        positions = turned_by(inputs["rows"][:count], params, len(inputs["rope"]))
    y = dense_rows(inputs, params, x, norms, positions)[:, : size[1]]
    if "r0" in inputs:
        y = y + gathered(inputs, rows, "r")[:count]
    y = deinterleaved(y, rows)
    return y + float64(inputs, ["output"])[0] if "output" in inputs else y


def _check_raw(shapes: Shapes, params: Params) -> None:
    check_same(shapes, params, shapes.by_name["output"][0], int(params["INPUTS"]))
    check_raw(shapes, params)


def _oracle_raw(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = int(params["ROWS"])
    x = gathered(inputs, rows)[: size[0] * rows]
    return deinterleaved(raw_rows(sums_of(inputs, params, x), x, params), rows)


register(
    Op(
        "raw_gemm",
        ("weight",),
        (*optional_names(), "consts", "gain", "rows", *LORA_SAMPLERS),
        _check_raw,
        _oracle_raw,
        integers=("rows",),
        either=("weight",),
    )
)
register(
    Op(
        "gemm",
        ("weight", "consts"),
        ("x", *optional_names(), *optional_names("r"), "norms", "gain", "rope", "rows", "x_consts", *LORA_SAMPLERS),
        _check,
        _oracle,
        integers=("rows",),
        either=("weight",),
        parts=looked_up("rope"),
    )
)
