"""Assignment to a part of a tensor, in place: rows, slices, and single elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.ops.flat.draws import Define, Uniform, flat_draw
from glinfer.ops.flat.strided import MAX_AXES
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, register


@dataclass(frozen=True)
class Taken:
    """The slice that an index selects from an axis, and its strides in the value's rows and columns.

    Attributes:
        edge: length of the axis.
        start, size, step: the selected places; the step is at least 1.
        row, col: the strides.
    """

    edge: int
    start: int
    size: int
    step: int
    row: int
    col: int

    @property
    def whole(self) -> bool:
        """Whether all places are selected."""
        return self.size == self.edge

    @property
    def last(self) -> int:
        """The last selected place."""
        return self.start + (self.size - 1) * self.step


def joined_axes(axes: Sequence[Taken]) -> list[Taken]:
    """The fewest axes that select the same elements, outermost first."""
    found: list[Taken] = []
    for axis in axes:
        if axis.edge == 1:
            continue
        if found and axis.whole:
            outer = found[-1]
            single = outer.size == 1
            continues = outer.step == 1 and (outer.row, outer.col) == (axis.size * axis.row, axis.size * axis.col)
            if single or continues:
                edge, start, size = outer.edge * axis.edge, outer.start * axis.edge, outer.size * axis.edge
                found[-1] = Taken(edge, start, size, 1, axis.row, axis.col)
                continue
        found.append(axis)
    return found or [Taken(1, 0, 1, 1, 0, 0)]


def rows_of(axes: Sequence[Taken]) -> tuple[int, int]:
    """The first and the last row that axes of rows select."""
    ends = [0, 0]
    for axis in axes:
        ends = [ends[0] * axis.edge + axis.start, ends[1] * axis.edge + axis.last]
    return ends[0], ends[1]


def cuts_texels(columns: Taken) -> bool:
    """Whether some texel holds both selected and other elements."""
    end = columns.start + columns.size
    return columns.step != 1 or bool(columns.start % LANES) or (end != columns.edge and bool(end % LANES))


def assign(
    name: str,
    kind: str,
    value: TensorSpec,
    out: TensorSpec,
    rows: Sequence[Taken],
    columns: Taken,
    *,
    offset: tuple[int, int] = (0, 0),
    before: TensorSpec | None = None,
    kernels: KernelOptions,
) -> DrawSpec:
    """``out[index] = value``, broadcast; other elements of out stay.

    Args:
        name: the draw's name.
        kind: the draw's group in tables.
        value: a tensor of out's format.
        out: the tensor that is changed.
        rows: the axes of out's rows, from :func:`joined_axes`.
        columns: the axis of its columns.
        offset: row and column of the value where the walk begins.
        before: a copy of out's rows from the first selected one to the last; required if :func:`cuts_texels`.
        kernels: the renderer's kernel options.

    Raises:
        PlanError: the formats differ, there are too many axes, or the copy is missing.
    """
    if value.format != out.format:
        raise PlanError(f"draw {name}: {value.name} has format {value.format} and {out.name} {out.format}")
    if len(rows) > MAX_AXES:
        raise PlanError(f"found an index over {len(rows)} axes that do not join; at most {MAX_AXES} are possible")
    if before is None and cuts_texels(columns):
        raise PlanError(f"draw {name}: the index cuts texels; expected a copy of the rows")
    outer, *inner = rows
    aligned = columns.step == 1 and (columns.row, columns.col) == (0, 1)
    aligned = aligned and not any(col % LANES for col in (columns.start, offset[1], *(axis.col for axis in rows)))
    defines: list[Define] = [("AXES", len(rows)), ("BEFORE", int(before is not None)), ("ALIGNED", int(aligned))]
    defines += [("WHOLE", 1)] if FORMATS[out.format].is_integer else []
    starts: list[Uniform] = [("start_row", outer.start), ("start_col", columns.start)]
    for prefix, axis in (("OUTER_", outer), ("", columns), *((f"AXIS{n}_", a) for n, a in enumerate(inner[::-1]))):
        defines += [(f"{prefix}SIZE", axis.size), (f"{prefix}STEP", axis.step)]
        defines += [(f"{prefix}A", axis.row), (f"{prefix}B", axis.col)]
    for number, axis in enumerate(inner[::-1]):
        defines.append((f"AXIS{number}_EDGE", axis.edge))
        starts.append((f"start{number}", axis.start))
    first, last = rows_of(rows)
    uniforms: list[Uniform] = [*starts, ("value_row", offset[0]), ("value_col", offset[1])]
    return flat_draw(
        name,
        kind,
        "assign",
        [("value", value), *([("before", before)] if before is not None else [])],
        [out],
        kernels=kernels,
        rows=last + 1,
        defines=defines,
        uniforms=[*uniforms, *([("first_row", first)] if before is not None else [])],
        keeps=True,
    )


def _axes_in(params: Params, size: tuple[int, int]) -> tuple[list[Taken], Taken]:
    """The axes of the rows and the axis of the columns, from a draw's defines."""

    def taken(prefix: str, edge: int, start: str) -> Taken:
        numbers = [int(params[prefix + name]) for name in ("SIZE", "STEP", "A", "B")]
        return Taken(edge, int(params[start]), *numbers)

    edges = [int(params[f"AXIS{number}_EDGE"]) for number in range(int(params["AXES"]) - 1)]
    inner = [taken(f"AXIS{number}_", edge, f"start{number}") for number, edge in enumerate(edges)]
    outer = taken("OUTER_", size[0] // prod(edges), "start_row")
    return [outer, *inner[::-1]], taken("", size[1], "start_col")


def _check(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    axes, columns = _axes_in(params, (rows, cols))
    shapes.require(
        all(axis.start >= 0 and axis.size >= 1 and axis.last < axis.edge for axis in (*axes, columns)),
        f"the index exceeds the {rows}×{cols} elements of output",
    )
    first, last = rows_of(axes)
    shapes.expect("before", last - first + 1, cols)
    walks = [*axes, columns]
    for edge, offset, steps in (
        (shapes.by_name["value"][0], int(params["value_row"]), [(axis.size - 1) * axis.row for axis in walks]),
        (shapes.by_name["value"][1], int(params["value_col"]), [(axis.size - 1) * axis.col for axis in walks]),
    ):
        least, most = (offset + sum(pick(0, step) for step in steps) for pick in (min, max))
        shapes.require(least >= 0 and most < edge, f"it reads places {least} to {most} of value, which has {edge}")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    y: Array = np.array(inputs["output"])
    edges = [int(params[f"AXIS{number}_EDGE"]) for number in range(int(params["AXES"]) - 1)]
    rows, cols = -(-size[0] // prod(edges)) * prod(edges), size[1]
    axes, columns = _axes_in(params, (rows, cols))
    at, row, col = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    for axis in axes:
        along = np.arange(axis.size)
        at = (at[:, None] * axis.edge + axis.start + along * axis.step).reshape(-1)
        row = (row[:, None] + along * axis.row).reshape(-1)
        col = (col[:, None] + along * axis.col).reshape(-1)
    along = np.arange(columns.size)
    rows_from = int(params["value_row"]) + row[:, None] + along * columns.row
    cols_from = int(params["value_col"]) + col[:, None] + along * columns.col
    y[at[:, None], columns.start + along * columns.step] = inputs["value"][rows_from, cols_from]
    return y


_EITHER = ("value", "before", "output")
register(Op("assign", ("value",), ("before",), _check, _oracle, either=_EITHER))
