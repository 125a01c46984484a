"""The requested structure of a text, with the checks that need no compiler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from glinfer.errors import InputError, StructureError
from glinfer.families.settings import quoted
from glinfer.formats.json_files import is_unicode
from glinfer.limits import MAX_CHOICES, MAX_SCHEMA_PROPERTIES, MAX_STRUCTURE_BYTES, MAX_STRUCTURE_DEPTH
from glinfer.structured.names import named_by_patterns

Kind = Literal["json_schema", "regex", "grammar", "choices"]
OPTIONS: tuple[Kind, ...] = ("json_schema", "regex", "grammar", "choices")
"""The options that request a structure; at most one may be given."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of any JSON object."""

ERROR, PARTIAL = "error", "partial"
"""The values of ``incomplete``: the treatment of a text that ends before its structure is complete."""

_OPENING, _CLOSING = "([{", ")]}"
# Quoted and escaped brackets do not nest.
_QUOTED = re.compile(r'\\.|"(?:[^"\\\n]|\\.)*"', re.DOTALL)


@dataclass(frozen=True)
class Structure:
    """The requested structure of a text.

    Attributes:
        kind: the option that requests it.
        text: the schema as JSON, the regular expression, the grammar in Lark's notation, or the choices as JSON.
    """

    kind: Kind
    text: str

    @classmethod
    def checked(cls, kind: Kind, given: object) -> Structure:
        """The structure that one option requests."""
        made = cls(kind, _text_of(kind, given))
        if not is_unicode(made.text):
            raise StructureError(f"{kind} has half a surrogate pair; expected valid Unicode")
        size = len(made.text.encode("utf-8", "replace"))
        if size > MAX_STRUCTURE_BYTES:
            raise StructureError(f"{kind} has {size} bytes; expected at most {MAX_STRUCTURE_BYTES}")
        if kind in ("regex", "grammar"):
            depth = _depth(made.text)
            if depth > MAX_STRUCTURE_DEPTH:
                raise StructureError(f"{kind} is nested {depth} deep; expected at most {MAX_STRUCTURE_DEPTH}")
        return made


def structure_of(given: Mapping[str, Any]) -> Structure | None:
    """The structure that the options request, or None."""
    named = [(kind, given[kind]) for kind in OPTIONS if given.get(kind) is not None]
    if len(named) > 1:
        raise InputError(f"found both {named[0][0]} and {named[1][0]}; give one of them")
    return Structure.checked(*named[0]) if named else None


def requires_complete(incomplete: object) -> bool:
    """Whether the option ``incomplete`` makes a text with an incomplete structure an error."""
    if incomplete not in (ERROR, PARTIAL):
        raise InputError(f"incomplete is {quoted(incomplete)}; expected {ERROR!r} or {PARTIAL!r}")
    return incomplete == ERROR


def take_structure(options: dict[str, Any]) -> Structure | None:
    """Remove the options that request a structure from ``options``."""
    return structure_of({kind: options.pop(kind, None) for kind in OPTIONS})


def _schema_text(given: object) -> str:
    """A schema as JSON, from a mapping, a boolean, JSON text or a pydantic class."""
    make = getattr(given, "model_json_schema", None)
    if isinstance(given, str):
        if len(given) > MAX_STRUCTURE_BYTES:
            raise StructureError(f"json_schema has {len(given)} characters; expected at most {MAX_STRUCTURE_BYTES}")
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise StructureError(f"json_schema is not JSON: {' '.join(str(error).split())}") from None
    elif callable(make):
        given = make()
    if given is False:
        raise StructureError("json_schema is false, which no text has; expected an object, or true for any JSON")
    if given is True:
        given = {}
    if not isinstance(given, Mapping):
        found = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
        raise StructureError(f"json_schema is {found}; expected an object, its JSON as text, or a pydantic class")
    _check_sizes(given)
    try:
        return named_by_patterns(json.dumps(given, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StructureError(f"json_schema cannot be written as JSON: {error}") from None


def _check_sizes(schema: Mapping[Any, Any]) -> None:
    """Refuse a schema with too many values or properties, or with too much nesting."""
    properties = 0
    for number, (depth, value) in enumerate(_values(schema)):
        if number > MAX_STRUCTURE_BYTES:  # each value takes a byte, unless it contains itself
            raise StructureError(f"json_schema has more than {MAX_STRUCTURE_BYTES} values; expected fewer")
        if depth > MAX_STRUCTURE_DEPTH:
            raise StructureError(f"json_schema is nested more than {MAX_STRUCTURE_DEPTH} deep; expected less")
        if isinstance(value, Mapping) and isinstance(value.get("properties"), Mapping):
            properties += len(value["properties"])
    if properties > MAX_SCHEMA_PROPERTIES:
        raise StructureError(f"json_schema has {properties} properties; expected at most {MAX_SCHEMA_PROPERTIES}")


def _values(given: object) -> Iterator[tuple[int, object]]:
    """Every nested value with its depth; values that are too deep are not entered."""
    waiting: list[tuple[int, object]] = [(1, given)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if depth <= MAX_STRUCTURE_DEPTH and isinstance(value, (Mapping, list, tuple)):
            inner = value.values() if isinstance(value, Mapping) else value
            waiting += [(depth + 1, each) for each in inner]


def _text_of(kind: Kind, given: object) -> str:
    if kind == "json_schema":
        return _schema_text(given)
    if kind == "choices":
        return _choices_text(given)
    if not isinstance(given, str):
        raise StructureError(f"{kind} is {type(given).__name__}; expected a text")
    if not given:
        raise StructureError(f"{kind} is empty; expected at least one character")
    return given


def _choices_text(given: object) -> str:
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise StructureError(f"choices is {type(given).__name__}; expected a list of texts")
    if not given or len(given) > MAX_CHOICES:
        raise StructureError(f"choices has {len(given)} texts; expected 1 to {MAX_CHOICES}")
    for index, each in enumerate(given):
        if not isinstance(each, str) or not each or not is_unicode(each):
            raise StructureError(f"choice {index} is {quoted(each)}; expected a text of at least one character")
    return json.dumps(list(dict.fromkeys(given)), ensure_ascii=False)


def _depth(text: str) -> int:
    """The largest nesting depth of brackets."""
    deepest = depth = 0
    for letter in _QUOTED.sub("", text):
        if letter in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif letter in _CLOSING:
            depth = max(0, depth - 1)
    return deepest
