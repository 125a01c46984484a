"""Files of a batch: plain or compressed, local or remote through fsspec."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from glinfer.errors import FormatError, GlinferError, InputError, required
from glinfer.formats.files import AnyPath, cache_folder, kind_of, opened, reason, replacing, shown, words_of

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_GZIP, _ZSTD = ".gz", ".zst"
_LEVEL = 6


def is_address(path: AnyPath) -> bool:
    """Whether a name is for fsspec, such as ``s3://bucket/in.jsonl``."""
    return _ADDRESS.match(os.fspath(path)) is not None


def packing(path: AnyPath) -> str:
    """The compression of a file by its name: ``.gz``, ``.zst``, or empty."""
    return next((end for end in (_GZIP, _ZSTD) if os.fspath(path).endswith(end)), "")


def _zstd() -> Any:
    """Python's zstd module (3.14), or the package zstandard."""
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return required("zstandard", "batch", f"files that end in {_ZSTD} need")


def _fsspec(path: AnyPath) -> Any:
    return required("fsspec", "batch", f"{shown(path)}: addresses need")


@contextmanager
def open_source(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed by its name; errors inside the block are reported too."""
    with ExitStack() as stack:
        file = stack.enter_context(_reached(path, "rb")) if is_address(path) else stack.enter_context(opened(path))[0]
        kind = packing(path)
        try:
            if kind == _GZIP:
                file = stack.enter_context(cast(BinaryIO, gzip.GzipFile(fileobj=file)))
            elif kind == _ZSTD:
                file = stack.enter_context(_unpacked(file))
            yield file
        except Exception as error:
            if not _is_broken(error):
                raise
            raise FormatError(
                f"{shown(path)}: cannot unpack it: {words_of(error)}; expected a whole {kind} file"
            ) from None


def _is_broken(error: Exception) -> bool:
    """Whether a decompressor raised this error; zstd may not be imported."""
    return isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)) or type(error).__name__ == "ZstdError"


def _unpacked(file: BinaryIO) -> BinaryIO:
    zstd = _zstd()
    if hasattr(zstd, "ZstdFile"):
        return cast(BinaryIO, zstd.ZstdFile(file))
    return io.BufferedReader(zstd.ZstdDecompressor().stream_reader(file, read_across_frames=True))


@contextmanager
def _reached(path: AnyPath, mode: str, advice: str = "") -> Iterator[BinaryIO]:
    """A file that fsspec opens."""
    with (
        _explained(path, "write" if "w" in mode else "read", advice),
        _fsspec(path).open(os.fspath(path), mode) as file,
    ):
        yield file


@contextmanager
def _explained(path: AnyPath, what: str, advice: str = "") -> Iterator[None]:
    """Turn any error of fsspec's back ends, which have no common base, into one line."""
    try:
        yield
    except GlinferError:
        raise
    except Exception as error:
        # An ImportError says what to install; a FileNotFoundError for a refused connection has only the address.
        found = error if isinstance(error, ImportError) else error.__cause__ or error
        why = "no such file" if isinstance(found, FileNotFoundError) else words_of(found) or type(found).__name__
        raise FormatError(f"{shown(path)}: cannot {what} it: {why}{advice}") from None


def busy(path: AnyPath) -> InputError:
    """The error for a file of results that another run has locked."""
    advice = "wait for its end, or give another --out; the same command continues where it stopped"
    return InputError(f"{shown(path)}: another run writes to it; {advice}")


class Target:
    """A file of results, written line by line.

    A plain local file is written in place. A compressed or remote file is written at the end, from a plain working
    file: ``NAME.part`` next to it, or for an address in glinfer's cache folder.
    """

    def __init__(self, path: AnyPath) -> None:
        """Name the file without touching it."""
        self.path = path
        self.packing, self.remote = packing(path), is_address(path)
        self.plain = not (self.packing or self.remote)
        text = os.fspath(path)
        if self.remote:
            name = text.rstrip("/").rpartition("/")[2]
            self.working = cache_folder() / "batches" / hashlib.sha256(text.encode()).hexdigest()[:16] / f"{name}.part"
        else:
            self.working = Path(text) if self.plain else Path(f"{text}.part")

    @property
    def manifest(self) -> Path:
        """The path of the manifest, see :mod:`glinfer.jobs.manifest`."""
        base = self.working.with_suffix("") if self.remote else Path(self.path)
        return base.with_name(base.name + ".manifest.json")

    def is_same(self, other: AnyPath) -> bool:
        """Whether ``other`` names the same file."""
        if self.remote or is_address(other):
            return os.fspath(self.path) == os.fspath(other)
        here, there = Path(os.path.realpath(self.path)), Path(os.path.realpath(other))
        try:
            return here == there or here.samefile(there)
        except OSError:  # a file is missing
            return False

    def check(self) -> None:
        """Check that the file can be written, without writing."""
        if self.packing == _ZSTD:
            _zstd()
        if self.remote:
            _fsspec(self.path)
            return
        target = Path(os.path.realpath(self.path))
        try:
            mode = target.stat().st_mode  # from Python 3.14 on, exists() ignores other errors
            if not stat.S_ISREG(mode):
                raise FormatError(f"{shown(self.path)}: found {kind_of(mode)}; expected a regular file or a new name")
        except (FileNotFoundError, NotADirectoryError):
            if not target.parent.is_dir():
                raise FormatError(
                    f"{shown(self.path)}: there is no such folder to write it to; make it first"
                ) from None
        except OSError as error:
            raise FormatError(f"{shown(self.path)}: cannot write it: {reason(error)}; check the path") from None
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise FormatError(f"{shown(self.path)}: cannot write it: Permission denied; check it and its folder")

    def newest(self) -> AnyPath | None:
        """The path of earlier results: the working file, or else the published one; None without results."""
        if self.working.exists():
            return self.working
        if self.plain:
            return None
        if self.remote:
            with _explained(self.path, "write"):
                fs, inner = _fsspec(self.path).core.url_to_fs(os.fspath(self.path))
                return self.path if fs.exists(inner) else None
        return self.path if Path(self.path).exists() else None

    @property
    def has_some(self) -> bool:
        """Whether an earlier run left results, even a part of one."""
        found = self.newest()
        return found is not None and (found != self.working or self.working.stat().st_size > 0)

    def unpack(self) -> None:
        """Make the working file from the published one, if there is no working file."""
        if self.remote:
            self.working.parent.mkdir(parents=True, exist_ok=True)
        found = self.newest()
        if found is None or found == self.working:
            return
        with open_source(found) as file, replacing(self.working) as temporary, temporary.open("wb") as plain:
            shutil.copyfileobj(file, plain)

    def publish(self) -> None:
        """Write the final file, and remove the working file; does nothing for a plain file."""
        if self.plain or not self.working.exists():
            return
        if self.remote:
            kept = f"; its lines are kept in {shown(self.working)}, and the same command writes it again"
            with _reached(self.path, "wb", kept) as file:
                self._write(file)
        else:
            with replacing(self.path) as temporary, temporary.open("wb") as file:
                self._write(file)
        self.working.unlink()

    def _write(self, file: BinaryIO) -> None:
        with self.working.open("rb") as plain, ExitStack() as stack:
            packed: Any = file
            if self.packing == _GZIP:
                packed = stack.enter_context(gzip.GzipFile("", "wb", _LEVEL, file, mtime=0))
            elif self.packing == _ZSTD:
                zstd = _zstd()
                native = hasattr(zstd, "ZstdFile")
                made = zstd.ZstdFile(file, "wb") if native else zstd.ZstdCompressor().stream_writer(file, closefd=False)
                packed = stack.enter_context(made)
            shutil.copyfileobj(plain, packed)
