"""The safetensors container: headers, and the tensors of any model.

A file has the length of its header in 8 bytes (u64), the header (JSON: type, shape and offsets of every tensor) and the
data. Only headers are read before :func:`load_tensor` and :func:`map_bytes`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from glinfer.errors import FormatError
from glinfer.families.settings import quoted
from glinfer.formats.files import check_size, opened, shown, words_of
from glinfer.formats.json_files import check_values
from glinfer.limits import MAX_HEADER_BYTES, MAX_HEADER_VALUES

_LENGTH = struct.Struct("<Q")
# The types that can be widened to float32, with their NumPy types; bfloat16 is read as integers.
STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_KNOWN = (
    *STORED,
    *("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "I16", "U16", "I32", "U32", "I64", "U64", "F64"),
)
_CHUNK = 1 << 22  # bytes compared at a time

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FoundTensor:
    """A tensor as a safetensors header describes it.

    Attributes:
        file: the file that holds it.
        dtype: its type, as safetensors names it (``F32``).
        shape: its shape in the file.
        start: the offset of its first byte in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """The size in bytes, if the type is in :data:`STORED` or has one byte."""
        return math.prod(self.shape) * np.dtype(STORED.get(self.dtype, "u1")).itemsize


@dataclass(frozen=True)
class ScaledTensor(FoundTensor):
    """Packed weights as one tensor of their shape, with a separate tensor of their scales.

    Attributes:
        scales: the scales, under the same name in the file and a ``suffix``.
        per_byte: the number of weights in a byte.
    """

    scales: FoundTensor
    suffix: str
    per_byte: int

    @property
    def nbytes(self) -> int:
        """The size in bytes of the packed weights alone."""
        return super().nbytes // self.per_byte


def check_stored(found: FoundTensor, where: str) -> None:
    """Refuse a tensor of a type that is not in :data:`STORED`."""
    if found.dtype not in STORED:
        raise FormatError(
            f"{where} is {found.dtype}, which is not supported; expected one of {', '.join(STORED)}; convert it first"
        )


def read_header(path: Path, longest: int = MAX_HEADER_BYTES) -> tuple[dict[str, FoundTensor], dict[str, str]]:
    """Read the tensors and the metadata in the header of a safetensors file; the library checks it too."""
    label = shown(path)
    with opened(path) as (file, size):
        start = file.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
        if len(start) < _LENGTH.size or length > size - _LENGTH.size:
            needed = f"found {size} bytes; expected at least the {_LENGTH.size} that say how long a header is"
            promise = f"promise a safetensors header of {length} bytes in a file of {size}"
            found = f"its first {_LENGTH.size} bytes {promise}" if len(start) == _LENGTH.size else needed
            raise FormatError(f"{label}: {found}; the file is not a safetensors file, or cut short; get it again")
        if length > longest:
            raise FormatError(f"{label}: its header has {length} bytes, which exceeds the limit of {longest}")
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
                raise SafetensorError("its header is not a JSON object of tensors")
        except SafetensorError as error:
            for name, (dtype, _, _) in (header or {}).items():
                if dtype not in _KNOWN:  # the library opens no file with a type that it does not know
                    raise FormatError(
                        f"{label}: tensor {quoted(name)} is {quoted(dtype)}, which is not supported; convert it first"
                    ) from None
            raise FormatError(
                f"{label}: damaged safetensors file of {size} bytes: {words_of(error)}; get the file again"
            ) from None
    tensors = {
        name: FoundTensor(path, dtype, shape, data_start + offsets[0])
        for name, (dtype, shape, offsets) in header.items()
    }
    return tensors, metadata


def _parsed(text: bytes) -> dict[str, tuple[str, tuple[int, ...], tuple[int, int]]] | None:
    """Type, shape and offsets of each tensor; None if the header is malformed."""
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
    """One tensor of a type in :data:`STORED`, in its shape in the file: a view of the file if it is float32."""
    return floats_of(map_bytes({"": found})[""], found)


def map_bytes(tensors: Mapping[str, FoundTensor]) -> dict[str, Bytes]:
    """The bytes of tensors by name: read-only views of their files, each of which is mapped once.

    Types are those of :data:`STORED`, or have one byte. Pages are read on first access.
    """
    maps: dict[Path, Bytes] = {}
    ends: dict[Path, int] = {}
    for tensor in tensors.values():
        ends[tensor.file] = max(ends.get(tensor.file, 1), tensor.start + tensor.nbytes)
    for path, end in ends.items():
        with opened(path) as (file, size):
            if size < end:
                raise FormatError(
                    f"{shown(path)}: found {size} bytes, fewer than when its header was read; wait until the file is "
                    "completely written, then try again"
                )
            maps[path] = np.asarray(np.memmap(file, np.uint8, "r"))
    return {name: maps[found.file][found.start : found.start + found.nbytes] for name, found in tensors.items()}


def same_bytes(tensors: tuple[FoundTensor, FoundTensor]) -> bool:
    """Whether two tensors have the same type, shape and bytes; reads up to the first difference."""
    one, other = tensors
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    first, second = map_bytes({"one": one, "other": other}).values()
    return all(
        np.array_equal(first[start : start + _CHUNK], second[start : start + _CHUNK])
        for start in range(0, len(first), _CHUNK)
    )


def floats_of(data: Bytes, found: FoundTensor) -> npt.NDArray[np.float32]:
    """The bytes of a tensor as float32: a view if they are float32, else widened exactly."""
    raw = data.view(STORED[found.dtype])
    # Data in old files may be unaligned, which not every consumer of arrays supports.
    raw = raw if raw.flags.aligned else raw.copy()
    if found.dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        raw = raw.astype("<u4")
        raw <<= 16
        raw = raw.view("<f4")
    return raw.astype(np.float32, copy=False).reshape(found.shape)
