"""Which arrays a GAB1 file holds, in file order, and how each becomes tensors under their usual names.

Matrices are [out, in] there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig

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


def _before_blocks(config: ModelConfig) -> Iterator[StoredArray]:
    width, names = config.hidden_size, config.family.names
    yield StoredArray((f"{names.embeddings}.weight",), (config.vocab_size, width))
    yield StoredArray((f"{names.positions}.weight",), (config.max_position_embeddings, width))


def _block(config: ModelConfig, index: int) -> Iterator[StoredArray]:
    width, inner, names = config.hidden_size, config.intermediate_size, config.family.names
    yield from _layer_norm(names.of("attention_norm", index), width)
    for role, letter in (("projection", "q"), ("projection", "k"), ("projection", "v"), ("output", "")):
        yield StoredArray((f"{names.of(role, index, letter)}.weight",), (width, width), transposed=True)
    yield from _layer_norm(names.of("mlp_norm", index), width)
    for role, rows, columns in (("up", inner, width), ("down", width, inner)):
        name = names.of(role, index)
        yield StoredArray((f"{name}.weight", f"{name}.bias"), (rows, columns + 1))


def _after_blocks(config: ModelConfig) -> Iterator[StoredArray]:
    names = config.family.names
    yield from _layer_norm(names.final_norm, config.hidden_size)
    yield StoredArray((f"{names.head}.weight",), (config.hidden_size, config.vocab_size), transposed=True)
    yield StoredArray((f"{names.head}.bias",), (config.vocab_size,))


def _layer_norm(name: str, width: int) -> Iterator[StoredArray]:
    yield StoredArray((f"{name}.weight",), (width,))
    yield StoredArray((f"{name}.bias",), (width,))


def stored_arrays(config: ModelConfig) -> Iterator[StoredArray]:
    """All arrays of the file, in file order; lazily, so that an absurd block count costs nothing yet."""
    yield from _before_blocks(config)
    for index in range(config.num_hidden_layers):
        yield from _block(config, index)
    yield from _after_blocks(config)


def float_count(config: ModelConfig) -> int:
    """How many floats the file has after its header, without walking through the blocks."""
    outside = sum(array.size for part in (_before_blocks, _after_blocks) for array in part(config))
    return outside + config.num_hidden_layers * sum(array.size for array in _block(config, 0))
