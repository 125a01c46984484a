"""Which arrays a GAB1 file holds, in file order, and how each becomes tensors under their usual names.

Matrices are [out, in] there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.formats.tensors import tensors_of

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StoredArray:
    """One row-major float32 array of a GAB1 file.

    Attributes:
        names: the tensor that it holds; or two, a weight and its bias, where the bias is the last column.
        shape: the shape in the file.
        transposed: whether the file has [in, out] where the tensor is [out, in].
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False

    @property
    def size(self) -> int:
        """How many floats the array has, as a Python integer that cannot overflow."""
        return math.prod(self.shape)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor in it."""
        if len(self.names) == 2:
            rows, columns = self.shape
            return {self.names[0]: (rows, columns - 1), self.names[1]: (rows,)}
        return {self.names[0]: self.shape[::-1] if self.transposed else self.shape}

    def split(self, stored: FloatArray) -> dict[str, FloatArray]:
        """The tensors in ``stored``, as views of it."""
        if len(self.names) == 2:
            return {self.names[0]: stored[:, :-1], self.names[1]: stored[:, -1]}
        return {self.names[0]: stored.T if self.transposed else stored}

    def join(self, tensors: Mapping[str, FloatArray]) -> FloatArray:
        """What :meth:`split` would take to give ``tensors``: contiguous, copied only where it must be."""
        first = tensors[self.names[0]]
        if len(self.names) == 2:
            stored = np.empty(self.shape, "<f4")
            stored[:, :-1] = first
            stored[:, -1] = tensors[self.names[1]]
            return stored
        return np.ascontiguousarray(first.T if self.transposed else first, "<f4")


def stored_arrays(config: ModelConfig) -> Iterator[StoredArray]:
    """All arrays of the file, in file order; lazily, so that an absurd block count costs nothing yet."""
    names, tensors = config.family.names, tensors_of(config)
    for tensor in tensors:
        name, shape = tensor.name(names), tensor.shape
        if tensor.role in ("up", "down"):
            yield StoredArray((name, next(tensors).name(names)), (shape[0], shape[1] + 1))
        else:
            transposed = len(shape) == 2 and tensor.role in ("projection", "output", "head")
            yield StoredArray((name,), shape[::-1] if transposed else shape, transposed)


def float_count(config: ModelConfig) -> int:
    """How many floats the file has after its header, without walking through the blocks."""
    one, two = (
        sum(array.size for array in stored_arrays(replace(config, num_hidden_layers=count))) for count in (1, 2)
    )
    return one + (config.num_hidden_layers - 1) * (two - one)
