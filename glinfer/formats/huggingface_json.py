"""The JSON files of a Hugging Face model, and settings out of them that are what they should be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

from glinfer.errors import FormatError
from glinfer.formats.files import opened, shown

_LARGEST_NUMBER = 1e30

_quoting = Repr()
_quoting.maxstring = _quoting.maxother = 120
quoted = _quoting.repr
"""A value or name out of a file for a message: in quotes, and shortened when it is absurdly long."""


def read_json(path: Path, longest: int) -> dict[str, Any]:
    """The JSON object in a file of at most ``longest`` bytes.

    Raises:
        FormatError: the file cannot be read, is longer, is no JSON, or holds something other than an object.
    """
    label = shown(path)
    with opened(path) as (file, size):
        text = file.read(longest + 1)
    if len(text) > longest:
        raise FormatError(f"{label}: found {max(size, len(text))} bytes; expected JSON of at most {longest} bytes")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise FormatError(f"{label}: found no JSON in its {len(text)} bytes ({words}); get the file again") from None
    if not isinstance(values, dict):
        raise FormatError(f"{label}: found a JSON {type(values).__name__}; expected an object with names and values")
    return values


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of at least ``least``; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class Settings:
    """Settings by name, read with a check of what each is.

    Attributes:
        values: as the file has them.
        label: what messages begin with: the file, and where in it the settings are.
    """

    values: Mapping[str, Any]
    label: str

    def refused(self, name: str, expected: str) -> FormatError:
        """The error that says what a setting is, and what was expected."""
        return FormatError(f"{self.label}: {name} is {quoted(self.values[name])}; expected {expected}")

    def given(self, name: str) -> bool:
        """Whether a setting is there and is not null."""
        return self.values.get(name) is not None

    def whole(self, name: str, default: int, *, least: int = 1) -> int:
        """A whole number; ``default`` where it is left out.

        Raises:
            FormatError: it is something else, or less than ``least``.
        """
        value = self.values.get(name, default)
        if not is_whole(value, least):
            raise self.refused(name, f"a whole number of at least {least}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0; ``default`` where it is left out, if there is one.

        Raises:
            FormatError: it is something else, or is missing.
        """
        if name not in self.values and default is None:
            raise FormatError(f"{self.label}: found no {name}; expected a number above 0")
        value = self.values.get(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < _LARGEST_NUMBER:
            raise self.refused(name, "a number above 0")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false; ``default`` where it is left out.

        Raises:
            FormatError: it is something else.
        """
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false")
        return value

    def one_of(self, name: str, known: Mapping[str, str], default: str) -> str:
        """What ``known`` has for a setting; for ``default`` where it is left out.

        Raises:
            FormatError: it is none of the names in ``known``.
        """
        value = self.values.get(name, default)
        if not isinstance(value, str) or value not in known:
            raise FormatError(
                f"{self.label}: {name} is {quoted(value)}, which is not supported; expected one of {', '.join(known)}"
            )
        return known[value]
