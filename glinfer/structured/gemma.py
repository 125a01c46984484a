"""Tool calls of Gemma 4: ``<|tool_call>call:NAME{key:value,…}<tool_call|>``, several after each other.

Keys are bare words in alphabetical order, and texts stand between two of the token ``<|"|>``, without escapes. Numbers,
true, false, null, lists and objects are as in JSON, without spaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from glinfer.structured.calls import TEXT, Schemas
from glinfer.structured.values import VALUES, SchemaRules

OPENING, _CLOSING, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_RULES = (
    f"text: {_QUOTE} STRING {_QUOTE}",
    *VALUES,
    'key: KEY ":"',
    "STRING: /([^<]|<+[^<|])*<*/",
    'BOOLEAN: "true" | "false"',
    'NULL: "null"',
    'COMMA: ","',
    r"KEY: /[^:,{}\[\]<>\s]+/",
    TEXT,
    "thought: <|channel> TEXT <channel|>",
)


def gemma_grammar(tools: Schemas, *, required: bool, parallel: bool) -> str:
    """The grammar of replies with calls, in llguidance's Lark notation."""
    rules, calls = list(_RULES), []
    for number, (name, (schema, strict)) in enumerate(tools.items()):
        found = _Values(f"a{number}", rules, name, strict=strict)
        arguments = found.members(schema, "", found.key, "pairs")
        calls.append(f'{OPENING} {json.dumps(f"call:{name}{{")} {arguments} "}}" {_CLOSING}')
    several = "call+" if parallel else "call"
    start = f"start: thought* {several}" if required else f"start: thought* TEXT {several.replace('+', '*')}"
    start = start if required or parallel else f"{start}?"
    return "\n".join([start, f"call: {' | '.join(calls)}", *rules])


class _Values(SchemaRules):
    """The rules of one schema."""

    def key(self, name: str) -> str:
        """A bare word."""
        return json.dumps(f"{name}:")

    def literal(self, value: object) -> str:
        """One value as a call has it."""
        if isinstance(value, str):
            return f"{_QUOTE} {json.dumps(value, ensure_ascii=False)} {_QUOTE}" if value else f"{_QUOTE} {_QUOTE}"
        return json.dumps(json.dumps(value, separators=(",", ":")))

    def order(self, names: Iterable[str]) -> list[str]:
        """Alphabetical."""
        return sorted(names, key=str.lower)


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
