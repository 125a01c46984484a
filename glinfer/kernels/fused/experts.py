"""Passes of layers with experts: the choice for each row, products with the chosen experts' matrices, and their sum.

The matrices of a layer's experts are stacked, each in whole blocks of outputs, so a product finds an expert's rows by
its number. It reads the experts of a row from a texture that a pass wrote: nothing is read back, and no weights of
other experts are fetched. Rows are in one tensor here, a row a slot.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.families.layer import Experts
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw, of_run
from glinfer.kernels.fused.low_rank import CHOICE_FLOATS
from glinfer.kernels.fused.rows import R_ROWS, X_ROWS, RowInterleaved, Vectors, gathered, padded
from glinfer.kernels.routing import route_defines, routed
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, given, op


def join_rows(draw: Pass, x: RowInterleaved, out: TensorSpec) -> DrawSpec:
    """``out[r] = x[r]``, from interleaved tensors into one, [rows, D] in blocks."""
    return block_draw(draw, "join_rows", {"x": x}, out)


def route(
    draw: Pass,
    logits: TensorSpec,
    out: TensorSpec,
    experts: Experts,
    *,
    bias: TensorSpec | None = None,
    scales: TensorSpec | None = None,
) -> DrawSpec:
    """The experts with the largest logits of each row, and the softmax that weighs them.

    logits [rows, experts] and out [rows, 4 · used] in blocks; out has (expert, weight, 0, 0) for each choice, in
    descending order, ties in order of experts. ``experts`` selects a softmax over the chosen experts or over all
    (Shazeer et al. 2017), or sigmoids, to which ``bias`` [1, experts] is added for the choice (Wang et al. 2024). A
    shared expert adds one to both: its choice (expert, weight, row, 0) is the last one, and its weight the sigmoid of
    the last logit. It is the only one if a row uses 0 others. ``scales`` [1, experts] are factors of the weights.
    """
    inputs: Inputs = {"logits": logits, "bias": bias, "scales": scales}
    defines = [*route_defines(experts), ("SHARED", int(experts.shared))]
    return block_draw(draw, "route", inputs, out, defines)


def mix_experts(
    draw: Pass,
    x: Vectors,
    choice: TensorSpec,
    out: RowInterleaved,
    experts: Experts,
    *,
    residual: RowInterleaved | None,
    rows: Extent,
    alone: bool = False,
    bias: TensorSpec | None = None,
) -> DrawSpec:
    """``out[r] = sum over i of weight[r, i] · x[r, i] + bias + residual[r]`` for the rows of a pass.

    x [rows, used · D], each part padded to whole blocks, and choice [rows, 4 · used] have a row a slot. Or
    ``gemm`` wrote x [groups · T, D], interleaved, and ``place_experts`` the choice, with the indices of its rows
    (:mod:`glinfer.kernels.fused.expert_groups`). out [rows, D] and residual are interleaved, bias is [1, D].
    Without ``residual`` blending adds to out, unless the sum is ``alone``. Rows from number ``rows`` on are padding:
    nothing is added.
    """
    inputs: Inputs = {"x": x, "choice": choice, "bias": bias}
    defines: Defines = [("USED", experts.used), ("PLACED", int(isinstance(x, RowInterleaved)))]
    if residual is not None:
        inputs |= residual.inputs("r")
    defines += given(RESIDUAL=residual)
    adds = residual is None and not alone
    return block_draw(draw, "mix_experts", inputs, out, defines, adds=adds, **of_run("held", rows))


def _check_join(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, shapes.by_name["output"][1])
    rows = shapes.rows("x0") * int(params["ROWS"])
    shapes.require(shapes.rows("output") <= rows, f"x has {rows} rows; {shapes.rows('output')} are written")


@op("join_rows", (), X_ROWS, _check_join)
def _oracle_join(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    return gathered(inputs, params)[: size[0]]


def _check_route(shapes: Shapes, params: Params) -> None:
    shapes.expect("logits", shapes.rows("output"), None)
    logits, count = shapes.by_name["logits"][1], params["EXPERTS"] + params["SHARED"]
    shapes.require(logits >= count, f"{logits} logits; expected {count} or more")
    for table in ("bias", "scales"):
        shapes.expect(table, 1, params["EXPERTS"])
    shapes.expect("output", None, CHOICE_FLOATS * (params["USED"] + params["SHARED"]))
    used = params["USED"]
    shapes.require(used <= params["EXPERTS"] and used + params["SHARED"] > 0, f"{used} of {params['EXPERTS']} experts")


@op("route", ("logits",), ("bias", "scales"), _check_route, regions=("logits", "output"))
def _oracle_route(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (logits,) = float64(inputs, ["logits"])
    used, count, shared = int(params["USED"]), int(params["EXPERTS"]), int(params["SHARED"])
    chosen, weights = routed(logits[: size[0], :count], params, inputs.get("bias"))
    found = np.zeros((size[0], used + shared, CHOICE_FLOATS))
    scales = np.asarray(inputs["scales"])[0, chosen] if "scales" in inputs else 1.0
    found[:, :used, 0], found[:, :used, 1] = chosen, weights * scales
    if shared:
        found[:, used, 0], found[:, used, 1] = count, np.exp(-np.logaddexp(0.0, -logits[: size[0], count]))
        found[:, used, 2] = np.arange(size[0])
    return found.reshape(size)


def _check_mix(shapes: Shapes, params: Params) -> None:
    used, (slots, cols) = int(params["USED"]), shapes.by_name["output"]
    rows = slots * int(params["ROWS"])
    if params["PLACED"]:
        shapes.expect(X_ROWS, None, cols)
    else:
        shapes.expect("x", None, used * padded(cols))
        rows = min(rows, shapes.rows("x"))
    shapes.expect("choice", None, CHOICE_FLOATS * used)
    shapes.require(params["held"] <= min(rows, shapes.rows("choice")), f"{params['held']} rows of {rows}")
    shapes.expect("bias", 1, cols)
    shapes.expect(R_ROWS, None, cols)


@op("mix_experts", ("choice",), ("x", "bias", *X_ROWS, *R_ROWS), _check_mix, regions=("x", *R_ROWS, "output"))
def _oracle_mix(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, used, held = int(params["ROWS"]), int(params["USED"]), int(params["held"])
    choice = float64(inputs, ["choice"])[0][:held].reshape(held, used, CHOICE_FLOATS)
    weights = choice[:, :, 1]
    if params["PLACED"]:
        parts = gathered(inputs, params)[choice[:, :, 2].astype(np.intp)]
    else:
        parts = float64(inputs, ["x"])[0][:held].reshape(held, used, -1)[:, :, : size[1]]
    mixed = np.zeros((size[0] * rows, size[1]))
    mixed[:held] = np.einsum("ri,rid->rd", weights, parts)[: len(mixed)] + inputs.get("bias", 0.0)
    if params.get("RESIDUAL"):
        mixed = mixed + gathered(inputs, params, size[0], "r")
    return mixed
