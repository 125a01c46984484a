"""Kernels that move elements: transpositions, slices, heads, concatenation, other types; every result is a copy."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy.typing as npt

from glinfer.errors import InputError, PlanError
from glinfer.kernels.flat.movement import MAX_PARTS, concat, repack, strided_axes, strided_copy
from glinfer.kernels.flat.strided import Axis
from glinfer.kernels.spec import TensorSpec
from glinfer.tensors.base import Group, expect_integers
from glinfer.tensors.indexing import Index, parts_of
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import FLOATS, TEXTURE_FORMATS, Shape, Tensor, as_matrix, is_integer, shape_from, type_name


class Movement(Group):
    """Copies in another order, shape or type. All but :meth:`astype` keep the type, and int32 all bits.

    Floats keep their bits if the renderer preserves them, as llvmpipe does with every float32, including subnormal
    numbers and NaN payloads; OpenGL promises less. A signalling NaN in float16 becomes a quiet one. Results never share
    elements with their operands. Packed tensors are refused.
    """

    def transpose(self, x: Tensor, axes: Sequence[int] | None = None, *, out: Tensor | None = None) -> Tensor:
        """``numpy.transpose``: axis n of the result is axis ``axes[n]`` of x; reversed by default.

        Raises:
            InputError: ``axes`` is not a permutation of the axes of x, or more than 6 axes cannot be joined.
        """
        order = list(range(x.ndim))[::-1] if axes is None else [_axis(x, axis) for axis in axes]
        if sorted(order) != list(range(x.ndim)):
            raise InputError(
                f"x is {list(x.shape)} and the axes are {order}; expected each of {list(range(x.ndim))} once"
            )
        own = axes_of(x.shape)
        return self._moved(x, [own[axis] for axis in order], out=out)

    def split_qkv(
        self, x: Tensor, heads: int, kv_heads: int | None = None, head_dim: int | None = None, *, flat: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values of an attention, from the rows of one projection.

        Args:
            x: [..., S, (H + 2·K)·D]: in each row H heads of queries, then K of keys, then K of values.
            heads: H.
            kv_heads: K, fewer than H for grouped queries (Ainslie et al. 2023); H by default.
            head_dim: D, to be checked; optional.
            flat: keep the heads of a row side by side.

        Returns:
            q [..., H, S, D], k and v [..., K, S, D]; with ``flat`` q [..., S, H·D], k and v [..., S, K·D].
        """
        kv_heads = heads if kv_heads is None else kv_heads
        expect_integers(1, heads=heads, kv_heads=kv_heads, head_dim=1 if head_dim is None else head_dim)
        parts = heads + 2 * kv_heads
        _expect_elements(x)
        width = _head_width(x, parts, f"({heads} + 2·{kv_heads})", head_dim)
        counts = {"q": heads, "k": kv_heads, "v": kv_heads}
        split = {
            name: [*axes_of(x.shape)[:-1], Axis(count * width, 0, 1)] if flat else _split_axes(x.shape, count, width)
            for name, count in counts.items()
        }

        def build(passes: Passes, x: TensorSpec, **targets: TensorSpec) -> None:
            first = 0
            for name, target in targets.items():
                passes.draw(strided_copy(passes.named(name), x, target, split[name], col_offset=first * width))
                first += counts[name]

        shapes = {name: _sizes(axes) for name, axes in split.items()}
        q, k, v = self._results(build, {"x": x}, shapes, types=dict.fromkeys(shapes, x.dtype))
        return q, k, v

    def split_heads(self, x: Tensor, heads: int, *, out: Tensor | None = None) -> Tensor:
        """x [..., S, H·D] → [..., H, S, D]."""
        expect_integers(1, heads=heads)
        width = _head_width(x, heads, str(heads), None)
        return self._moved(x, _split_axes(x.shape, heads, width), out=out)

    def merge_heads(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """x [..., H, S, D] → [..., S, H·D]: the inverse of :meth:`split_heads`."""
        if x.ndim < 3:
            raise InputError(f"x is {list(x.shape)}; expected [..., heads, rows, columns of a head]")
        *outer, heads, rows, columns = axes_of(x.shape)
        shape = (*x.shape[:-3], rows.size, heads.size * columns.size)
        return self._moved(x, [*outer, rows, heads, columns], shape, out=out)

    def slice(self, x: Tensor, *index: Index, out: Tensor | None = None) -> Tensor:
        """``x[index]`` with NumPy's basic indexing: integers, slices, one Ellipsis, None for a new axis."""
        own, parts = axes_of(x.shape), parts_of(x.shape, index)
        axes, row, col = [], 0, 0
        for part in parts:
            axis = Axis(1, 0, 0) if part.axis is None else own[part.axis]
            row, col = row + part.start * axis.first, col + part.start * axis.second
            if part.kept:
                axes.append(Axis(part.size, part.step * axis.first, part.step * axis.second))
        return self._moved(x, axes, row_offset=row, col_offset=col, out=out)

    def expand(self, x: Tensor, shape: Sequence[int], *, out: Tensor | None = None) -> Tensor:
        """``numpy.broadcast_to``, copied: edges of 1 are repeated, and leading axes added."""
        wanted = shape_from(shape)
        own = [Axis(1, 0, 0)] * (len(wanted) - x.ndim) + axes_of(x.shape)
        fits = len(wanted) == len(own) and all(axis.size in (1, edge) for axis, edge in zip(own, wanted, strict=True))
        if not fits:
            raise InputError(f"x is {list(x.shape)}, which does not broadcast to {list(wanted)}")
        axes = [axis if axis.size == edge else Axis(edge, 0, 0) for axis, edge in zip(own, wanted, strict=True)]
        return self._moved(x, axes, out=out)

    def repack(self, x: Tensor, shape: Sequence[int], *, out: Tensor | None = None) -> Tensor:
        """``numpy.reshape``, copied. :meth:`glinfer.tensors.tensor.Tensor.reshape` needs no copy if texels stay."""
        wanted = shape_from(shape)
        if math.prod(wanted) != x.size:
            raise InputError(f"x is {list(x.shape)} of {x.size} elements, which cannot become {list(wanted)}")
        _expect_elements(x)
        return self._draw(repack, {"x": x}, wanted, x.dtype, out, exact=True)

    def astype(self, x: Tensor, dtype: npt.DTypeLike, *, out: Tensor | None = None) -> Tensor:
        """The elements as float32 or float16, rounded to nearest, ties to even; or unchanged in their own type."""
        known = TEXTURE_FORMATS if x.dtype == "int32" else FLOATS
        return self._moved(x, axes_of(x.shape), dtype=type_name(dtype, known), out=out)

    def concat(self, tensors: Sequence[Tensor], axis: int = -1, *, out: Tensor | None = None) -> Tensor:
        """``numpy.concatenate``: tensors joined along an axis, up to 8 of them in one draw."""
        if not tensors:
            raise InputError("found no tensors; expected at least one")
        first = tensors[0]
        along = _axis(first, axis)
        for tensor in tensors:
            _expect_elements(tensor)
            if _without(tensor.shape, along) != _without(first.shape, along):
                raise InputError(
                    f"found {list(first.shape)} and {list(tensor.shape)}; expected one shape but for axis {along}"
                )
            if tensor.dtype != first.dtype:
                raise InputError(
                    f"found {list(first.shape)} of {first.dtype} and {list(tensor.shape)} of {tensor.dtype}; "
                    "expected one type: use astype first"
                )
        shape = (*first.shape[:along], sum(tensor.shape[along] for tensor in tensors), *first.shape[along + 1 :])
        for number, tensor in enumerate(tensors):
            self._passes.expect_here(f"x{number}", tensor)
        held = [tensor for tensor in tensors if tensor.size]
        if len(held) > MAX_PARTS:
            starts = range(0, len(held), MAX_PARTS)
            with ExitStack() as made:
                parts = [made.enter_context(self.concat(held[start : start + MAX_PARTS], axis)) for start in starts]
                return self.concat(parts, axis, out=out)
        groups = None if along == first.ndim - 1 else math.prod(first.shape[:along])

        def build(passes: Passes, out: TensorSpec, **specs: TensorSpec) -> None:
            parts = [*specs.values()]
            passes.draw(concat(passes.named(), parts, out, groups=groups))

        reads = {f"x{number}": tensor for number, tensor in enumerate(held)}
        return self._run(build, reads, shape, first.dtype, out, exact=True)

    def _moved(
        self,
        x: Tensor,
        axes: Sequence[Axis],
        shape: Shape | None = None,
        *,
        dtype: str | None = None,
        out: Tensor | None = None,
        **offsets: Any,
    ) -> Tensor:
        """A strided copy of x; the axes are those of the result, or of a tensor with the same texels."""
        _expect_elements(x)
        shape = _sizes(axes) if shape is None else shape
        try:
            if 0 not in shape:
                strided_axes(axes, as_matrix(shape)[1])
        except PlanError as error:
            raise InputError(f"x is {list(x.shape)} and the result {list(shape)}: {error}") from None
        return self._draw(strided_copy, {"x": x}, shape, dtype or x.dtype, out, exact=True, axes=axes, **offsets)


def _sizes(axes: Sequence[Axis]) -> Shape:
    return tuple(axis.size for axis in axes)


def axes_of(shape: Shape) -> list[Axis]:
    """The axes of a tensor, with their (row, column) strides."""
    rows = [Axis(size, math.prod(shape[number + 1 : -1]), 0) for number, size in enumerate(shape[:-1])]
    return [*rows, *(Axis(size, 0, 1) for size in shape[-1:])]


def _split_axes(shape: Shape, heads: int, width: int) -> list[Axis]:
    """The axes [..., heads, rows, width] that split the columns of [..., rows, columns] into heads."""
    *outer, rows, _ = axes_of(shape)
    return [*outer, Axis(heads, 0, width), rows, Axis(width, 0, 1)]


def _axis(x: Tensor, axis: int) -> int:
    """Check an axis of x; returns it as a number from 0."""
    if not x.shape:
        raise InputError("x is [], which has no axes")
    if not is_integer(axis) or not -x.ndim <= axis < x.ndim:
        raise InputError(f"axis {axis} of x {list(x.shape)}; expected an integer from {-x.ndim} to {x.ndim - 1}")
    return operator.index(axis) % x.ndim


def _expect_elements(x: Tensor) -> None:
    if x.packed:
        raise InputError(f"x is {list(x.shape)} of {x.dtype}, whose elements are packed in blocks; dequantize it first")


def _head_width(x: Tensor, parts: int, spelt: str, head_dim: int | None) -> int:
    """The width of each of ``parts`` heads side by side in the rows of x."""
    columns = x.shape[-1] if x.shape else 1
    width = columns // parts if head_dim is None else head_dim
    if x.ndim < 2 or columns != parts * width:
        times = "a multiple of " if head_dim is None else ""
        wanted = spelt if head_dim is None else f"{spelt}·{head_dim}"
        raise InputError(f"x is {list(x.shape)}; expected [..., rows, {times}{wanted} columns]")
    return width


def _without(shape: Shape, axis: int) -> list[int | None]:
    """The edges of a shape, with None for one axis."""
    return [None if number == axis else edge for number, edge in enumerate(shape)]
