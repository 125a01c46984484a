"""Values of a JSON schema that a tool call writes in its own form: the rules of a grammar for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from glinfer.errors import StructureError

_KNOWN = {"type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items", "nullable"}
NOTES = {"title", "description", "default", "examples"}
"""Keywords that allow nothing more or less."""


VALUES = (
    'any: text | NUMBER | BOOLEAN | NULL | "[" (any (COMMA any)*)? "]" | "{" pairs "}"',
    "pairs: (key any (COMMA key any)*)?",
    "INTEGER: /-?(0|[1-9][0-9]*)/",
    r"NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/",
)
"""The rules of any value; the grammar needs the rules ``text``, ``key``, ``BOOLEAN``, ``NULL`` and ``COMMA`` too."""
_PLAIN = {kind: kind.upper() for kind in ("integer", "number", "boolean", "null")}


class SchemaRules(ABC):
    """The rules of one schema."""

    def __init__(self, prefix: str, rules: list[str], tool: str, *, strict: bool) -> None:
        """Add rules with this prefix to ``rules``; ``strict`` refuses unsupported keywords of the schema of a tool."""
        self._prefix, self._rules, self._tool, self._strict = prefix, rules, tool, strict
        self._made = 0

    @abstractmethod
    def key(self, name: str) -> str:
        """What comes before the value of a property."""

    @abstractmethod
    def literal(self, value: object) -> str:
        """What matches one value."""

    def order(self, names: Iterable[str]) -> list[str]:
        """The properties in the order of their values."""
        return list(names)

    def unknown(self, schema: Mapping[str, Any]) -> list[str]:
        """The keywords that have no rules."""
        return sorted(map(str, schema.keys() - _KNOWN - NOTES))

    def otherwise(self, schema: Mapping[str, Any], where: str) -> str | None:
        """What matches a schema with such keywords; None to ignore them.

        Raises:
            StructureError: the schema is strict.
        """
        if not self._strict:
            return None
        found = f"{where or 'its arguments'} of the tool {self._tool}"
        raise StructureError(
            f"the keyword {self.unknown(schema)[0]!r} in {found} is not supported; leave it out, or strict"
        )

    def value(self, schema: object, where: str) -> str:
        """What matches a schema; anything where it is not supported."""
        if not isinstance(schema, Mapping):
            return "any"
        if self.unknown(schema) and (found := self.otherwise(schema, where)):
            return found
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            return f"({' | '.join(map(self.literal, values))})" if values else "any"
        if isinstance(schema.get("anyOf"), list) and schema["anyOf"]:
            return f"({' | '.join(self.value(each, where) for each in schema['anyOf'])})"
        given = schema.get("type")
        kinds = list(given) if isinstance(given, list) else [given]
        if schema.get("nullable") is True:
            kinds.append("null")
        return f"({' | '.join(self._of_kind(kind, schema, where) for kind in kinds)})"

    def _of_kind(self, kind: object, schema: Mapping[str, Any], where: str) -> str:
        if kind == "string":
            return "text"
        if kind == "array":
            item = self.value(schema["items"], f"{where}[]") if "items" in schema else "any"
            return f'"[" ({item} (COMMA {item})*)? "]"'
        if kind == "object":
            return f'"{{" {self.members(schema, where, self.key, "pairs")} "}}"'
        return _PLAIN.get(kind, "any") if isinstance(kind, str) else "any"

    def members(self, schema: Mapping[str, Any], where: str, key: Callable[[str], str], free: str) -> str:
        """The properties of an object, without brackets: ``key`` comes before each; ``free`` if it has none."""
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping):
            return free
        names = self.order(properties)
        first = f"{self._prefix}_{self._made}"
        self._made += 1
        pairs = [f"{key(name)} {self.value(properties[name], f'{where}.{name}'.lstrip('.'))}" for name in names]
        # Rule m3 is the properties from number 3 on if none is written yet; n3 is the same after one, with a comma.
        for kind, comma in (("m", ""), ("n", "COMMA ")):
            for number, name in enumerate(names):
                rule = f"{first}{kind}{number}: {comma}{pairs[number]} {first}n{number + 1}"
                needed = isinstance(required, list) and name in required
                self._rules.append(rule if needed else f"{rule} | {first}{kind}{number + 1}")
            self._rules.append(f'{first}{kind}{len(names)}: ""')
        return f"{first}m0"
