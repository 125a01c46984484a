"""GAB1 checkpoints (``model.gab``): seven little-endian u32, then row-major little-endian float32 arrays.

The header is magic, version, vocabulary V, width D, heads H, blocks L, context S; ``stored_arrays`` lists the
arrays. File size follows from the header, so it is checked before anything is mapped or allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.formats.checkpoint import Checkpoint, FloatArray, check_checkpoint
from glinfer.formats.files import BPE1_MAGIC, GAB1_MAGIC, AnyPath, check_size, described_by, opened, replacing, shown
from glinfer.formats.tensors import tensors_of

_HEADER = struct.Struct("<7I")
_VERSION = 1
_LAYER_NORM_EPS = 1e-5
_FAMILY = next(family.name for family in FAMILIES.values() if family.gab1)


@dataclass(frozen=True)
class StoredArray:
    """One row-major float32 array of a GAB1 file.

    Attributes:
        names: the tensor it holds; or two, a weight and its bias, with the bias as the last column.
        shape: the shape in the file.
        transposed: whether the file has [in, out] where the tensor is [out, in].
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    transposed: bool = False

    @property
    def size(self) -> int:
        """The number of floats in the array, as a Python integer that cannot overflow."""
        return math.prod(self.shape)

    def split(self, stored: FloatArray) -> dict[str, FloatArray]:
        """The tensors in ``stored``, as views of it."""
        if len(self.names) == 2:
            return {self.names[0]: stored[:, :-1], self.names[1]: stored[:, -1]}
        return {self.names[0]: stored.T if self.transposed else stored}

    def join(self, tensors: Mapping[str, FloatArray]) -> FloatArray:
        """The reverse of :meth:`split`: a contiguous array, copied only if necessary."""
        first = tensors[self.names[0]]
        if len(self.names) == 2:
            stored = np.empty(self.shape, "<f4")
            stored[:, :-1] = first
            stored[:, -1] = tensors[self.names[1]]
            return stored
        return np.ascontiguousarray(first.T if self.transposed else first, "<f4")


def stored_arrays(config: ModelConfig) -> Iterator[StoredArray]:
    """All arrays of the file, in file order; lazily, so that an absurd block count costs nothing."""
    names, tensors = config.family.names, tensors_of(config)
    for tensor in tensors:
        name, shape = tensor.name(names), tensor.shape
        if tensor.role in ("up", "down"):
            yield StoredArray((name, next(tensors).name(names)), (shape[0], shape[1] + 1))
        else:
            transposed = len(shape) == 2 and tensor.role in ("projection", "output", "head")
            yield StoredArray((name,), shape[::-1] if transposed else shape, transposed)


def float_count(config: ModelConfig) -> int:
    """The number of floats after the header, without listing the blocks."""
    one, two = (
        sum(array.size for array in stored_arrays(replace(config, num_hidden_layers=count))) for count in (1, 2)
    )
    return one + (config.num_hidden_layers - 1) * (two - one)


def read_gab(path: AnyPath) -> Checkpoint:
    """Open a GAB1 checkpoint without copying it: the tensors are read-only views of the mapped file.

    The configuration has the tanh form of GELU, as in Gab's own engine; GAB1 does not specify it.

    Raises:
        FormatError: not a readable regular file; shorter than the header; wrong magic or version; a header
            that describes no possible model; truncated or padded (found and expected sizes are named).
    """
    label = shown(path)
    with opened(path) as (file, size):
        config = _read_header(file, size, label)
        count = float_count(config)
        check_size(size, _HEADER.size + 4 * count, label)
        try:
            mapped = np.memmap(file, np.dtype("<f4"), "r", _HEADER.size, (count,))
        except (ValueError, OverflowError, MemoryError) as error:
            raise FormatError(f"{label}: cannot map its {size} bytes into memory: {error}") from None
    # A plain array that keeps the mapping alive: the memmap subclass would slow every later operation.
    flat = np.asarray(mapped)
    tensors: dict[str, FloatArray] = {}
    start = 0
    for array in stored_arrays(config):
        tensors.update(array.split(flat[start : start + array.size].reshape(array.shape)))
        start += array.size
    return Checkpoint(config, MappingProxyType(tensors), label, files=(Path(path),))


def _read_header(file: BinaryIO, size: int, label: str) -> ModelConfig:
    """The configuration in the header, after a check of magic and version."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise FormatError(
            f"{label}: found {len(header)} bytes; expected at least the {_HEADER.size} of a GAB1 header; "
            "the file is not a GAB1 checkpoint, or cut short"
        )
    magic, version, vocab, width, heads, blocks, context = _HEADER.unpack(header)
    if magic == BPE1_MAGIC:
        raise FormatError(
            f"{label}: this is a BPE1 tokenizer file (magic {magic:#010x}); expected a GAB1 checkpoint "
            f"(magic {GAB1_MAGIC:#010x}); give the model's .gab file here"
        )
    if magic != GAB1_MAGIC:
        raise FormatError(
            f"{label}: magic is {magic:#010x}; expected {GAB1_MAGIC:#010x}; the file is not a GAB1 checkpoint"
        )
    if version != _VERSION:
        raise FormatError(f"{label}: GAB version is {version}, which is not supported; expected {_VERSION}")
    with described_by(f"{label}: its header"):
        return ModelConfig(
            vocab_size=vocab,
            hidden_size=width,
            num_attention_heads=heads,
            num_hidden_layers=blocks,
            max_position_embeddings=context,
            layer_norm_eps=_LAYER_NORM_EPS,
            model_type=_FAMILY,
        )


def write_gab(checkpoint: Checkpoint, path: AnyPath) -> None:
    """Write a GAB1 checkpoint atomically; every float keeps its bits.

    GAB1 does not store the form of GELU (``hidden_act``), so readers have to choose it.

    Raises:
        FormatError: the configuration is one that GAB1 cannot express (another family, tied embeddings,
            ``intermediate_size`` other than 4 × ``hidden_size``, another ``layer_norm_eps``), a tensor is missing,
            unknown, not float32 or of the wrong shape, or the file cannot be written.
    """
    config, problem = checkpoint.config, ""
    if config.model_type != _FAMILY or config.tie_word_embeddings:
        head = "tied embeddings" if config.tie_word_embeddings else "embeddings of its own"
        found = f"the model is of the family {config.model_type!r}, with {head}"
        problem = f"{found}; GAB1 can only hold {_FAMILY!r} without"
    elif config.intermediate_size != 4 * config.hidden_size:
        found = f"intermediate_size is {config.intermediate_size}"
        problem = f"{found}; GAB1 can only hold 4 × hidden_size = {4 * config.hidden_size}"
    elif config.layer_norm_eps != _LAYER_NORM_EPS:
        problem = f"layer_norm_eps is {config.layer_norm_eps}; GAB1 can only hold {_LAYER_NORM_EPS}"
    if problem:
        raise FormatError(f"{checkpoint.source}: {problem}; save as .safetensors instead")
    check_checkpoint(checkpoint)
    header = _HEADER.pack(
        GAB1_MAGIC,
        _VERSION,
        config.vocab_size,
        config.hidden_size,
        config.num_attention_heads,
        config.num_hidden_layers,
        config.max_position_embeddings,
    )
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(header)
        for array in stored_arrays(config):
            file.write(array.join(checkpoint.tensors).data)
