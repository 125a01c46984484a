"""Joining consecutive rows: neighbouring patches of an image make one row."""

from __future__ import annotations

from collections.abc import Mapping

from glinfer.errors import PlanError
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.draws import block_draw
from glinfer.kernels.fused.rows import X_ROWS, RowInterleaved, gathered
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, op

_TEXEL = 4


def merge_rows(name: str, x: RowInterleaved, out: RowInterleaved, *, slots: Extent, kernels: KernelOptions) -> DrawSpec:
    """Row t of out [tokens, m · D] is rows m · t to m · t + m - 1 of x [rows, D] side by side.

    Raises:
        PlanError: a row of out is not a whole number of rows of x, or a row of x no whole number of texels.
    """
    merged, rest = divmod(out.cols, x.cols)
    if rest or x.cols % _TEXEL:
        raise PlanError(
            f"draw {name}: rows of {x.cols} floats make rows of {out.cols}; expected a multiple, and whole fours"
        )
    defines = [("MERGED", merged), ("X_TEXELS", x.cols // _TEXEL)]
    return block_draw(name, "merge", "merge_rows", {"x": x}, out, slots, defines, kernels=kernels, cells=True)


def _check(shapes: Shapes, params: Params) -> None:
    slots, cols = shapes.by_name["output"]
    shapes.expect(X_ROWS, None, _TEXEL * params["X_TEXELS"])
    shapes.require(cols == _TEXEL * params["X_TEXELS"] * params["MERGED"], f"the output has {cols} columns")
    shapes.require(shapes.rows("x0") >= slots * params["MERGED"], f"x has {shapes.rows('x0')} slots")


@op("merge_rows", (), X_ROWS, _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    return gathered(inputs, params, size[0] * int(params["MERGED"])).reshape(-1, size[1])
