"""Tool calls as a list of Python's: ``[NAME(key=value, …), …]``.

Texts have either quotes and the escapes that JSON and Python share; ``True``, ``False`` and ``None`` may be as in JSON.
Values of schemas with keywords such as ``pattern`` are JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from glinfer.errors import StructureError
from glinfer.structured.calls import Schemas, written_schema
from glinfer.structured.values import NOTES, VALUES, SchemaRules

# The escape of a letter is not half a surrogate pair.
_ESCAPE = r"\\([\"'\\bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))"
_RULES = (
    "text: DOUBLE | SINGLE",
    *VALUES,
    "key: text COLON",
    'named: (KEY "=" any (COMMA KEY "=" any)*)?',
    rf"""DOUBLE: /"([^"\\]|{_ESCAPE})*"/""",
    rf"SINGLE: /'([^'\\]|{_ESCAPE})*'/",
    'BOOLEAN: "True" | "False" | "true" | "false"',
    'NULL: "None" | "null"',
    "COMMA: /, ?/",
    "COLON: /: ?/",
    r"""KEY: /[^=,:(){}\[\]"'\s]+/""",
)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORD, _PLAIN = re.compile(r"[\w.+-]+"), re.compile(r"[^\\\"']+")


def python_rules(tools: Schemas) -> tuple[list[str], list[str]]:
    """What matches the arguments of each tool, and the rules of a grammar for them, in llguidance's Lark notation.

    Raises:
        StructureError: a strict schema has unsupported keywords, or the name of an argument has ``=``.
    """
    rules, arguments = list(_RULES), list[str]()
    for number, (tool, (schema, strict)) in enumerate(tools.items()):
        values = _Values(f"a{number}", rules, tool, strict=strict)
        values.shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        rest = {key: each for key, each in schema.items() if key not in (*values.shared, "$schema")}
        if SchemaRules.unknown(values, rest):
            SchemaRules.otherwise(values, rest, "")
        arguments.append(values.members(schema, "", values.name, "named"))
    return arguments, rules


class _Values(SchemaRules):
    """The rules of one schema."""

    shared: Mapping[str, Any]  # definitions that its values refer to

    def name(self, argument: str) -> str:
        """The name of an argument."""
        if "=" in argument:
            raise StructureError(f"the argument {argument!r} of the tool {self._tool} has '='; rename it")
        return json.dumps(f"{argument}=")

    def key(self, name: str) -> str:
        """A text."""
        return f"{self.literal(name)} COLON"

    def literal(self, value: object) -> str:
        """Python's literal, or JSON's."""
        written = {json.dumps(value, ensure_ascii=False), json.dumps(value)}
        if isinstance(value, str) and not re.search(r"[\\'\x00-\x1f]", value):
            written.add(f"'{value}'")
        written |= {repr(value)} if value is None or isinstance(value, bool) else set()
        return f"({' | '.join(map(json.dumps, sorted(written)))})"

    def unknown(self, schema: Mapping[str, Any]) -> list[str]:
        """Also those whose rules need others next to them."""
        found = super().unknown(schema)
        found += ["additionalProperties"] if isinstance(schema.get("additionalProperties"), Mapping) else []
        found += ["required"] if "required" in schema and "properties" not in schema else []
        return [*found, *(["anyOf"] if "anyOf" in schema and schema.keys() - NOTES - {"anyOf"} else [])]

    def otherwise(self, schema: Mapping[str, Any], where: str) -> str | None:
        """JSON."""
        own, rule = {**self.shared, **schema}, f"{self._prefix}_j{len(self._rules)}"
        written = written_schema(own, self._strict, item_separator=", ?", key_separator=": ?")
        self._rules.append(f"{rule}: %json {written}")
        return rule


class PythonArguments:
    """Converts the arguments of a call, in pieces of any size, to JSON."""

    def __init__(self) -> None:
        """Start after the bracket that opens them."""
        self._begun, self._names, self._quote, self._depth = False, True, "", 0

    def take(self, text: str) -> tuple[str, str, bool]:
        """Convert what is certain: its JSON, the rest of the text, and whether the arguments have ended."""
        found = [] if self._begun else ["{"]
        self._begun = True
        while text:
            if text[0] == ")" and not self._quote and not self._depth:
                return "".join([*found, "}"]), text, True
            size, written = self._next(text)
            if not size:
                break
            found.append(written)
            text = text[size:]
        return "".join(found), text, False

    def _next(self, text: str) -> tuple[int, str]:
        """The size of the next piece, 0 until more text comes, and its JSON."""
        letter = text[0]
        if self._quote:
            if letter == "\\":
                return (2, "'" if text[1] == "'" else text[:2]) if len(text) > 1 else (0, "")
            if letter != self._quote:
                run = _PLAIN.match(text)
                return (run.end() if run else 1), json.dumps(run[0] if run else letter, ensure_ascii=False)[1:-1]
            self._quote = ""
            return 1, '"'
        if self._names:
            size = text.find("=") + 1
            self._names = not size
            return size, f"{json.dumps(text[: size - 1].strip(), ensure_ascii=False)}: " if size else ""
        if word := _WORD.match(text):
            return (word.end(), _WORDS.get(word[0], word[0])) if word.end() < len(text) else (0, "")
        if letter in "\"'":
            self._quote = letter
            return 1, '"'
        self._depth += (letter in "[{") - (letter in "]}")
        self._names = letter == "," and not self._depth
        return 1, ", " if self._names else letter
