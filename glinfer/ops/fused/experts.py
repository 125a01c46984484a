"""Passes of layers with experts: the choice for each row, products with the chosen experts' matrices, and their sum.

The matrices of a layer's experts are stacked, each in whole blocks of outputs, so a product finds an expert's rows by
its number. It reads the experts of a row from a texture that a pass wrote: nothing is read back, and no weights of
other experts are fetched. Rows are in one tensor here, a row a slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.families.layer import Experts
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.gl.layouts.grouped import GroupedLayout, words_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.fused.dense import Matrix, dense_defines, dense_inputs, dense_rows, format_name
from glinfer.ops.fused.draws import block_draw, block_layout
from glinfer.ops.fused.low_rank import CHOICE_FLOATS, LORA_SAMPLERS, check_low_rank
from glinfer.ops.fused.rows import (
    RowInterleaved,
    check_same,
    deinterleaved,
    gathered,
    optional_names,
    table_layout,
)
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.routing import experts_read, gate_defines, route_defines, routed
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register
from glinfer.quant.formats import WORD_FORMATS


def padded(floats: int) -> int:
    """Floats of one expert's part of a row: whole blocks."""
    return BLOCK_FLOATS * blocks_for(floats)


def join_rows(
    name: str, kind: str, x: RowInterleaved, out: TensorSpec, *, rows: Extent, kernels: KernelOptions
) -> DrawSpec:
    """``out[r] = x[r]`` for the first ``rows`` rows, from interleaved tensors into one, [rows, D] in blocks."""
    defines = *x.layout.defines("X"), *block_layout(name, out).defines("OUT"), ("ROWS", len(x.tensors))
    return block_draw(name, kind, "join_rows", x.inputs(), (out.name,), (rows, out.shape[1]), defines, kernels=kernels)


def route(
    name: str,
    kind: str,
    logits: TensorSpec,
    out: TensorSpec,
    experts: Experts,
    *,
    rows: Extent,
    kernels: KernelOptions,
) -> DrawSpec:
    """The experts with the largest logits of each row, and the softmax that weighs them.

    logits [rows, experts] and out [rows, 4 · used] in blocks; out has (expert, weight, 0, 0) for each choice, in
    descending order, ties in order of experts. ``experts`` selects a softmax over the chosen experts or over all
    (Shazeer et al. 2017). A shared expert adds one to both: its choice is the last one, and its weight the sigmoid of
    the last logit.
    """
    defines = (
        *block_layout(name, logits).defines("LOGITS"),
        *block_layout(name, out).defines("OUT"),
        *route_defines(experts),
        ("SHARED", int(experts.shared)),
    )
    inputs, size = [("logits", logits.name)], (rows, out.shape[1])
    return block_draw(name, kind, "route", inputs, (out.name,), size, defines, kernels=kernels)


def rowwise_gemv(
    name: str,
    kind: str,
    x: TensorSpec,
    matrix: Matrix,
    out: TensorSpec,
    *,
    rows: Extent,
    norm_eps: float | None = None,
    activation: str = "none",
    kernels: KernelOptions,
    experts: Experts | None = None,
    choice: TensorSpec | None = None,
    apart: bool = False,
) -> DrawSpec:
    """The product of :func:`glinfer.ops.fused.gemv.gemv` for each of ``rows`` rows separately, a row a slot.

    x [rows, IN] and out [rows, OUT] are in blocks. With ``experts``, ``choice`` is the output of :func:`route`, and
    ``matrix`` stacks the matrices of all experts, each padded to whole blocks. out has the products of the chosen ones
    side by side. With ``apart`` x has an input for each chosen expert, padded too, instead of one for all.
    ``experts`` bounds the gates of a matrix.

    Raises:
        PlanError: a tensor has another layout, or the matrix lacks whole blocks for each expert.
    """
    defines = dense_defines(
        name,
        block_layout(name, x),
        matrix,
        block_layout(name, out),
        norm_eps=norm_eps,
        activation=activation,
        kernels=kernels,
    )
    steps = int(dict(defines)["STEPS"])
    if not isinstance(matrix.weight.layout, GroupedLayout):
        defines.append(("UNROLL", math.gcd(steps, kernels.unroll)))
    defines.append(("ROWWISE", 1))
    inputs = [("x", x.name), *dense_inputs(matrix, None)]
    if experts is not None and choice is not None:
        blocks, rest = divmod(blocks_for(matrix.outputs), experts.count)
        if rest or matrix.outputs % BLOCK_FLOATS:
            raise PlanError(
                f"draw {name}: {matrix.weight.name} has no whole blocks for each of {experts.count} experts"
            )
        defines += [
            ("EXPERT_BLOCKS", blocks),
            ("X_PART", blocks_for(matrix.inputs) if apart else 0),
            ("EXPERTS", experts.count),
            ("USED", experts.used),
            *block_layout(name, choice).defines("CHOICE"),
            *(gate_defines(experts) if matrix.gated else []),
        ]
        inputs.append(("choice", choice.name))
    low_rank = matrix.low_rank
    if low_rank is not None and low_rank.rows is not None:
        defines += table_layout(low_rank.rows).defines("ROWS")
        inputs.append(("rows", low_rank.rows.name))
    return DrawSpec(
        name=name,
        kind=kind,
        op="rowwise_gemv",
        shader="gemv",
        inputs=tuple(inputs),
        outputs=(out.name,),
        size=(rows, out.shape[1]),
        defines=tuple(defines),
        uniforms=(("share", steps),),
        per_run=() if low_rank is None else low_rank.per_run,
        cover=kernels.cover,
    )


