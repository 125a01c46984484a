"""The .bin files next to a manifest, read as if they were one file.

A manifest's ``files`` has a list ``weights_shards``, or one entry ``weights``; each entry has the name (``file``) and
the ``length`` in bytes. Offsets run through all files in that order, so a tensor may begin in one and end in the next.
sha256 sums are not checked: that would read every file completely, which memory mapping avoids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.errors import FormatError
from glinfer.families.settings import Settings, quoted
from glinfer.formats.files import check_size, inside, opened, shown
from glinfer.formats.json_files import check_plain_name, check_present
from glinfer.formats.safetensors_file import FoundTensor, map_bytes
from glinfer.limits import MAX_FILE_OFFSET
from glinfer.quant.block_bytes import Bytes


@dataclass(frozen=True)
class ByteRange:
    """Bytes [offset, offset + nbytes) of all files together."""

    offset: int
    nbytes: int


class Shards:
    """The files of a manifest, as one sequence of bytes.

    Attributes:
        nbytes: the size of all files together.
        files: their paths.
    """

    def __init__(self, sizes: Mapping[Path, int]) -> None:
        """Create the sequence from files in their order, and their sizes; none is opened yet."""
        self.files, self._starts, self.nbytes = tuple(sizes), dict[Path, int](), 0
        for file, size in sizes.items():
            self._starts[file] = self.nbytes
            self.nbytes += size
        self._sizes = sizes
        self._mapped: dict[Path, Bytes] = {}

    def is_in_one(self, part: ByteRange) -> bool:
        """Whether one file holds a whole range, so that it need not be copied."""
        return len(self._holding(part)) == 1

    def read(self, part: ByteRange) -> Bytes:
        """Read a range: a view of the mapped file, or a copy if it continues in the next."""
        parts = []
        for file in self._holding(part):
            if file not in self._mapped:
                self._mapped[file] = map_bytes({"": FoundTensor(file, "U8", (self._sizes[file],), 0)})[""]
            first, end = part.offset - self._starts[file], part.offset + part.nbytes - self._starts[file]
            parts.append(self._mapped[file][max(0, first) : end])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _holding(self, part: ByteRange) -> list[Path]:
        """The files that hold bytes of a range."""
        end, starts = part.offset + part.nbytes, self._starts.items()
        found = [file for file, start in starts if start < end and part.offset < start + self._sizes[file]]
        return [file for file in found if self._sizes[file]]  # empty files cannot be mapped


def bytes_at(settings: Settings, name: str) -> int:
    """A number of bytes, or an offset, in a manifest."""
    return settings.integer(name, least=0, most=MAX_FILE_OFFSET)


def find_shards(values: Mapping[str, Any], manifest: Path) -> Shards:
    """Find the files that a manifest names in its directory; only their sizes are read."""
    label = shown(manifest)
    named = _named(values, label)
    check_present(named, manifest, "files", "the manifest")
    sizes: dict[Path, int] = {}
    for name, length in named.items():
        file = inside(manifest.parent / name)
        with opened(file) as (_, size):
            pass
        if length is not None:
            check_size(size, length, shown(file), f"{quoted(manifest.name)} says")
        sizes[file] = size
    shards = Shards(sizes)
    if values.get("byte_length") is not None:
        promised = bytes_at(Settings(values, label), "byte_length")
        if promised != shards.nbytes:
            raise FormatError(
                f"{label}: its {len(sizes)} files have {shards.nbytes} bytes together, but its byte_length is "
                f"{promised}; expected files that match it; get them again"
            )
    return shards


def _named(values: Mapping[str, Any], label: str) -> dict[str, int | None]:
    """The name and promised length of each file, in order."""
    files = values.get("files")
    if not isinstance(files, Mapping):
        raise FormatError(
            f"{label}: found {quoted(files)} for files; expected an object with weights_shards or weights"
        )
    listed = files["weights_shards"] if files.get("weights_shards") else [files.get("weights")]
    if not isinstance(listed, list):
        raise FormatError(f"{label}: weights_shards is {quoted(listed)}; expected a list of files")
    named: dict[str, int | None] = {}
    for entry in listed:
        values_of = entry if isinstance(entry, Mapping) else {"file": entry}
        name = values_of.get("file")
        if not isinstance(name, str):
            raise FormatError(f"{label}: found {quoted(name)} for a file of weights; expected its name")
        check_plain_name(name, f"{label}: the file", "the manifest")
        if name in named:
            raise FormatError(f"{label}: it names the file {quoted(name)} twice; expected every file once")
        settings = Settings(values_of, f"{label}: the file {quoted(name)}")
        named[name] = bytes_at(settings, "length") if settings.given("length") else None
    return named
