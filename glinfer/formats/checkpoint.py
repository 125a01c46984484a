"""Checkpoints: a model's configuration and weights, with the same names whatever the file format."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.families.settings import quoted
from glinfer.formats.adapters.adapter import Adapter
from glinfer.formats.embedding import Embedding
from glinfer.formats.packed import PACKED_FORMATS, PackedTensor, block_weights
from glinfer.formats.tensors import weight_shapes

FloatArray = npt.NDArray[np.float32]
_MAX_TRIED_CHARACTERS, _MAX_TRIED_NAMES = 128, 1000  # in the search for the nearest name
_CHUNK = 1 << 16  # floats that check_finite examines at a time; they fit a CPU's cache


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model: its configuration and its named tensors.

    Attributes:
        config: the model's shape.
        tensors: float32 arrays by name, shapes as :func:`glinfer.formats.tensors.weight_shapes` gives them. They may
            be read-only views of a memory-mapped file and need not be contiguous.
        source: where the model came from, for messages: a path, or words such as ``random weights (seed 0)``.
        packed: matrices that keep their file's format; none of them is in ``tensors``. Empty for models that GAB1
            files hold.
        files: the files it was read from; empty for random weights.
        embedding: the settings of an embedding model or a reranker.
        adapters: LoRA adapters that are applied at run time, by name; ``tensors`` does not include them.
    """

    config: ModelConfig
    tensors: Mapping[str, FloatArray]
    source: str
    packed: Mapping[str, PackedTensor] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    embedding: Embedding = field(default_factory=Embedding)
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    @classmethod
    def of_parts(
        cls, config: ModelConfig, parts: Iterable[tuple[str, FloatArray | PackedTensor]], source: str, **others: Any
    ) -> Checkpoint:
        """A checkpoint of tensors by name, floats or packed; ``others`` are further attributes."""
        tensors: dict[str, FloatArray] = {}
        packed: dict[str, PackedTensor] = {}
        for name, part in parts:
            if isinstance(part, PackedTensor):
                packed[name] = part
            else:
                tensors[name] = part
        return cls(config, MappingProxyType(tensors), source, MappingProxyType(packed), **others)

    @property
    def parameter_count(self) -> int:
        """The number of weights in all tensors."""
        floats = sum(tensor.size for tensor in self.tensors.values())
        return floats + sum(tensor.size for tensor in self.packed.values())

    def floats(self, name: str) -> FloatArray:
        """One tensor as float32, unpacked where it is packed.

        Raises:
            KeyError: there is no such tensor.
            InputError: the package gguf, which has the grids of some formats, is not installed.
        """
        return self.packed[name].floats() if name in self.packed else self.tensors[name]

    def rows(self, name: str, first: int, end: int) -> FloatArray:
        """Rows [first, end) of a matrix as float32; only these are unpacked."""
        if name not in self.packed:
            return self.tensors[name][first:end]
        held = self.packed[name]
        return PackedTensor(held.format, held.piece(first, end)).floats()

    def formats(self) -> dict[str, str]:
        """The format of every tensor: ``F32``, or one of :data:`glinfer.formats.packed.PACKED_FORMATS`."""
        found = dict.fromkeys(self.tensors, "F32")
        found.update((name, tensor.format) for name, tensor in self.packed.items())
        return found

    def check_finite(self) -> None:
        """Check that all weights are finite, one chunk at a time.

        Raises:
            FormatError: a tensor has NaN or infinite values; names the first such tensor and the index of its
                first such value.
        """
        for name, tensor in self.tensors.items():
            count, first = _not_finite(tensor)
            if count:
                index = ", ".join(str(int(i)) for i in np.unravel_index(first, tensor.shape))
                values = "value is" if count == 1 else "values are"
                raise FormatError(
                    f"{self.source}: {count} {values} NaN or infinite in tensor {name!r}, first at "
                    f"[{index}]; expected finite numbers only; the weights are damaged, get them again"
                )
        for name, packed in self.packed.items():
            found = packed.first_not_finite()
            if found is not None:
                raise FormatError(
                    f"{self.source}: a weight of tensor {name!r}, in {packed.format}, is NaN or infinite, first at "
                    f"{list(found)}; expected finite numbers only; the weights are damaged, get them again"
                )


