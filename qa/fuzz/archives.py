"""Models in zip files, damaged: in the bytes, in the fields of the zip format, and in what the entries are and hold."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import struct
import warnings
import zipfile
from functools import cache
from pathlib import Path
from random import Random

from glinfer.errors import GlinferError
from glinfer.formats import load_checkpoint
from glinfer.formats.zipped import is_model_zip
from qa.fuzz import seeds
from qa.fuzz.mutate import any_bytes, json_mutator, number
from qa.fuzz.reads import put, use_checkpoint
from qa.fuzz.words import CONFIG_WORDS

_FIELDS: dict[bytes, tuple[tuple[int, int], ...]] = {
    b"PK\x03\x04": ((4, 2), (6, 2), (8, 2), (10, 4), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\x01\x02": (
        *((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2)),
        *((32, 2), (34, 2), (36, 2), (38, 4), (42, 4)),
    ),
    b"PK\x05\x06": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}
"""Offsets and widths of the numbers of a local header, of an entry in the list, and of the list's end."""
_NAMES = (
    *("", ".", "..", "/", "/etc/x", "../x", "a/../../x", "a//b", "c:x", "a\\b", "con", "x" * 300, "a/" * 40 + "x"),
    *("config.json", "Config.JSON", "m/config.json", "config.json/x", "m", "m/", "\u202ex", "\x1b]0;x\x07", "\ufffd"),
)
_KINDS = (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR, stat.S_IFREG)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_config = json_mutator(CONFIG_WORDS)


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


def zip_mutator(data: bytes, random: Random) -> bytes:
    """Damages a zip file: any bytes, some fields, or an entry, of which a whole zip file is made."""
    kind = random.randrange(4)
    if kind == 0:
        return any_bytes(data, random)
    if kind == 1:
        with contextlib.suppress(Exception):  # what is damaged already cannot be taken apart
            return _with_another_entry(data, random)
    return _with_other_fields(data, random)


def _with_other_fields(data: bytes, random: Random) -> bytes:
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        signature = random.choice(list(_FIELDS))
        places = [at for at in range(len(found) - 3) if found[at : at + 4] == signature]
        if not places:
            return any_bytes(bytes(found), random)
        at = random.choice(places)
        if signature != b"PK\x05\x06" and random.random() < 0.2:  # the name, in as many bytes
            start, length = at + (30 if signature == b"PK\x03\x04" else 46), len(found[at + 30 : at + 42])
            found[start : start + length] = random.choice(_NAMES).encode().ljust(length, b"\0")[:length]
            continue
        offset, width = random.choice(_FIELDS[signature])
        old = int.from_bytes(found[at + offset : at + offset + width], "little")
        found[at + offset : at + offset + width] = struct.pack("<Q", number(random, old) % (1 << 8 * width))[:width]
    return bytes(found)


def _with_another_entry(data: bytes, random: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        entries = [(each, file.read(each)) for each in file.infolist()]
    place = random.randrange(len(entries))
    changed, held = entries[place]
    match random.randrange(7):
        case 0:
            changed = entry(random.choice(_NAMES), changed.compress_type)
        case 1:
            entries.insert(place, (entry(random.choice(_NAMES)), held))
        case 2:
            changed.external_attr = (random.choice(_KINDS) | 0o777) << 16
        case 3:
            changed.compress_type = random.choice(_METHODS)
        case 4:
            held = _config(held, random) if held.startswith(b"{") else any_bytes(held, random)
        case 5:
            entries += [(entry(f"{number}.txt"), b"") for number in range(random.choice((10, 5000)))]
        case _:
            entries.append((entry("zeros.bin"), bytes(random.choice((1 << 10, 1 << 20)))))
    entries[place] = changed, held
    return made_zip(entries)


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
