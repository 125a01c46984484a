"""Models in zip files, as some packages ship them: unpacked once into glinfer's cache, and read from there."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import os
import shutil
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from glinfer.errors import FormatError, GlinferError
from glinfer.formats.files import (
    AnyPath,
    inside,
    is_directory,
    is_plain_path,
    memory_folder,
    noted_files,
    opened,
    reason,
    shown,
    unpacked_from,
    words_of,
    work_folder,
)
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.sentence import MODULES
from glinfer.limits import MAX_ZIP_BYTES, MAX_ZIP_ENTRIES, MAX_ZIP_GROWTH, MAX_ZIP_LIST_BYTES, ZIP_SLACK

ZIP_MAGIC = b"PK\x03\x04"
USUAL_ZIP = "model.zip"
"""The name of the zip file in a package."""
_CONFIG = "config.json"
_CHUNK = 1 << 22
_HEADER_BYTES = 30  # before the name of an entry
_ENCRYPTED = 0x1 | 0x20 | 0x40 | 0x2000  # encrypted, patched, strongly encrypted, with a hidden list of files
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, IndexError, OverflowError),
)
"""The exceptions besides OSError that zipfile raises for damaged or unsupported files."""


def unpacked(path: AnyPath) -> AnyPath:
    """Unpack a model from a zip file, or from ``model.zip`` in a folder, and return its folder; else return ``path``.

    Each content is unpacked once, into the folder ``unpacked`` of :func:`glinfer.formats.files.memory_folder`. If there
    is no such folder, or it cannot be written, it is unpacked into one that is removed when Python exits.

    Raises:
        FormatError: the file is damaged, exceeds a limit or the free disk space, or has unsafe entries: paths outside
            its folder, links or encrypted files.
    """
    if is_directory(path):
        folder = Path(path)
        packed = folder / USUAL_ZIP
        if os.path.lexists(folder / _CONFIG) or not os.path.lexists(packed):
            return path
        return unpacked(inside(packed))
    # PyTorch's pickled weights are zip files too, without a configuration.
    if not is_zip(path) or not (Path(path).suffix == ".zip" or is_model_zip(Path(path))):
        return path
    digest = hashlib.sha256()
    with opened(path) as (file, _):
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    name, kept = digest.hexdigest()[:32], memory_folder("unpacked")
    usable = kept is not None and ((kept / name).is_dir() or _takes_files(kept))
    target = (kept if kept is not None and usable else _passing_folder()) / name
    unpacked_from[str(target)] = os.fspath(path)
    if not target.is_dir():
        _unpack(Path(path), target)
    found = (*target.glob("*"), *target.glob(f"*/{_CONFIG}"))
    return _model_in(target, path, [each.relative_to(target).as_posix() for each in found])


def is_zip(path: AnyPath) -> bool:
    """Whether a regular file begins like a zip file; False on errors, which opening it then reports."""
    try:
        if not Path(path).is_file():  # opening a pipe would wait for a writer
            return False
        with Path(path).open("rb") as file:
            return file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    except (OSError, ValueError):
        return False


def is_model_zip(path: Path) -> bool:
    """Whether a zip file contains the configuration of a model; False if it cannot be read."""
    try:
        with _listed(path) as packed:
            return any(PurePosixPath(name).name == _CONFIG for name in packed.namelist())
    except (OSError, FormatError, *DAMAGE):
        return False


class _Reader(io.BufferedReader):
    """Refuses a list of files above the limit, which zipfile would read into memory at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_ZIP_LIST_BYTES:
            raise FormatError(
                f"{shown(self.name)}: its list of files has {size} bytes, which exceeds the limit of "
                f"{MAX_ZIP_LIST_BYTES}"
            )
        return super().read(size)


@contextlib.contextmanager
def _listed(path: Path) -> Iterator[zipfile.ZipFile]:
    with _Reader(io.FileIO(path)) as file, zipfile.ZipFile(file) as packed:
        yield packed


@contextlib.contextmanager
def dropped_if_refused(path: AnyPath) -> Iterator[None]:
    """Remove the unpacked folder of a model if the block refuses it."""
    try:
        yield
    except GlinferError:
        for folder in (Path(path), *Path(path).parents):
            if str(folder) in unpacked_from:
                shutil.rmtree(folder, ignore_errors=True)
                _remove_empty(folder.parent)
        raise


