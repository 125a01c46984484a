"""The GGUF container: metadata and the bytes of tensors, for any model.

Source of the layout: docs/gguf.md of the ggml project. All numbers are little-endian: the magic "GGUF", the version,
the counts of tensors and metadata entries; the metadata, each a name, a type and a value; for each tensor its name, its
dimensions (the innermost first), its type and its offset; then the bytes, aligned.

The package ``gguf`` is not used: its reader trusts every length, and takes seven seconds and half a gigabyte for a
vocabulary of 150 000 tokens. Here every length is compared with the file's size, and every count with a limit, before
it is used.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from glinfer.errors import FormatError
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Unread, quoted
from glinfer.formats.files import AnyPath, FileStamp, opened, shown
from glinfer.formats.packed import PackedTensor, row_bytes
from glinfer.limits import (
    MAX_GGUF_DIMENSIONS,
    MAX_GGUF_ELEMENTS,
    MAX_GGUF_ENTRIES,
    MAX_GGUF_NAME_BYTES,
    MAX_GGUF_SKIPPED,
    MAX_GGUF_STRING_BYTES,
    MAX_REMOTE_HEADER_BYTES,
)
from glinfer.quant.block_bytes import Bytes
from glinfer.quant.formats import BLOCK_FORMATS

GGUF_MAGIC = b"GGUF"
"""The first four bytes of a GGUF file."""
VERSIONS = (2, 3)
"""The versions that can be read; they do not differ in the parts read here."""

_HEADER = struct.Struct("<4sIQQ")
_LENGTH = struct.Struct("<Q")
_MIN_VALUE_BYTES, _MIN_TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8  # the smallest entries of each kind
_STRING, _ARRAY = 8, 9  # GGUF's value types that are not numbers
_NUMBERS = {
    number: np.dtype(name)
    for number, name in (
        (0, "u1"), (1, "i1"), (2, "<u2"), (3, "<i2"), (4, "<u4"), (5, "<i4"),
        (6, "<f4"), (7, "?"), (10, "<u8"), (11, "<i8"), (12, "<f8"),
    )
}  # fmt: skip
_OTHER_SIZES = {
    **{"F32": (1, 4), "F16": (1, 2), "F64": (1, 8), "I8": (1, 1), "I16": (1, 2), "I32": (1, 4), "I64": (1, 8)},
    **{"Q8_1": (32, 40), "Q8_K": (256, 292), "NVFP4": (64, 36), "Q1_0": (128, 18)},
}
_GGML_NAMES = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), 6)),
    **dict(enumerate(("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"), 16)),
    **dict(enumerate(("I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"), 24)),
    **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"},
}
_SIZES = {name: (form.weights, form.nbytes) for name, form in BLOCK_FORMATS.items()} | _OTHER_SIZES
GGML_TYPES: Mapping[int, tuple[str, int, int]] = {number: (name, *_SIZES[name]) for number, name in _GGML_NAMES.items()}
"""GGML's types by number: the name, and the weights and bytes of a block."""


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """One tensor of a file.

    Attributes:
        name: its name in the file.
        type: GGML's name of its type: ``F32``, ``Q4_K``, …
        shape: its dimensions, outermost first, as in NumPy.
        data: its bytes, uint8, a read-only view of the memory-mapped file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: Bytes

    def rows(self) -> Bytes:
        """The bytes of each row, uint8 [rows, bytes of a row]."""
        return self.data.reshape(-1, row_bytes(self.type, self.shape[-1]))

    def floats(self) -> npt.NDArray[np.float32]:
        """The numbers, float32 in the tensor's shape: a view if they are float32."""
        if self.type == "F32":
            return self.data.view("<f4").astype(np.float32, copy=False).reshape(self.shape)
        return PackedTensor(self.type, self.rows()).floats().reshape(self.shape)


