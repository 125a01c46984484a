"""Gates after attention: each result times the sigmoid of its gate (Qwen Team 2025)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.draws import Inputs, block_draw
from glinfer.kernels.fused.rows import R_ROWS, X_ROWS, RowInterleaved, gathered
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, op


def gate_heads(
    name: str,
    x: RowInterleaved,
    gates: RowInterleaved,
    out: RowInterleaved,
    *,
    gates_at: int,
    head_floats: int = 0,
    slots: Extent = 1,
    kernels: KernelOptions,
) -> DrawSpec:
    """``out = x · sigmoid(gate)``, x and out [rows, C]; the gates of a row are its floats from ``gates_at`` on.

    With ``head_floats`` one gate is for a head of that size, a multiple of 4; otherwise each float has its own.

    Raises:
        PlanError: ``gates_at`` is not at the beginning of a block.
    """
    if gates_at % BLOCK_FLOATS:
        raise PlanError(f"draw {name}: gates from float {gates_at} on; expected a multiple of {BLOCK_FLOATS}")
    defines = [("GATE_BLOCK", gates_at // BLOCK_FLOATS), *([("HEAD_FLOATS", head_floats)] if head_floats else [])]
    inputs: Inputs = {"x": x, "r": gates}
    return block_draw(name, "attn.gate", "gate_heads", inputs, out, slots, defines, kernels=kernels)


def _check_gate(shapes: Shapes, params: Params) -> None:
    cols = shapes.by_name["output"][1]
    shapes.expect(X_ROWS, None, cols)
    each = int(params.get("HEAD_FLOATS", 1))
    shapes.require(cols % each == 0 and each in (1, each // 4 * 4), f"{cols} floats in heads of {each}")
    shapes.expect(R_ROWS, None, BLOCK_FLOATS * params["GATE_BLOCK"] + cols // each)


@op("gate_heads", (), (*X_ROWS, *R_ROWS), _check_gate)
def _oracle_gate(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, gates = (gathered(inputs, params, size[0], letter) for letter in "xr")
    start, each = BLOCK_FLOATS * int(params["GATE_BLOCK"]), int(params.get("HEAD_FLOATS", 1))
    gates = np.repeat(gates[:, start : start + size[1] // each], each, axis=1)
    return np.asarray(x * np.exp(-np.logaddexp(0.0, -gates)))
