"""Elementwise arithmetic with NumPy's broadcasting, computed in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from glinfer.errors import PlanError
from glinfer.kernels.flat.draws import Define, flat_draw, same_shape
from glinfer.kernels.flat.strided import MAX_AXES, Axis, axes_in, bounds, collapsed, walk, walk_defines
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, op

OPERATIONS = {"add": 0, "subtract": 1, "multiply": 2, "divide": 3}
"""The operations on two tensors, and their numbers in shaders/arithmetic.frag."""


def broadcast_axes(x: Sequence[int], y: Sequence[int]) -> list[Axis]:
    """The walk of the result's rows over the rows of two tensors whose shapes broadcast.

    Raises:
        PlanError: the walk has too many axes that no stride joins.
    """
    edges = max(len(x), len(y), 1)
    leading = [((1,) * (edges - len(shape)) + tuple(shape))[:-1] for shape in (x, y)]
    axes = []
    for number, sizes in enumerate(zip(*leading, strict=True)):
        steps = [prod(shape[number + 1 :]) if shape[number] > 1 else 0 for shape in leading]
        axes.append(Axis(max(sizes), *steps))
    found = collapsed(axes)
    if len(found) > MAX_AXES:
        raise PlanError(
            f"{list(x)} and {list(y)} broadcast along {len(found)} leading axes that no stride joins; at most "
            f"{MAX_AXES} are possible: expand one of them first"
        )
    return found


def arithmetic(
    draw: Pass,
    x: TensorSpec,
    y: TensorSpec,
    out: TensorSpec,
    *,
    operation: str,
    axes: Sequence[Axis] | None = None,
) -> DrawSpec:
    """``out = x + y``, ``x - y``, ``x * y`` or ``x / y``, with broadcasting.

    Args:
        x, y: [R, C], or fewer rows, or one column.
        out: [R, C].
        operation: one of :data:`OPERATIONS`.
        axes: walk of out's rows over those of x and y, see :func:`broadcast_axes`; by default that of matrices.
    """
    if operation not in OPERATIONS:
        raise PlanError(f"draw {draw.name}: operation {operation!r}; known: {', '.join(OPERATIONS)}")
    axes = broadcast_axes(x.shape, y.shape) if axes is None else collapsed(axes)
    defines: list[Define] = [("OPERATION", OPERATIONS[operation]), *walk_defines(axes)]
    for letter, operand, steps in (("X", x, [axis.first for axis in axes]), ("Y", y, [axis.second for axis in axes])):
        row_by_row = collapsed(Axis(axis.size, step, 0) for axis, step in zip(axes, steps, strict=True))
        in_place = operand.shape == out.shape and row_by_row == collapsed([Axis(out.shape[0], 1, 0)])
        defines += [(f"{letter}_DIRECT", int(in_place)), (f"{letter}_ACROSS", int(operand.shape[1] == out.shape[1]))]
    return flat_draw(draw, "arithmetic", {"x": x, "y": y}, [out], defines=defines)


def _check_arithmetic(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    axes = axes_in(params, rows)
    shapes.require(prod(axis.size for axis in axes) == rows, f"output has {rows} rows; the axes do not divide them")
    for operand, (least, most) in zip(("x", "y"), bounds(axes), strict=True):
        shapes.expect(operand, None, cols if params[f"{operand.upper()}_ACROSS"] else 1)
        found = shapes.rows(operand)
        shapes.require(least >= 0 and most < found, f"it reads rows {least} to {most} of {operand}, which has {found}")


@op("arithmetic", ("x", "y"), (), _check_arithmetic)
def _oracle_arithmetic(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, y = float64(inputs, ["x", "y"])
    of_x, of_y = walk(axes_in(params, size[0]), size[0])
    function = (np.add, np.subtract, np.multiply, np.divide)[int(params["OPERATION"])]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.broadcast_to(function(x[of_x], y[of_y]), size)


def scale(draw: Pass, x: TensorSpec, out: TensorSpec, *, factor: float) -> DrawSpec:
    """``out = factor * x``; factor is a finite number, x and out [R, C]."""
    return flat_draw(draw, "scale", {"x": x}, [out], uniforms=[("factor", float(factor))])


@op("scale", ("x",), (), same_shape)
def _oracle_scale(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (x,) = float64(inputs, ["x"])
    return float(params["factor"]) * x[: size[0]]
