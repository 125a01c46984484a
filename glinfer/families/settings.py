"""The settings in a ``config.json`` or in the metadata of a GGUF file, each checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import Repr
from typing import Any

import numpy as np

from glinfer.errors import FormatError
from glinfer.limits import MAX_JSON_NUMBER

_quoting = Repr()
_quoting.maxstring = _quoting.maxother = 120
quoted = _quoting.repr
"""Quote a value or name from a file for a message, shortened if it is long."""


def is_integer(value: object, least: int) -> bool:
    """Whether a value is an integer of at least ``least``, and not true or false."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def shortest(value: float) -> float:
    """The shortest decimal of a number that is exactly a float32: 1e-05 for 9.99999974737875e-06; others unchanged."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value


@dataclass(frozen=True)
class Unread:
    """A value of a GGUF file that was skipped; the error of a reader that needs its key has these words."""

    words: str

    def __repr__(self) -> str:
        """The words."""
        return self.words


@dataclass(frozen=True)
class Settings:
    """Settings by name, each checked when it is read; null counts as missing.

    Attributes:
        values: the settings as the file has them.
        label: the prefix of messages: the file, and the key of the settings in it.
    """

    values: Mapping[str, Any]
    label: str

    def where(self, name: str) -> str:
        """The file and the setting, for messages."""
        return f"{self.label}: {name}"

    def value(self, name: str) -> Any:
        """A setting, unchecked; None if it is missing."""
        return self.values.get(name)

    def refused(self, name: str, expected: str) -> FormatError:
        """An error that names a setting, its value, and what was expected."""
        found = quoted(self.values[name]) if name in self.values else "left out"
        return FormatError(f"{self.where(name)} is {found}; expected {expected}")

    def missing(self, name: str, expected: str) -> FormatError:
        """An error for a setting that the file has to have."""
        return FormatError(f"{self.label}: found no {name}; expected {expected}")

    def given(self, name: str) -> bool:
        """Whether a setting is present and not null."""
        return self.value(name) is not None

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int | None = None) -> int:
        """Read an integer; a missing one is ``default``, if that is given.

        Raises:
            FormatError: the setting is not an integer, less than ``least``, more than ``most``, or missing without
                a default.
        """
        value = default if (found := self.value(name)) is None else found
        if value is None:
            raise self.missing(name, "an integer")
        if not is_integer(value, least):
            raise self.refused(name, f"an integer of at least {least}")
        if most is not None and value > most:
            raise self.refused(name, f"an integer from {least} to {most}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """Read a number above 0; a missing one is ``default``, if that is given.

        Raises:
            FormatError: the setting is something else, or is missing without a default.
        """
        value = default if (found := self.value(name)) is None else found
        if value is None:
            raise self.missing(name, "a number above 0")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < MAX_JSON_NUMBER:
            raise self.refused(name, "a number above 0")
        return float(value)

    def numbers(self, name: str, count: int, default: list[float] | None = None) -> list[float]:
        """Read a list of ``count`` numbers above 0, or of any length if ``count`` is 0; a missing one is ``default``.

        Raises:
            FormatError: the setting is something else, or is missing without a default.
        """
        found = default if (value := self.value(name)) is None else value
        if not isinstance(found, list) or (count and len(found) != count):
            raise self.refused(name, f"a list of {count} numbers above 0")
        each = Settings({f"{name}[{index}]": number for index, number in enumerate(found)}, self.label)
        return [each.number(key) for key in each.values]

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
                f"{self.where(name)} is {quoted(value)}, which is not supported; expected one of {', '.join(known)}"
            )
        return known[value]

    def only(self, name: str, harmless: tuple[object, ...]) -> None:
        """Refuse values of a setting that are not ``harmless``, as they change the computation.

        Raises:
            FormatError: the setting has another value.
        """
        if name in self.values and self.value(name) not in harmless:
            words = ", or ".join(dict.fromkeys(str(value).lower() for value in harmless))
            raise FormatError(
                f"{self.where(name)} is {quoted(self.value(name))}, which is not supported; expected {words}"
            )


@dataclass(frozen=True)
class Keys(Settings):
    """The metadata of a GGUF file for its architecture, by key; ``label`` includes the architecture.

    A list with one value for each layer counts as the value that all layers share.
    """

    def where(self, name: str) -> str:
        """The file and the whole key, for messages."""
        return f"{self.label}.{name}"

    def listed(self, name: str) -> Any:
        """A value, a list with one value for each layer, or None.

        Raises:
            FormatError: the file's reader skipped the value.
        """
        value = self.values.get(name)
        if isinstance(value, Unread):
            raise FormatError(f"{self.where(name)} is {value}")
        return value

    def value(self, name: str) -> Any:
        """A value, unchecked; None if it is missing.

        Raises:
            FormatError: the value is a list, and layers differ.
        """
        value = self.listed(name)
        if not isinstance(value, list):
            return value
        if not value or any(other != value[0] for other in value):
            raise self.refused(name, "the same for all layers; such models are not supported")
        return value[0]

    def smallest(self, name: str) -> int:
        """Read an integer of at least 1, or the smallest in a list with one for each layer."""
        value = self.listed(name)
        if not isinstance(value, list) or not value or not all(is_integer(each, 1) for each in value):
            return self.integer(name)
        return int(min(value))

    def missing(self, name: str, expected: str) -> FormatError:
        """An error for a key that the file has to have."""
        return FormatError(f"{self.where(name)} is missing, and this architecture needs it; get another conversion")

    def number(self, name: str, default: float | None = None) -> float:
        """Read a number above 0, as its shortest decimal.

        Raises:
            FormatError: the value is something else, or is missing without a default.
        """
        return shortest(super().number(name, default))
