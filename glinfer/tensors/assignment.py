"""Assignment to rows, slices and elements of a tensor, in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy.typing as npt

from glinfer.errors import InputError, PlanError
from glinfer.ops.flat.assign import Taken, assign, cuts_texels, joined_axes, rows_of
from glinfer.ops.flat.movement import strided_copy
from glinfer.ops.flat.strided import Axis
from glinfer.tensors.indexing import Index, Part, parts_of, shape_of
from glinfer.tensors.movement import Movement, axes_of
from glinfer.tensors.tensor import Shape, Tensor


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
            index: whole numbers, slices, one Ellipsis and None.
            value: a tensor, an array or a number that broadcasts to the part; converted to the type of x, to float16
                rounded to nearest, ties to even.

        Returns:
            x.

        Raises:
            InputError: the index or the value does not fit, floats would become int32, or x is packed.
        """
        if x.packed:
            raise InputError(f"assign: x is {list(x.shape)} of {x.dtype}, which is packed; make a new tensor")
        parts = parts_of("assign", x.shape, index if isinstance(index, tuple) else (index,))
        with ExitStack() as made:
            held = self._held(x, value, made)
            taken, offset = _taken(x, parts, held)
            if 0 not in shape_of(parts):
                self._draw_part(x, taken, held, offset)
        return x

    def _held(self, x: Tensor, value: Tensor | npt.ArrayLike, made: ExitStack) -> Tensor:
        """The value as a tensor of x's type that shares nothing with x."""
        if not isinstance(value, Tensor):
            return made.enter_context(self._device.tensor(value, x.dtype))
        if value.packed:
            raise InputError(f"assign: value is {list(value.shape)} of {value.dtype}; dequantize it first")
        if x.dtype == "int32" != value.dtype:
            raise InputError(f"assign: x is of int32 and value of {value.dtype}; expected int32")
        if value.dtype != x.dtype or value.storage is x.storage:
            return made.enter_context(self.astype(value, x.dtype))
        return value

    def _draw_part(self, x: Tensor, taken: Sequence[Taken], value: Tensor, offset: tuple[int, int]) -> None:
        *outer, columns = taken
        rows = joined_axes(outer)
        passes = self._passes("assign")
        source, target, before = passes.read("value", value), passes.changed("x", x), None
        if cuts_texels(columns):
            first, last = rows_of(rows)
            before = passes.scratch("before", last + 1 - first, columns.edge, target.format)
            axes = [Axis(last + 1 - first, 1, 0), Axis(columns.edge, 0, 1)]
            passes.draw(
                strided_copy("before", "assign", target, before, axes, row_offset=first, kernels=passes.kernels)
            )
        try:
            draw = assign(
                "assign", "assign", source, target, rows, columns, offset=offset, before=before, kernels=passes.kernels
            )
        except PlanError as error:
            raise InputError(f"assign: x is {list(x.shape)}: {error}; assign in two steps") from None
        passes.draw(draw)
        passes.run()


def _taken(x: Tensor, parts: Sequence[Part], value: Tensor) -> tuple[list[Taken], tuple[int, int]]:
    """The slice that an index selects from each axis of x, the last for its columns, and its start in the value."""
    shape = shape_of(parts)
    steps = _steps_in(value, shape)
    found, row, col, place = list[Taken](), 0, 0, 0
    for part in parts:
        down, across = steps[place] if part.kept else (0, 0)
        place += part.kept
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
    """The (row, column) strides in the value along each axis of a part of this shape.

    Raises:
        InputError: the value does not broadcast to the part.
    """
    own = value.shape
    while len(own) > len(shape) and own[0] == 1:  # NumPy drops such axes
        own = own[1:]
    fits = len(own) <= len(shape) and all(mine in (1, edge) for mine, edge in zip(own[::-1], shape[::-1], strict=False))
    if not fits:
        raise InputError(
            f"assign: the part is {list(shape)} and the value {list(value.shape)}, which does not broadcast to it"
        )
    axes = axes_of(value.shape)[value.ndim - len(own) :]
    steps = [(0, 0) if axis.size == 1 else (axis.first, axis.second) for axis in axes]
    return [(0, 0)] * (len(shape) - len(own)) + steps
