"""Texels of a model's weights: their checksums, and a file that keeps them from run to run.

Reading texels takes a fifth of the time of making them. The folder ``texels`` of the cache folder
(:func:`glinfer.formats.files.memory_folder`) has a file for each model, weight format and set of texture layouts: its
key, a checksum of each line of texels, and the texels of each weight in the order of the plan. A file of another key or
size counts as absent. If a checksum is wrong, that weight is made again and the file is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from io import BufferedReader
from pathlib import Path

import numpy as np

from glinfer.errors import GLError, GlinferError
from glinfer.formats.files import FileStamp, memory_folder, replacing
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.kernels.spec import Array
from glinfer.program.plan import Plan

MIN_BYTES = 1 << 22
"""Fewer bytes of texels are not kept, because making them takes little time."""
MAX_BYTES = 4 << 30
"""Limit for all files together; one has at most half of it, and as much of the disk stays free."""
_PIECE_BYTES = 1 << 24

ReadTexels = Callable[[str], "tuple[Array, Array] | None"]
"""Returns texels of a weight, uint8 [height, bytes of a line], valid until the next call, and the checksums of their
lines; None if they are not kept."""


class KeptTexels:
    """The file with the texels of a plan's weights."""

    def __init__(self, path: Path, layouts: Mapping[str, TexelLayout]) -> None:
        """Set the path, whose name is the key in hexadecimal digits, and the layouts of the weights in their order."""
        self.path, self._key, self._layouts = path, bytes.fromhex(path.name), layouts
        self._lines = sum(each.height for each in layouts.values())
        self._start = len(self._key) + 8 * self._lines
        self._size = self._start + sum(each.nbytes for each in layouts.values())

    @classmethod
    def of(cls, source: object, plan: Plan, max_texture_size: int) -> KeptTexels | None:
        """The file for a plan; None without a cache folder, or if the texels are too few or too many to keep.

        The ``repr`` of ``source`` has all that decides the weights: the stamps of their files, and options.
        """
        weights = [each for each in plan.of_kind("weight") if not each.view_of]
        layouts = {each.name: each.layout_within(max_texture_size) for each in weights}
        folder = memory_folder("texels")
        if folder is None or not MIN_BYTES <= sum(each.nbytes for each in layouts.values()) <= MAX_BYTES // 2:
            return None
        subject = _stamps_of_code(), source, plan.name, layouts
        return cls(folder / hashlib.sha256(repr(subject).encode("utf-8", "surrogatepass")).hexdigest(), layouts)

    def _open(self) -> BufferedReader | None:
        """The file, read up to the end of its key; None if there is none with this key and size."""
        with contextlib.suppress(OSError):
            if self.path.is_file():  # opening a pipe would wait for a writer
                file = self.path.open("rb")
                if (os.fstat(file.fileno()).st_size, file.read(len(self._key))) == (self._size, self._key):
                    return file
                file.close()
        return None

    @property
    def exist(self) -> bool:
        """Whether there is a file of this key and size."""
        file = self._open()
        if file is not None:
            file.close()
        return file is not None

    @contextlib.contextmanager
    def reading(self) -> Iterator[ReadTexels]:
        """Open the file for the block; afterwards it is removed if a weight was wrong."""
        file = self._open()
        if file is None:
            yield lambda name: None
            return
        wrong = []
        with file:
            checksums, starts, line, start = np.zeros(self._lines, np.uint64), {}, 0, self._start
            with contextlib.suppress(OSError):
                file.readinto(checksums.data)
            for name, layout in self._layouts.items():
                starts[name] = line, start
                line, start = line + layout.height, start + layout.nbytes
            buffer = np.empty(max(each.nbytes for each in self._layouts.values()), np.uint8)

            def read(name: str) -> tuple[Array, Array] | None:
                layout, (line, start) = self._layouts[name], starts[name]
                texels, expected = buffer[: layout.nbytes], checksums[line : line + layout.height]
                with contextlib.suppress(OSError):
                    file.seek(start)
                    if file.readinto(texels.data) == layout.nbytes:
                        lines = texels.reshape(layout.height, -1)
                        if np.array_equal(line_checksums(lines), expected):
                            return lines, expected
                wrong.append(name)
                return None

            yield read
        with contextlib.suppress(OSError):
            if wrong:
                self.path.unlink()
            else:
                os.utime(self.path)  # files that were used last stay longest

    def write(self, read_lines: Callable[[str, int, int], Array], checksums: Mapping[str, Array]) -> None:
        """Write the file unless it exists; nothing is kept if the disk, its space or the driver do not allow it.

        ``read_lines`` reads lines [first, first + count) of a texture by (name, first, count). They have to have the
        ``checksums`` of their upload.
        """
        with contextlib.suppress(OSError, GlinferError, MemoryError):
            if self.exist:
                return
            self._make_room()
            with replacing(self.path) as new, new.open("wb") as out:
                out.write(self._key)
                out.write(np.concatenate([checksums[name] for name in self._layouts]).data)
                for name, layout in self._layouts.items():
                    step = max(1, _PIECE_BYTES * layout.height // layout.nbytes)
                    for first in range(0, layout.height, step):
                        texels = read_lines(name, first, min(step, layout.height - first))
                        if not np.array_equal(line_checksums(texels), checksums[name][first : first + step]):
                            raise GLError(f"texture {name} has other texels than its upload had")
                        out.write(np.ascontiguousarray(texels).data)

    def _make_room(self) -> None:
        """Remove the files that were not used for longest; an OSError if the disk has too little space."""
        folder, total = self.path.parent, self._size
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a model's own files may be private
        files = [(each.stat(), each) for each in folder.iterdir() if each.is_file()]
        for status, path in sorted(files, key=lambda each: each[0].st_mtime_ns, reverse=True):
            total += status.st_size
            if total > MAX_BYTES:
                path.unlink()
        if shutil.disk_usage(folder).free < self._size + MAX_BYTES:
            raise OSError(f"{folder} has too little space")


@cache
def _stamps_of_code() -> tuple[tuple[str, FileStamp], ...]:
    """The stamps of all modules of the package: changed code may make other texels."""
    root = str(Path(__file__).parents[1])
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)  # noqa: PTH118
    found = ((path.removeprefix(root), FileStamp.of(os.stat(path))) for path in paths if path.endswith(".py"))  # noqa: PTH116
    return tuple(sorted(found))


def line_checksums(texels: Array) -> Array:
    """A checksum, uint64, of each line of texels [height, width] or [height, width, channels].

    It is the sum of the line's words, each times an odd number, modulo 2**64, which one changed word always changes.
    """
    words = np.ascontiguousarray(texels).view(np.uint32).reshape(len(texels), -1)
    sums: Array = np.einsum("ij,j->i", words, _odd_numbers(words.shape[1]), dtype=np.uint64)
    return sums


@cache
def _odd_numbers(count: int) -> Array:
    """Different odd numbers of 64 bits in no order: multiples of the golden ratio, mixed."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    mixed = np.arange(1, count + 1, dtype=np.uint64) * golden
    return (mixed ^ mixed >> np.uint64(32)) * golden | np.uint64(1)
