"""JSON-lines files: one strict JSON object a line, with errors that name file and line."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from glinfer.errors import InputError
from glinfer.formats.files import AnyPath, decode_text, shown
from glinfer.limits import MAX_LINE_BRACKETS

_MAX_SHOWN_CHARACTERS = 60


def read_lines(file: BinaryIO, path: AnyPath, most: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over the lines of an open file, newlines included, with their numbers from 1."""
    for number in itertools.count(1):
        data = file.readline(most + 1)
        if not data:
            return
        if len(data) > most:
            raise InputError(
                f"{shown(path)}:{number}: found a line of more than {most // 1_000_000} MB; expected one object a line"
            )
        yield number, data


def is_blank(data: bytes) -> bool:
    """Whether a line has only white space, or the byte-order mark of an empty first line."""
    return data.strip() in (b"", codecs.BOM_UTF8)


@contextlib.contextmanager
def at_line(path: AnyPath, number: int) -> Iterator[None]:
    """Prefix the InputErrors of a block with file and line."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{shown(path)}:{number}: {error}") from None


def parse_object(data: bytes, example: str) -> dict[str, Any]:
    """Parse one JSON object; errors show ``example``.

    Raises:
        InputError: the line has something else, a duplicate key, NaN or an infinity.
    """
    if data.count(b"[") + data.count(b"{") > MAX_LINE_BRACKETS:
        raise InputError(
            f"this has more than {MAX_LINE_BRACKETS} brackets; expected an object a line, such as {example}"
        )
    try:
        text = decode_text(data, "this line").strip()
        found = json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise InputError(
            f"this is not JSON ({error.msg}, at character {error.colno}); expected an object a line, such as {example}"
        ) from None
    except (ValueError, RecursionError):  # thousands of digits, thousands of brackets
        raise InputError(f"this JSON is too large to parse; expected an object a line, such as {example}") from None
    if not isinstance(found, dict):
        raise InputError(f"found {short(found)}; expected a JSON object, such as {example}")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = names.most_common(1)[0][0]
        raise InputError(f"the key {short(twice)} appears twice; expected it once")
    return found


def _no_number(constant: str) -> NoReturn:
    raise InputError(f"found {constant}, which is not JSON; expected a finite number")


def short(value: object) -> str:
    """A value from JSON for a message: on one line, and shortened."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return f"a large {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[: _MAX_SHOWN_CHARACTERS - 3]}..."
