"""The folder that ``glinfer look`` writes: filled only when everything is drawn, and nothing else in it is touched."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from glinfer.errors import FormatError, InputError
from glinfer.formats.files import reason, shown

FORMAT, VERSION = "glinfer-look", 1
"""What ``look.json`` says of itself."""
DATA, PAGE = "look.json", "index.html"
_OWN_PICTURE = re.compile(r"[a-z]+/[a-z0-9-]+\.png")


def check_folder(folder: str | PathLike[str], *, force: bool = False) -> Path:
    """Accept a folder that may be made or filled; returns its real path.

    Raises:
        InputError: it is a file, or has files in it and is no earlier output, and ``force`` is not set.
    """
    target = Path(os.path.realpath(folder))
    try:
        if not os.path.lexists(target):
            return target
        if not target.is_dir():
            raise InputError(f"{shown(folder)}: found a file; expected a folder to write into, or a new name")
        if force or not any(target.iterdir()) or earlier_pictures(target) is not None:
            return target
    except OSError as error:
        raise InputError(f"{shown(folder)}: cannot look into this folder: {reason(error)}") from None
    raise InputError(
        f"{shown(folder)}: this folder has files that are no earlier output of 'glinfer look'; name a new or empty "
        "folder, or give --force to write between them"
    )


def earlier_pictures(folder: Path) -> list[str] | None:
    """The pictures that an earlier run wrote into a folder, as its ``look.json`` has them; None where none did."""
    try:
        found = json.loads((folder / DATA).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return None
    pictures = found.get("pictures")
    names = [each.get("file") for each in pictures if isinstance(each, dict)] if isinstance(pictures, list) else []
    # The file may be anybody's: nothing is ever removed but what this module could have written.
    return [name for name in names if isinstance(name, str) and _OWN_PICTURE.fullmatch(name)]


@contextlib.contextmanager
def filling(target: Path) -> Iterator[Path]:
    """A folder to write into; what is in it when the block ends goes into ``target``, made if it is not there.

    Files are renamed one by one, the page last; the pictures of an earlier run that are not written again are removed.
    When the block fails in any way, ``target`` stays as it was.

    Raises:
        FormatError: the operating system reports an error inside the block (a full disk, say).
    """
    made = not target.exists()
    new = target / f".glinfer-{secrets.token_hex(8)}.tmp"
    try:
        new.mkdir(parents=True)
        yield new
        stale = set(earlier_pictures(target) or ())
        files = sorted((path for path in new.rglob("*") if path.is_file()), key=lambda path: path.name in (DATA, PAGE))
        for path in files:
            into = target / path.relative_to(new)
            into.parent.mkdir(exist_ok=True)
            path.replace(into)
            stale.discard(path.relative_to(new).as_posix())
        for name in stale:
            (target / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty, or never there
                (target / name).parent.rmdir()
        made = False
    except OSError as error:
        raise FormatError(
            f"{shown(target)}: cannot write it: {reason(error)}; check the folder, its permissions and the free space"
        ) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                target.rmdir()
