"""Assignment to rows, slices and elements of a tensor, in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.gl.layouts.flat import LANES
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.kernels.flat.draws import Define, Uniform
from glinfer.kernels.flat.strided import MAX_AXES
from glinfer.kernels.spec import Op, register
from glinfer.tensors.indexing import Index, Part, parts_of, shape_of
from glinfer.tensors.movement import Movement, axes_of
from glinfer.tensors.tensor import Shape, Tensor


@dataclass(frozen=True)
class Taken:
    """The slice that an index selects from an axis, and its strides in the value's rows and columns.

    Attributes:
        edge: length of the axis.
        start, size, step: the selected elements; the step is at least 1.
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
        """Whether all elements are selected."""
        return self.size == self.edge

    @property
    def last(self) -> int:
        """The last selected index."""
        return self.start + (self.size - 1) * self.step


def _joined_axes(axes: Sequence[Taken]) -> list[Taken]:
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


def _rows_of(axes: Sequence[Taken]) -> tuple[int, int]:
    """The first and the last row that axes of rows select."""
    ends = [0, 0]
    for axis in axes:
        ends = [ends[0] * axis.edge + axis.start, ends[1] * axis.edge + axis.last]
    return ends[0], ends[1]


def _cuts_texels(columns: Taken) -> bool:
    """Whether some texel holds both selected and other elements."""
    end = columns.start + columns.size
    return columns.step != 1 or bool(columns.start % LANES) or (end != columns.edge and bool(end % LANES))


class Assignment(Movement):
    """Changes to the elements of an existing tensor."""

    def assign(self, x: Tensor, index: Index | tuple[Index, ...], value: Tensor | npt.ArrayLike) -> Tensor:
        """``x[index] = value``, with NumPy's basic indexing; ``x[index] = value`` itself calls this.

        Other elements keep their bits and are neither read back nor uploaded. One draw writes into the texture of x, so
        views of x by :meth:`Tensor.reshape` see the change; parts read by ``x[…]`` are copies and do not. An index that
        cuts texels of four elements needs another draw. So does a value that has another type or shares its elements
        with x, whose old values are then assigned.

        Args:
            x: float32, float16 or int32.
            index: integers, slices, one Ellipsis and None.
            value: a tensor, an array or a number that broadcasts to the part; converted to the type of x, to float16
                rounded to nearest, ties to even.

        Returns:
            x.
        """
        if x.packed:
            raise InputError(f"x is {list(x.shape)} of {x.dtype}, which is packed; make a new tensor")
        parts = parts_of(x.shape, index if isinstance(index, tuple) else (index,))
        with ExitStack() as made:
            held = self._held(x, value, made)
            taken, offset = _taken(x, parts, held)
            if 0 not in shape_of(parts):
                self._draw_part(x, taken, held, offset)
        return x

    def _held(self, x: Tensor, value: Tensor | npt.ArrayLike, made: ExitStack) -> Tensor:
        """The value as a tensor of x's type that shares nothing with x."""
        if not isinstance(value, Tensor):
            held: Tensor = made.enter_context(self._device.tensor(value, x.dtype))
            return held
        if value.packed:
            raise InputError(f"value is {list(value.shape)} of {value.dtype}; dequantize it first")
        if x.dtype == "int32" != value.dtype:
            raise InputError(f"x is of int32 and value of {value.dtype}; expected int32")
        if value.dtype != x.dtype or value.storage is x.storage:
            return made.enter_context(self.astype(value, x.dtype))
        return value

    def _draw_part(self, x: Tensor, taken: Sequence[Taken], value: Tensor, offset: tuple[int, int]) -> None:
        """Write the value into the selected elements; ``offset`` is the row and column where the walk over it begins.

        Texels that hold other elements too are completed from a copy of the rows.
        """
        *axes, columns = taken
        rows = _joined_axes(axes)
        if len(rows) > MAX_AXES:
            raise InputError(
                f"x is {list(x.shape)}: found an index over {len(rows)} axes that do not join; at most {MAX_AXES} are "
                "possible; assign in two steps"
            )
        passes = self._passes
        inputs, target = {"value": passes.read("value", value)}, passes.changed("x", x)
        first, last = _rows_of(rows)
        outer, *inner = rows
        uniforms: list[Uniform] = [("start_row", outer.start), ("start_col", columns.start)]
        uniforms += [("value_row", offset[0]), ("value_col", offset[1])]
        if _cuts_texels(columns):
            inputs["before"] = passes.scratch("before", last + 1 - first, columns.edge, target.format)
            passes.copy("before", target, inputs["before"], row_offset=first)
            uniforms.append(("first_row", first))
        aligned = columns.step == 1 and (columns.row, columns.col) == (0, 1)
        aligned = aligned and not any(col % LANES for col in (columns.start, offset[1], *(axis.col for axis in rows)))
        defines: list[Define] = [("AXES", len(rows)), ("BEFORE", len(inputs) - 1), ("ALIGNED", int(aligned))]
        defines += [("WHOLE", 1)] if FORMATS[target.format].is_integer else []
        for prefix, axis in (("OUTER_", outer), ("", columns), *((f"AXIS{n}_", a) for n, a in enumerate(inner[::-1]))):
            defines += [(f"{prefix}SIZE", axis.size), (f"{prefix}STEP", axis.step)]
            defines += [(f"{prefix}A", axis.row), (f"{prefix}B", axis.col)]
        for number, axis in enumerate(inner[::-1]):
            defines.append((f"AXIS{number}_EDGE", axis.edge))
            uniforms.append((f"start{number}", axis.start))
        passes.step("assign", inputs, [target], rows=last + 1, defines=defines, uniforms=uniforms, keeps=True)
        passes.run()


def _taken(x: Tensor, parts: Sequence[Part], value: Tensor) -> tuple[list[Taken], tuple[int, int]]:
    """The slice that an index selects from each axis of x, the last for its columns, and its start in the value."""
    shape = shape_of(parts)
    steps = _steps_in(value, shape)
    found, row, col, kept = list[Taken](), 0, 0, 0
    for part in parts:
        down, across = steps[kept] if part.kept else (0, 0)
        kept += part.kept
        if part.axis is None:
            continue
        start, step = part.start, part.step
        if step < 0:  # from the other end
            start, step = start + (part.size - 1) * step, -step
            row, col = row + (part.size - 1) * down, col + (part.size - 1) * across
            down, across = -down, -across
        found.append(Taken(x.shape[part.axis], start, part.size, step, down, across))
    return found or [Taken(1, 0, 1, 1, 0, 0)], (row, col)


def _steps_in(value: Tensor, shape: Shape) -> list[tuple[int, int]]:
    """The (row, column) strides in the value along each axis of a part of this shape, to which it broadcasts."""
    own = value.shape
    while len(own) > len(shape) and own[0] == 1:  # NumPy drops such axes
        own = own[1:]
    fits = len(own) <= len(shape) and all(mine in (1, edge) for mine, edge in zip(own[::-1], shape[::-1], strict=False))
    if not fits:
        raise InputError(f"the part is {list(shape)} and the value {list(value.shape)}, which does not broadcast to it")
    axes = axes_of(value.shape)[value.ndim - len(own) :]
    steps = [(0, 0) if axis.size == 1 else (axis.first, axis.second) for axis in axes]
    return [(0, 0)] * (len(shape) - len(own)) + steps


register(Op("assign", ("value",), ("before",), either=("value", "before", "output")))