def mix_experts(
    name: str,
    kind: str,
    x: TensorSpec | RowInterleaved,
    choice: TensorSpec,
    out: RowInterleaved,
    experts: Experts,
    *,
    residual: RowInterleaved | None,
    slots: Extent,
    rows: Extent,
    kernels: KernelOptions,
) -> DrawSpec:
    """``out[r] = sum over i of weight[r, i] · x[r, i] + residual[r]`` for the rows of the first ``slots`` slots.

    x [rows, used · D], each part padded to whole blocks, and choice [rows, 4 · used] have a row a slot. Or
    ``expert_gemm`` wrote x [groups · T, D], interleaved, and ``place_experts`` the choice, with the places of its rows
    (:mod:`glinfer.ops.fused.expert_groups`). out [rows, D] and residual are interleaved. Without ``residual`` blending
    adds to out. Rows from number ``rows`` on are padding, to which nothing is added.
    """
    defines: list[tuple[str, int | float]] = [
        *(block_layout(name, x) if isinstance(x, TensorSpec) else x.layout).defines("X"),
        *block_layout(name, choice).defines("CHOICE"),
        *out.layout.defines("OUT"),
        ("ROWS", len(out.tensors)),
        ("USED", experts.used),
        ("PLACED", int(isinstance(x, RowInterleaved))),
    ]
    inputs = [*([("x", x.name)] if isinstance(x, TensorSpec) else x.inputs()), ("choice", choice.name)]
    if residual is not None:
        inputs += residual.inputs("r")
        defines.append(("RESIDUAL", 1))
    size, adds = (slots, out.cols), residual is None
    held: dict[str, Any] = {"per_run" if isinstance(rows, str) else "uniforms": (("held", rows),)}
    return block_draw(name, kind, "mix_experts", inputs, out.names, size, defines, kernels=kernels, adds=adds, **held)


def _check_join(shapes: Shapes, params: Params) -> None:
    check_same(shapes, params, None, shapes.by_name["output"][1])
    rows = shapes.rows("x0") * int(params["ROWS"])
    shapes.require(shapes.rows("output") <= rows, f"x has {rows} rows; {shapes.rows('output')} are written")


