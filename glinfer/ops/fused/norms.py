"""Factors of the norms of many rows, computed before the product that applies them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.gl.layouts.blocks import blocks_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.fused.draws import block_draw, block_layout
from glinfer.ops.fused.rows import RowInterleaved, check_same, gathered, optional_names
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, register
from glinfer.quant.formats import GROUP


def row_norms(
    name: str,
    kind: str,
    x: RowInterleaved,
    out: TensorSpec,
    *,
    slots: Extent,
    eps: float,
    centred: bool = False,
    grouped: bool = False,
    kernels: KernelOptions,
) -> DrawSpec:
    """1 / sqrt(mean(x[r]²) + eps) of each row of the first ``slots`` slots: RMSNorm's factor (Zhang and Sennrich 2019).

    out [slots, :func:`norm_floats`] in blocks holds four rows a quad, once for each member of the quad. With
    ``centred`` it is LayerNorm's factor, of the variance instead of the mean square, and quads 2 and 3 hold the means.
    ``grouped`` sums in the order of a product over groups of 32 inputs.
    """
    defines = (
        *x.layout.defines("X"),
        *block_layout(name, out).defines("OUT"),
        ("ROWS", len(x.tensors)),
        ("STEPS", 4 * blocks_for(x.cols)),
        ("DIM", x.cols),
        ("EPS", eps),
        ("CENTRED", int(centred)),
        ("GROUPED", int(grouped)),
        *_groups(x.cols, grouped, kernels.quad),
    )
    size = slots, out.shape[1]
    return block_draw(
        name, kind, "row_norms", x.inputs(), (out.name,), size, defines, kernels=kernels, quad=True, cells=True
    )


def _groups(cols: int, grouped: bool, quad: bool) -> list[tuple[str, int]]:
    """The defines of groups: groups of 32 inputs, and the turns of four inputs that each fragment takes."""
    if not grouped:
        return []
    groups = -(-cols // GROUP)
    return [("GROUPS", groups), ("TURNS", 8 * (-(-groups // 4) if quad else groups))]


def norm_floats(rows: int, *, centred: bool = False) -> int:
    """Columns of the norms of ``rows`` rows a slot, and with ``centred`` of their means."""
    quads = -(-rows // 4)
    return 16 * (2 + quads if centred else quads)


def _check_rows(shapes: Shapes, params: Params) -> None:
    check_same(shapes, params, shapes.rows("output"), params["DIM"])
    shapes.expect("output", None, norm_floats(int(params["ROWS"]), centred=bool(params["CENTRED"])))
    shapes.require(params["STEPS"] == 4 * blocks_for(int(params["DIM"])), "STEPS does not fit x")


def _oracle_rows(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    rows, centred = int(params["ROWS"]), bool(params["CENTRED"])
    x = gathered(inputs, rows)[: size[0] * rows]
    means = x.mean(axis=1) if centred else np.zeros(len(x))
    factors = 1.0 / np.sqrt(np.mean((x - means[:, None]) ** 2, axis=1) + params["EPS"])
    found = np.zeros((size[0], size[1] // 4))
    found[:, :rows] = factors.reshape(size[0], rows)
    if centred:
        found[:, 8 : 8 + rows] = means.reshape(size[0], rows)
    return np.repeat(found.reshape(size[0], -1, 1, 4), 4, axis=2).reshape(size)


register(Op("row_norms", (), optional_names(), _check_rows, _oracle_rows))