def _not_finite(tensor: FloatArray) -> tuple[int, int]:
    """The number of values that are not finite, and the row-major index of the first (0 if there is none)."""
    count = first = seen = 0
    # nditer walks in row-major order whatever the strides and copies at most one chunk at a time.
    chunks = np.nditer(tensor, flags=["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=_CHUNK)
    for chunk in chunks:
        bad = ~np.isfinite(np.asarray(chunk))
        if bad.any():
            if not count:
                first = seen + int(bad.argmax())
            count += int(np.count_nonzero(bad))
        seen += bad.size
    return count, first


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[str, tuple[int, ...]]], source: str) -> None:
    """Compare names, types and shapes of tensors with :func:`glinfer.formats.tensors.weight_shapes`.

    ``found`` has the type (``float32``, or for a matrix one of PACKED_FORMATS) and the shape of each.
    """
    if config.model_type not in FAMILIES:
        raise FormatError(f"{source}: model_type is {quoted(config.model_type)}; expected one of {', '.join(FAMILIES)}")
    check_blocks(config.num_hidden_layers, found, "blocks of its configuration", source)
    shapes = weight_shapes(config)
    check_names(shapes, found, f"found {len(found)} tensors, expected {len(shapes)}", source)
    for name, shape in shapes.items():
        kind, found_shape = found[name]
        if found_shape != shape:
            raise FormatError(
                f"{source}: tensor {name!r} has shape {quoted(list(found_shape))}; "
                f"expected {list(shape)} from the configuration"
            )
        may_be_packed = not config.family.gab1 and len(shape) == 2
        if kind != "float32" and not (may_be_packed and kind in PACKED_FORMATS):
            raise FormatError(
                f"{source}: tensor {name!r} is {kind}, which is not supported; expected float32; convert it first"
            )
        if kind != "float32" and shape[-1] % block_weights(kind):
            raise FormatError(
                f"{source}: tensor {name!r} is {kind} with rows of {shape[-1]} weights; expected whole blocks of "
                f"{block_weights(kind)}"
            )


def check_blocks(count: int, found: Collection[str], blocks: str, source: str) -> None:
    """Refuse more ``blocks`` than tensors, before names are listed: a file may name absurdly many blocks."""
    if count > len(found):
        raise FormatError(
            f"{source}: found {len(found)} tensors; expected more for the {count} {blocks}; these weights do not match "
            "it"
        )


def check_names(expected: Iterable[str], found: Iterable[str], counts: str, source: str) -> None:
    """Compare the names of tensors; messages end with ``counts``."""
    expected, found = dict.fromkeys(expected), dict.fromkeys(found)
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    if missing:
        hint = nearest(missing[0], unknown, "found")
        raise FormatError(f"{source}: tensor {quoted(missing[0])} is missing{hint}; {counts}")
    if unknown:
        hint = nearest(unknown[0], expected, "expected")
        raise FormatError(f"{source}: unknown tensor {quoted(unknown[0])}{hint}; {counts}")


def nearest(name: str, others: Iterable[str], verb: str) -> str:
    """A hint that names the most similar of ``others``, for a message; empty if none is similar.

    Names after the first thousand and long names are skipped: the time grows with the square of the length.
    """
    if len(name) > _MAX_TRIED_CHARACTERS:
        return ""
    tried = itertools.islice((other for other in others if len(other) <= _MAX_TRIED_CHARACTERS), _MAX_TRIED_NAMES)
    close = difflib.get_close_matches(name, tried, n=1)
    return f" ({verb} {quoted(close[0])}, the nearest name)" if close else ""


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Check a checkpoint's tensors with :func:`check_tensors` before they are written."""
    floats = {name: (tensor.dtype.name, tensor.shape) for name, tensor in checkpoint.tensors.items()}
    packed = {name: (tensor.format, tensor.shape) for name, tensor in checkpoint.packed.items()}
    check_tensors(checkpoint.config, {**floats, **packed}, checkpoint.source)


def with_context(checkpoint: Checkpoint, positions: int | None) -> Checkpoint:
    """The same model for sequences of at most ``positions`` tokens; None changes nothing."""
    config = checkpoint.config.with_context(positions)
    name = f"{config.family.names.positions}.weight"
    tensors, packed = dict(checkpoint.tensors), dict(checkpoint.packed)
    if name in tensors:
        tensors[name] = tensors[name][: config.max_position_embeddings]
    if name in packed:
        packed[name] = PackedTensor(packed[name].format, packed[name].blocks[: config.max_position_embeddings])
    return replace(checkpoint, config=config, tensors=tensors, packed=packed)
