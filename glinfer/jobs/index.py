"""The ids of an input in a database on disk, so that memory does not grow with the input."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from glinfer.closing import Closing
from glinfer.errors import FormatError, InputError
from glinfer.formats.files import AnyPath, shown
from glinfer.formats.jsonl import at_line, short
from glinfer.jobs.lines import Key, LineForm, RequestLine, Shard, hash_of

_CACHE_KIB = 16384
_ROWS_AT_ONCE = 4096


class _Base(sqlite3.Connection):
    """A database that closes when it is collected, as after an interrupt, without Python's warning."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):
            self.close()


class LineIndex(Closing):
    """The lines of an input by their ids; use it in a ``with`` block.

    The database is an unnamed temporary file, which vanishes however the process ends. SQLite puts it into
    $SQLITE_TMPDIR, $TMPDIR, /var/tmp or /tmp.
    """

    def __init__(self, form: LineForm, source: AnyPath, shard: Shard | None = None) -> None:
        """Make an empty index of ``source``; :meth:`scan` fills it."""
        self.form, self.source, self.shard = form, source, shard or Shard()
        self.count = self.finished = 0
        with _on_disk():
            self._base = sqlite3.connect("", isolation_level=None, factory=_Base)
            for setting in (f"cache_size = -{_CACHE_KIB}", "journal_mode = OFF", "synchronous = OFF"):
                self._base.execute(f"PRAGMA {setting}")
            self._base.execute(
                "CREATE TABLE lines (number INTEGER PRIMARY KEY, hash BLOB, digest TEXT, finished INTEGER)"
            )

    def scan(self) -> None:
        """Read and check the whole input."""
        rows: list[tuple[int, bytes, str]] = []
        with _on_disk():
            self._base.execute("BEGIN")
            for line in self.form.read(self.source):
                if self.shard.has(line.key):
                    rows.append((line.number, hash_of(line.key), line.digest))
                if len(rows) == _ROWS_AT_ONCE:
                    self._add(rows)
            self._add(rows)
            self._base.execute("COMMIT")
        self._refuse_twins()

    def _add(self, rows: list[tuple[int, bytes, str]]) -> None:
        self._base.executemany("INSERT INTO lines VALUES (?, ?, ?, 0)", rows)
        self.count += len(rows)
        rows.clear()

    def _refuse_twins(self) -> None:
        with _on_disk():
            try:
                # Sorting once here is many times faster than keeping the index sorted.
                self._base.execute("CREATE UNIQUE INDEX by_hash ON lines (hash)")
                return
            except sqlite3.IntegrityError:
                number, first = self._base.execute(
                    "SELECT number, first FROM"
                    " (SELECT number, min(number) OVER (PARTITION BY hash) AS first FROM lines)"
                    " WHERE number > first ORDER BY number LIMIT 1"
                ).fetchone()
        key = next(line.key for line in self.form.read(self.source) if line.number == number)
        with at_line(self.source, number):
            raise InputError(f"the id {short(key)} is already on line {first}; {self.form.twins}")

    def finish(self, key: Key, digest: str) -> str:
        """Record the result of a line with this digest; returns the problem with it, or an empty text."""
        noun, source = f"{self.form.noun} {short(key)}", shown(self.source)
        with _on_disk():
            found = self._base.execute("SELECT number, digest, finished FROM lines WHERE hash = ?", (hash_of(key),))
            number, expected, finished = found.fetchone() or (0, "", False)
            if not number:
                part = "" if self.shard.count == 1 else f", shard {self.shard}"
                return f"there is no {noun} in {source}{part}"
            if finished:
                return f"{noun} has an earlier result in this file"
            if digest != expected:
                return f"{noun} ({source}:{number}){self.form.changed} since this was made"
            self._base.execute("UPDATE lines SET finished = 1 WHERE number = ?", (number,))
        self.finished += 1
        return ""

    def todo(self) -> Iterator[RequestLine]:
        """Read the input again, and yield the lines without a result."""
        changed = InputError(f"{shown(self.source)}: it was changed while it was read; run the same command again")
        with _on_disk():
            rows = self._base.execute("SELECT number, digest FROM lines WHERE finished = 0 ORDER BY number")
            wanted = rows.fetchone()
        if wanted is None:
            return
        # Close it here: an interrupt would be lost in a dropped generator.
        with closing(self.form.read(self.source)) as lines:
            for line in lines:
                if line.number == wanted[0]:
                    if line.digest != wanted[1]:
                        raise changed
                    yield line
                    with _on_disk():
                        wanted = rows.fetchone()
                    if wanted is None:
                        return
        raise changed

    def close(self) -> None:
        """Close the database; calling it again does nothing."""
        self._base.close()


@contextmanager
def _on_disk() -> Iterator[None]:
    """Turn SQLite's errors into one line."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise FormatError(
            f"the index of the input cannot be kept on the disk: {error}; free some space, or set TMPDIR to a folder "
            "that has some (60 bytes a line)"
        ) from None