def _takes_files(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


@cache
def _passing_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="glinfer-unpacked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _model_in(folder: Path, path: AnyPath, names: Iterable[str]) -> Path:
    """The folder itself, or its only subfolder that has a model, by the names of the files in it.

    A subfolder next to modules or weights has a part of a model, such as ``1_Pooling``.
    """
    files = list(map(PurePosixPath, names))
    beside = {file.name for file in files if len(file.parts) == 1}
    if _CONFIG in beside:
        return folder
    found = [file.parent for file in files if file.name == _CONFIG and len(file.parts) == 2]
    is_part = any(name == MODULES or name.endswith((".safetensors", ".bin")) for name in beside)
    if is_part or len(found) != 1:
        raise FormatError(f"{shown(path)}: found no model in it; expected one {_CONFIG} with the weights next to it")
    return folder / found[0]


def _unpack(path: Path, target: Path) -> None:
    """Unpack atomically: the configuration first, and the rest only if that is valid."""
    made = target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(target.parent, 0o700) as made, _listed(path) as packed:
            unpacked_from[str(made)] = os.fspath(path)
            total, free = _check(packed, path), shutil.disk_usage(made).free
            if total > free:
                raise FormatError(
                    f"{shown(path)}: it holds {total / 1e9:.2f} GB, and the disk of {shown(target.parent)} has "
                    f"{free / 1e9:.2f} GB free; make room, or set GLINFER_CACHE to a folder on another disk"
                )
            is_first = {entry: PurePosixPath(entry.filename).name == _CONFIG for entry in packed.infolist()}
            _write(packed, [entry for entry, first in is_first.items() if first], made)
            with noted_files():  # this file will be in another folder
                read_config(_model_in(made, path, packed.namelist()) / _CONFIG)
            _write(packed, [entry for entry, first in is_first.items() if not first], made)
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():  # or another process was faster
                    raise
    except OSError as error:
        raise FormatError(
            f"{shown(path)}: cannot unpack it: {reason(error)}; check the free space of {shown(target.parent)}"
        ) from None
    except DAMAGE as error:
        said = words_of(error) or type(error).__name__
        if isinstance(error, NotImplementedError):  # a RuntimeError: a newer kind of zip file
            raise FormatError(f"{shown(path)}: {said}, which is not supported; get the model from elsewhere") from None
        raise FormatError(f"{shown(path)}: damaged zip file: {said}; get the file again") from None
    finally:
        unpacked_from.pop(str(made), None)
        _remove_empty(target.parent)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write(packed: zipfile.ZipFile, entries: Iterable[zipfile.ZipInfo], folder: Path) -> None:
    for entry in entries:
        if entry.is_dir():
            continue
        target = folder / entry.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        with packed.open(entry) as source, target.open("xb") as out:
            shutil.copyfileobj(source, out, _CHUNK)


def _check(packed: zipfile.ZipFile, path: Path) -> int:
    """Refuse unsafe entries before anything is written; returns the size of all entries in bytes."""
    entries, size = packed.infolist(), path.stat().st_size
    total, most = sum(entry.file_size for entry in entries), min(MAX_ZIP_BYTES, MAX_ZIP_GROWTH * size + ZIP_SLACK)
    if len(entries) > MAX_ZIP_ENTRIES or total > most:
        raise FormatError(
            f"{shown(path)}: found {len(entries)} files of {total} bytes, which exceeds the limit of "
            f"{MAX_ZIP_ENTRIES} files of {most} bytes together in a zip file of {size}"
        )
    folders = {str(each) for entry in entries for each in PurePosixPath(f"{_key(entry.filename)}x").parents}
    seen, end = set[str](), 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name, key, problem = ascii(entry.filename[:80]), _key(entry.filename), ""
        if not all(is_plain_path(each.removesuffix("/")) for each in (entry.filename, entry.orig_filename)):
            raise FormatError(
                f"{shown(path)}: found the file name {name}; expected a plain relative path; do not trust this file"
            )
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            problem = "is a link or a device"
        elif key in seen or key in folders:
            problem = "has the name of another one"
        elif entry.flag_bits & _ENCRYPTED:
            problem = "is encrypted, which is not supported"
        elif entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problem = f"is compressed by method {entry.compress_type}, which is not supported"
        elif entry.header_offset < end:
            problem = "overlaps another one"
        if problem:
            raise FormatError(
                f"{shown(path)}: the file {name} in it {problem}; expected plain files, stored or deflated; get the "
                "model from elsewhere"
            )
        seen.add(key)
        end = entry.header_offset + _HEADER_BYTES + len(entry.filename) + entry.compress_size
    if end > packed.start_dir:
        raise zipfile.BadZipFile("its last file overlaps the list of files")
    return total


def _key(name: str) -> str:
    """A name as file systems that ignore case and normalise Unicode compare it."""
    return unicodedata.normalize("NFC", name).casefold()
