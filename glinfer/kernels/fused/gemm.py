"""Matrix products over packed weights, of one row or of many: one fragment, four outputs of several rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.families.layer import Experts
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.gl.layouts.grouped import GroupedLayout, rounds_for, words_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.dense import (
    Matrix,
    RawRows,
    Rotation,
    dense_defines,
    dense_inputs,
    dense_rows,
    finished_rows,
    format_name,
    half_defines,
    raw_rows,
    steps_of,
)
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw
from glinfer.kernels.fused.low_rank import CHOICE_FLOATS, LORA_SAMPLERS, check_low_rank
from glinfer.kernels.fused.norms import norm_floats, norms_in
from glinfer.kernels.fused.rows import R_ROWS, X_ROWS, RowInterleaved, Vectors, gathered, padded, rotary_rows
from glinfer.kernels.routing import experts_read, gate_defines
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, Shapes, TensorSpec, float64, given, looked_up, op
from glinfer.quant.formats import WORD_FORMATS


def gemm(
    draw: Pass,
    x: Vectors | RawRows,
    matrix: Matrix,
    out: Vectors,
    *,
    alone: bool = False,
    first: Extent = 0,
    norm_eps: float | None = None,
    norms: TensorSpec | None = None,
    rotation: Rotation | None = None,
    rows: TensorSpec | None = None,
    residual: RowInterleaved | None = None,
    activation: str = "none",
    cap: float = 0.0,
    experts: Experts | None = None,
    choice: TensorSpec | None = None,
    chosen: TensorSpec | None = None,
    apart: bool = False,
    parts: int = 1,
    adds: bool = False,
    clears: str = "",
    raw: bool = False,
) -> DrawSpec:
    """``out[r] = activation(norm[r] · weight @ (gain · x[r]) + bias) + residual[r]`` for the rows of a pass.

    x and residual are interleaved like out, or x is one tensor with a row a slot. If the row is ``alone``, slot
    ``first`` of out is written. With ``norm_eps`` norm is 1 / sqrt(mean(x²) + eps): RMSNorm (Zhang and
    Sennrich 2019), or LayerNorm if x has mean zero or the constants hold the weights' sums; ``norms`` is the output of
    :func:`glinfer.kernels.fused.norms.row_norms` instead. A gated matrix gives ``out = activation(gate) · up``. With
    ``rotation`` queries and keys are rotated, by the positions in the table ``rows``, or one row by the run value
    position. ``cap`` is the bound c of a final c · tanh(y / c); 0 for none.

    With ``experts`` the matrix stacks the matrices of all experts, each padded to whole blocks; ``experts`` bounds its
    gates. ``choice`` is the output of :func:`glinfer.kernels.fused.experts.route`: out has the products of a row's
    experts side by side, and with ``apart`` x has an input for each, padded too, instead of one for all. Or ``chosen``
    [slots, 4 · T] is what :func:`glinfer.kernels.fused.expert_groups.group_experts` wrote: each slot is a group of rows
    that chose one expert, which are those in ``chosen`` if x is one tensor. An unused group becomes zero.

    With ``adds`` blending adds the product to out, its own residual, or to zero after ``clears``. Then ``parts``
    instances may share the inputs, without activation or gate; each computes the norm of all inputs. With ``raw`` out
    is the sums of a :class:`RawRows`; this product finishes a RawRows as ``x``.

    Raises:
        PlanError: a tensor has another layout, or the matrix lacks whole blocks for each expert.
    """
    name, low_rank, steps = draw.name, matrix.low_rank, steps_of(matrix)
    if norms is not None and norm_eps is not None:
        raise PlanError(f"draw {name}: norms need no norm_eps")
    targets = out if isinstance(out, RowInterleaved) else RowInterleaved((out,))
    inputs, defines = _rows_in(name, x, matrix, rotation, rows, alone=alone, raw=raw)
    inputs |= {"norms": norms, "choice": choice, "chosen": chosen}
    defines += [("ALONE", int(alone)), *half_defines(targets.layout)]
    defines += dense_defines(draw, matrix, norm_eps=norm_eps, activation=activation, cap=cap, raw=raw)
    defines += given(NORMS=norms)
    if experts is not None:
        defines += _expert_defines(name, matrix, experts)
        defines += [("X_PART", blocks_for(matrix.inputs) if apart else 0)] if choice is not None else []
    if residual is not None:
        inputs |= residual.inputs("r")
    defines += given(RESIDUAL=residual)
    if len(targets.tensors) == 1 and not isinstance(matrix.weight.layout, GroupedLayout):
        defines.append(("UNROLL", math.gcd(steps // parts, draw.kernels.unroll)))
    defines += given(PARTS=parts if parts > 1 else None)
    per_run = () if low_rank is None else low_rank.per_run
    if alone and rotation is not None:
        per_run = (("position", rotation.run_value), *per_run)
    how: dict[str, Any] = {"first": first, "instances": parts, "adds": adds, "clears": clears, "per_run": per_run}
    how |= {"quad": matrix.quad, "cells": not (alone or isinstance(out, TensorSpec))}
    return block_draw(draw, "gemm", inputs, targets, defines, uniforms=(("share", steps // parts),), **how)


def _rows_in(
    name: str,
    x: Vectors | RawRows,
    matrix: Matrix,
    rotation: Rotation | None,
    rows: TensorSpec | None,
    *,
    alone: bool,
    raw: bool,
) -> tuple[Inputs, Defines]:
    """The rows, the matrix, and what many rows have in the table of rows: their positions and adapters."""
    inputs: Inputs = {"x": x.sums, **x.inputs} if isinstance(x, RawRows) else {"x": x}
    defines: Defines = [("TOGETHER", int(isinstance(x, TensorSpec)))]
    defines += x.defines(name) if isinstance(x, RawRows) else []
    inputs |= dense_inputs(matrix, raw=raw)
    if rotation is None:
        return {**inputs, "rows": None if matrix.low_rank is None else matrix.low_rank.rows}, defines
    if rows is None and not alone:
        raise PlanError(f"draw {name}: rotary positions need the table of rows")
    inputs |= {**rotation.inputs(name), "rows": None if alone or rotation.by_row else rows}
    return inputs, [*defines, *rotation.defines]


def _expert_defines(name: str, matrix: Matrix, experts: Experts) -> Defines:
    blocks, rest = divmod(blocks_for(matrix.outputs), experts.count)
    if rest or matrix.outputs % BLOCK_FLOATS:
        raise PlanError(f"draw {name}: {matrix.weight.name} has no whole blocks for each of {experts.count} experts")
    defines: Defines = [("EXPERT_BLOCKS", blocks), ("EXPERTS", experts.count), ("USED", experts.used)]
    return [*defines, *(gate_defines(experts) if matrix.gated else [])]


def _check(shapes: Shapes, params: Params) -> None:
    slots, outputs = shapes.by_name["output"]
    rows, inputs = int(params["ROWS"]), int(params["INPUTS"])
    matrix_rows, width = outputs, inputs
    if params["GATED"]:
        matrix_rows = 2 * padded(outputs)
    if params.get("RAW"):
        matrix_rows = shapes.rows("weight")
        shapes.expect("output", None, BLOCK_FLOATS * (blocks_for(matrix_rows) + 1))
    if "EXPERTS" in params:
        floats, used = BLOCK_FLOATS * int(params["EXPERT_BLOCKS"]), int(params["USED"])
        matrix_rows = int(params["EXPERTS"]) * (1 + int(params["GATED"])) * floats
        width = used * padded(inputs) if params.get("X_PART") else inputs
        columns = used * floats if "choice" in shapes.by_name else floats
        shapes.require(padded(outputs) == columns, f"{outputs} outputs; expected {columns}")
        shapes.expect("choice", slots, CHOICE_FLOATS * used)
        shapes.expect("chosen", slots, CHOICE_FLOATS * rows)
    read = 1 if params["ALONE"] else slots
    if params.get("RAW_INPUT"):
        _check_raw_input(shapes, params, read)
    elif params["TOGETHER"]:
        found = shapes.rows("x")
        shapes.expect("x", None, width)
        enough = found >= read * rows or "chosen" in shapes.by_name
        shapes.require(enough, f"x has {found} rows for {read} slots of {rows}")
    else:
        shapes.expect(X_ROWS, read, width)
    if "norms" in shapes.by_name:
        shapes.expect("norms", slots, norm_floats(rows, centred=bool(params["CENTRED"])))
    shapes.expect(R_ROWS, read, outputs)
    if "lora_t" in shapes.by_name:
        found = shapes.rows("lora_t")
        shapes.require(found >= read * rows, f"lora_t has {found} rows for {read} slots of {rows}")
    if params["ALONE"] and params.get("ROPE"):
        shapes.require(params["position"] < shapes.rows("rope"), f"there is no position {params['position']}")
    _check_matrix(shapes, params, matrix_rows)


def _check_matrix(shapes: Shapes, params: Params, rows: int) -> None:
    """Require weights and constants for ``rows`` rows, and a finish that parts and bare sums can have."""
    inputs, parts, form = int(params["INPUTS"]), int(params.get("PARTS", 1)), format_name(params)
    words = words_for(form, inputs) if params["GROUPED"] else WORD_FORMATS[form].piece_texels * -(-inputs // 4)
    shapes.expect("consts", rows, 4 * params["SCALED"] + params["CENTRED"] + 1)
    shapes.expect("weight", rows, words)
    shapes.expect("gain", 1, inputs)
    check_low_rank(shapes, params, rows)
    steps = rounds_for(inputs) if params["GROUPED"] else 4 * blocks_for(inputs)
    shapes.require(params["STEPS"] == steps, "STEPS does not fit x")
    shapes.require(steps % (parts * int(params.get("UNROLL", 1))) == 0, f"{steps} steps in {parts} parts")
    finished = params["ACTIVATION"] or params["GATED"] or any(map(params.get, ("NORMS", "OUTPUT_CAP")))
    after = finished or params.get("OUT_HALF") or "r0" in shapes.by_name
    shapes.require(parts == 1 or not after, "parts are added up without activation, rounding or residual")
    constants = "consts" in shapes.by_name
    if not params.get("RAW"):
        shapes.require(constants, "a product needs consts")
        return
    finished = finished or any(map(params.get, ("NORM", "ROPE")))
    shapes.require(not finished, "bare sums have no norm, rotation, activation or gate")
    needed = bool(params["SCALED"] or params["CENTRED"])
    shapes.require(constants == needed, "expected consts exactly for scales or weight sums")


def _check_raw_input(shapes: Shapes, params: Params, slots: int) -> None:
    """Require bare sums as inputs, and no further step in the product that reads them."""
    blocks = (1 + int(params["X_GATED"])) * blocks_for(int(params["INPUTS"]))
    shapes.expect(X_ROWS, slots, BLOCK_FLOATS * (blocks + 1))
    shapes.expect("x_consts", None, params.get("XC_BIAS_AT", 0) + 1)
    shapes.require(("x_consts" in shapes.by_name) == bool(params["X_BIASED"]), "expected x_consts exactly for a bias")
    further = ("NORM", "NORMS", "RAW", "OUTPUT_CAP")
    finish = params["ACTIVATION"] or params["GATED"] or any(map(params.get, further))
    shapes.require(not finish, "bare sums are finished for a product without norm, activation or gate")


def _parts(params: Params) -> Mapping[str, Part]:
    return {**looked_up("rope")(params), **experts_read(params)}


@op(
    "gemm",
    ("weight",),
    (
        *("x", *X_ROWS, *R_ROWS, "consts", "norms", "gain", "rope", "rows", "x_consts"),
        *("choice", "chosen", *LORA_SAMPLERS),
    ),
    _check,
    integers=("rows",),
    either=("weight",),
    regions=("x", "x0", "r0", "output"),
    parts=_parts,
)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = int(params["ROWS"])
    count = size[0] * rows
    x = float64(inputs, ["x"])[0] if params["TOGETHER"] else gathered(inputs, params)
    if params.get("RAW_INPUT"):
        x = finished_rows(x, inputs.get("x_consts"), params)
    if "choice" in inputs or "chosen" in inputs:
        return _expert_rows(inputs, params, x, count)[:, : size[1]]
    x = np.pad(x[:count], [(0, max(0, count - len(x))), (0, 0)])  # padding rows fill the last slot
    norms = None
    if params.get("NORMS"):
        norms = norms_in(float64(inputs, ["norms"])[0][: size[0]], rows)
    positions = np.full(count, int(params.get("position", 0)))
    if params.get("ROPE") and not params["ALONE"]:  # padding rows may be beyond the last position
        positions = rotary_rows(inputs, params, count)
    y = dense_rows(inputs, params, x, norms, positions)
    y = raw_rows(y, x, params) if params.get("RAW") else y[:, : size[1]]
    return y + gathered(inputs, params, size[0], "r") if "r0" in inputs else y


def _expert_rows(inputs: Mapping[str, Array], params: Params, x: Array, count: int) -> Array:
    """The products of ``count`` rows with their experts; zeros for unused groups."""
    floats, width = BLOCK_FLOATS * int(params["EXPERT_BLOCKS"]), int(params["INPUTS"])
    each, of_rows = floats * (1 + int(params["GATED"])), {}
    if "choice" in inputs:
        used = int(params["USED"])
        experts = np.asarray(inputs["choice"])[:count].reshape(-1, CHOICE_FLOATS)[:, 0].astype(np.intp)
        x = x[:count].reshape(count * used, -1) if params["X_PART"] else np.repeat(x[:count], used, axis=0)
        x = x[:, :width]
        if "lora_t" in inputs:
            of_rows["lora_t"] = inputs["lora_t"][:count].reshape(count * used, -1)
        if "rows" in inputs:
            of_rows["rows"] = np.repeat(inputs["rows"][:count], used, axis=0)
    else:
        rows = int(params["ROWS"])
        members = np.asarray(inputs["chosen"])[: count // rows].reshape(count, CHOICE_FLOATS)
        experts = np.repeat(np.where(members[::rows, 2] > 0, members[::rows, 1], -1), rows).astype(np.intp)
        x = x[members[:, 0].astype(np.intp)] if params["TOGETHER"] else x[:count]
    found, positions = np.zeros((len(x), floats)), np.zeros(len(x), np.intp)
    for expert in np.unique(experts[experts >= 0]):
        own, stacked = experts == expert, [key for key in ("weight", "consts", "lora_up") if key in inputs]
        part = {key: inputs[key][expert * each : (expert + 1) * each] for key in stacked}
        part |= {key: array[own] for key, array in of_rows.items()}
        found[own] = dense_rows({**inputs, **part}, params, x[own], None, positions[own])
    return found.reshape(count, -1)