@dataclass(frozen=True, eq=False)
class GgufFile:
    """The contents of a GGUF file.

    Attributes:
        metadata: str, int, float, bool, a list of one of them, or :class:`Unread`, by name.
        tensors: by name, in the file's order.
        source: the path, for messages.
        paths: the file, or the files of all parts.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    source: str
    paths: tuple[Path, ...] = ()


def keys_of(file: GgufFile, family: Family) -> Keys:
    """The metadata whose keys begin with the name of the family's architecture."""
    before = f"{family.in_gguf.architecture}."
    values = {key.removeprefix(before): value for key, value in file.metadata.items() if key.startswith(before)}
    return Keys(values, f"{file.source}: {before[:-1]}")


class TruncatedError(FormatError):
    """The header continues past the end of the file."""


_read: ContextVar[dict[tuple[str, FileStamp], GgufFile] | None] = ContextVar("read", default=None)


def is_gguf(path: AnyPath) -> bool:
    """Whether there is a GGUF file at ``path``, by its first bytes; False where there is no regular file."""
    if not os.path.isfile(path):  # noqa: PTH113 (Path.is_file raises where a folder above may not be searched)
        return False
    with opened(path) as (file, _):
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


@contextlib.contextmanager
def gguf_files_read_once() -> Iterator[None]:
    """Cache the GGUF files read within the block; a file that changed is read again."""
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)


def read_gguf_part(path: AnyPath) -> GgufFile:
    """Read one GGUF file of version 2 or 3; the tensors' bytes are mapped into memory, not read.

    For models in several files, see :func:`glinfer.formats.gguf.split.read_gguf_file`.
    """
    label = shown(path)
    known = _read.get()
    with opened(path) as (file, size):
        key = os.path.abspath(path), FileStamp.of(os.fstat(file.fileno()))  # noqa: PTH100 (follows no links)
        if known is not None and key in known:
            return known[key]
        start = file.read(_HEADER.size)
        tensor_count, value_count = _counts(start, size, label)
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    found = replace(_contents(mapped, tensor_count, value_count, label), paths=(Path(os.fsdecode(path)),))
    if known is not None:
        known[key] = found
    return found


def header_end(start: bytes, size: int, source: str) -> int | None:
    """The end of the header of a GGUF file of ``size`` bytes, from its first bytes; None if more are needed."""
    tensor_count, value_count = _counts(start[: _HEADER.size], size, source)
    reader = _Reader(np.frombuffer(start, np.uint8), source)
    try:
        for _ in range(value_count):
            reader.name("a piece of metadata")
            reader.value("a piece of metadata")
        for _ in range(tensor_count):
            reader.tensor("a tensor")
    except TruncatedError:
        if len(start) >= size:
            raise
        if reader.at > MAX_REMOTE_HEADER_BYTES:
            words = f"its header has {reader.at} bytes or more, which exceeds the limit of {MAX_REMOTE_HEADER_BYTES}"
            raise FormatError(f"{source}: {words}") from None
        return None
    return reader.at


