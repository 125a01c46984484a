"""Normalisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.blocks import BlockLayout, blocks_for
from glinfer.gl.layout import Extent
from glinfer.ops.kernels import Kernels
from glinfer.ops.rows import Dealt, check_same, gathered, optional_names
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register


def layer_norm(
    name: str, kind: str, x: TensorSpec, weight: TensorSpec, bias: TensorSpec, out: TensorSpec, *, eps: float
) -> DrawSpec:
    """LayerNorm over the last axis (Ba et al. 2016), for the rows in use.

    x [S, D], weight and bias [1, D], out [S, D].
    """
    return DrawSpec(
        name=name,
        kind=kind,
        op="layer_norm",
        inputs=(("x", x.name), ("weight", weight.name), ("bias", bias.name)),
        outputs=(out.name,),
        size=("rows", out.shape[1]),
        defines=(("DIM", x.shape[1]), ("EPS", eps)),
    )


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("x", None, params["DIM"])
    shapes.expect("weight", 1, params["DIM"])
    shapes.expect("bias", 1, params["DIM"])
    shapes.expect("output", shapes.rows("x"), params["DIM"])


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, weight, bias = float64(inputs, ["x", "weight", "bias"])
    x = x[: size[0]]
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.mean(centred**2, axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + params["EPS"]) * weight + bias)


register(Op("layer_norm", ("x", "weight", "bias"), (), _check, _oracle))


def row_norms(
    name: str, kind: str, x: Dealt, out: TensorSpec, *, slots: Extent, eps: float, kernels: Kernels
) -> DrawSpec:
    """1 / sqrt(mean(x[r]²) + eps) of each row of the first ``slots`` slots: RMSNorm's factor (Zhang and Sennrich 2019).

    out [slots, :func:`norm_floats`] in blocks: four rows a quad, once for each of its members.
    """
    if not isinstance(out.layout, BlockLayout):
        raise PlanError(f"draw {name}: {out.name} does not lie in blocks")
    return DrawSpec(
        name=name,
        kind=kind,
        op="row_norms",
        inputs=x.inputs(),
        outputs=(out.name,),
        size=(slots, out.shape[1]),
        defines=(
            *x.layout.defines("X"),
            *out.layout.defines("OUT"),
            ("ROWS", len(x.tensors)),
            ("STEPS", 4 * blocks_for(x.cols)),
            ("DIM", x.cols),
            ("EPS", eps),
            ("QUAD", int(kernels.quad)),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ),
        cover=kernels.cover,
        largest_cell=kernels.largest_cell,
    )


def norm_floats(rows: int) -> int:
    """Columns of the norms of so many rows a slot."""
    return 16 * -(-rows // 4)


def _check_rows(shapes: Shapes, params: Params) -> None:
    check_same(shapes, params, shapes.rows("output"), params["DIM"])
    shapes.expect("output", None, norm_floats(int(params["ROWS"])))
    shapes.require(params["STEPS"] == 4 * blocks_for(int(params["DIM"])), "STEPS does not fit x")


def _oracle_rows(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows = int(params["ROWS"])
    x = gathered(inputs, rows)[: size[0] * rows]
    norms = np.zeros((size[0], size[1] // 4))
    norms[:, :rows] = (1.0 / np.sqrt(np.mean(x**2, axis=1) + params["EPS"])).reshape(size[0], rows)
    return np.repeat(norms.reshape(size[0], -1, 1, 4), 4, axis=2).reshape(size)


register(Op("row_norms", (), optional_names(), _check_rows, _oracle_rows))
