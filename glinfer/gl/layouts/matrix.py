"""The layout of a matrix in a texture, one element a texel; pure NumPy, no GL.

A matrix [rows, cols] is stored row-major, one element a texel. If both edges fit the renderer's largest
texture, the texel of element (r, c) is (x=c, y=r). Otherwise (WebGL2 guarantees only 2048 texels a side)
the elements are wrapped: element i = r·cols + c is at (i mod width, i div width).
Shaders read both through shaders/common/matrix.glsl.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError

Extent = int | str
"""A size in matrix elements: fixed, or the name of a per-run value such as ``"rows"``."""


@dataclass(frozen=True)
class TexelFormat:
    """One texture format: its GL name, the NumPy type of a channel, and channels."""

    name: str
    dtype: npt.DTypeLike
    channels: int = 1

    @property
    def short_dtype(self) -> str:
        """moderngl's name of the type, such as ``f4``."""
        return np.dtype(self.dtype).str[1:]

    @property
    def dtype_name(self) -> str:
        """NumPy's name of the type, such as ``float32``."""
        return np.dtype(self.dtype).name

    @cached_property
    def bytes_per_texel(self) -> int:
        """Bytes of texture memory of one texel."""
        return int(np.dtype(self.dtype).itemsize) * self.channels

    @cached_property
    def kind(self) -> str:
        """``f`` for floats, ``i`` for signed integers, which shaders read through an isampler2D, ``u`` for unsigned."""
        return np.dtype(self.dtype).kind

    @property
    def is_integer(self) -> bool:
        """Whether shaders read it through an isampler2D or usampler2D."""
        return self.kind != "f"


FORMATS = {
    "r32f": TexelFormat("r32f", np.float32),
    "r32i": TexelFormat("r32i", np.int32),
    "rgba32f": TexelFormat("rgba32f", np.float32, 4),
    "rgba16f": TexelFormat("rgba16f", np.float16, 4),
    "rgba8i": TexelFormat("rgba8i", np.int8, 4),
    "rgba32i": TexelFormat("rgba32i", np.int32, 4),
    "rgba32ui": TexelFormat("rgba32ui", np.uint32, 4),
}


class TexelLayout(Protocol):
    """The positions of a [rows, cols] matrix's elements in a texture.

    :class:`Layout` keeps one element a texel, :mod:`glinfer.gl.layouts.flat` four elements of a tensor of any shape.
    The other modules of the package hold the layouts of blocked vectors and packed weights.
    """

    @property
    def width(self) -> int:
        """Texels in x."""

    @property
    def height(self) -> int:
        """Texels in y."""

    @property
    def rows(self) -> int:
        """Rows of the matrix."""

    @property
    def cols(self) -> int:
        """Columns of the matrix."""

    @property
    def format(self) -> TexelFormat:
        """The texture's format."""

    @property
    def nbytes(self) -> int:
        """Bytes of texture memory."""

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w] or [h, w, 4] of the first ``len(matrix)`` rows.

        Raises:
            PlanError: the matrix has the wrong columns, no rows or too many, or the wrong type.
        """

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The matrix [rows, cols] from the texels of ``region(rows, cols)``."""

    def region(self, rows: int, cols: int) -> tuple[int, int]:
        """Width and height in texels of a rectangle at the origin that holds [0:rows, 0:cols].

        Raises:
            PlanError: the matrix has no such part.
        """


class Sized:
    """Adds its size in bytes to a layout, and defines of its numbers."""

    @property
    def nbytes(self: TexelLayout) -> int:
        """Bytes of texture memory."""
        return self.width * self.height * self.format.bytes_per_texel

    def _defines(self, prefix: str, *names: str) -> list[tuple[str, int]]:
        """Defines by the names of attributes, in capitals after the prefix."""
        return [(f"{prefix}_{name.upper()}", getattr(self, name)) for name in names]


def check_edges(shape: tuple[int, int]) -> None:
    """Raise a PlanError for an empty matrix."""
    if min(shape) < 1:
        raise PlanError(f"found a {shape[0]}×{shape[1]} matrix; every edge must be at least 1")


