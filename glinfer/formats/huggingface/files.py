"""Which files a Hugging Face model's weights lie in, what their headers promise, and the tensors out of them.

The weights are one ``model.safetensors``, or several shards and an index that says which tensor lies in which.
The format: 8 bytes that say how long the header is (u64), the header (JSON: type, shape and place of every tensor),
the data. Nothing but headers is read before :func:`load_tensor` and :func:`map_bytes`.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from glinfer.errors import FormatError
from glinfer.formats.files import AnyPath, check_size, inside, is_directory, opened, shown, words_of
from glinfer.formats.json_files import check_plain_name, check_values, quoted, read_json
from glinfer.formats.limits import MAX_HEADER_BYTES, MAX_HEADER_VALUES, MAX_INDEX_BYTES

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
"""Names of weights in formats that are not read here."""

_IS_A_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.safetensors")
_LENGTH = struct.Struct("<Q")
# How the types that can be widened to float32 lie in a file. NumPy has no bfloat16: read as whole numbers.
STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_CHUNK = 1 << 22  # bytes compared together

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FoundTensor:
    """A tensor as a safetensors header describes it.

    Attributes:
        file: the file that it lies in.
        dtype: its type, as safetensors names it (``F32``).
        shape: its shape in the file.
        start: where its first byte is, from the beginning of the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor of a type in :data:`STORED`."""
        return math.prod(self.shape) * np.dtype(STORED[self.dtype]).itemsize


def locate(path: AnyPath) -> tuple[Path, Path]:
    """The configuration and the weights (one safetensors file, or an index) that ``path`` means.

    ``path`` is a model's directory or its config.json (either means the model.safetensors there, else the index), a
    safetensors file (these weights), an index, or a shard (the index it belongs to).

    Raises:
        FormatError: there is no such file, or none beside it that a model needs.
    """
    if is_directory(path):
        folder = Path(path)
        _check_config(folder, f"{shown(path)}: found a directory without {CONFIG}")
        return inside(folder / CONFIG), _weights_in(folder)
    name = Path(path).name
    with opened(path):
        pass  # there is such a file, whatever its name promises
    folder = Path(path).parent
    if name == CONFIG:
        return folder / CONFIG, _weights_in(folder)
    if name in OTHER_WEIGHTS:
        raise _save_as_safetensors(shown(path), name)
    if not name.endswith((".safetensors", ".safetensors.index.json")):
        raise FormatError(
            f"{shown(path)}: found another kind of file; expected a model's directory, or the {CONFIG}, {WEIGHTS} "
            f"or {INDEX} in it"
        )
    _check_config(folder, f"{shown(path)}: found no {CONFIG} beside it")
    shard = _IS_A_SHARD.fullmatch(name)
    return inside(folder / CONFIG), inside(folder / f"{shard[1]}.safetensors.index.json") if shard else Path(path)


def _check_config(folder: Path, found: str) -> None:
    if not os.path.lexists(folder / CONFIG):
        raise FormatError(
            f"{found}; expected a Hugging Face model: {CONFIG} and {WEIGHTS} (or {INDEX} and its shards) "
            "in one directory; get the missing files"
        )


def _weights_in(folder: Path) -> Path:
    for name in (WEIGHTS, INDEX):
        if os.path.lexists(folder / name):
            return inside(folder / name)
    for name in OTHER_WEIGHTS:
        if os.path.lexists(folder / name):
            raise _save_as_safetensors(shown(folder), name)
    raise FormatError(f"{shown(folder)}: found {CONFIG} but no weights beside it; expected {WEIGHTS} or {INDEX}")


def _save_as_safetensors(label: str, name: str) -> FormatError:
    return FormatError(
        f"{label}: found {name} only; expected {WEIGHTS}; save the model as safetensors: load it with transformers "
        "and call save_pretrained"
    )


def find_tensors(weights: Path) -> dict[str, FoundTensor]:
    """Every tensor in a safetensors file, or in the shards of an index, by name; reads headers only.

    Raises:
        FormatError: a file is missing, unreadable, damaged or cut short; the index names a shard outside its own
            directory, or does not agree with its shards.
    """
    if not weights.name.endswith(".json"):
        return read_header(weights)[0]
    label = shown(weights)
    placed = _weight_map(weights)
    shards = sorted(set(placed.values()))
    missing = [name for name in shards if not os.path.lexists(weights.parent / name)]
    if missing:
        raise FormatError(
            f"{label}: {len(missing)} of the {len(shards)} shards it names are missing, first {quoted(missing[0])}; "
            "expected them beside the index; get the missing files"
        )
    found: dict[str, FoundTensor] = {}
    for shard in shards:
        held = read_header(inside(weights.parent / shard))[0]
        absent = [name for name, place in placed.items() if place == shard and name not in held]
        if absent:
            raise FormatError(
                f"{label}: it places tensor {quoted(absent[0])} in {quoted(shard)}, which does not have it; "
                "expected an index that goes with its shards; get them again"
            )
        astray = [name for name in held if placed.get(name) != shard]
        if astray:
            raise FormatError(
                f"{label}: {quoted(shard)} has tensor {quoted(astray[0])}, which the index does not place there; "
                "expected an index that goes with its shards; get them again"
            )
        found.update(held)
    return found


def _weight_map(index: Path) -> dict[str, str]:
    """Which shard each tensor lies in, from the index; every shard is a plain file name."""
    label = shown(index)
    placed = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise FormatError(f"{label}: found no weight_map; expected an object that gives each tensor's shard")
    for name, shard in placed.items():
        if not isinstance(shard, str):
            raise FormatError(f"{label}: tensor {quoted(name)} lies in {quoted(shard)}; expected a file's name")
        check_plain_name(shard, f"{label}: the shard", "the index")
    return placed


def read_header(path: Path) -> tuple[dict[str, FoundTensor], dict[str, str]]:
    """The tensors and the metadata in a safetensors file's header, which the library has checked.

    Raises:
        FormatError: not a readable regular file, not a safetensors file, or a damaged, truncated or padded one.
    """
    label = shown(path)
    with opened(path) as (file, size):
        start = file.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
        most = min(size - _LENGTH.size, MAX_HEADER_BYTES)
        if len(start) < _LENGTH.size or length > most:
            promise = f"promise a safetensors header of {length} bytes; expected at most {most} in a file of {size}"
            found = f"its first {_LENGTH.size} bytes {promise}" if most >= 0 else f"found {size} bytes in all"
            raise FormatError(f"{label}: {found}; the file is no safetensors file, or cut short; get it again")
        data_start = _LENGTH.size + length
        text = file.read(length)
        check_values(text, label, MAX_HEADER_VALUES)
        header = _parsed(text)
        if header is not None:
            check_size(size, data_start + max((entry[2][1] for entry in header.values()), default=0), label)
        try:
            with safe_open(path, framework="numpy") as opened_tensors:
                metadata = opened_tensors.metadata() or {}
            if header is None:
                raise SafetensorError("its header is no JSON object of tensors")
        except SafetensorError as error:
            raise FormatError(
                f"{label}: damaged safetensors file of {size} bytes: {words_of(error)}; get the file again"
            ) from None
    tensors = {
        name: FoundTensor(path, dtype, shape, data_start + offsets[0])
        for name, (dtype, shape, offsets) in header.items()
    }
    return tensors, metadata


def _parsed(text: bytes) -> dict[str, tuple[str, tuple[int, ...], tuple[int, int]]] | None:
    """Type, shape, first and last offset of each tensor; None where the header is not made like that."""
    try:
        entries = json.loads(text)
        found = {}
        for name, entry in entries.items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                shape = tuple(entry["shape"])
                if not all(isinstance(number, int) and 0 <= number < 1 << 63 for number in (*shape, first, end)):
                    return None
                found[name] = (str(entry["dtype"]), shape, (first, end))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return found


def load_tensor(found: FoundTensor) -> npt.NDArray[np.float32]:
    """Read one tensor of a type in :data:`STORED`, in its shape in the file, widened to float32 exactly.

    Memory taken is the float32 array, and what it was widened from for as long as this takes.

    Raises:
        FormatError: the file can no longer be read, or became shorter.
    """
    count = math.prod(found.shape)
    with opened(found.file) as (file, size):
        file.seek(found.start)
        raw: npt.NDArray[Any] = np.fromfile(file, STORED[found.dtype], count)
    if raw.size != count:
        raise _became_shorter(found.file, size)
    return _widened(raw, found)


def map_bytes(tensors: Mapping[str, FoundTensor]) -> dict[str, Bytes]:
    """The bytes of tensors of types in :data:`STORED`: read-only views of their files, each mapped once.

    Nothing is read before it is looked at.

    Raises:
        FormatError: a file can no longer be read, or became shorter.
    """
    maps: dict[Path, Bytes] = {}
    ends: dict[Path, int] = {}
    for tensor in tensors.values():
        ends[tensor.file] = max(ends.get(tensor.file, 1), tensor.start + tensor.nbytes)
    for path, end in ends.items():
        with opened(path) as (file, size):
            if size < end:
                raise _became_shorter(path, size)
            maps[path] = np.asarray(np.memmap(file, np.uint8, "r"))
    return {name: maps[found.file][found.start : found.start + found.nbytes] for name, found in tensors.items()}


def same_bytes(tensors: tuple[FoundTensor, FoundTensor]) -> bool:
    """Whether two tensors are of one type and shape and have the same numbers; reads up to the first difference.

    Raises:
        FormatError: a file can no longer be read, or became shorter.
    """
    one, other = tensors
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    first, second = map_bytes({"one": one, "other": other}).values()
    return all(
        np.array_equal(first[start : start + _CHUNK], second[start : start + _CHUNK])
        for start in range(0, len(first), _CHUNK)
    )


def floats_of(data: Bytes, found: FoundTensor) -> npt.NDArray[np.float32]:
    """The float32 numbers that the bytes of a tensor stand for: a view where they are float32, else widened exactly."""
    raw = data.view(STORED[found.dtype])
    # Old files have data at odd addresses, which not all that reads arrays can do with.
    return _widened(raw if raw.flags.aligned else raw.copy(), found)


def _became_shorter(path: Path, size: int) -> FormatError:
    return FormatError(
        f"{shown(path)}: found {size} bytes, fewer than when its header was read; wait until the file is "
        "no longer being written, then try again"
    )


def _widened(raw: npt.NDArray[Any], found: FoundTensor) -> npt.NDArray[np.float32]:
    if found.dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        raw = raw.astype("<u4")
        raw <<= 16
        raw = raw.view("<f4")
    return raw.astype(np.float32, copy=False).reshape(found.shape)