def _oracle_join(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    return gathered(inputs, int(params["ROWS"]))[: size[0]]


def _check_route(shapes: Shapes, params: Params) -> None:
    shapes.expect("logits", shapes.rows("output"), params["EXPERTS"] + params["SHARED"])
    shapes.expect("output", None, CHOICE_FLOATS * (params["USED"] + params["SHARED"]))
    shapes.require(1 <= params["USED"] <= params["EXPERTS"], f"{params['USED']} of {params['EXPERTS']} experts")


def _oracle_route(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (logits,) = float64(inputs, ["logits"])
    used, count, shared = int(params["USED"]), int(params["EXPERTS"]), int(params["SHARED"])
    chosen, weights = routed(logits[: size[0], :count], used, bool(params["NORMALISED"]))
    found = np.zeros((size[0], used + shared, CHOICE_FLOATS))
    found[:, :used, 0], found[:, :used, 1] = chosen, weights
    if shared:
        found[:, used, 0], found[:, used, 1] = count, np.exp(-np.logaddexp(0.0, -logits[: size[0], count]))
    return found.reshape(size)


def _check_rowwise(shapes: Shapes, params: Params) -> None:
    (rows, outputs), inputs, halves = shapes.by_name["output"], int(params["INPUTS"]), 1 + int(params["GATED"])
    needed = outputs if halves == 1 else halves * padded(outputs)
    columns = inputs
    if "choice" in shapes.by_name:
        used, floats = int(params["USED"]), BLOCK_FLOATS * int(params["EXPERT_BLOCKS"])
        shapes.expect("output", None, used * floats)
        shapes.expect("choice", rows, CHOICE_FLOATS * used)
        needed = int(params["EXPERTS"]) * halves * floats
        columns = used * padded(inputs) if params["X_PART"] else inputs
    check_low_rank(shapes, params, needed)
    shapes.expect("x", rows, columns)
    shapes.expect("consts", needed, 4 * params["SCALED"] + params["CENTRED"] + 1)
    shapes.expect("gain", 1, inputs)
    form = format_name(params)
    words = words_for(form, inputs) if params["GROUPED"] else WORD_FORMATS[form].piece_texels * -(-inputs // 4)
    shapes.expect("weight", needed, words)


def _oracle_rowwise(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, width = float64(inputs, ["x"])[0][: size[0]], int(params["INPUTS"])
    if "choice" not in inputs:
        return dense_rows(inputs, params, x, None, np.zeros(len(x), np.intp))[:, : size[1]]
    used, floats = int(params["USED"]), BLOCK_FLOATS * int(params["EXPERT_BLOCKS"])
    chosen = np.asarray(inputs["choice"])[: size[0]].reshape(size[0], used, CHOICE_FLOATS)[:, :, 0].astype(np.intp)
    each, step = floats * (1 + int(params["GATED"])), BLOCK_FLOATS * int(params["X_PART"])
    found = np.zeros((size[0], used, floats))
    by_expert = [name for name in ("weight", "consts", "lora_up") if name in inputs]
    for expert in np.unique(chosen):
        own = {key: inputs[key][expert * each : (expert + 1) * each] for key in by_expert}
        for row, place in zip(*np.nonzero(chosen == expert), strict=True):
            start = step * place
            one = x[row : row + 1, start : start + width]
            own |= {key: inputs[key][row : row + 1] for key in ("lora_t", "rows") if key in inputs}
            if "lora_t" in own:
                own["lora_t"] = np.split(own["lora_t"], used, axis=1)[place]
            found[row, place] = dense_rows({**inputs, **own}, params, one, None, np.zeros(1, np.intp))[0]
    return found.reshape(size)


def _check_mix(shapes: Shapes, params: Params) -> None:
    used, (slots, cols) = int(params["USED"]), shapes.by_name["output"]
    rows = slots * int(params["ROWS"])
    if params["PLACED"]:
        check_same(shapes, params, None, cols)
    else:
        shapes.expect("x", None, used * padded(cols))
        rows = min(rows, shapes.rows("x"))
    shapes.expect("choice", None, CHOICE_FLOATS * used)
    shapes.require(params["held"] <= min(rows, shapes.rows("choice")), f"{params['held']} rows of {rows}")
    for name in optional_names("r"):
        shapes.expect(name, None, cols)


def _oracle_mix(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, used, held = int(params["ROWS"]), int(params["USED"]), int(params["held"])
    choice = float64(inputs, ["choice"])[0][:held].reshape(held, used, CHOICE_FLOATS)
    weights = choice[:, :, 1]
    if params["PLACED"]:
        parts = gathered(inputs, rows)[choice[:, :, 2].astype(np.intp)]
    else:
        parts = float64(inputs, ["x"])[0][:held].reshape(held, used, -1)[:, :, : size[1]]
    mixed = np.zeros((size[0] * rows, size[1]))
    mixed[:held] = np.einsum("ri,rid->rd", weights, parts)[: len(mixed)]
    if params.get("RESIDUAL"):
        mixed = mixed + gathered(inputs, rows, "r")[: len(mixed)]
    found = deinterleaved(mixed, rows)
    return found + float64(inputs, ["output"])[0] if "output" in inputs else found


register(Op("join_rows", (), optional_names(), _check_join, _oracle_join))
register(Op("route", ("logits",), (), _check_route, _oracle_route, regions=("logits", "output")))
register(
    Op(
        "rowwise_gemv",
        ("x", "weight", "consts"),
        ("gain", "choice", "rows", *LORA_SAMPLERS),
        _check_rowwise,
        _oracle_rowwise,
        integers=("rows",),
        either=("weight",),
        regions=("x", "output"),
        parts=experts_read,
    )
)
register(
    Op(
        "mix_experts",
        ("choice",),
        ("x", *optional_names(), *optional_names("r")),
        _check_mix,
        _oracle_mix,
        regions=("x", *optional_names("r"), "output"),
    )
)
