"""The layout of vectors and caches, four floats a texel in blocks of 4×4 texels; pure NumPy, no GL.

GPUs shade 2×2 quads of fragments and llvmpipe 4×4 stamps, so a texture one texel high would waste most of the work. A
**block** is 4×4 texels of RGBA, 64 floats, which run quad by quad: the four fragments of a quad hold 16 consecutive
floats. In a matrix [slots, cols] each slot (a vector, or a token of a cache) has as many whole blocks as it needs; the
rest of the last block is padding and stays zero.

Block b of a slot is in **tile** ``b mod tiles``. llvmpipe gives one thread to each tile of 64×64 texels, so several
tiles spread the work on one vector over the cores; a GPU needs one tile. shaders/common/blocks.glsl computes the same
positions.

A cache may hold its floats as bytes, four a texel (:mod:`glinfer.quant.bytes`). Blocks of scales then follow the blocks
of numbers in each slot: their texel t has the two scales of block t, the first in its first two bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layouts.matrix import (
    FORMATS,
    Sized,
    TexelFormat,
    TexelLayout,
    check_edges,
    check_part,
    check_shape,
    check_whole,
)
from glinfer.quant.bytes import from_bytes, to_bytes
from glinfer.quant.formats import GROUP

BLOCK_EDGE = 4
BLOCK_TEXELS = BLOCK_EDGE * BLOCK_EDGE
BLOCK_FLOATS = 4 * BLOCK_TEXELS
BYTES = "rgba8i"
"""The format of a layout whose floats are bytes with scales."""


def blocks_for(floats: int) -> int:
    """Blocks of a slot of ``floats`` floats."""
    return -(-floats // BLOCK_FLOATS)


def float_bytes(floats: int, format_name: str) -> int:
    """Bytes of the texels of ``floats`` floats, with the scales of bytes."""
    scales = 2 * -(-floats // GROUP) if format_name == BYTES else 0
    return floats * FORMATS[format_name].bytes_per_texel // 4 + scales


def lane_offsets() -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(x, y) inside a block of its 16 texels, in the order of their floats: quad by quad, left to right, upwards."""
    lane = np.arange(BLOCK_TEXELS)
    quad, member = lane >> 2, lane & 3
    return 2 * (quad & 1) + (member & 1), 2 * (quad >> 1) + (member >> 1)


