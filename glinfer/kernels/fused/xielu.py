"""xIELU (Huang and Schlag 2024), an activation with two learned numbers in each layer, in a pass of its own."""

from __future__ import annotations

from collections.abc import Mapping

from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.flat.activate import xielu_of
from glinfer.kernels.fused.draws import Inputs, block_draw, expect_table
from glinfer.kernels.fused.rows import X_ROWS, RowInterleaved, gathered
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, TensorSpec, float64, op


def xielu_rows(
    name: str, x: RowInterleaved, slopes: TensorSpec, out: RowInterleaved, *, slots: Extent, kernels: KernelOptions
) -> DrawSpec:
    """``out = xIELU(x)``, x and out [rows, C]; slopes [1, 2] has the learned numbers, see :func:`xielu_of`."""
    inputs: Inputs = {"x": x, "slopes": expect_table(name, slopes)}
    return block_draw(name, "mlp.act", "xielu_rows", inputs, out, slots, kernels=kernels)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, shapes.by_name["output"][1])
    shapes.expect("slopes", 1, 2)


@op("xielu_rows", ("slopes",), X_ROWS, _check)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (slopes,) = float64(inputs, ["slopes"])
    return xielu_of(gathered(inputs, params, size[0])[:, : size[1]], *slopes[0])
