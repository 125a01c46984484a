"""The lines of a batch, the forms that parse them, and their results."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import Any

from glinfer.errors import InputError
from glinfer.formats.files import AnyPath, shown
from glinfer.formats.jsonl import at_line, is_blank, parse_object, read_lines, short
from glinfer.jobs.files import open_source
from glinfer.limits import MAX_PROMPT_LINE_BYTES
from glinfer.text.tokenizer import encodable

Key = str | int
_KEY_BYTES = 16


def check_keys(found: Collection[str], known: Collection[str], other: str, command: str) -> None:
    """Refuse unknown keys of a line; only lines for the other ``command`` have the key ``other``."""
    for key in found:
        if key not in known:
            hint = f"; {command} reads such lines" if other in found else ""
            raise InputError(f"unknown key {short(key)}; known: {', '.join(known)}{hint}")


@dataclass(frozen=True)
class RequestLine:
    """One line of an input as a request.

    Attributes:
        number: its number in the file, from 1.
        key: its unique id.
        url: the route; empty for the prompts of one model.
        digest: a hash of everything that determines the result; by default ``batch_req_`` and 24 hex digits.
    """

    number: int
    key: Key
    url: str
    body: dict[str, Any]
    digest: str = ""

    def __post_init__(self) -> None:
        """Hash the request."""
        if not self.digest:
            object.__setattr__(self, "digest", f"batch_req_{hex_of([self.key, self.url, self.body])[:24]}")


@dataclass(frozen=True)
class LineResult:
    """The result of a line.

    Attributes:
        data: the object to write.
        failed: whether it goes to the file of errors.
        dropped: tokens dropped by a full context.
    """

    line: RequestLine
    data: dict[str, Any]
    failed: bool = False
    prompt_tokens: int = 0
    tokens: int = 0
    dropped: int = 0


class LineForm(ABC):
    """The form of the lines of an input and of its results.

    Attributes:
        noun: the word for a line in messages.
        example: a line, for messages.
        twins: the end of a message about two lines with one id.
        changed: part of a message about a line that has changed since its result was made.
        result_start: the first bytes of every result.
    """

    noun: str
    example: str
    twins = "expected ids that differ"
    changed = " has changed"
    result_start = b'{"id": '

    @abstractmethod
    def parse(self, number: int, found: dict[str, Any]) -> RequestLine:
        """Check the object of line ``number``."""

    @abstractmethod
    def finished(self, found: dict[str, Any]) -> tuple[Key, str] | None:
        """The id and the digest of the line of a result; None if the object is not a result."""

    def read(self, path: AnyPath) -> Generator[RequestLine, None, None]:
        """Yield the checked lines of a file, without empty ones."""
        empty = True
        with open_source(path) as file:
            for number, data in read_lines(file, path, MAX_PROMPT_LINE_BYTES):
                if not is_blank(data):
                    empty = False
                    with at_line(path, number):
                        yield self.parse(number, parse_object(data, self.example))
        if empty:
            raise InputError(
                f"{shown(path)}: found no {self.noun} in it; expected one JSON object per line, such as {self.example}"
            )


@dataclass(frozen=True)
class Shard:
    """Part ``number``, from 1, of the ``count`` parts of an input, which a hash of the ids decides."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/8``."""
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if found and 1 <= int(found[1]) <= int(found[2]):
            return cls(int(found[1]), int(found[2]))
        raise InputError(f"the shard is {short(text)}; expected a part and the number of parts, such as 1/8")

    def has(self, key: Key) -> bool:
        """Whether the line of an id is in this part."""
        return self.count == 1 or int.from_bytes(hash_of(key)[:8], "big") % self.count == self.number - 1

    def __str__(self) -> str:
        """The text of :meth:`parse`."""
        return f"{self.number}/{self.count}"


def hex_of(value: object) -> str:
    """The SHA-256 of a JSON value, in hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def hash_of(key: Key) -> bytes:
    """A hash of an id, 16 bytes; a number and its digits are different ids."""
    return hashlib.sha256(json.dumps(key).encode()).digest()[:_KEY_BYTES]


def seed_of(key: Key) -> int:
    """The default seed of a line: 63 bits of a hash of its id."""
    return int.from_bytes(hashlib.sha256(b"seed " + json.dumps(key).encode()).digest()[:8], "big") >> 1


def text_of(name: str, value: object, expected: str = "text") -> str:
    """Check a text of a line."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {short(value)}; expected {expected}")
    return encodable(value, name)
