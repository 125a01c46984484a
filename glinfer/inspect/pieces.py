"""Weights of a checkpoint read in pieces of rows, so that no whole matrix is unpacked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from glinfer.formats import Checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.limits import PIECE_ELEMENTS

Floats = npt.NDArray[np.float32]


class WeightRows:
    """The rows of a weight, unpacked as float32 when they are sliced."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        """Find a weight; KeyError if the checkpoint has no such tensor."""
        self._weight = checkpoint.packed[name] if name in checkpoint.packed else checkpoint.tensors[name]
        self.shape: tuple[int, ...] = self._weight.shape

    def __getitem__(self, rows: slice) -> Floats:
        """Return these rows; InputError if the package gguf, which some GGML formats need, is not installed."""
        weight = self._weight
        if isinstance(weight, PackedTensor):
            return PackedTensor(weight.format, weight.blocks[rows]).floats()
        return weight[rows]


Rows = WeightRows | Floats
"""A vector or matrix whose rows can be sliced."""


def spans(shape: tuple[int, ...], multiple: int = 1) -> Iterator[slice]:
    """Split the rows of a shape into slices of at most PIECE_ELEMENTS elements, but at least ``multiple`` rows.

    Every slice but the last has a multiple of ``multiple`` rows.
    """
    width = max(1, int(np.prod(shape[1:])))
    step = multiple * max(1, PIECE_ELEMENTS // (width * multiple))
    return (slice(first, min(first + step, shape[0])) for first in range(0, shape[0], step))
