"""Embeddings of each layer (Gemma 4): the input of a layer's third branch, and the factor of the stream after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.kernels.fused.draws import Inputs, block_draw, block_layout, expect_table
from glinfer.kernels.fused.embed import table_defines, table_in, tokens_in
from glinfer.kernels.fused.rows import X_ROWS, RowInterleaved, gathered
from glinfer.kernels.spec import Array, DrawSpec, Params, Part, Pass, Shapes, TensorSpec, float64, given, op


def per_layer_hidden(
    draw: Pass,
    gates: RowInterleaved,
    projected: TensorSpec,
    gain: TensorSpec,
    table: TensorSpec,
    out: RowInterleaved,
    *,
    layer: int,
    eps: float,
    rows: TensorSpec | None,
    picks: TensorSpec | None,
) -> DrawSpec:
    """``out[r] = gates[r] · (p[r] / sqrt(mean(p[r]²) + eps) · gain + √P · table[token]) / √2``, P elements.

    p is part ``layer`` of projected [rows, layers · P], a row a slot, whose parts begin with whole blocks; gain [1, P];
    table [V, P] is a table of rows or a packed matrix. Rows and picks give the tokens as in
    :func:`glinfer.kernels.fused.embed.embed`.
    """
    width = out.cols
    embeddings, defines = table_defines(draw.name, table, None, width, width**0.5)
    inputs: Inputs = {"x": gates, "projected": projected.name, "gain": expect_table(draw.name, gain).name}
    inputs |= {**embeddings, "rows": rows, "picks": picks}
    defines += block_layout(draw.name, projected).defines("P")
    defines += [("FIRST_BLOCK", layer * blocks_for(width)), ("DIM", width), ("EPS", eps)]
    defines += given(MANY=rows)
    how: dict[str, Any] = {"cells": True}
    if rows is None:
        how = {"per_run": (("token", "token"), ("position", "position"))}
    return block_draw(draw, "per_layer_hidden", inputs, out, defines, **how)


def _check(shapes: Shapes, params: Params) -> None:
    width = params["DIM"]
    shapes.expect(("output", *X_ROWS), None, width)
    shapes.expect("gain", 1, width)
    shapes.expect("wte", None, width)
    needed = BLOCK_FLOATS * params["FIRST_BLOCK"] + width
    shapes.require(shapes.by_name["projected"][1] >= needed, f"projected has fewer than {needed} columns")


def _parts(params: Params) -> Mapping[str, Part]:
    return dict.fromkeys(_READ, Part(int(params.get("rows", 1))))


_READ = ("wte", "weight", "picks")


@op(
    "per_layer_hidden",
    ("projected", "gain"),
    (*X_ROWS, *_READ, "rows"),
    _check,
    ("rows", "weight"),
    regions=(*X_ROWS, "output"),
    parts=_parts,
)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    gates, (projected, gain) = gathered(inputs, params, size[0]), float64(inputs, ["projected", "gain"])
    start = BLOCK_FLOATS * int(params["FIRST_BLOCK"])
    part = projected[: len(gates), start : start + int(params["DIM"])]
    tokens = tokens_in(inputs, params, len(gates))
    normed = part / np.sqrt(np.mean(part**2, axis=1, keepdims=True) + params["EPS"]) * gain
    return np.asarray(gates * (normed + table_in(inputs, params)[tokens]) * 0.5**0.5)


def scale_rows(draw: Pass, x: RowInterleaved, factor: TensorSpec, out: RowInterleaved) -> DrawSpec:
    """``out = factor · x``; x and out are alike, factor [1, 1]."""
    inputs: Inputs = {"x": x, "factor": expect_table(draw.name, factor).name}
    return block_draw(draw, "scale_rows", inputs, out, cells=draw.rows != 1)


def _check_scale(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, shapes.by_name["output"][1])
    shapes.expect("factor", 1, 1)


@op("scale_rows", ("factor",), X_ROWS, _check_scale, regions=(*X_ROWS, "output"))
def _oracle_scale(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    return gathered(inputs, params, size[0])[:, : size[1]] * float64(inputs, ["factor"])[0]
