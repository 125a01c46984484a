"""Checkpoints: the weights of a model under their usual names, from whatever file they came."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.formats.adapters.adapter import Adapter
from glinfer.formats.embedding import Embedding
from glinfer.formats.json_files import quoted
from glinfer.formats.packed import PACKED_FORMATS, PackedTensor, block_weights
from glinfer.formats.tensors import tensor_count, weight_shapes

FloatArray = npt.NDArray[np.float32]
_MAX_TRIED_CHARACTERS, _MAX_TRIED_NAMES = 128, 1000  # in the search for the nearest name
_CHUNK = 1 << 16  # floats looked at together by check_finite: small enough to stay in a CPU's cache


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model: its configuration and its named tensors.

    Attributes:
        config: the model's shape.
        tensors: float32 arrays by name, shapes as :func:`glinfer.formats.tensors.weight_shapes` gives them. They may
            be read-only views of a memory-mapped file and need not be contiguous.
        source: where they came from, for messages: a path, or words such as ``random weights (seed 0)``.
        packed: the tensors that stay in their file's own format, which are matrices; none of them is among ``tensors``.
            Models that GAB1 files hold have none.
        files: the files that it was read from; none for random weights.
        embedding: what a model that embeds texts does beside its passes.
        adapters: LoRA adapters that run beside the weights, by name; they are no part of the tensors.
    """

    config: ModelConfig
    tensors: Mapping[str, FloatArray]
    source: str
    packed: Mapping[str, PackedTensor] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    embedding: Embedding = field(default_factory=Embedding)
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    @property
    def parameter_count(self) -> int:
        """The number of weights in all tensors."""
        floats = sum(tensor.size for tensor in self.tensors.values())
        return floats + sum(tensor.size for tensor in self.packed.values())

    def floats(self, name: str) -> FloatArray:
        """One tensor as float32, unpacked where it is packed.

        Raises:
            KeyError: there is no such tensor.
            InputError: the package gguf, which unpacks GGML's formats, is not installed.
        """
        return self.packed[name].floats() if name in self.packed else self.tensors[name]

    def formats(self) -> dict[str, str]:
        """The format of every tensor: ``F32``, or one of :data:`glinfer.formats.packed.PACKED_FORMATS`."""
        found = dict.fromkeys(self.tensors, "F32")
        found.update((name, tensor.format) for name, tensor in self.packed.items())
        return found

    def check_finite(self) -> None:
        """Check that all weights are finite, a few at a time.

        Raises:
            FormatError: a tensor has NaN or infinite values; names the first such tensor, how many such
                values it has and the index of the first.
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
            place = packed.first_not_finite()
            if place is not None:
                raise FormatError(
                    f"{self.source}: a weight of tensor {name!r}, in {packed.format}, is NaN or infinite, first at "
                    f"{list(place)}; expected finite numbers only; the weights are damaged, get them again"
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
    """Compare names, types and shapes with :func:`glinfer.formats.tensors.weight_shapes`.

    Args:
        config: the model that the tensors should make up.
        found: type (``float32``, or for a matrix one of :data:`glinfer.formats.packed.PACKED_FORMATS`) and shape of
            each tensor there is.
        source: where they are, for the messages.

    Raises:
        FormatError: the model is of another family, or a tensor is missing, unknown, not float32 or of the
            wrong shape; names the first one and, for a wrong name, the nearest right one.
    """
    if config.model_type not in FAMILIES:
        raise FormatError(f"{source}: model_type is {quoted(config.model_type)}; expected one of {', '.join(FAMILIES)}")
    expected = tensor_count(config)
    # Before any list of names is made: the block count comes from a file and may be absurd.
    if config.num_hidden_layers > len(found):
        raise FormatError(
            f"{source}: found {len(found)} tensors; expected {expected} for the {config.num_hidden_layers} "
            "blocks of its configuration; these weights do not go with it"
        )
    shapes = weight_shapes(config)
    check_names(shapes, found, f"found {len(found)} tensors, expected {expected}", source)
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


def check_names(expected: Iterable[str], found: Iterable[str], counts: str, source: str) -> None:
    """Compare the names of tensors; messages end with ``counts``.

    Raises:
        FormatError: a tensor is missing or unknown; names the first, and the nearest right name.
    """
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
    """A hint at the most similar of ``others``, for a message; empty if none is similar.

    Only the first of many names are tried, and no absurdly long ones: the time grows with the square of the length.
    """
    if len(name) > _MAX_TRIED_CHARACTERS:
        return ""
    tried = itertools.islice((other for other in others if len(other) <= _MAX_TRIED_CHARACTERS), _MAX_TRIED_NAMES)
    close = difflib.get_close_matches(name, tried, n=1)
    return f" ({verb} {quoted(close[0])}, the nearest name)" if close else ""


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Check a checkpoint's tensors with :func:`check_tensors`, before writing a file of them."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        name: (tensor.dtype.name, tensor.shape) for name, tensor in checkpoint.tensors.items()
    }
    found.update((name, (tensor.format, tensor.shape)) for name, tensor in checkpoint.packed.items())
    check_tensors(checkpoint.config, found, checkpoint.source)


def with_context(checkpoint: Checkpoint, positions: int | None) -> Checkpoint:
    """The same model for sequences of at most ``positions`` tokens; None leaves it as it is.

    Raises:
        ConfigError: the model has no such positions.
    """
    config = checkpoint.config.with_context(positions)
    name = f"{config.family.names.positions}.weight"
    tensors, packed = dict(checkpoint.tensors), dict(checkpoint.packed)
    if name in tensors:
        tensors[name] = tensors[name][: config.max_position_embeddings]
    if name in packed:
        packed[name] = PackedTensor(packed[name].format, packed[name].blocks[: config.max_position_embeddings])
    return replace(checkpoint, config=config, tensors=tensors, packed=packed)
