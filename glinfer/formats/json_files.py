"""JSON files of models: reading them within limits, and checking each setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from reprlib import Repr
from typing import Any

from glinfer.errors import FormatError
from glinfer.formats.files import opened, shown, words_of
from glinfer.limits import MAX_JSON_NUMBER, MAX_JSON_VALUES

_quoting = Repr()
_quoting.maxstring = _quoting.maxother = 120
quoted = _quoting.repr
"""Quote a value or name from a file for a message, shortened if it is long."""


def check_values(text: bytes, label: str, most: int = MAX_JSON_VALUES) -> None:
    """Refuse JSON of more than ``most`` values, before it is parsed.

    Raises:
        FormatError: the text has more opening brackets and commas than ``most``.
    """
    found = text.count(b",") + text.count(b"[") + text.count(b"{")
    if found > most:
        raise FormatError(f"{label}: found JSON of some {found} values, which exceeds the limit of {most}")


def read_json(path: Path, longest: int, most: int = MAX_JSON_VALUES) -> dict[str, Any]:
    """Read the JSON object in a file of at most ``longest`` bytes and ``most`` values.

    Raises:
        FormatError: the file cannot be read, exceeds a limit, is not JSON, or holds something other than an object.
    """
    values = _parsed(path, longest, most)
    if not isinstance(values, dict):
        raise FormatError(
            f"{shown(path)}: found a JSON {type(values).__name__}; expected an object with names and values"
        )
    return values


def read_json_list(path: Path, longest: int) -> list[Any]:
    """Read the JSON array in a file of at most ``longest`` bytes.

    Raises:
        FormatError: as in :func:`read_json`, but for an array.
    """
    values = _parsed(path, longest, MAX_JSON_VALUES)
    if not isinstance(values, list):
        raise FormatError(f"{shown(path)}: found a JSON {type(values).__name__}; expected an array")
    return values


def _parsed(path: Path, longest: int, most: int) -> Any:
    label = shown(path)
    with opened(path) as (file, size):
        text = file.read(min(size, longest) + 1)  # read() allocates its argument at once
    if len(text) > longest:
        raise FormatError(f"{label}: found JSON of {max(size, len(text))} bytes, which exceeds the limit of {longest}")
    check_values(text, label, most)
    try:
        return json.loads(text)
    except RecursionError:
        raise FormatError(f"{label}: its JSON is nested too deep, which is not supported") from None
    except ValueError as error:
        words = words_of(error)
        raise FormatError(f"{label}: found no JSON in its {len(text)} bytes ({words}); get the file again") from None


def check_plain_name(name: str, what: str, beside: str) -> None:
    """Refuse a file name, read from a file, that leads to another folder.

    Raises:
        FormatError: the name is a path; the message begins with ``what``.
    """
    # Windows rules cover every separator and drive, so a plain name is plain on every system.
    if PureWindowsPath(name).name != name or name in ("", ".", ".."):
        raise FormatError(
            f"{what} {quoted(name)} is a path; expected the plain name of a file beside {beside}; "
            "do not trust these files"
        )


def is_unicode(text: str) -> bool:
    """Whether a text has a UTF-8 form; JSON allows half a surrogate pair, which has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of at least ``least``, and not true or false."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class Settings:
    """Settings by name, each checked when it is read; null counts as missing.

    Attributes:
        values: the settings as the file has them.
        label: the prefix of messages: the file, and the place of the settings in it.
    """

    values: Mapping[str, Any]
    label: str

    def refused(self, name: str, expected: str) -> FormatError:
        """An error that names a setting, its value, and what was expected."""
        found = quoted(self.values[name]) if name in self.values else "left out"
        return FormatError(f"{self.label}: {name} is {found}; expected {expected}")

    def given(self, name: str) -> bool:
        """Whether a setting is present and not null."""
        return self.values.get(name) is not None

    def whole(self, name: str, default: int, *, least: int = 1, most: int | None = None) -> int:
        """Read a whole number; a missing one is ``default``.

        Raises:
            FormatError: the setting is not a whole number, less than ``least``, or more than ``most``.
        """
        value = self.values[name] if self.given(name) else default
        if not is_whole(value, least):
            raise self.refused(name, f"a whole number of at least {least}")
        if most is not None and value > most:
            raise self.refused(name, f"a whole number from {least} to {most}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """Read a number above 0; a missing one is ``default``, if that is given.

        Raises:
            FormatError: the setting is something else, or is missing without a default.
        """
        if not self.given(name) and default is None:
            raise FormatError(f"{self.label}: found no {name}; expected a number above 0")
        value = self.values[name] if self.given(name) else default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < MAX_JSON_NUMBER:
            raise self.refused(name, "a number above 0")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Read true or false; a missing one is ``default``.

        Raises:
            FormatError: the setting is something else.
        """
        value = self.values[name] if self.given(name) else default
        if not isinstance(value, bool):
            raise self.refused(name, "true or false")
        return value

    def one_of(self, name: str, known: Mapping[str, str], default: str) -> str:
        """Translate a setting by ``known``; a missing one is ``default``.

        Raises:
            FormatError: the setting is not a key of ``known``.
        """
        value = self.values[name] if self.given(name) else default
        if not isinstance(value, str) or value not in known:
            raise FormatError(
                f"{self.label}: {name} is {quoted(value)}, which is not supported; expected one of {', '.join(known)}"
            )
        return known[value]
