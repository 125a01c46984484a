"""Gab's tokenizers, byte-level BPE without a pre-tokeniser: BPE1 (``model.bpe``), and the successor's JSON.

In BPE1 all integers are little-endian u32: magic, version, next id, merge count M; M × (left, right, merged);
vocabulary count; then for each entry its id, its length in bytes, and the bytes. Ids 0–255 are the single
bytes and each merge makes the next id, so a merge can use the result of an earlier one.

The second generation's ``tokenizer.json`` is ``{"reserved": ["<|user|>", …], "merges": [[60, 124], …]}``: the texts of
its control tokens, and the two ids of every merge (``tokenizer.py`` and ``webexport.py`` of Gab).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from glinfer.errors import FormatError
from glinfer.families.settings import is_integer, quoted
from glinfer.formats.files import BPE1_MAGIC, GAB1_MAGIC, AnyPath, opened, replacing, shown
from glinfer.formats.json_files import is_unicode, read_json
from glinfer.limits import (
    MAX_MERGES,
    MAX_MERGES_FILE_BYTES,
    MAX_RESERVED_TOKENS,
    MAX_VOCABULARY_BYTES,
)

_HEADER = struct.Struct("<4I")
_MERGE = struct.Struct("<3I")
_ENTRY = struct.Struct("<2I")
_COUNT = struct.Struct("<I")
_VERSION = 1
_BYTES = 256
_OWN_JSON = re.compile(rb'\s*\{\s*"(?:reserved|merges)"\s*:')


@dataclass(frozen=True)
class BpeModel:
    """Merges and vocabulary of a byte-level BPE; the constructor checks that they agree.

    Attributes:
        merges: (left, right, merged) ids in the order in which they apply; merge number i makes id 256 + i.
        vocabulary: the bytes of every id; ids 0–255 are the single bytes.
        reserved: texts of further control tokens; those of the form ``<|name|>`` always are. BPE1 files cannot store
            them.

    Raises:
        FormatError: merges and vocabulary contradict each other; names the id or the merge.
    """

    merges: tuple[tuple[int, int, int], ...]
    vocabulary: tuple[bytes, ...]
    reserved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that merges and vocabulary agree."""
        expected = _BYTES + len(self.merges)
        if len(self.vocabulary) != expected:
            raise FormatError(
                f"the vocabulary has {len(self.vocabulary)} entries; expected {expected}: {_BYTES} bytes and "
                f"one for each of the {len(self.merges)} merges"
            )
        for token in range(_BYTES):
            if self.vocabulary[token] != bytes([token]):
                raise FormatError(
                    f"id {token} is {_quoted(self.vocabulary[token])}; expected the single byte "
                    f"{_quoted(bytes([token]))}"
                )
        for index, merge in enumerate(self.merges):
            self._check_merge(index, merge)
        seen: dict[bytes, int] = {}
        for token, piece in enumerate(self.vocabulary):
            if seen.setdefault(piece, token) != token:
                raise FormatError(f"ids {seen[piece]} and {token} are both {_quoted(piece)}; expected every piece once")

    def _check_merge(self, index: int, merge: tuple[int, int, int]) -> None:
        left, right, merged = merge
        if merged != _BYTES + index:
            raise FormatError(f"merge {index} makes id {merged}; expected the next id, {_BYTES + index}")
        for part in (left, right):
            if not 0 <= part < merged:
                raise FormatError(f"merge {index} uses id {part}; expected one made before it, 0 to {merged - 1}")
        joined, stored = self.vocabulary[left] + self.vocabulary[right], self.vocabulary[merged]
        if joined != stored:
            raise FormatError(
                f"id {merged} is {_quoted(stored)}; expected {_quoted(joined)}, which merge {index} makes of "
                f"ids {left} and {right}"
            )


def _quoted(piece: bytes) -> str:
    """``piece`` for a message, shortened if it is long."""
    return repr(piece) if len(piece) <= 40 else f"{piece[:40]!r}… ({len(piece)} bytes)"