@dataclass(frozen=True)
class BlockLayout(Sized):
    """A [rows, cols] matrix with each row in a slot of ``blocks`` blocks.

    Attributes:
        rows: slots.
        cols: floats of a slot.
        tiles: number of tiles among which a slot's blocks alternate.
        pitch: texels from one tile to the next.
        columns: blocks side by side within a tile.
        slot_step, block_step: distance, in blocks of a tile, between two slots and between two blocks of one slot.
            Either the blocks of a slot are adjacent, or the same block of all slots is.
        aside: blocks at the end of a slot that ``every`` slots share; the last write wins. A cache keeps its queries
            there, which no later run reads.
        every: slots of one sequence, which share the blocks aside; 1 without sequences.
        format_name: ``rgba32f`` or ``rgba16f``, or ``rgba8i`` for bytes with scales, which have no blocks aside.
        rolls: whether the ``every`` slots of a sequence hold only what its newest tokens need.
    """

    rows: int
    cols: int
    tiles: int
    pitch: int
    columns: int
    slot_step: int
    block_step: int
    aside: int = 0
    every: int = 1
    format_name: str = "rgba32f"
    rolls: bool = False

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        max_texture_size: int,
        *,
        tiles: int = 1,
        pitch: int = 64,
        format_name: str = "rgba32f",
    ) -> BlockLayout:
        """A layout within ``max_texture_size`` texels a side that spreads the blocks of a slot over tiles.

        ``tiles`` is first limited to what the texture's width holds, then doubled until all blocks fit.

        Raises:
            PlanError: the matrix is empty or too large, or the pitch is not a whole number of blocks.
        """
        check_edges(shape)
        blocks, columns = blocks_for(shape[1]), pitch // BLOCK_EDGE
        if pitch < BLOCK_EDGE or pitch % BLOCK_EDGE:
            raise PlanError(f"tiles {pitch} texels apart; expected a multiple of {BLOCK_EDGE}")
        tiles = min(tiles, max(1, max_texture_size // pitch))
        while True:
            made = cls(*shape, tiles, pitch, columns, -(-blocks // tiles), 1, format_name=format_name)
            if made.height <= max_texture_size or 2 * tiles * pitch > max_texture_size:
                return made.checked(max_texture_size)
            tiles *= 2

    @classmethod
    def by_block(
        cls,
        shape: tuple[int, int],
        max_texture_size: int,
        *,
        aside: int = 0,
        every: int = 1,
        format_name: str = "rgba32f",
        rolls: bool = False,
        together: int = 16,
    ) -> BlockLayout:
        """A layout that groups the same block of all slots, for a cache that is read block by block over many slots.

        Every line holds a multiple of ``together`` slots, so that many slots that start at such a multiple are side by
        side; attention reads 16. The blocks ``aside`` have separate lines after all others.

        Raises:
            PlanError: the matrix is empty or too large.
        """
        check_edges(shape)
        slots = -(-shape[0] // together) * together
        columns = min(slots, max(together, max_texture_size // BLOCK_EDGE // together * together))
        slots = -(-slots // columns) * columns
        made = cls(*shape, 1, BLOCK_EDGE * columns, columns, 1, slots, aside, every, format_name, rolls)
        return made.checked(max_texture_size)

    def checked(self, max_texture_size: int) -> BlockLayout:
        """Return this layout, or raise a PlanError if it does not fit a texture of this size."""
        if max(self.width, self.height) > max_texture_size:
            raise PlanError(
                f"{self.rows} vectors of {self.cols} floats need {self.width}×{self.height} texels; "
                f"the largest texture here is {max_texture_size}×{max_texture_size}"
            )
        return self

    @property
    def format(self) -> TexelFormat:
        """The texture's format."""
        return FORMATS[self.format_name]

    @property
    def in_one_line(self) -> bool:
        """Whether every line holds one block of all slots, slot after slot."""
        return self.tiles == 1 and self.slot_step == 1 and self.block_step == self.columns

    @cached_property
    def scale_blocks(self) -> int:
        """Blocks of one slot that hold the scales of bytes, a texel for each block of numbers."""
        return blocks_for(4 * blocks_for(self.cols)) if self.format_name == BYTES else 0

    @cached_property
    def blocks(self) -> int:
        """Blocks of one slot, scales included."""
        return blocks_for(self.cols) + self.scale_blocks

    @cached_property
    def kept_blocks(self) -> int:
        """Blocks of one slot without the blocks aside."""
        return self.blocks - self.aside

    @property
    def kept_cols(self) -> int:
        """Columns of one slot without the blocks aside, padding included."""
        return BLOCK_FLOATS * self.kept_blocks

    @cached_property
    def aside_slots(self) -> int:
        """Copies of the blocks aside, one for each ``every`` slots."""
        return -(-self.rows // self.every)

    @cached_property
    def kept_height(self) -> int:
        """Height in texels without the blocks aside."""
        return BLOCK_EDGE * -(-self.blocks_up_to(self.rows) // self.columns)

    def blocks_up_to(self, rows: int) -> int:
        """Blocks of one tile up to the last one of ``rows`` slots, without the blocks aside."""
        return (rows - 1) * self.slot_step + (-(-self.kept_blocks // self.tiles) - 1) * self.block_step + 1

    @cached_property
    def width(self) -> int:
        """Texels in x."""
        blocks = max(self.blocks_up_to(self.rows), self.aside * self.aside_slots)
        return (self.tiles - 1) * self.pitch + BLOCK_EDGE * min(self.columns, blocks)

    @cached_property
    def height(self) -> int:
        """Texels in y."""
        return self.kept_height + BLOCK_EDGE * -(-self.aside * self.aside_slots // self.columns)

    def defines(self, name: str) -> list[tuple[str, int]]:
        """The tensor's defines for blocks.glsl, under the prefix ``name``."""
        aside = [(f"{name}_ASIDE", self.kept_blocks), (f"{name}_ASIDE_LINE", self.kept_height)]
        aside += self._defines(name, "aside_slots", "every")
        return [
            *(aside if self.aside else []),
            *([(f"{name}_SCALES_AT", self.blocks - self.scale_blocks)] if self.scale_blocks else []),
            *self._defines(name, "blocks", "tiles", "pitch", "slot_step", "block_step", "columns", "width", "height"),
        ]

    def origin(
        self, slot: npt.NDArray[np.intp] | int, block: npt.NDArray[np.intp] | int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """(x, y) of the first texel of a block."""
        slot, block = np.broadcast_arrays(slot, block)
        index = slot * self.slot_step + block // self.tiles * self.block_step
        x = (block % self.tiles) * self.pitch + BLOCK_EDGE * (index % self.columns)
        y = BLOCK_EDGE * (index // self.columns)
        if not self.aside:
            return x, y
        kept = block < self.kept_blocks
        index = (block - self.kept_blocks) * self.aside_slots + slot // self.every
        y_aside = self.kept_height + BLOCK_EDGE * (index // self.columns)
        return np.where(kept, x, BLOCK_EDGE * (index % self.columns)), np.where(kept, y, y_aside)

    def region(self, rows: int, cols: int) -> tuple[int, int]:
        """Width and height in texels of a rectangle at the origin that holds the first ``rows`` slots."""
        check_part(self, rows, cols)
        if self.aside:
            return self.width, self.height
        return self.width, BLOCK_EDGE * -(-self.blocks_up_to(rows) // self.columns)

    @property
    def slot_is_rectangular(self) -> bool:
        """Whether a slot is a column of blocks, and its blocks aside a line."""
        return self.in_one_line and (not self.aside or (self.aside_slots == 1 and self.aside <= self.columns))

    def texels_of(self, rows: int, first: int = 0) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """(x, y) of every texel of ``rows`` slots from ``first`` on, [rows, blocks × 16] in the order of the floats."""
        across, up = lane_offsets()
        x, y = self.origin(np.arange(first, first + rows)[:, None], np.arange(self.blocks)[None, :])
        return (x[:, :, None] + across).reshape(rows, -1), (y[:, :, None] + up).reshape(rows, -1)

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w, 4] of the first ``len(matrix)`` slots; PlanError for a number beyond the texture's format."""
        check_shape(self, matrix)
        rows = matrix.shape[0]
        width, height = self.region(rows, self.cols)
        floats = np.zeros((rows, (self.blocks - self.scale_blocks) * BLOCK_FLOATS), dtype=np.float32)
        floats[:, : self.cols] = matrix
        x, y = self.texels_of(rows)
        if self.scale_blocks:
            texels = np.zeros((height, width, 4), dtype=np.int8)
            texels[y, x] = self._in_bytes(floats).reshape(rows, -1, 4)
            return texels
        largest = float(np.finfo(self.format.dtype).max)
        beyond = (np.abs(floats) > largest) & np.isfinite(floats)
        if beyond.any():
            raise PlanError(f"found {floats[beyond][0]:g}; {self.format.dtype_name} ends at {largest:g}")
        texels = np.zeros((height, width, 4), dtype=self.format.dtype)
        texels[y, x] = floats.reshape(rows, -1, 4)
        return texels

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The matrix [rows, cols] from the texels of ``region(rows, cols)``; the inverse of pack."""
        x, y = self.texels_of(rows)
        return self.elements(texels[y, x])[:, :cols]

    def elements(self, texels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The elements [rows, cols] of slots, from their texels [rows, blocks × 16, 4] at :meth:`texels_of`."""
        lanes: npt.NDArray[Any] = texels.reshape(len(texels), -1)
        if not self.scale_blocks:
            return lanes[:, : self.cols]
        held = self.blocks - self.scale_blocks
        scales = np.ascontiguousarray(lanes[:, BLOCK_FLOATS * held :][:, : 4 * held]).view("<u2")
        return from_bytes(lanes[:, : BLOCK_FLOATS * held], scales)[:, : self.cols]

    def _in_bytes(self, floats: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
        """Quantise whole blocks of floats to bytes [rows, 64 · blocks], followed by the bytes of their scales."""
        numbers, scales = to_bytes(floats)
        found = np.zeros((len(floats), BLOCK_FLOATS * self.blocks), dtype=np.int8)
        found[:, : floats.shape[1]] = numbers
        tail = scales.astype("<u2").view(np.int8)
        found[:, floats.shape[1] :][:, : tail.shape[1]] = tail
        return found


def copied_rectangles(
    source: TexelLayout, target: TexelLayout, first: int, to: int, rows: int
) -> list[tuple[int, int, int, int, int, int]]:
    """Rectangles (x, y, target x, target y, width, height) in texels that hold ``rows`` slots, without blocks aside.

    Raises:
        PlanError: one layout was not made by :meth:`BlockLayout.by_block`, or the two have different blocks.
    """
    for layout in (source, target):
        if not isinstance(layout, BlockLayout) or layout.slot_step != 1 or layout.tiles != 1:
            raise PlanError("cannot copy slots of this layout; expected one made by by_block")
    assert isinstance(source, BlockLayout)
    assert isinstance(target, BlockLayout)
    if source.kept_blocks != target.kept_blocks or not 0 <= rows <= min(source.rows - first, target.rows - to):
        raise PlanError(f"cannot copy {rows} slots of {source.kept_blocks} blocks from slot {first} to slot {to}")
    if source.in_one_line and target.in_one_line:
        size = BLOCK_EDGE * rows, BLOCK_EDGE * source.kept_blocks
        return [(BLOCK_EDGE * first, 0, BLOCK_EDGE * to, 0, *size)] if rows else []
    found = []
    for block in range(source.kept_blocks):
        done = 0
        while done < rows:  # one rectangle ends where a line of the source or the target ends
            y, x = divmod(first + done + block * source.block_step, source.columns)
            to_y, to_x = divmod(to + done + block * target.block_step, target.columns)
            count = min(rows - done, source.columns - x, target.columns - to_x)
            corners = (BLOCK_EDGE * each for each in (x, y, to_x, to_y))
            found.append((*corners, BLOCK_EDGE * count, BLOCK_EDGE))
            done += count
    return found  # type: ignore[return-value]


@dataclass(frozen=True)
class RowLayout(Sized):
    """A [rows, cols] table that is read a row at a time, four numbers a texel.

    Rows are stacked, in several stacks side by side if they exceed the texture's height. ``format_name`` is a key of
    :data:`glinfer.gl.layouts.matrix.FORMATS` with four channels, and the matrix has its type.
    """

    rows: int
    cols: int
    stack: int
    format_name: str

    @classmethod
    def of(cls, shape: tuple[int, int], format_name: str, max_texture_size: int) -> RowLayout:
        """The layout in textures of at most ``max_texture_size`` texels a side; PlanError if none holds it."""
        made = cls(*shape, min(shape[0], max_texture_size), format_name)
        if made.width > max_texture_size:
            raise PlanError(
                f"a table of {shape[0]} rows of {shape[1]} needs {made.width}×{made.height} texels; "
                f"the largest texture here is {max_texture_size}×{max_texture_size}"
            )
        return made

    @property
    def format(self) -> TexelFormat:
        """The texture's format."""
        return FORMATS[self.format_name]

    @property
    def texels(self) -> int:
        """Texels of one row."""
        return -(-self.cols // 4)

    @property
    def width(self) -> int:
        """Texels in x."""
        return self.texels * -(-self.rows // self.stack)

    @property
    def height(self) -> int:
        """Texels in y."""
        return self.stack

    def defines(self, name: str) -> list[tuple[str, int]]:
        """The table's defines, under the prefix ``name``."""
        return self._defines(name, "texels", "stack", "width", "height")

    def region(self, rows: int, cols: int) -> tuple[int, int]:
        """Width and height in texels of the smallest rectangle at the origin that holds the first rows."""
        check_part(self, rows, cols)
        return self.width, min(rows, self.stack)

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w, 4] of the whole table, or of the first rows of a table in one stack."""
        part = self.rows == self.stack and matrix.ndim == 2 and 1 <= len(matrix) <= self.rows
        rows = len(matrix) if part else self.rows
        check_whole(self, matrix, rows)
        if part and self.cols == self.texels * 4:
            return np.ascontiguousarray(matrix).reshape(rows, self.texels, 4)
        stacks = -(-self.rows // self.stack)
        texels = np.zeros((rows if part else self.stack, stacks, self.texels * 4), dtype=matrix.dtype)
        for number in range(stacks):
            held = matrix[number * self.stack : (number + 1) * self.stack]
            texels[: len(held), number, : self.cols] = held
        return texels.reshape(-1, self.width, 4)

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The first rows from the texels of ``region(rows, cols)``; the inverse of pack."""
        stacks = -(-self.rows // self.stack)
        flat = texels.reshape(-1, stacks, self.texels * 4).transpose(1, 0, 2)
        if rows > self.stack:
            flat = flat.reshape(1, -1, self.texels * 4)
        found: npt.NDArray[Any] = flat[0, :rows, :cols]
        return found
