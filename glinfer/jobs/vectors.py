"""Files of vectors, written piece by piece, so that an interrupted run can continue.

Vectors first go to ``<out>.part``: a line with a digest of their model and options, then whole rows of numbers. At the
end they are copied into the final form, which appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.errors import InputError
from glinfer.formats.files import AnyPath, ending_found, lock, replacing, shown, writing
from glinfer.jobs.files import busy
from glinfer.jobs.texts import arrow_modules

Vectors = npt.NDArray[np.float32]
_HEAD = 512
"""Bytes of the first line of a part file, padded with spaces."""
_ROWS = 1024


class VectorFile(Closing):
    """The vectors of the first ``done`` texts, in a part file next to their result; use it in a ``with`` block."""

    def __init__(self, out: AnyPath, about: dict[str, Any], width: int, *, restart: bool = False) -> None:
        """Open the part file of ``out``, for vectors of ``width`` numbers made with the settings ``about``."""
        self.out, self.width = Path(out), width
        check_out(out)
        self.part = self.out.with_name(f"{self.out.name}.part")
        head = json.dumps({**about, "width": width}, sort_keys=True)
        self._head = hashlib.sha256(head.encode()).hexdigest().encode().ljust(_HEAD - 1) + b"\n"
        with self._writing():
            self._file: BinaryIO = self.part.open("a+b")  # writes at the end
            if lock(self._file.fileno()) is False:
                self._file.close()
                raise busy(self.part)
            if restart:
                self._file.truncate(0)
            self._file.seek(0)
            self.done = self._rows_in()
            self._file.truncate(_HEAD + 4 * width * self.done)

    def _rows_in(self) -> int:
        """Count whole rows in the part file; write the first line of a new one."""
        found = self._file.read(_HEAD)
        if not found:
            self._file.write(self._head)
            return 0
        if found != self._head:
            self._file.close()
            raise InputError(
                f"{shown(self.part)}: this was made with another model, file or option; give another --out, or "
                "--restart to discard it"
            )
        return (os.fstat(self._file.fileno()).st_size - _HEAD) // (4 * self.width)

    def add(self, vectors: Vectors) -> None:
        """Write the vectors of the next texts."""
        with self._writing():
            self._file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
            self._file.flush()
        self.done += len(vectors)

    def finish(self, texts: Callable[[], Iterable[str]]) -> None:
        """Write the result and remove the part file; ``texts`` returns the texts again, for forms that include them."""
        self._file.flush()
        shape = self.done, self.width
        vectors: Vectors = np.zeros(shape, "<f4")
        if self.done:
            vectors = np.memmap(self.part, "<f4", "r", _HEAD, shape)
        with replacing(self.out) as path:
            _WRITERS[self.out.suffix.lower()](path, vectors, texts)
        del vectors
        self.close()
        self.part.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the part file, and remove it if it has no vectors."""
        if not (self.done or self._file.closed):
            self.part.unlink(missing_ok=True)
        self._file.close()

    def _writing(self) -> AbstractContextManager[None]:
        advice = "check the free space and the permissions; the vectors in it stay, and the same command continues"
        return writing(self.part, advice)


def check_out(out: AnyPath) -> None:
    """Check the suffix of a result, and that its form can be written."""
    kind = Path(out).suffix.lower()
    if kind not in _WRITERS:
        raise InputError(f"{shown(out)}: {ending_found(out)}; expected one of {', '.join(_WRITERS)}")
    if kind == ".parquet":
        arrow_modules()


def _write_npy(path: Path, vectors: Vectors, texts: Callable[[], Iterable[str]]) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": vectors.shape})
        file.write(vectors.data)


def _write_safetensors(path: Path, vectors: Vectors, texts: Callable[[], Iterable[str]]) -> None:
    # The safetensors library would load all vectors into memory.
    entry = {"dtype": "F32", "shape": list(vectors.shape), "data_offsets": [0, vectors.nbytes]}
    header = json.dumps({"__metadata__": {"format": "np"}, "embeddings": entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(vectors.data)


def _write_jsonl(path: Path, vectors: Vectors, texts: Callable[[], Iterable[str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for text, vector in zip(texts(), vectors, strict=True):
            line = {"text": text, "embedding": [float(str(number)) for number in vector]}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _write_parquet(path: Path, vectors: Vectors, texts: Callable[[], Iterable[str]]) -> None:
    arrow, parquet = arrow_modules()
    kind = arrow.list_(arrow.float32(), vectors.shape[1])
    schema, found = arrow.schema([("text", arrow.string()), ("embedding", kind)]), iter(texts())
    with parquet.ParquetWriter(path, schema) as file:
        for start in range(0, len(vectors), _ROWS):
            piece = np.asarray(vectors[start : start + _ROWS])
            rows = arrow.array(list(itertools.islice(found, len(piece))), arrow.string())
            numbers = arrow.FixedSizeListArray.from_arrays(piece.reshape(-1), type=kind)
            file.write_table(arrow.Table.from_arrays([rows, numbers], schema=schema))
        next(found, None)  # at its end it may find that the texts have changed


_WRITERS: dict[str, Callable[[Path, Vectors, Callable[[], Iterable[str]]], None]] = {
    ".npy": _write_npy,
    ".safetensors": _write_safetensors,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