def _contents(mapped: Bytes, tensor_count: int, value_count: int, label: str) -> GgufFile:
    reader = _Reader(mapped, label)
    metadata: dict[str, Any] = {}
    for number in range(value_count):
        key = reader.name(f"piece of metadata {number + 1} of {value_count}")
        if key in metadata:
            raise FormatError(f"{label}: the metadata has {quoted(key)} twice; the file is damaged, get it again")
        metadata[key] = reader.value(f"metadata {quoted(key)}")
    entries = [reader.tensor(f"tensor {number + 1} of {tensor_count}") for number in range(tensor_count)]
    start_of_data = -(-reader.at // _alignment(metadata, label)) * _alignment(metadata, label)
    tensors: dict[str, GgufTensor] = {}
    for name, dimensions, type_number, offset in entries:
        where = f"{label}: tensor {quoted(name)}"
        if name in tensors:
            raise FormatError(f"{where} appears twice; the file is damaged, get it again")
        if type_number not in GGML_TYPES:  # refused where the tensor is needed
            tensors[name] = GgufTensor(name, f"type {type_number}", dimensions[::-1], mapped[:0])
            continue
        kind, weights, nbytes = GGML_TYPES[type_number]
        if dimensions[0] % weights:
            raise FormatError(
                f"{where} is {kind} with rows of {dimensions[0]} weights; expected whole blocks of {weights}; the "
                "file is damaged, get it again"
            )
        first, length = start_of_data + offset, math.prod(dimensions) // weights * nbytes
        if first + length > len(mapped):
            raise FormatError(
                f"{where} is at bytes {first} to {first + length}, but the file has {len(mapped)}; it is truncated, "
                "get it again"
            )
        tensors[name] = GgufTensor(name, kind, dimensions[::-1], mapped[first : first + length])
    return GgufFile(MappingProxyType(metadata), MappingProxyType(tensors), label)


def _counts(start: bytes, size: int, label: str) -> tuple[int, int]:
    """The counts of tensors and metadata entries in a header."""
    if len(start) < _HEADER.size:
        raise FormatError(f"{label}: found {size} bytes; expected a GGUF file, whose header alone has {_HEADER.size}")
    magic, version, tensors, values = _HEADER.unpack(start)
    if magic != GGUF_MAGIC:
        raise FormatError(f"{label}: found first bytes {magic.hex(' ')}; expected 47 47 55 46 (GGUF)")
    if version & 0xFFFF == 0 and version:
        raise FormatError(
            f"{label}: this GGUF file is big-endian, which is not supported; get it in the usual byte order"
        )
    if version not in VERSIONS:
        raise FormatError(
            f"{label}: found GGUF version {version}, which is not supported; expected "
            f"{' or '.join(map(str, VERSIONS))}; get another conversion"
        )
    promised = f"{label}: its header promises {tensors} tensors and {values} pieces of metadata"
    if tensors * _MIN_TENSOR_BYTES + values * _MIN_VALUE_BYTES > size:
        raise FormatError(f"{promised}, too many for {size} bytes; the file is damaged, get it again")
    if max(tensors, values) > MAX_GGUF_ENTRIES:
        raise FormatError(f"{promised}, which exceeds the limit of {MAX_GGUF_ENTRIES} of each")
    return tensors, values


def _alignment(metadata: Mapping[str, Any], label: str) -> int:
    """The alignment of tensors in bytes."""
    found = metadata.get("general.alignment", 32)
    if not isinstance(found, int) or found < 1 or found & (found - 1) or found > 1 << 20:
        raise FormatError(
            f"{label}: general.alignment is {quoted(found)}, which is not supported; expected a power of two, as 32"
        )
    return found


class _Reader:
    """Reads the header, never past the end of the file."""

    def __init__(self, mapped: Bytes, label: str) -> None:
        self.at = _HEADER.size
        self._bytes, self._label, self._elements, self._skipped = mapped.data, label, 0, 0

    def _refuse(self, what: str, words: str) -> NoReturn:
        raise FormatError(f"{self._label}: {what} {words}")

    def _take(self, nbytes: int, what: str) -> memoryview:
        first, self.at = self.at, self.at + nbytes
        if self.at > len(self._bytes):
            raise TruncatedError(
                f"{self._label}: {what} ends at byte {self.at}, but the file has {len(self._bytes)}: it is truncated; "
                "the file is damaged, get it again"
            )
        return self._bytes[first : self.at]

    def _number(self, code: str, what: str) -> int:
        (number,) = struct.unpack("<" + code, self._take(struct.calcsize(code), what))
        return int(number)

    def name(self, what: str) -> str:
        """Read the name at the beginning of an entry."""
        length = self._number("Q", what)
        taken = self._take(length, what)
        if length > MAX_GGUF_NAME_BYTES:
            self._refuse(what, f"has a name of {length} bytes, which exceeds the limit of {MAX_GGUF_NAME_BYTES}")
        try:
            return str(taken, "utf-8")
        except UnicodeDecodeError:
            self._refuse(what, "has a name that is not UTF-8; the file is damaged, get it again")

    def value(self, what: str) -> Any:
        """Read a type and its value; a value that is not supported or too large is skipped."""
        kind = self._number("I", what)
        if kind != _ARRAY:
            found = self._values(kind, 1, what)
            return found if isinstance(found, Unread) else found[0]
        kind, count = self._number("I", what), self._number("Q", what)
        if kind == _ARRAY:
            self._skip(kind, count, what)
            return Unread("an array of arrays (not supported)")
        if self._elements + count > MAX_GGUF_ELEMENTS:
            self._skip(kind, count, what)
            return Unread(f"an array of {count} elements (exceeds the limit of {MAX_GGUF_ELEMENTS} in a file)")
        self._elements += count
        return self._values(kind, count, what)

    def _skip(self, kind: int, count: int, what: str) -> None:
        """Skip an array; nested arrays are walked without recursion, so their depth is harmless."""
        open_arrays = [(kind, count)]
        while open_arrays:
            kind, count = open_arrays.pop()
            if kind not in (_STRING, _ARRAY):
                self._numbers(kind, count, what)
                continue
            self._skipped += count if kind == _STRING else 8 * (count > 0)
            if self._skipped > MAX_GGUF_SKIPPED:
                self._refuse(what, f"has more than {MAX_GGUF_SKIPPED} elements, which exceeds the limit")
            if kind == _STRING:
                self._strings(count, what, keep=False)
            elif count:
                open_arrays += (kind, count - 1), (self._number("I", what), self._number("Q", what))

    def _numbers(self, kind: int, count: int, what: str) -> npt.NDArray[Any]:
        if kind not in _NUMBERS:
            self._refuse(what, f"has values of type {kind}, which is not supported; get another conversion")
        return np.frombuffer(self._take(count * _NUMBERS[kind].itemsize, what), _NUMBERS[kind])

    def _values(self, kind: int, count: int, what: str) -> list[Any] | Unread:
        return self._strings(count, what) if kind == _STRING else self._numbers(kind, count, what).tolist()

    def _strings(self, count: int, what: str, *, keep: bool = True) -> list[str] | Unread:
        """Read strings; a vocabulary has hundreds of thousands, so the loop makes few calls."""
        held, length_at, width = self._bytes, _LENGTH.unpack_from, _LENGTH.size
        found: list[str] = []
        unread, at, size = None, self.at, len(held)
        end = size - width
        for _ in range(count):
            start = at + width
            length = length_at(held, at)[0] if at <= end else size
            if start + length > size:
                self.at = at
                self._take(self._number("Q", what), what)  # raises, and names the end of the file
            at = start + length
            if not keep:
                continue
            if length > MAX_GGUF_STRING_BYTES:
                unread = Unread(f"a string of {length} bytes (exceeds the limit of {MAX_GGUF_STRING_BYTES})")
                continue
            try:
                found.append(str(held[start:at], "utf-8"))
            except UnicodeDecodeError:
                unread = Unread("a string that is not UTF-8 (the file is damaged, get it again)")
        self.at = at
        return found if unread is None else unread

    def tensor(self, what: str) -> tuple[str, tuple[int, ...], int, int]:
        """Read an entry: the tensor's name, dimensions (innermost first), type number and offset."""
        name = self.name(what)
        count = self._number("I", what)
        if not 1 <= count <= MAX_GGUF_DIMENSIONS:
            self._refuse(
                f"tensor {quoted(name)}",
                f"has {count} dimensions, which is not supported; expected 1 to {MAX_GGUF_DIMENSIONS}",
            )
        dimensions = tuple(self._number("Q", what) for _ in range(count))
        if min(dimensions) < 1:
            self._refuse(
                f"tensor {quoted(name)}",
                f"has shape {list(dimensions[::-1])}, which is not supported; expected no dimension of 0",
            )
        return name, dimensions, self._number("I", what), self._number("Q", what)
