"""Norms of rows in separate passes: factors that a product applies, norms after a branch, norms of the stream."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.gl.layouts.blocks import blocks_for
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw, expect_table
from glinfer.kernels.fused.rows import R_ROWS, X_ROWS, RowInterleaved, gathered
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, given, op
from glinfer.quant.formats import GROUP


def row_norms(
    draw: Pass, x: RowInterleaved, out: TensorSpec, *, eps: float, centred: bool = False, grouped: bool = False
) -> DrawSpec:
    """1 / sqrt(mean(x[r]²) + eps) of each row: RMSNorm's factor (Zhang and Sennrich 2019).

    out [slots, :func:`norm_floats`] in blocks holds four rows a quad, once for each member of the quad. With
    ``centred`` it is LayerNorm's factor, of the variance instead of the mean square, and quads 2 and 3 hold the means.
    ``grouped`` sums in the order of a product over groups of 32 inputs.
    """
    groups = -(-x.cols // GROUP) if grouped else 0
    turns = 8 * (-(-groups // 4) if draw.kernels.quad else groups)  # steps of four inputs of each fragment
    defines = (
        *(("STEPS", 4 * blocks_for(x.cols)), ("DIM", x.cols), ("EPS", eps), ("CENTRED", int(centred))),
        *(("GROUPED", int(grouped)), *given(GROUPS=groups, TURNS=turns)),
    )
    return block_draw(draw, "row_norms", {"x": x}, out, defines, quad=True, cells=True)


def norms_in(norms: Array, rows: int) -> Array:
    """For an oracle: the norms [slots · rows, 1] of ``rows`` rows a slot, or the means from their quads on."""
    one_member = norms.reshape(len(norms), -1, 4, 4)[:, :, 0]
    return one_member.reshape(len(norms), -1)[:, :rows].reshape(-1, 1)


def norm_floats(rows: int, *, centred: bool = False) -> int:
    """Columns of the norms of ``rows`` rows a slot, and with ``centred`` of their means."""
    quads = -(-rows // 4)
    return 16 * (2 + quads if centred else quads)


def _check_rows(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, shapes.rows("output"), params["DIM"])
    shapes.expect("output", None, norm_floats(int(params["ROWS"]), centred=bool(params["CENTRED"])))
    shapes.require(params["STEPS"] == 4 * blocks_for(int(params["DIM"])), "STEPS does not fit x")


@op("row_norms", (), X_ROWS, _check_rows)
def _oracle_rows(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, rows, centred = gathered(inputs, params, size[0]), int(params["ROWS"]), bool(params["CENTRED"])
    means = x.mean(axis=1) if centred else np.zeros(len(x))
    factors = 1.0 / np.sqrt(np.mean((x - means[:, None]) ** 2, axis=1) + params["EPS"])
    found = np.zeros((size[0], size[1] // 4))
    found[:, :rows] = factors.reshape(size[0], rows)
    if centred:
        found[:, 8 : 8 + rows] = means.reshape(size[0], rows)
    return np.repeat(found.reshape(size[0], -1, 1, 4), 4, axis=2).reshape(size)


def post_norm(
    draw: Pass,
    x: RowInterleaved,
    gain: TensorSpec,
    out: RowInterleaved,
    *,
    residual: RowInterleaved | None,
    eps: float,
    alone: bool = False,
    width: int = 0,
) -> DrawSpec:
    """``out[r] = x[r] / sqrt(mean(x[r]²) + eps) · gain + residual[r]`` for the rows of a pass.

    RMSNorm (Zhang and Sennrich 2019) of a branch's result, before it is added to the stream. x, residual and out are
    interleaved alike, gain [1, D] is a table of one row. Without ``residual`` blending adds to out,
    unless the norm is ``alone``. With a ``width`` D, the number of elements that are no padding, it is alone, and
    its results are rounded, see :func:`glinfer.program.oracle.rounded_rows`.
    """
    inputs: Inputs = {"x": x, "gain": expect_table(draw.name, gain).name}
    defines: Defines = [("DIM", width or x.cols), ("EPS", eps), ("GAIN_WIDTH", -(-x.cols // 4))]
    defines += given(ROUNDED=bool(width), RESIDUAL=residual)
    if residual is not None:
        inputs |= residual.inputs("r")
    alone = alone or width > 0
    adds = residual is None and not alone
    return block_draw(draw, "post_norm", inputs, out, defines, quad=not width, cells=draw.rows != 1, adds=adds)


def _check_post(shapes: Shapes, params: Params) -> None:
    cols = shapes.by_name["output"][1] if params.get("ROUNDED") else params["DIM"]
    shapes.expect((*X_ROWS, "output"), None, cols)
    shapes.expect("gain", 1, cols)
    shapes.expect(R_ROWS, None, cols)
    shapes.require(params["DIM"] <= cols, "DIM does not fit x")


@op("post_norm", ("gain",), (*X_ROWS, *R_ROWS), _check_post, regions=(*X_ROWS, *R_ROWS, "output"))
def _oracle_post(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x = gathered(inputs, params, size[0])
    squares = np.sum(x**2, axis=1, keepdims=True) / params["DIM"]
    normed = x / np.sqrt(squares + params["EPS"]) * float64(inputs, ["gain"])[0]
    return np.asarray(normed + gathered(inputs, params, size[0], "r") if params.get("RESIDUAL") else normed)


def normalize_rows(
    draw: Pass, x: RowInterleaved, norms: TensorSpec, gains: TensorSpec, out: RowInterleaved, *, centred: bool
) -> DrawSpec:
    """``out[r] = (x[r] - mean[r]) · factor[r] · gains[0] + gains[1]`` of each row.

    LayerNorm (Ba et al. 2016) or RMSNorm of the stream itself, by the factors, and with ``centred`` the means, that
    :func:`row_norms` has computed. gains [1 or 2, D] are the gain, and the bias if the norm has one.
    """
    defines = (
        ("DIM", x.cols),
        ("DIM_TEXELS", -(-x.cols // 4)),
        ("CENTRED", int(centred)),
        ("BIASED", int(gains.shape[0] > 1)),
    )
    inputs: Inputs = {"x": x, "norms": norms, "gains": expect_table(draw.name, gains)}
    return block_draw(draw, "normalize_rows", inputs, out, defines, cells=True)


def _check_normalize(shapes: Shapes, params: Params) -> None:
    slots, cols = shapes.by_name["output"]
    rows, centred = int(params["ROWS"]), bool(params["CENTRED"])
    shapes.expect(X_ROWS, None, cols)
    shapes.expect("norms", slots, norm_floats(rows, centred=centred))
    shapes.expect("gains", 1 + int(params["BIASED"]), cols)
    shapes.require(params["DIM"] == cols, "DIM does not fit x")


@op("normalize_rows", ("norms", "gains"), X_ROWS, _check_normalize)
def _oracle_normalize(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = int(params["ROWS"])
    x, (norms, gains) = gathered(inputs, params, size[0])[:, : size[1]], float64(inputs, ["norms", "gains"])
    if params["CENTRED"]:
        x = x - norms_in(norms[: size[0], 2 * 16 :], rows)
    found = x * norms_in(norms[: size[0]], rows) * gains[0]
    return np.asarray(found + gains[1] if params["BIASED"] else found)
