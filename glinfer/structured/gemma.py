"""Tool calls of Gemma 4: ``<|tool_call>call:NAME{key:value,…}<tool_call|>``, several after each other.

Keys are bare words in alphabetical order, and texts stand between two of the token ``<|"|>``, without escapes. Numbers,
true, false, null, lists and objects are as in JSON, without spaces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from glinfer.errors import StructureError
from glinfer.structured.parts import TEXT, Schemas

OPENING, _CLOSING, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_KNOWN = {"type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items", "nullable"}
_NOTES = {"title", "description", "default", "examples"}  # which allow nothing more or less
_PLAIN = {"integer": "INTEGER", "number": "NUMBER", "boolean": "BOOLEAN", "null": '"null"'}
_RULES = (
    f"text: {_QUOTE} STRING {_QUOTE}",
    'any: text | NUMBER | BOOLEAN | "null" | list | object',
    'list: "[" (any ("," any)*)? "]"',
    'object: "{" (KEY ":" any ("," KEY ":" any)*)? "}"',
    "STRING: /([^<]|<+[^<|])*<*/",
    "INTEGER: /-?(0|[1-9][0-9]*)/",
    r"NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/",
    'BOOLEAN: "true" | "false"',
    r"KEY: /[^:,{}\[\]<>\s]+/",
    TEXT,
    "thought: <|channel> TEXT <channel|>",
)


def gemma_grammar(tools: Schemas, *, required: bool, parallel: bool) -> str:
    """The grammar of replies with calls, in llguidance's Lark notation."""
    rules, calls = list(_RULES), []
    for number, (name, (schema, strict)) in enumerate(tools.items()):
        found = _Schema(f"a{number}", rules, name, strict=strict)
        arguments = found.members(schema, "")
        calls.append(f"{OPENING} {json.dumps(f'call:{name}')} {arguments} {_CLOSING}")
    several = "call+" if parallel else "call"
    start = f"start: thought* {several}" if required else f"start: thought* TEXT {several.replace('+', '*')}"
    start = start if required or parallel else f"{start}?"
    return "\n".join([start, f"call: {' | '.join(calls)}", *rules])


class _Schema:
    """The rules of one schema."""

    def __init__(self, prefix: str, rules: list[str], tool: str, *, strict: bool) -> None:
        self._prefix, self._rules, self._tool, self._strict = prefix, rules, tool, strict
        self._made = 0

    def value(self, schema: object, where: str) -> str:
        """What matches a schema; anything where it is not supported."""
        if not isinstance(schema, Mapping):
            return "any"
        unknown = sorted(map(str, schema.keys() - _KNOWN - _NOTES))
        if unknown and self._strict:
            place = f"{where or 'its arguments'} of the tool {self._tool}"
            raise StructureError(f"the keyword {unknown[0]!r} in {place} is not supported; leave it out, or strict")
        if "const" in schema or isinstance(schema.get("enum"), list):
            values = [schema["const"]] if "const" in schema else schema["enum"]
            return f"({' | '.join(map(_literal, values))})" if values else "any"
        if isinstance(schema.get("anyOf"), list) and schema["anyOf"]:
            return f"({' | '.join(self.value(each, where) for each in schema['anyOf'])})"
        kinds = schema.get("type")
        kinds = [
            *(kinds if isinstance(kinds, list) else [kinds]),
            *(["null"] if schema.get("nullable") is True else []),
        ]
        return f"({' | '.join(self._of_kind(kind, schema, where) for kind in kinds)})"

    def _of_kind(self, kind: object, schema: Mapping[str, Any], where: str) -> str:
        if kind == "string":
            return "text"
        if kind == "array":
            item = self.value(schema["items"], f"{where}[]") if "items" in schema else "any"
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "object":
            return self.members(schema, where) if isinstance(schema.get("properties"), Mapping) else "object"
        return _PLAIN.get(kind, "any") if isinstance(kind, str) else "any"

    def members(self, schema: Mapping[str, Any], where: str) -> str:
        """An object with the properties of a schema in alphabetical order."""
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping):
            return "object"
        names = sorted(properties, key=str.lower)
        first = f"{self._prefix}_{self._made}"
        self._made += 1
        for comma in ("", '"," '):  # from each property on, before and after one is there
            kind = "n" if comma else "m"
            for place, name in enumerate(names):
                pair = f"{json.dumps(f'{name}:')} {self.value(properties[name], f'{where}.{name}'.lstrip('.'))}"
                rule = f"{comma}{pair} {first}n{place + 1}"
                needed = isinstance(required, list) and name in required
                self._rules.append(f"{first}{kind}{place}: {rule}{'' if needed else f' | {first}{kind}{place + 1}'}")
            self._rules.append(f'{first}{kind}{len(names)}: ""')
        return f'"{{" {first}m0 "}}"'


def _literal(value: object) -> str:
    """One value as a call has it."""
    if isinstance(value, str):
        return f"{_QUOTE} {json.dumps(value, ensure_ascii=False)} {_QUOTE}" if value else f"{_QUOTE} {_QUOTE}"
    return json.dumps(json.dumps(value, separators=(",", ":")))


class GemmaArguments:
    """Converts the text of a call, in pieces of any size, to JSON."""

    def __init__(self) -> None:
        """Start before the name of a tool."""
        self._held, self._key, self._quoted = "", "", False
        self._open: list[str] = []  # brackets
        self._names = False  # whether a key comes next

    def push(self, text: str) -> str:
        """Add a piece, and return the JSON that is now certain."""
        self._held += text
        found: list[str] = []
        while self._held:
            if self._held.startswith(_QUOTE):
                self._held, self._quoted = self._held[len(_QUOTE) :], not self._quoted
                found += [] if self._names else ['"']
                continue
            if _QUOTE.startswith(self._held):
                break
            letter, self._held = self._held[0], self._held[1:]
            found.append(self._letter(letter))
        return "".join(found)

    def _letter(self, letter: str) -> str:
        if self._names and (self._quoted or letter not in ":}"):
            self._key += letter
            return ""
        if self._quoted:
            return json.dumps(letter, ensure_ascii=False)[1:-1]
        if letter == ":" and self._names:
            key, self._key, self._names = self._key.strip(), "", False
            return f"{json.dumps(key, ensure_ascii=False)}: "
        if letter in "{[":
            self._open.append(letter)
            self._names = letter == "{"
            return letter
        if not self._open:  # the name, or what follows the call
            return ""
        if letter in "}]":
            self._open.pop()
            self._names = False
        elif letter == ",":
            self._names = self._open[-1] == "{"
            return ", "
        return letter
