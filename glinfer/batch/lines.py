"""What a batch is made of: lines with ids, the form that reads them, and the results that runners give."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from glinfer.batch.places import open_source
from glinfer.errors import InputError
from glinfer.formats.files import AnyPath, shown
from glinfer.formats.jsonl import at_line, is_blank, parse_object, read_lines, short
from glinfer.limits import MAX_PROMPT_LINE_BYTES

Key = str | int
_KEY_BYTES = 16


class Line(Protocol):
    """One line of an input."""

    @property
    def number(self) -> int:
        """Its number in the file, from 1."""

    @property
    def key(self) -> Key:
        """Its id, which no other line has."""

    @property
    def digest(self) -> str:
        """Hex digits that change with all that determines its result."""


L = TypeVar("L", bound=Line)


@dataclass(frozen=True)
class LineResult(Generic[L]):
    """The result of a line.

    Attributes:
        line: the line.
        data: the object to write.
        failed: whether it belongs to the file of errors.
        prompt_tokens, tokens, dropped: tokens of its prompts, generated ones, and those that a full context dropped.
    """

    line: L
    data: dict[str, Any]
    failed: bool = False
    prompt_tokens: int = 0
    tokens: int = 0
    dropped: int = 0


class LineForm(ABC, Generic[L]):
    """How the lines of an input and of its results read.

    Attributes:
        noun: what a line is called in messages.
        example: a line, for messages.
        twins: what is expected where two lines have one id.
        changed: what is said of a line that was not the same when its result was made.
        result_start: the first bytes of every result.
    """

    noun: str
    example: str
    twins = "expected ids that differ"
    changed = " was another"
    result_start = b'{"id": '

    @abstractmethod
    def parse(self, number: int, found: dict[str, Any]) -> L:
        """Check the object of line ``number``.

        Raises:
            InputError: it cannot be a line.
        """

    @abstractmethod
    def finished(self, found: dict[str, Any]) -> tuple[Key, str] | None:
        """The id and the digest of the line whose result this is; None if it is no result."""

    def read(self, path: AnyPath) -> Generator[L, None, None]:
        """The lines of a file, checked one by one; empty ones are skipped.

        Raises:
            InputError: a line is malformed, or longer than MAX_PROMPT_LINE_BYTES; names the line.
            FormatError: the file cannot be read.
        """
        with open_source(path) as file:
            for number, data in read_lines(file, path, MAX_PROMPT_LINE_BYTES):
                if not is_blank(data):
                    with at_line(path, number):
                        yield self.parse(number, parse_object(data, self.example))

    def empty(self, path: AnyPath) -> InputError:
        """The error for a file without lines."""
        return InputError(
            f"{shown(path)}: found no {self.noun} in it; expected a JSON object a line, such as {self.example}"
        )


@dataclass(frozen=True)
class Shard:
    """One of several parts of an input, by a hash of the ids.

    Attributes:
        number: from 1.
        count: how many parts there are.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/8``.

        Raises:
            InputError: it is no such text.
        """
        number, _, count = text.partition("/")
        if all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (number, count)):
            found = cls(int(number), int(count))
            if 1 <= found.number <= found.count:
                return found
        raise InputError(f"the shard is {short(text)}; expected a part and their number, from 1/8 to 8/8, say")

    def has(self, key: Key) -> bool:
        """Whether the line of an id is in this part."""
        return self.count == 1 or int.from_bytes(hash_of(key)[:8], "big") % self.count == self.number - 1

    def __str__(self) -> str:
        """As it is given."""
        return f"{self.number}/{self.count}"


def hash_of(key: Key) -> bytes:
    """16 bytes for an id; a number and its digits are two ids."""
    return hashlib.sha256(json.dumps(key).encode()).digest()[:_KEY_BYTES]


def seed_of(key: Key) -> int:
    """The seed of a line that names none: 63 bits, from its id alone."""
    return int.from_bytes(hashlib.sha256(b"seed " + json.dumps(key).encode()).digest()[:8], "big") >> 1


def text_of(name: str, value: object, expected: str = "text") -> str:
    """A checked text of a line.

    Raises:
        InputError: it is something else, or no Unicode.
    """
    if not isinstance(value, str):
        raise InputError(f"{name} is {short(value)}; expected {expected}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has half a surrogate pair at character {error.start}; expected Unicode") from None
    return value
