"""Files of results: read those of an earlier run, and append whole lines, one run at a time."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from io import FileIO
from typing import Any

from glinfer.closing import Closing
from glinfer.errors import InputError
from glinfer.formats.files import AnyPath, lock, opened, shown, writing
from glinfer.formats.jsonl import parse_object, read_lines
from glinfer.jobs.files import Target, busy, open_source
from glinfer.jobs.index import LineIndex
from glinfer.jobs.lines import LineForm
from glinfer.limits import MAX_RESULT_LINE_BYTES

_CHUNK = 1 << 20


@dataclass(frozen=True)
class FinishedLines:
    """Results of an earlier run in one file: their number, their size in bytes, and whether a torn line follows.

    ``total`` is the file's size in bytes when it was read; None if its contents are discarded.
    """

    count: int = 0
    size: int = 0
    torn: bool = False
    total: int | None = field(default=None, compare=False)


def check_targets(source: AnyPath, out: Target, errors: Target | None = None) -> None:
    """Check that results can be written, without writing."""
    for each in filter(None, (out, errors)):
        if each.is_same(source):
            raise InputError(f"{shown(each.path)}: this is the input itself; expected another file for the results")
        each.check()
    if errors is not None and errors.is_same(out.path):
        raise InputError(
            f"{shown(out.path)}: this file is given for both results and errors; give two files, or only one"
        )


def read_finished(target: Target, index: LineIndex) -> FinishedLines:
    """Read the results of an earlier run, if any, and record them in ``index``; changes no file.

    The last line may be torn if that run was interrupted; every other line must be the result of a line of the index.
    """
    path = target.newest()
    if path is None:
        return FinishedLines(total=0)
    total: int | None = None
    if path == target.working:
        with opened(path) as (_, total):
            pass
    form, count, size = index.form, 0, 0
    with open_source(path) as file:
        for number, data in read_lines(file, path, MAX_RESULT_LINE_BYTES):
            found = _result(data, form)
            # Drop only a torn result, because the user may have named a wrong file.
            began_as_one = data.startswith(form.result_start) or form.result_start.startswith(data)
            if found is None and began_as_one and total is not None and size + len(data) >= total:
                return FinishedLines(count, size, torn=True, total=total)
            finished = None if found is None else form.finished(found)
            if problem := "this is not a result of an earlier run" if finished is None else index.finish(*finished):
                raise InputError(
                    f"{shown(path)}:{number}: {problem}; give another --out, or --restart to discard it and start over"
                )
            count, size = count + 1, size + len(data)
    return FinishedLines(count, size, total=size if total is None else total)


def _result(data: bytes, form: LineForm) -> dict[str, Any] | None:
    """Parse a whole line; None if it is torn or malformed."""
    try:
        return parse_object(data, form.example) if data.endswith(b"\n") else None
    except InputError:
        return None


class ResultFile(Closing):
    """Appends results to a file in whole lines; use it in a ``with`` block."""

    def __init__(self, target: Target, finished: FinishedLines) -> None:
        """Prepare without touching the file; see :meth:`open`."""
        self.target, self._finished = target, finished
        self._file: FileIO | None = None

    def open(self) -> None:
        """Lock the file, truncate it to the finished lines in place, and open it at its end."""
        finished = self._finished
        if finished.total is not None:
            self.target.unpack()
        path = self.target.working
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that an interrupt loses nothing.
            self._file = path.open("ab", buffering=0)
            locked = lock(self._file.fileno())  # before reading its size
            if locked is False or finished.total not in (None, os.fstat(self._file.fileno()).st_size):
                raise busy(path)
            self._file.truncate(finished.size)

    @property
    def whole(self) -> bool:
        """Whether an earlier run left the file complete."""
        return not self._finished.torn and (self.target.plain or not self.target.working.exists())

    def write(self, result: dict[str, Any]) -> None:
        """Add a result."""
        data = json.dumps(result, ensure_ascii=False).encode() + b"\n"
        assert self._file is not None  # opened before
        with self._writing():
            while data:
                data = data[self._file.write(data) :]

    @property
    def lines(self) -> int:
        """Number of results, counted in the file, which is right after any interrupt."""
        if self._file is None:
            return self._finished.count
        with self.target.working.open("rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(_CHUNK), b""))

    def _writing(self) -> AbstractContextManager[None]:
        advice = "check the free space and the permissions; the lines in it stay finished, and the same command runs"
        return writing(self.target.working, f"{advice} the others")

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        if self._file is not None:
            with self._writing():  # some network file systems write only now
                self._file.close()