class _Reader:
    """Reads a file of known size from front to back, never past its end."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.left = size

    def take(self, count: int, what: str) -> bytes:
        """Read the next ``count`` bytes; the error names ``what`` if the file ends first."""
        data = self._file.read(count) if count <= self.left else b""
        if len(data) < count:
            raise FormatError(
                f"truncated: {what} takes {count} bytes, but only {self.left} are left; get the file again"
            )
        self.left -= count
        return data


def read_bpe(path: AnyPath) -> BpeModel:
    """Read a BPE1 tokenizer.

    Raises:
        FormatError: the file is not a readable regular file, has the wrong magic or version, is truncated or padded,
            or has counts, ids or pieces that contradict each other.
    """
    with opened(path) as (file, size):
        try:
            return _read_model(_Reader(file, size), size)
        except FormatError as error:
            raise FormatError(f"{shown(path)}: {error}") from None


def _read_model(reader: _Reader, size: int) -> BpeModel:
    if size < _HEADER.size:
        raise FormatError(
            f"found {size} bytes; expected at least the {_HEADER.size} of a BPE1 header; the file is not a BPE1 "
            "tokenizer, or cut short"
        )
    magic, version, next_id, merge_count = _HEADER.unpack(reader.take(_HEADER.size, "the header"))
    if magic == GAB1_MAGIC:
        raise FormatError(
            f"this is a GAB1 checkpoint (magic {magic:#010x}); expected a BPE1 tokenizer (magic "
            f"{BPE1_MAGIC:#010x}); give the model's .bpe file here"
        )
    if magic != BPE1_MAGIC:
        raise FormatError(f"magic is {magic:#010x}; expected {BPE1_MAGIC:#010x}; the file is not a BPE1 tokenizer")
    if version != _VERSION:
        raise FormatError(f"BPE version is {version}, which is not supported; expected {_VERSION}")
    if next_id != _BYTES + merge_count:
        raise FormatError(
            f"the next id is {next_id}; expected {_BYTES + merge_count}: {_BYTES} bytes and {merge_count} merges"
        )
    table = reader.take(merge_count * _MERGE.size, f"the table of {merge_count} merges")
    (entry_count,) = _COUNT.unpack(reader.take(_COUNT.size, "the vocabulary count"))
    if entry_count != next_id:
        raise FormatError(f"the vocabulary has {entry_count} entries; expected {next_id}, the next id")
    if merge_count > MAX_MERGES:
        raise FormatError(f"found {merge_count} merges, which exceeds the limit of {MAX_MERGES}")
    vocabulary = _read_vocabulary(reader, entry_count)
    if reader.left:
        raise FormatError(
            f"padded: found {size} bytes; expected {size - reader.left}: {reader.left} bytes follow the last "
            "vocabulary entry; get the file again"
        )
    return BpeModel(tuple(_MERGE.iter_unpack(table)), vocabulary)


def _read_vocabulary(reader: _Reader, count: int) -> tuple[bytes, ...]:
    """The pieces by id; the file may list the ids in any order, each once."""
    if count * _ENTRY.size > reader.left:
        raise FormatError(
            f"truncated: {count} vocabulary entries take at least {count * _ENTRY.size} bytes, but only "
            f"{reader.left} are left; get the file again"
        )
    pieces: dict[int, bytes] = {}
    for index in range(count):
        token, length = _ENTRY.unpack(reader.take(_ENTRY.size, f"the head of vocabulary entry {index}"))
        if token >= count:
            raise FormatError(f"vocabulary entry {index} has id {token}; expected 0 to {count - 1}")
        if token in pieces:
            raise FormatError(f"vocabulary entry {index} has id {token} again; expected every id once")
        pieces[token] = reader.take(length, f"vocabulary entry {index}")
    return tuple(pieces[token] for token in range(count))


def write_bpe(model: BpeModel, path: AnyPath) -> None:
    """Write a BPE1 tokenizer atomically, with the vocabulary in the order of its ids.

    Raises:
        FormatError: the file cannot be written.
    """
    size = len(model.vocabulary)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_HEADER.pack(BPE1_MAGIC, _VERSION, size, len(model.merges)))
        for merge in model.merges:
            file.write(_MERGE.pack(*merge))
        file.write(_COUNT.pack(size))
        for token, piece in enumerate(model.vocabulary):
            file.write(_ENTRY.pack(token, len(piece)) + piece)


def is_merges_json(path: AnyPath) -> bool:
    """Whether a file is the ``tokenizer.json`` of second-generation Gab, not Hugging Face's file of that name."""
    with opened(path) as (file, _):
        return _OWN_JSON.match(file.read(64)) is not None


def read_merges_json(path: AnyPath) -> BpeModel:
    """Read the ``tokenizer.json`` of a second-generation Gab.

    Raises:
        FormatError: the file cannot be read or has other JSON, a merge does not join two earlier ids, two merges make
            the same piece, or no merge makes a reserved text.
    """
    label = shown(path)
    values = read_json(Path(path), MAX_MERGES_FILE_BYTES)
    found, reserved = values.get("merges"), values.get("reserved", [])
    if not isinstance(found, list):
        raise FormatError(f"{label}: merges is {quoted(found)}; expected a list of pairs of ids")
    if not isinstance(reserved, list) or not all(isinstance(text, str) for text in reserved):
        raise FormatError(f"{label}: reserved is {quoted(reserved)}; expected a list of texts")
    if max(len(found), len(reserved)) > MAX_MERGES or len(reserved) > MAX_RESERVED_TOKENS:
        raise FormatError(
            f"{label}: found {len(found)} merges and {len(reserved)} reserved texts, which exceeds the limit of "
            f"{MAX_MERGES} and {MAX_RESERVED_TOKENS}"
        )
    try:
        merges, pieces = _joined(found)
        # Skip texts of one byte: if the byte were a control token, no other text could contain it.
        longer = tuple(text for text in reserved if len(text) > 1 or not text.isascii())
        known = set(pieces)
        for text in longer:
            # JSON allows half a surrogate pair, which no piece contains.
            if text.encode(errors="surrogatepass") not in known or not is_unicode(text):
                raise FormatError(f"no merge makes the reserved text {quoted(text)}; get the file again")
        return BpeModel(merges, pieces, longer)
    except FormatError as error:
        raise FormatError(f"{label}: {error}") from None


def _joined(pairs: list[Any]) -> tuple[tuple[tuple[int, int, int], ...], tuple[bytes, ...]]:
    """The merges with the ids that they make, and the bytes of every id."""
    merges: list[tuple[int, int, int]] = []
    pieces = [bytes([value]) for value in range(_BYTES)]
    total = 0
    for index, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not all(is_integer(part, 0) for part in pair):
            raise FormatError(f"merge {index} is {quoted(pair)}; expected two ids; get the file again")
        if max(pair) >= len(pieces):
            raise FormatError(
                f"merge {index} uses id {quoted(max(pair))}; expected one made before it, 0 to {len(pieces) - 1}; "
                "get the file again"
            )
        left, right = pair
        total += len(pieces[left]) + len(pieces[right])
        if total > MAX_VOCABULARY_BYTES:
            raise FormatError(
                f"the pieces up to merge {index} have {total} bytes, which exceeds the limit of {MAX_VOCABULARY_BYTES}"
            )
        merges.append((left, right, len(pieces)))
        pieces.append(pieces[left] + pieces[right])
    return tuple(merges), tuple(pieces)
