"""The architecture metadata of a GGUF file, checked when it is read."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from glinfer.errors import FormatError
from glinfer.formats.gguf.file import GgufFile, Unread
from glinfer.formats.json_files import quoted


class Keys:
    """The metadata whose keys begin with the name of the architecture."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        """Take the metadata of one file."""
        self._file, self._architecture = file, architecture

    def refuse(self, key: str, words: str) -> NoReturn:
        """Raise a FormatError that names the key and says what is wrong with it."""
        raise FormatError(f"{self._file.source}: {self._architecture}.{key} {words}")

    def listed(self, key: str) -> Any:
        """A value, a list with one value for each layer, or None."""
        value = self._file.metadata.get(f"{self._architecture}.{key}")
        if isinstance(value, Unread):
            self.refuse(key, f"is {value}")
        return value

    def get(self, key: str) -> Any:
        """A value, or None; for a list with one value for each layer, the value that all layers share."""
        value = self.listed(key)
        if not isinstance(value, list):
            return value
        if not value or any(other != value[0] for other in value):
            self.refuse(key, f"is {quoted(value)}; expected the same for all layers; such models are not supported")
        return value[0]

    def only(self, key: str, harmless: tuple[Any, ...]) -> None:
        """Refuse values of a key that are not ``harmless``, as they change the computation."""
        value = self.get(key)
        if value is not None and value not in harmless:
            self.refuse(key, f"is {quoted(value)}, which is not supported; expected {quoted(harmless[-1])}")

    def whole(self, key: str, default: int | None = None, *, most: int | None = None) -> int:
        """A whole number of at least 1, and at most ``most``."""
        value = self.get(key)
        if value is None:
            return int(self._default(key, default))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(key, f"is {quoted(value)}; expected a whole number of at least 1")
        if most is not None and value > most:
            self.refuse(key, f"is {value}; expected a whole number from 1 to {most}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(key)
        if value is None:
            return float(self._default(key, default))
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            self.refuse(key, f"is {quoted(value)}; expected a number above 0")
        return _decimal(value)

    def _default(self, key: str, default: float | None) -> float:
        if default is None:
            self.refuse(key, "is missing, and this architecture needs it; get another conversion")
        return default


def _decimal(value: float) -> float:
    """The shortest decimal number that rounds to a float32: 1e-05 for 9.99999974737875e-06."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else float(value)
