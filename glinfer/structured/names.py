"""Rewrite ``propertyNames`` of a JSON schema, which llguidance lacks, as ``patternProperties``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from glinfer.errors import StructureError
from glinfer.families.settings import quoted

_KEY = "propertyNames"
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({_KEY, "enum", "const", "default", "examples"})
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
_KINDS = ("enum", "const", "pattern", "format")
_REPEATED = re.compile(r"\^(\[(?:[^\[\]\\]|\\.)+\]|\\[dws]|[\w.-])([+*])\$")
_DATE = (
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])"
_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_FORMATS = {"date": _DATE, "date-time": f"{_DATE}T{_TIME}", "time": _TIME, "uuid": _UUID}


def named_by_patterns(text: str) -> str:
    """Rewrite each ``propertyNames`` in a schema's JSON; the result may refuse some valid objects."""
    if f'"{_KEY}"' not in text:
        return text
    root = json.loads(text)

    def rewritten(schema: Any) -> Any:
        if isinstance(schema, list):
            return [rewritten(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        found = {}
        for key, value in schema.items():
            if key in _BY_NAME and isinstance(value, dict):
                found[key] = {name: rewritten(each) for name, each in value.items()}
            else:
                found[key] = value if key in _DATA else rewritten(value)
        names = found.pop(_KEY, True)
        try:
            resolved = _resolved(names, root)
            return {**found, **_patterns(resolved, found)} if resolved else found
        except (AttributeError, TypeError):
            raise _refused(f"{quoted(names)}; expected a schema") from None

    return json.dumps(rewritten(root), ensure_ascii=False)


def _resolved(names: Any, root: Any) -> dict[str, Any]:
    """The schema of names without annotations, and with its reference resolved."""
    if isinstance(names, dict) and isinstance(names.get("$ref"), str):
        target = root
        for part in names["$ref"].removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, dict) else None
        if isinstance(target, dict):
            names = {**target, **{key: value for key, value in names.items() if key != "$ref"}}
    if isinstance(names, bool):
        return {} if names else {"enum": []}
    return {key: value for key, value in names.items() if key not in _NOTES and (key, value) != ("type", "string")}


def _patterns(names: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that replace ``propertyNames`` of an object, including its own of the same name."""
    kinds, lengths = [name for name in _KINDS if name in names], names.keys() & {"minLength", "maxLength"}
    kind, low, high = "".join(kinds), names.get("minLength", 0), names.get("maxLength", 1 << 32)
    properties, patterns = schema.get("properties") or {}, schema.get("patternProperties") or {}
    rest, closed = schema.get("additionalProperties", True), {"additionalProperties": False}
    if names.keys() - lengths - {*kinds} or len(kinds) > 1 or type(low) is not int or type(high) is not int:
        raise _refused(f"{quoted(dict(names))}; expected one of {', '.join(_KINDS)}, and lengths")
    if kind in ("enum", "const") and not patterns:
        listed = names["enum"] if kind == "enum" else [names["const"]]
        allowed = [each for each in listed if isinstance(each, str) and low <= len(each) <= high]
        own = {name: each for name, each in properties.items() if name in allowed}
        texts = ["".join(f"\\x{{{ord(letter):x}}}" for letter in each) for each in allowed if each not in own]
        return {**closed, "properties": own, "patternProperties": {f"^(?:{'|'.join(texts)})$": rest} if texts else {}}
    if properties or (patterns and (kinds or len(patterns) > 1)):
        raise _refused("properties or patternProperties next to it; leave one of them out")
    if kind == "format" and names["format"] not in _FORMATS:
        raise _refused(f"the format {quoted(names['format'])}; expected one of {', '.join(_FORMATS)}")
    pattern = f"^{_FORMATS[names['format']]}$" if kind == "format" else str(names.get("pattern", r"^[\s\S]*$"))
    if patterns:  # pydantic writes a pattern with a length as patternProperties
        ((pattern, rest),) = patterns.items()
    if lengths:
        found = _REPEATED.fullmatch(pattern)
        if found is None:
            raise _refused(f"a length next to the pattern {quoted(pattern)}; write the length into the pattern")
        pattern = f"^{found[1]}{{{max(low, found[2] == '+')},{names.get('maxLength', '')}}}$"
    return {**closed, "patternProperties": {pattern: rest}}


def _refused(what: str) -> StructureError:
    return StructureError(f"json_schema has an unsupported {_KEY}: found {what}")
