"""safetensors checkpoints: the same tensors in Hugging Face's container, with the configuration beside them.

The metadata is ``{"format": "glinfer", "config": ModelConfig.to_json()}``; names and shapes are those of
:func:`glinfer.formats.tensors.weight_shapes`, for every family. Tensors are float32, or float16 where half the size is
worth the rounding. Float16 matrices stay as they are in memory too, packed as ``F16``, but of families whose published
passes take floats alone; everything else is float32 there.
"""

from __future__ import annotations

import json
import struct
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError, FormatError, InputError
from glinfer.formats.checkpoint import Checkpoint, check_checkpoint, check_tensors
from glinfer.formats.files import AnyPath, check_size, opened, replacing, shown, words_of
from glinfer.formats.huggingface.rope import check_scaling
from glinfer.formats.json_files import check_values, quoted
from glinfer.formats.limits import MAX_HEADER_VALUES, MAX_OWN_HEADER_BYTES
from glinfer.formats.packed import PackedTensor
from glinfer.formats.tensors import weight_shapes
from glinfer.quant.formats import F16

_LENGTH = struct.Struct("<Q")
_FORMAT = "glinfer"
_STORED = {"F32": "float32", "F16": "float16"}


def read_safetensors(path: AnyPath) -> Checkpoint:
    """Read a checkpoint that :func:`write_safetensors` wrote.

    Float32 tensors are read-only views of the mapped file and float16 matrices are ``F16`` views of it; only float16
    vectors are widened, so that next to no memory is taken. Of families with published passes everything is loaded as
    float32, which takes the size of the file; float16 is widened, and takes twice that and one tensor more.

    Raises:
        FormatError: not a readable regular file; not a safetensors file, or a damaged one; without glinfer's
            metadata; a tensor is missing, unknown, not float32 or float16, or of the wrong shape.
    """
    label = shown(path)
    with opened(path) as (file, size):
        _check_header(file, size, label)
        try:
            with safe_open(path, framework="numpy") as tensors:
                return _read_open(tensors, file, label)
        except SafetensorError as error:
            raise _damage(file, size, label, error) from None


def _check_header(file: BinaryIO, size: int, label: str) -> None:
    """Refuse a header that cannot be in the file, or has far more in it than a model needs."""
    start = file.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        raise FormatError(
            f"{label}: found {len(start)} bytes; expected at least the {_LENGTH.size} that say how long a "
            "safetensors header is; the file is no safetensors file, or cut short"
        )
    (length,) = _LENGTH.unpack(start)
    most = min(size - _LENGTH.size, MAX_OWN_HEADER_BYTES)
    if length > most:
        raise FormatError(
            f"{label}: its first {_LENGTH.size} bytes promise a safetensors header of {length} bytes; "
            f"expected at most {most} in a file of {size}; the file is no safetensors file, or cut short"
        )
    check_values(file.read(length), label, MAX_HEADER_VALUES)


def _read_open(tensors: Any, file: BinaryIO, label: str) -> Checkpoint:
    """Check metadata, names, types and shapes, all before the first tensor is loaded."""
    metadata = tensors.metadata() or {}
    if metadata.get("format") != _FORMAT or "config" not in metadata:
        found = f"format {quoted(metadata['format'])}" if "format" in metadata else "no format"
        config_too = "and a config" if "config" in metadata else "and no config"
        raise FormatError(
            f"{label}: its metadata has {found} {config_too}; expected format {_FORMAT!r} and a config; "
            "only files that glinfer saved can be loaded"
        )
    try:
        config = ModelConfig.from_json(metadata["config"])
    except ConfigError as error:
        raise FormatError(f"{label}: the config in its metadata describes no possible model: {error}") from None
    check_scaling(config, label)
    slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (it is no mapping)
    found_tensors = {
        # Whichever it is stored as, it will be float32.
        name: ("float32" if part.get_dtype() in _STORED else str(part.get_dtype()), tuple(part.get_shape()))
        for name, part in slices.items()
    }
    check_tensors(config, found_tensors, label)
    if not config.family.published:
        return _mapped(config, file, label)
    loaded = {name: tensors.get_tensor(name).astype(np.float32, copy=False) for name in weight_shapes(config)}
    return Checkpoint(config, MappingProxyType(loaded), label)


def _mapped(config: ModelConfig, file: BinaryIO, label: str) -> Checkpoint:
    """The tensors of a file that the library has checked, as views of it."""
    file.seek(0)
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    header = json.loads(file.read(length))
    data = np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray)[_LENGTH.size + length :]
    floats: dict[str, npt.NDArray[np.float32]] = {}
    packed: dict[str, PackedTensor] = {}
    for name, shape in weight_shapes(config).items():
        first, end = header[name]["data_offsets"]
        stored = data[first:end]
        if header[name]["dtype"] == "F32":
            # A float32 at an odd address, which other software may write, is the one thing that is copied.
            widened = np.require(stored.view("<f4").astype(np.float32, copy=False), requirements="A")
            floats[name] = widened.reshape(shape)
        elif len(shape) == 2:
            packed[name] = PackedTensor(F16, stored.reshape(shape[0], -1))
        else:
            floats[name] = stored.view("<f2").astype(np.float32).reshape(shape)
    return Checkpoint(config, MappingProxyType(floats), label, MappingProxyType(packed))


def _damage(file: BinaryIO, size: int, label: str, error: SafetensorError) -> FormatError:
    """Why the library refused the file, with the sizes where its header still tells them."""
    file.seek(0)
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    try:
        header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        data = max((end for end in ends if 0 <= end < 1 << 64), default=0)
        check_size(size, _LENGTH.size + length + data, label)
    except FormatError as wrong_size:
        return wrong_size
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        pass  # the header is what is damaged: the library says how
    return FormatError(f"{label}: damaged safetensors file of {size} bytes: {words_of(error)}; get the file again")


def write_safetensors(checkpoint: Checkpoint, path: AnyPath, *, dtype: str = "float32") -> None:
    """Write a checkpoint of any family; the file is there whole or not at all.

    As float32 every number keeps its bits, and what was packed is unpacked exactly. As float16 the file is half as
    large and every number is rounded to 11 significant bits, unless it was a float16 before. Memory taken is at most
    the size of the file, since the library wants all tensors at once: those that are not contiguous float32 already are
    copied, one after the other, and one that is unpacked to be rounded is there as float32 meanwhile.

    Raises:
        InputError: ``dtype`` is neither ``float32`` nor ``float16``, or the package gguf, which unpacks GGML's formats,
            is not installed.
        FormatError: a tensor is missing, unknown, not float32 or of the wrong shape, a number is too large for
            float16, or the file cannot be written.
    """
    if dtype not in _STORED.values():
        raise InputError(f"dtype is {dtype!r}; expected one of {', '.join(_STORED.values())}")
    check_checkpoint(checkpoint)
    metadata = {"format": _FORMAT, "config": checkpoint.config.to_json()}
    with replacing(path) as temporary:
        tensors = {name: _stored(name, checkpoint, dtype) for name in checkpoint.formats()}
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            raise FormatError(f"{shown(path)}: cannot write it: {words_of(error)}; check the free space") from None


def _stored(name: str, checkpoint: Checkpoint, dtype: str) -> npt.NDArray[Any]:
    """One tensor as the file will have it."""
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
