"""Models in zip files, damaged: in the bytes, in the fields of the zip format, and in what the entries are and hold."""

from __future__ import annotations

import io
import os
import shutil
import stat
import warnings
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from glinfer.errors import GlinferError
from glinfer.formats import load_checkpoint
from glinfer.formats.zipped import is_model_zip
from qa.fuzz import seeds
from qa.fuzz.mutate import Form, any_bytes, bytes_of, json_or_bytes, number
from qa.fuzz.reads import put, use_checkpoint

WORDS = (
    *("", ".", "..", "/", "/etc/x", "../x", "a/../../x", "a//b", "c:x", "a\\b", "con", "x" * 300, "a/" * 40 + "x"),
    *("config.json", "Config.JSON", "m/config.json", "config.json/x", "m", "m/", "\u202ex", "\x1b]0;x\x07", "\ufffd"),
    *((kind | 0o777) << 16 for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFDIR)),
    *(zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA),
)
"""Names of entries, kinds of files and methods of compression."""
_SIGNATURES = {b"PK\x03\x04": 30, b"PK\x01\x02": 46, b"PK\x05\x06": 22}
"""The length of a local header, of an entry in the list, and of the list's end."""


def made_zip(entries: list[tuple[zipfile.ZipInfo, bytes]]) -> bytes:
    """A zip file of these entries, whatever their names are."""
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as file:
        warnings.simplefilter("ignore")  # names that are there already
        for entry, data in entries:
            file.writestr(entry, data)
    return made.getvalue()


def entry(name: str, method: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    """An entry of a name."""
    made = zipfile.ZipInfo(name)
    made.compress_type, made.external_attr = method, (stat.S_IFREG | 0o644) << 16
    return made


@cache
def zips() -> list[bytes]:
    """A model in a zip file, alone, and in a folder of it."""
    files = {
        "config.json": seeds.compact(seeds.LLAMA),
        "model.safetensors": seeds.safetensors(seeds.llama_arrays()),
        "more/readme.md": b"# x\n",
    }
    under = [(entry("m/"), b""), *((entry(f"m/{name}", zipfile.ZIP_STORED), data) for name, data in files.items())]
    return [made_zip([(entry(name), data) for name, data in files.items()]), made_zip(under)]


def _parse(data: bytes) -> list[Any]:
    """Each entry: its name, its method, its kind of file, and what it holds."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return [[each.filename, each.compress_type, each.external_attr, json_or_bytes(file.read(each))]
                for each in file.infolist()]  # fmt: skip


def _build(document: list[Any]) -> bytes:
    entries = []
    for name, method, kind, held in document:
        made = entry(name, method)
        made.external_attr = kind % (1 << 32)
        entries.append((made, bytes_of(held)))
    return made_zip(entries)


def _other_fields(data: bytes, random: Random) -> bytes:
    """Numbers written over those of the zip format, or any bytes."""
    if random.random() < 0.3:
        return any_bytes(data, random)
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        signature, length = random.choice(list(_SIGNATURES.items()))
        places = [at for at in range(len(found) - 3) if found[at : at + 4] == signature]
        if places:
            at, width = random.choice(places) + random.randrange(4, length, 2), random.choice((2, 4))
            old = int.from_bytes(found[at : at + width], "little")
            found[at : at + width] = (number(random, old) % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(found)


ZIP = Form(_parse, _build, _other_fields, 0.6)


def read_zip(data: bytes, folder: Path) -> None:
    """Unpack it and use the model; what is refused leaves nothing in the cache."""
    path, cached, before = put(folder, "m.zip", data), folder / "cache", Path.cwd()
    os.environ["GLINFER_CACHE"] = str(cached)
    os.chdir(folder)  # folders are removed by names that are relative to them, which the watch takes for files of here
    try:
        is_model_zip(path)
        try:
            checkpoint = load_checkpoint(path)
        except GlinferError:
            assert not list(cached.rglob("*")), "what was refused has left something"
            raise
        use_checkpoint(checkpoint)
    finally:
        os.environ["GLINFER_CACHE"] = ""
        shutil.rmtree(cached, ignore_errors=True)
        os.chdir(before)