def check_part(layout: TexelLayout, rows: int, cols: int) -> None:
    """Raise a PlanError for a part [0:rows, 0:cols] that the matrix lacks."""
    if not (1 <= rows <= layout.rows and 1 <= cols <= layout.cols):
        raise PlanError(f"found a part of {rows}×{cols} elements; expected 1×1 to {layout.rows}×{layout.cols}")


def check_rows(layout: TexelLayout, matrix: npt.NDArray[Any]) -> None:
    """Raise a PlanError for rows that the layout cannot hold, or of another type."""
    check_shape(layout, matrix)
    expected = np.dtype(layout.format.dtype)
    if matrix.dtype != expected:
        raise PlanError(f"found an array of {matrix.dtype}; a {layout.format.name} texture holds {expected}")


def check_shape(layout: TexelLayout, matrix: npt.NDArray[Any]) -> None:
    """Raise a PlanError for rows of another length, none, or too many."""
    if matrix.ndim != 2 or matrix.shape[1] != layout.cols or not 1 <= matrix.shape[0] <= layout.rows:
        raise PlanError(f"found an array {list(matrix.shape)}; expected [1 to {layout.rows}, {layout.cols}]")


def check_whole(layout: TexelLayout, matrix: npt.NDArray[Any], rows: int | None = None) -> None:
    """Raise a PlanError for another array than the whole matrix, or ``rows`` rows of it, in its type."""
    if matrix.shape != (rows or layout.rows, layout.cols) or matrix.dtype != np.dtype(layout.format.dtype):
        raise PlanError(
            f"found an array {matrix.dtype} {list(matrix.shape)}; "
            f"expected {layout.format.dtype_name} {[layout.rows, layout.cols]}"
        )


@dataclass(frozen=True)
class Layout(Sized):
    """A [rows, cols] matrix in a width × height texture, one element a texel."""

    rows: int
    cols: int
    width: int
    height: int
    format: TexelFormat

    @classmethod
    def of(cls, shape: tuple[int, int], format_name: str, max_texture_size: int) -> Layout:
        """The layout in textures of at most ``max_texture_size`` texels a side; PlanError if none holds it."""
        rows, cols = shape
        check_edges(shape)
        if rows <= max_texture_size and cols <= max_texture_size:
            return cls(rows, cols, cols, rows, FORMATS[format_name])
        height = -(-rows * cols // max_texture_size)
        if height > max_texture_size:
            raise PlanError(
                f"a {rows}×{cols} matrix has {rows * cols} elements; the largest texture here is "
                f"{max_texture_size}×{max_texture_size} = {max_texture_size**2} texels"
            )
        return cls(rows, cols, max_texture_size, height, FORMATS[format_name])

    @property
    def wrapped(self) -> bool:
        """Whether elements are wrapped at the texture's edge, see the module's docstring."""
        return self.width != self.cols

    @property
    def row_texels(self) -> int:
        """Texels of one row."""
        return self.cols

    def region(self, rows: int, cols: int) -> tuple[int, int]:
        """Width and height in texels of the smallest rectangle at the origin that holds [0:rows, 0:cols]."""
        check_part(self, rows, cols)
        if self.wrapped:
            return self.width, -(-rows * self.cols // self.width)
        return cols, rows

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w] of the first ``len(matrix)`` rows; bits are kept, padding is zero."""
        check_rows(self, matrix)
        if not self.wrapped:
            return np.ascontiguousarray(matrix)
        width, height = self.region(*matrix.shape)
        texels = np.zeros(width * height, dtype=matrix.dtype)
        texels[: matrix.size] = np.ascontiguousarray(matrix).reshape(-1)
        return texels.reshape(height, width)

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The matrix [rows, cols] from the texels of ``region(rows, cols)``; the inverse of pack."""
        if not self.wrapped:
            return texels[:rows, :cols]
        return texels.reshape(-1)[: rows * self.cols].reshape(rows, self.cols)[:, :cols]
