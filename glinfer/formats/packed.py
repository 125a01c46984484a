"""Packed matrices: half floats, or GGML's blocks of small integers with scales, as stored in their file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.quant.block_bytes import Bytes
from glinfer.quant.formats import BLOCK_FORMATS, block_format
from glinfer.quant.ggml import dequantize, not_finite

F16 = "F16"
"""The format of a :class:`PackedTensor` that has one half float for each weight, without blocks."""
PACKED_FORMATS = (F16, *BLOCK_FORMATS)
_CHUNK = 1 << 22  # bytes examined at a time


@dataclass(frozen=True, eq=False)
class PackedTensor:
    """A matrix [rows, inputs], stored as the bytes of its file.

    Attributes:
        format: one of :data:`PACKED_FORMATS`.
        blocks: uint8 [rows, bytes of a row]; may be a read-only view of a memory-mapped file.
    """

    format: str
    blocks: Bytes

    def __post_init__(self) -> None:
        """Check that the bytes are a matrix in that format."""
        if self.format != F16:
            block_format(self.format)
        if self.blocks.ndim != 2 or self.blocks.dtype != np.uint8 or self.blocks.size == 0:
            raise InputError(
                f"found blocks {list(self.blocks.shape)} of {self.blocks.dtype} for {self.format}; expected bytes "
                "[rows, bytes of a row]"
            )
        inputs = inputs_in(self.format, self.blocks.shape[1])
        if inputs < 1 or row_bytes(self.format, inputs) != self.blocks.shape[1]:
            raise InputError(f"a row of {self.blocks.shape[1]} bytes is not a whole number of {self.format} blocks")

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, inputs)."""
        return len(self.blocks), inputs_in(self.format, self.blocks.shape[1])

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    def floats(self) -> npt.NDArray[np.float32]:
        """The weights as float32 [rows, inputs], exactly.

        Raises:
            InputError: the package gguf, which has the grids of some formats, is not installed.
        """
        if self.format == F16:
            return self.halves().astype(np.float32)
        return dequantize(self._contiguous(), self.format)

    def halves(self) -> npt.NDArray[np.float16]:
        """The weights of a tensor in ``F16``, as float16 [rows, inputs]."""
        return self._contiguous().view("<f2").astype(np.float16, copy=False)

    def _contiguous(self) -> Bytes:
        return np.ascontiguousarray(self.blocks)

    def first_not_finite(self) -> tuple[int, int] | None:
        """(row, input) of the first weight that is NaN or infinite, or None; of blocks, only scales are examined."""
        rows, inputs = self.shape
        step = max(1, _CHUNK // row_bytes(self.format, inputs))
        for start in range(0, rows, step):
            bad = self._bad_rows(np.ascontiguousarray(self.piece(start, start + step)))
            if bad.any():
                row = start + int(bad.argmax())
                return row, self._first_bad(np.ascontiguousarray(self.piece(row, row + 1)))
        return None

    def piece(self, start: int, end: int) -> Bytes:
        """The bytes of rows [start, end)."""
        return self.blocks[start:end]

    def _first_bad(self, row: Bytes) -> int:
        """The first bad weight of a row; for a block with a bad scale, the first of the block."""
        if self.format == F16:
            return int((~np.isfinite(row.view("<f2"))).argmax())
        form = block_format(self.format)
        if not form.weights:  # the row has one scale
            return 0
        blocks = row.reshape(-1, form.nbytes)
        return form.weights * int(not_finite(blocks, self.format).argmax())

    def _bad_rows(self, rows: Bytes) -> npt.NDArray[np.bool_]:
        if self.format == F16:
            return np.asarray(~np.isfinite(rows.view("<f2")).all(axis=1))
        return not_finite(rows, self.format)


class GatheredTensor(PackedTensor):
    """A packed matrix whose bytes are scattered or in another order in its file.

    Each access gathers them again; they are not cached.
    """

    _shape: tuple[int, int]
    _gather: Callable[[slice], Bytes]
    _is_finite: Callable[[], bool] | None

    def __init__(
        self,
        form: str,
        shape: tuple[int, int],
        gather: Callable[[slice], Bytes],
        is_finite: Callable[[], bool] | None = None,
    ) -> None:
        """Create a matrix in the format ``form``.

        Args:
            form: one of :data:`PACKED_FORMATS`.
            shape: (rows, inputs).
            gather: returns the bytes [rows, bytes of a row] of a slice of rows.
            is_finite: a faster check, of the scales alone; true if all weights are finite.
        """
        if form != F16:
            block_format(form)
        object.__setattr__(self, "format", form)
        object.__setattr__(self, "_shape", shape)
        object.__setattr__(self, "_gather", gather)
        object.__setattr__(self, "_is_finite", is_finite)

    @property
    def blocks(self) -> Bytes:
        """uint8 [rows, bytes of a row]."""
        return self._gather(slice(None))

    def piece(self, start: int, end: int) -> Bytes:
        """The bytes of rows [start, end); only these are gathered."""
        return self._gather(slice(start, end))

    def first_not_finite(self) -> tuple[int, int] | None:
        """See :meth:`PackedTensor.first_not_finite`."""
        return None if self._is_finite is not None and self._is_finite() else super().first_not_finite()

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, inputs)."""
        return self._shape


def inputs_in(name: str, nbytes: int) -> int:
    """The number of weights in ``nbytes`` bytes of a row in a format, rounded down."""
    if name == F16:
        return nbytes // 2
    form = block_format(name)
    return nbytes // form.nbytes * form.weights if form.weights else (nbytes - 4) // form.nbytes


def row_bytes(name: str, inputs: int) -> int:
    """The number of bytes of a row of ``inputs`` weights in a format."""
    return 2 * inputs if name == F16 else block_format(name).row_bytes(inputs)


def block_weights(name: str) -> int:
    """The number of weights in a block of a format; rows are whole blocks."""
    return 1 if name == F16 else max(1, block_format(name).weights)
