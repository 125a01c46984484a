"""Passes that compute rows from rows: gates after attention, xIELU, joined patches of an image, and pooled texts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS
from glinfer.kernels.flat.activate import xielu_of
from glinfer.kernels.fused.draws import Inputs, block_draw, expect_table
from glinfer.kernels.fused.rows import BASE, LAST, POSITION, R_ROWS, X_ROWS, RowInterleaved, check_listed, gathered
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, given, op


def gate_heads(
    draw: Pass, x: RowInterleaved, gates: RowInterleaved, out: RowInterleaved, *, gates_at: int, head_floats: int = 0
) -> DrawSpec:
    """``out = x · sigmoid(gate)``, x and out [rows, C]; the gates of a row are its floats from ``gates_at`` on.

    With ``head_floats`` one gate is for a head of that size, a multiple of 4; otherwise each float has its own.

    Raises:
        PlanError: ``gates_at`` is not at the beginning of a block.
    """
    if gates_at % BLOCK_FLOATS:
        raise PlanError(f"draw {draw.name}: gates from float {gates_at} on; expected a multiple of {BLOCK_FLOATS}")
    defines = [("GATE_BLOCK", gates_at // BLOCK_FLOATS), *given(HEAD_FLOATS=head_floats)]
    inputs: Inputs = {"x": x, "r": gates}
    return block_draw(draw, "gate_heads", inputs, out, defines)


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


def xielu_rows(draw: Pass, x: RowInterleaved, slopes: TensorSpec, out: RowInterleaved) -> DrawSpec:
    """``out = xIELU(x)``, x and out [rows, C]; slopes [1, 2] has the learned numbers, see :func:`xielu_of`."""
    inputs: Inputs = {"x": x, "slopes": expect_table(draw.name, slopes)}
    return block_draw(draw, "xielu_rows", inputs, out)


def _check_xielu(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, shapes.by_name["output"][1])
    shapes.expect("slopes", 1, 2)


@op("xielu_rows", ("slopes",), X_ROWS, _check_xielu)
def _oracle_xielu(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (slopes,) = float64(inputs, ["slopes"])
    return xielu_of(gathered(inputs, params, size[0])[:, : size[1]], *slopes[0])


_TEXEL = 4


def merge_rows(draw: Pass, x: RowInterleaved, out: RowInterleaved) -> DrawSpec:
    """Row t of out [tokens, m · D] is rows m · t to m · t + m - 1 of x [rows, D] side by side.

    Raises:
        PlanError: a row of out is not a whole number of rows of x, or a row of x no whole number of texels.
    """
    merged, rest = divmod(out.cols, x.cols)
    if rest or x.cols % _TEXEL:
        raise PlanError(
            f"draw {draw.name}: rows of {x.cols} floats make rows of {out.cols}; expected a multiple, and whole fours"
        )
    defines = [("MERGED", merged), ("X_TEXELS", x.cols // _TEXEL)]
    return block_draw(draw, "merge_rows", {"x": x}, out, defines, cells=True)


def _check_merge(shapes: Shapes, params: Params) -> None:
    slots, cols = shapes.by_name["output"]
    shapes.expect(X_ROWS, None, _TEXEL * params["X_TEXELS"])
    shapes.require(cols == _TEXEL * params["X_TEXELS"] * params["MERGED"], f"the output has {cols} columns")
    shapes.require(shapes.rows("x0") >= slots * params["MERGED"], f"x has {shapes.rows('x0')} slots")


@op("merge_rows", (), X_ROWS, _check_merge)
def _oracle_merge(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    return gathered(inputs, params, size[0] * int(params["MERGED"])).reshape(-1, size[1])


POOLINGS = {"mean": 0, "max": 1, "mean_sqrt_len": 2, "weightedmean": 3}
"""Names of sentence-transformers, and their numbers in shaders/pool_rows.frag."""


def pool_rows(draw: Pass, x: RowInterleaved, texts: TensorSpec, out: RowInterleaved, *, how: str) -> DrawSpec:
    """The pooled vector of each text in a row of out; ``how`` is a key of :data:`POOLINGS`.

    Row t of the table ``texts`` (:mod:`glinfer.kernels.fused.rows`) describes a text: its tokens are rows base +
    position to base + last of x.

    Raises:
        PlanError: there is no such kind.
    """
    if how not in POOLINGS:
        raise PlanError(f"draw {draw.name}: there is no pooling {how!r}; expected one of {', '.join(POOLINGS)}")
    inputs: Inputs = {"x": x, "rows": texts}
    defines = [("POOL", POOLINGS[how])]
    return block_draw(draw, "pool_rows", inputs, out, defines, cells=True)


def _check_pool(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, shapes.by_name["output"][1])
    check_listed(shapes, params)


@op("pool_rows", ("rows",), X_ROWS, _check_pool, ("rows",))
def _oracle_pool(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    count, how = int(params["ROWS"]), int(params["POOL"])
    x, found = gathered(inputs, params), np.zeros((size[0] * count, size[1]))
    for text, info in enumerate(inputs["rows"][: len(found)].astype(np.intp)):
        tokens = x[info[BASE] + info[POSITION] : info[BASE] + info[LAST] + 1, : size[1]]
        if how == POOLINGS["max"]:
            found[text] = tokens.max(axis=0)
        elif how == POOLINGS["mean_sqrt_len"]:
            found[text] = tokens.sum(axis=0) / np.sqrt(len(tokens))
        else:
            weights = np.arange(info[POSITION], info[LAST] + 1) + 1.0 if how == POOLINGS["weightedmean"] else None
            found[text] = np.average(tokens, axis=0, weights=weights)
    return found
