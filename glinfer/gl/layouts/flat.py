"""The layout of tensors of any shape, four elements a texel; pure NumPy, no GL.

A tensor is a matrix [rows, cols]: its last axis runs along the columns, all other axes, row-major, along the rows. Each
row is padded with zeros to whole texels of four elements, and the texels of all rows are numbered in order: texel t
is at (t mod width, t div width), and the width is a power of two. So a vector of 4096 elements is stored like a 64×64
matrix, and every fragment of a pass has work. An edge may be longer than the largest texture. Short lines give
llvmpipe many tiles of 64×64 texels for its threads. shaders/common/flat.glsl computes the same positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layouts.matrix import FORMATS, Sized, TexelFormat, check_edges, check_part, check_rows

LANES = 4
_MAX_WIDTH = 256  # if the texture's height allows it
_MIN_WIDTH = 4


def texels_for(elements: int) -> int:
    """Texels of a row of ``elements`` elements."""
    return -(-elements // LANES)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << max(0, number - 1).bit_length()


@dataclass(frozen=True)
class FlatLayout(Sized):
    """A [rows, cols] matrix in a width × height texture of four channels.

    Attributes:
        rows, cols: the matrix, in elements.
        width, height: the texture, in texels; the width is a power of two.
        format: the texture's format.
    """

    rows: int
    cols: int
    width: int
    height: int
    format: TexelFormat

    @classmethod
    def of(cls, shape: tuple[int, int], format_name: str, max_texture_size: int) -> FlatLayout:
        """The layout in textures of at most ``max_texture_size`` texels a side; PlanError if none holds it."""
        rows, cols = shape
        check_edges(shape)
        texels = rows * texels_for(cols)
        largest = _power_of_two(max_texture_size + 1) // 2
        width = min(_MAX_WIDTH, largest, max(_MIN_WIDTH, _power_of_two(-(-texels // _MIN_WIDTH))))
        while -(-texels // width) > max_texture_size and width < largest:
            width *= 2
        if -(-texels // width) > max_texture_size:
            raise PlanError(
                f"a {rows}×{cols} matrix takes {texels} texels of four elements; the largest texture here is "
                f"{max_texture_size}×{max_texture_size}"
            )
        return cls(rows, cols, width, -(-texels // width), FORMATS[format_name])

    @classmethod
    def without_elements(cls, shape: tuple[int, int], format_name: str) -> FlatLayout:
        """The layout of a matrix with an edge of 0, which has no texels."""
        return cls(*shape, _MIN_WIDTH, 0, FORMATS[format_name])

    @property
    def row_texels(self) -> int:
        """Texels of one row."""
        return texels_for(self.cols)

    def reshaped(self, rows: int, cols: int) -> FlatLayout:
        """The same texels as another matrix; PlanError if it has a different number of texels."""
        if rows * texels_for(cols) != self.rows * self.row_texels:
            raise PlanError(f"a {self.rows}×{self.cols} matrix cannot share its texels with one of {rows}×{cols}")
        return replace(self, rows=rows, cols=cols)

    def defines(self, name: str) -> list[tuple[str, int]]:
        """The tensor's defines for flat.glsl, under the prefix ``name``."""
        return [(f"{name}_TEXELS", self.row_texels), (f"{name}_WIDTH", self.width), (f"{name}_HEIGHT", self.height)]

    def region(self, rows: int, cols: int) -> tuple[int, int]:
        """Width and height in texels of the whole lines that hold [0:rows, 0:cols]."""
        check_part(self, rows, cols)
        return self.width, -(-rows * self.row_texels // self.width)

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w, 4] of the first ``len(matrix)`` rows; bits are kept, padding is zero."""
        check_rows(self, matrix)
        width, height = self.region(*matrix.shape)
        texels = np.zeros((height * width, LANES), dtype=matrix.dtype)
        padded = texels[: matrix.shape[0] * self.row_texels].reshape(matrix.shape[0], -1)
        padded[:, : self.cols] = matrix
        return texels.reshape(height, width, LANES)

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The matrix [rows, cols] from the texels of ``region(rows, cols)``; the inverse of pack."""
        used = texels.reshape(-1, LANES)[: rows * self.row_texels]
        return used.reshape(rows, self.row_texels * LANES)[:, :cols]
