"""A disk that breaks where a test wants it to: it stands between Python's own functions and one folder."""

from __future__ import annotations

import builtins
import errno
import io
import os
import pathlib
from pathlib import Path
from typing import Any

import pytest

_CALLS = ("replace", "rename", "unlink", "mkdir", "chmod", "symlink", "link", "rmdir")
_COUNTED = {"truncate": "write", "read": "read", "readinto": "read", "readline": "read"}
"""What calls of an open file count as, besides ``write`` and ``close``."""
_ERRORS = {"open": errno.EMFILE, "read": errno.EIO, "write": errno.ENOSPC, "close": errno.ENOSPC, "mkdir": errno.ENOSPC}


class BrokenFiles:
    """Every call for a file below ``folder`` works until it is told otherwise.

    Attributes:
        calls: the calls since :meth:`fail_at`, as (name, path).
        failed: the one that has failed, if one has.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.fail_at(0)
        real_open, files = io.open, self

        def opened(path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            if not files.has(path):
                return real_open(path, mode, *given, **named)
            files.count("open", path)
            return _File(files, os.fspath(path), real_open(path, mode, *given, **named))

        monkeypatch.setattr(builtins, "open", opened)
        monkeypatch.setattr(io, "open", opened)
        monkeypatch.setattr(pathlib.Path, "open", lambda path, *given, **named: opened(path, *given, **named))
        for name in _CALLS:
            real = getattr(os, name)

            def called(path: Any, *given: Any, name: str = name, real: Any = real, **named: Any) -> Any:
                if files.has(path) or (given and files.has(given[0])):
                    files.count(name, path)
                return real(path, *given, **named)

            monkeypatch.setattr(os, name, called)

    def fail_at(self, call: int) -> None:
        """Fail the n-th call from here on, from 1, and none after it; 0 for none, to count them."""
        self.at, self.calls, self.failed = call, list[tuple[str, str]](), ""

    def has(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.path.abspath(path).startswith(self.folder + os.sep)  # noqa: PTH100

    def counts(self, name: str, path: Any) -> bool:
        """Count a call; whether it is the one that fails."""
        self.calls.append((name, os.fspath(path)))
        if len(self.calls) != self.at:
            return False
        self.failed = f"call {self.at}, {name} of {Path(path).name}"
        return True

    def count(self, name: str, path: Any) -> None:
        if self.counts(name, path):
            raise self.error(name, path)

    def error(self, name: str, path: Any) -> OSError:
        number = _ERRORS.get(name, errno.EIO)
        return OSError(number, os.strerror(number), os.fspath(path) if name not in ("read", "write", "close") else None)


class _File:
    """An open file; a write that fails has written half, and one that fails to be closed is closed."""

    def __init__(self, files: BrokenFiles, path: str, file: Any) -> None:
        self._files, self._path, self._file = files, path, file
        self._writes = file.writable()

    def __getattr__(self, name: str) -> Any:
        found, counted = getattr(self._file, name), _COUNTED.get(name)

        def called(*given: Any) -> Any:
            self._files.count(counted, self._path)
            return found(*given)

        return found if counted is None else called

    def write(self, data: Any) -> int:
        if self._files.counts("write", self._path):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise self._files.error("write", self._path)
        return int(self._file.write(data))

    def close(self) -> None:
        was_open = not self._file.closed
        self._file.close()
        if was_open and self._writes:
            self._files.count("close", self._path)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if line := self.readline():
            return line
        raise StopIteration
