"""The layout of a matrix of packed words for products; pure NumPy, no GL.

A fragment of shaders/gemm.frag adds up the products of 4×4 pieces (4 outputs × 4 inputs), four pieces a step. The
texture holds the pieces in reading order. A line is half a block (8 lanes, see :mod:`glinfer.gl.layouts.blocks`;
llvmpipe computes 8 at once) and one step: 32 outputs × 16 inputs. The lines of all steps of a half are consecutive, so
a renderer streams the weights from memory once, front to back.

A **word** is one float32 or half float, or 32 bits with two 16-bit or four 8-bit weights, along the inputs. Word e of
the 4 inputs of a piece, for its 4 outputs, is one RGBA texel; ``texels`` counts the texels of a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BLOCK_TEXELS, blocks_for
from glinfer.gl.layouts.matrix import FORMATS, Sized, TexelFormat, check_whole
from glinfer.quant.formats import WORD_FORMATS
from glinfer.quant.threads import in_threads

_STRIP_BYTES = 1 << 18  # of rows sorted together, which fit a CPU's cache


def lines_within(
    blocks: int, lines_per_block: int, line: int, max_texture_size: int, what: str
) -> tuple[int, int, int, int]:
    """The first fields of a :class:`LineLayout` with lines of ``line`` texels within a texture.

    Raises:
        PlanError: they do not fit; the message names ``what``.
    """
    columns = -(-blocks * lines_per_block // max_texture_size)
    if (rounded := 1 << (columns - 1).bit_length()) * line <= max_texture_size:
        columns = rounded  # shaders divide by it
    if columns * line > max_texture_size:
        raise PlanError(
            f"{what} needs {blocks * lines_per_block} lines of {line} texels; "
            f"the largest texture here is {max_texture_size}×{max_texture_size}"
        )
    return blocks, lines_per_block, line, columns


@dataclass(frozen=True)
class LineLayout(Sized):
    """A matrix laid out in lines of equal width in ``columns`` columns, as few as the texture's height allows.

    For any ``columns``, a renderer that stores textures row by row reads the lines from memory front to back.

    Attributes:
        blocks: blocks of 64 outputs.
        lines_per_block: lines of each.
        line: texels of a line.
        columns: lines side by side.
        rows, cols: the matrix.
    """

    blocks: int
    lines_per_block: int
    line: int
    columns: int
    rows: int
    cols: int

    @property
    def format(self) -> TexelFormat:
        """RGBA32F, unless a subclass overrides it."""
        return FORMATS["rgba32f"]

    @property
    def width(self) -> int:
        """Texels in x."""
        return self.columns * self.line

    @property
    def height(self) -> int:
        """Texels in y."""
        return -(-self.blocks * self.lines_per_block // self.columns)

    def region(self, rows: int, cols: int) -> tuple[int, int]:
        """The whole texture, because no smaller rectangle holds the first rows; PlanError for a part."""
        if (rows, cols) != (self.rows, self.cols):
            raise PlanError(f"packed weights are read whole: found {rows}×{cols}; expected {self.rows}×{self.cols}")
        return self.width, self.height

    def defines(self, name: str) -> list[tuple[str, int]]:
        """The texture's defines for gemm.frag, under the prefix ``name``."""
        return self._defines(name, "columns", "width", "height")

    def _strips(self, block_bytes: int) -> list[range]:
        """Strips of a few blocks of this size, small enough to be sorted in a CPU's cache."""
        each = max(1, _STRIP_BYTES // block_bytes)
        return [range(at, min(at + each, self.blocks)) for at in range(0, self.blocks, each)]

    def _join(self, lines: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[blocks, lines_per_block, line, 4] → texels [height, width, 4]."""
        texels = np.ascontiguousarray(lines).reshape(-1, self.line, 4)
        missing = self.height * self.columns - len(texels)
        if missing:
            texels = np.concatenate([texels, np.zeros((missing, self.line, 4), dtype=lines.dtype)])
        return texels.reshape(self.height, self.width, 4)

    def _split(self, texels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The inverse of :meth:`_join`."""
        lines = texels.reshape(-1, self.line, 4)[: self.blocks * self.lines_per_block]
        return lines.reshape(self.blocks, self.lines_per_block, self.line, 4)


@dataclass(frozen=True)
class GemvLayout(LineLayout):
    """The weight words [rows, cols] of a product: rows outputs, cols words along the inputs.

    Attributes:
        rows: outputs; padded to whole blocks of 64.
        cols: words of one output, a multiple of ``texels``; inputs are padded to whole blocks of 64.
        weights: a key of :data:`glinfer.quant.formats.WORD_FORMATS`.
        quad: whether each fragment of a quad sums a quarter of the inputs for all 16 outputs of the quad, to be added
            up at the end; otherwise each sums all inputs for its own 4 outputs.
    """

    weights: str
    quad: bool

    @classmethod
    def of(cls, outputs: int, inputs: int, weights: str, quad: bool, max_texture_size: int) -> GemvLayout:
        """The layout in textures of at most ``max_texture_size`` texels a side; PlanError if none holds it."""
        texels = WORD_FORMATS[weights].piece_texels
        lines = lines_within(
            blocks_for(outputs),
            2 * 4 * blocks_for(inputs),
            BLOCK_FLOATS // 2 * texels,
            max_texture_size,
            f"a matrix of {outputs}×{inputs} weights",
        )
        return cls(*lines, outputs, -(-inputs // 4) * texels, weights, quad)

    @property
    def texels(self) -> int:
        """Texels of a 4×4 piece."""
        return WORD_FORMATS[self.weights].piece_texels

    @property
    def format(self) -> TexelFormat:
        """The texture format of the words."""
        return FORMATS[WORD_FORMATS[self.weights].texture]

    def _pieces(self) -> tuple[int, ...]:
        """Axes of the words: output block, half, quad of it, member, 4 outputs; steps, member of the inputs, words."""
        return (self.blocks, 2, 2, 4, 4, self.lines_per_block // 2, 4, self.texels)

    @property
    def _order(self) -> tuple[int, ...]:
        # Texel order in a line: which accumulator, word, quad of the half, member of the quad. With quad, the
        # accumulator is the member that will own the outputs, and the lane's own member selects the inputs.
        return (0, 1, 5, 3, 7, 2, 6, 4) if self.quad else (0, 1, 5, 6, 7, 2, 3, 4)

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w, 4] of the words [rows, cols]; padding is zero."""
        check_whole(self, matrix)
        shape = self._pieces()
        words = int(np.prod(shape[5:]))
        lines = np.empty([shape[axis] for axis in self._order], dtype=matrix.dtype)

        def sort(blocks: range) -> None:
            rows = matrix[BLOCK_FLOATS * blocks.start : BLOCK_FLOATS * blocks.stop]
            if rows.shape != (BLOCK_FLOATS * len(blocks), words):
                padded = np.zeros((BLOCK_FLOATS * len(blocks), words), dtype=matrix.dtype)
                padded[: len(rows), : self.cols] = rows
                rows = padded
            lines[blocks.start : blocks.stop] = rows.reshape(len(blocks), *shape[1:]).transpose(self._order)

        in_threads(sort, self._strips(BLOCK_FLOATS * words * matrix.itemsize))
        return self._join(lines.reshape(shape[0], self.lines_per_block, self.line, 4))

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The words [rows, cols]; the inverse of pack."""
        shape = self._pieces()
        ordered = self._split(texels).reshape([shape[axis] for axis in self._order])
        words = ordered.transpose(np.argsort(self._order)).reshape(shape[0] * BLOCK_FLOATS, -1)
        found: npt.NDArray[Any] = words[:rows, :cols]
        return found


@dataclass(frozen=True)
class ConstantLayout(LineLayout):
    """The constants of each output of a product, [rows, 1 to 6]: scales, sum of weights, bias, in this order.

    ``scales`` adds four scales, one for each group of inputs, and ``sums`` the sum of the output's weights; the bias is
    always present. Group g holds the inputs i with ``(i div 4) mod 4 == g``, which member g of a quad reads, so four
    scales cost no more than one a row.
    """

    quad: bool
    scales: bool
    sums: bool

    @classmethod
    def of(cls, outputs: int, scales: bool, quad: bool, max_texture_size: int, *, sums: bool = False) -> ConstantLayout:
        """The layout in textures of at most ``max_texture_size`` texels a side; PlanError if none holds it."""
        cols = 4 * scales + sums + 1
        lines = lines_within(blocks_for(outputs), 1, cols * BLOCK_TEXELS, max_texture_size, f"{outputs} constants")
        return cls(*lines, outputs, cols, quad, scales, sums)

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w, 4] of the constants [rows, cols]; padding is zero."""
        if matrix.shape != (self.rows, self.cols):
            raise PlanError(f"found an array {list(matrix.shape)}; expected {[self.rows, self.cols]}")
        padded = np.zeros((self.blocks * BLOCK_FLOATS, self.cols), dtype=np.float32)
        padded[: self.rows] = matrix
        shape = (self.blocks, 4, 4, 4)  # block, quad, member, 4 outputs
        parts = [padded[:, col].reshape(shape[0], BLOCK_TEXELS, 4) for col in range(4 * self.scales, self.cols)]
        if self.scales:
            scales = padded[:, :4].reshape(*shape, 4)  # … group
            parts.insert(0, scales.transpose(self._order).reshape(shape[0], 4 * BLOCK_TEXELS, 4))
        return self._join(np.concatenate(parts, axis=1)[:, None])

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The constants [rows, cols]; the inverse of pack."""
        lines = self._split(texels)[:, 0].reshape(self.blocks, self.cols, BLOCK_TEXELS, 4)
        blocks = self.blocks
        found = np.empty((blocks * BLOCK_FLOATS, self.cols), dtype=np.float32)
        for col in range(4 * self.scales, self.cols):
            found[:, col] = lines[:, col].reshape(-1)
        if self.scales:
            shape = (blocks, 4, 4, 4, 4)
            scales = lines[:, :4].reshape([shape[axis] for axis in self._order])
            found[:, :4] = scales.transpose(np.argsort(self._order)).reshape(-1, 4)
        return found[:rows, :cols]

    @property
    def _order(self) -> tuple[int, ...]:
        return (0, 2, 1, 4, 3) if self.quad else (0, 4, 1, 2, 3)
