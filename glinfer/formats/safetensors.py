"""glinfer's safetensors checkpoints: tensors in Hugging Face's container, with the configuration as metadata.

The metadata is ``{"format": "glinfer", "config": ModelConfig.to_json()}``, with ``"embedding": Embedding.to_json()`` in
files of models that embed texts; names and shapes are those of
:func:`glinfer.formats.tensors.weight_shapes`, for every family. Tensors are float32 or float16. In memory, float16
matrices stay packed as ``F16``, except in families whose published passes need float32; all other tensors become
float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.families.settings import quoted
from glinfer.formats.checkpoint import Checkpoint, check_checkpoint, check_tensors
from glinfer.formats.embedding import Embedding
from glinfer.formats.files import AnyPath, described_by, replacing, shown, words_of
from glinfer.formats.huggingface.config import check_scaling
from glinfer.formats.packed import PackedTensor
from glinfer.formats.safetensors_file import Bytes, FoundTensor, floats_of, map_bytes, read_header
from glinfer.formats.tensors import weight_shapes
from glinfer.limits import MAX_OWN_HEADER_BYTES
from glinfer.quant.formats import F16

_FORMAT = "glinfer"
_STORED = {"F32": "float32", "F16": "float16"}
DTYPES = tuple(_STORED.values())
"""The types that tensors can be written in."""


def read_safetensors(path: AnyPath) -> Checkpoint:
    """Read a checkpoint that :func:`write_safetensors` wrote.

    Float32 tensors are read-only views of the mapped file, and float16 matrices are ``F16`` views of it; only float16
    vectors are widened, so this takes little memory. In families with published passes, matrices are widened too.

    Raises:
        FormatError: the file is not a readable safetensors file, is damaged, or lacks glinfer's metadata; or a tensor
            is missing, unknown, not float32 or float16, or of the wrong shape.
    """
    label = shown(path)
    found, metadata = read_header(Path(path), MAX_OWN_HEADER_BYTES)
    config = _config(metadata, label)
    # Float16 is widened to float32, or packed.
    kinds = {name: "float32" if each.dtype in _STORED else each.dtype for name, each in found.items()}
    check_tensors(config, {name: (kinds[name], each.shape) for name, each in found.items()}, label)
    wanted = {name: found[name] for name in weight_shapes(config)}
    keeps = not config.family.published
    data = map_bytes(wanted)
    parts = ((name, _part(data[name], each, keeps=keeps)) for name, each in wanted.items())
    embedding = Embedding.from_json(metadata["embedding"], label) if "embedding" in metadata else Embedding()
    return Checkpoint.of_parts(config, parts, label, files=(Path(path),), embedding=embedding)


def _part(data: Bytes, found: FoundTensor, *, keeps: bool) -> npt.NDArray[np.float32] | PackedTensor:
    if keeps and found.dtype == F16 and len(found.shape) == 2:
        return PackedTensor(F16, data.reshape(found.shape[0], -1))
    return floats_of(data, found)


def _config(metadata: Mapping[str, str], label: str) -> ModelConfig:
    """The configuration in the metadata of a file."""
    if metadata.get("format") != _FORMAT or "config" not in metadata:
        found = f"format {quoted(metadata['format'])}" if "format" in metadata else "no format"
        config_too = "and a config" if "config" in metadata else "and no config"
        raise FormatError(
            f"{label}: its metadata has {found} {config_too}; expected format {_FORMAT!r} and a config; "
            "only files that glinfer saved can be loaded"
        )
    with described_by(f"{label}: the config in its metadata"):
        config = ModelConfig.from_json(metadata["config"])
    check_scaling(config, label)
    return config


def write_safetensors(checkpoint: Checkpoint, path: AnyPath, *, dtype: str = "float32") -> None:
    """Write a checkpoint of any family, atomically.

    As float32, every number keeps its bits, and packed matrices are unpacked exactly. As float16, the file is half as
    large, and numbers are rounded to 11 significant bits. The library needs all tensors at once, so this takes up to
    the size of the file. Only tensors that are contiguous and already of the written type are not copied. Rounding a
    packed tensor also takes its size as float32 meanwhile.

    Raises:
        InputError: ``dtype`` is neither ``float32`` nor ``float16``, or the package gguf, which has the grids of some
            formats, is not installed.
        FormatError: a tensor is missing, unknown, not float32 or of the wrong shape, a number is too large for
            float16, or the file cannot be written.
    """
    if dtype not in DTYPES:
        raise InputError(
            f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)} in a .safetensors file; a .gguf file has more"
        )
    check_checkpoint(checkpoint)
    metadata = {"format": _FORMAT, "config": checkpoint.config.to_json()}
    if checkpoint.config.embeds:
        metadata["embedding"] = checkpoint.embedding.to_json()
    with replacing(path) as temporary:
        tensors = {name: _stored(name, checkpoint, dtype) for name in checkpoint.formats()}
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            raise FormatError(f"{shown(path)}: cannot write it: {words_of(error)}; check the free space") from None


def _stored(name: str, checkpoint: Checkpoint, dtype: str) -> npt.NDArray[Any]:
    """One tensor as the file stores it."""
    packed = checkpoint.packed.get(name)
    if packed is not None and packed.format == F16 and dtype == "float16":
        return packed.halves()
    tensor = checkpoint.floats(name)
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(tensor, dtype=dtype)
    if dtype == "float16" and np.any(np.isinf(stored) & ~np.isinf(tensor)):
        raise FormatError(
            f"tensor {name!r} has numbers beyond {np.finfo(np.float16).max:g}, the largest float16; write it as float32"
        )
    return stored
