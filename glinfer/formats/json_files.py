"""JSON files of models, read within limits."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path, PureWindowsPath
from typing import Any, TypeVar

from glinfer.errors import FormatError
from glinfer.families.settings import quoted
from glinfer.formats.files import read_whole, shown, words_of
from glinfer.limits import MAX_JSON_VALUES

_Kind = TypeVar("_Kind")


def check_values(text: bytes, label: str, most: int = MAX_JSON_VALUES) -> None:
    """Refuse JSON of more than ``most`` values, before it is parsed."""
    found = text.count(b",") + text.count(b"[") + text.count(b"{")
    if found > most:
        raise FormatError(f"{label}: found JSON of some {found} values, which exceeds the limit of {most}")


def read_json(path: Path, longest: int) -> dict[str, Any]:
    """Read the JSON object in a file of at most ``longest`` bytes and MAX_JSON_VALUES values.

    Raises:
        FormatError: the file cannot be read, exceeds a limit, is not JSON, or holds something other than an object.
    """
    return _read(path, longest, dict, "an object with names and values")


def read_json_list(path: Path, longest: int) -> list[Any]:
    """Read the JSON array in a file of at most ``longest`` bytes."""
    return _read(path, longest, list, "an array")


def _read(path: Path, longest: int, kind: type[_Kind], expected: str) -> _Kind:
    label, text = shown(path), read_whole(path, longest, "JSON")
    check_values(text, label)
    try:
        values = json.loads(text)
    except RecursionError:
        raise FormatError(f"{label}: its JSON is nested too deep, which is not supported") from None
    except ValueError as error:
        words = words_of(error)
        raise FormatError(f"{label}: found no JSON in its {len(text)} bytes ({words}); get the file again") from None
    if not isinstance(values, kind):
        raise FormatError(f"{label}: found a JSON {type(values).__name__}; expected {expected}")
    return values


def check_plain_name(name: str, what: str, beside: str) -> None:
    """Refuse a file name, read from a file, that leads to another folder."""
    # Windows rules cover every separator and drive, so a plain name is plain on every system.
    if PureWindowsPath(name).name != name or name in ("", ".", ".."):
        raise FormatError(
            f"{what} {quoted(name)} is a path; expected the plain name of a file next to {beside}; "
            "do not trust these files"
        )


def check_present(names: Collection[str], source: Path, what: str, beside: str) -> None:
    """Refuse a file that names others (``what``) which are not all in its folder."""
    missing = [name for name in names if not os.path.lexists(source.parent / name)]
    if missing:
        raise FormatError(
            f"{shown(source)}: {len(missing)} of the {len(names)} {what} it names are missing, first "
            f"{quoted(missing[0])}; expected them next to {beside}; get the missing files"
        )


def is_unicode(text: str) -> bool:
    """Whether a text has a UTF-8 form; JSON allows half a surrogate pair, which has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
