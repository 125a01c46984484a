"""Tool calls whose names and arguments stand between tags: a grammar for replies, and a parser.

Values of type string are bare text, and others are JSON. Arguments are in the order of the tool's properties.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from glinfer.errors import StructureError
from glinfer.structured.calls import CallParser, Schemas, ToolPart, called_or_text, spelled, until, written_schema

_KNOWN = {"type", "enum", "title", "description", "default", "examples"}


@dataclass(frozen=True)
class TagForm:
    """The texts of a form.

    Attributes:
        name: ``glm-4.5``, ``minimax``, ``seed`` or ``coder``.
        mark: text that only templates of this form have.
        opening: the beginning of the first call; text may come before it.
        before_name, after_name: the texts around the name of a tool.
        before_key, before_value, after_value: the texts around an argument's name and its value.
        closing: text after the arguments of a call.
        between: text between two calls, before ``before_name``.
        end: text after the last call.
        loose: whether line breaks may be left out.
        texts: tools and their arguments whose values are bare text.
        control: ids of the control tokens in the texts.
    """

    name: str
    mark: str
    opening: str
    before_name: str
    after_name: str
    before_key: str
    before_value: str
    after_value: str
    closing: str
    between: str
    end: str
    loose: bool = False
    texts: frozenset[tuple[str, str]] = frozenset()
    control: Mapping[str, int] = field(default_factory=dict)

    def of(self, tools: Schemas) -> TagForm:
        """The form with these tools."""
        pairs = ((tool, key, each) for tool, (schema, _) in tools.items() for key, each in _properties(schema).items())
        return replace(self, texts=frozenset((tool, key) for tool, key, each in pairs if _is_text(each)))

    @cached_property
    def call(self) -> re.Pattern[str]:
        """A call after ``opening``: its tool, and its arguments as text."""
        pair = self.pair.pattern.replace("((?", "(?:(?")
        name = f'{self._pattern(self.before_name)}([^<>"\\s]*){self._pattern(self.after_name)}'
        return re.compile(rf"\s*{name}\s*((?:{pair}\s*)*){self._pattern(self.closing)}", re.DOTALL)

    @cached_property
    def pair(self) -> re.Pattern[str]:
        """An argument: its name and its value."""
        parts = [self._pattern(text) for text in (self.before_key, self.before_value, self.after_value)]
        key, value = (f"((?:(?!{end}).)*)" for end in parts[1:])  # each ends where the next text first begins
        return re.compile(f"{parts[0]}{key}{parts[1]}{value}{parts[2]}", re.DOTALL)

    def _pattern(self, text: str) -> str:
        return re.escape(text).replace("\\\n", "\n?" if self.loose else "\n")


TAG_FORMS = (
    TagForm(
        *("glm-4.5", "<arg_key>", "<tool_call>", "", "", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
        *("</tool_call>", "\n<tool_call>", "", True),
    ),
    TagForm(
        *("minimax", "<minimax:tool_call>", "<minimax:tool_call>", '\n<invoke name="', '">'),
        *('<parameter name="', '">', "</parameter>", "</invoke>", "", "\n</minimax:tool_call>"),
    ),
    TagForm(
        *("seed", "<seed:tool_call>", "<seed:tool_call>", "\n<function=", ">", "<parameter=", ">", "</parameter>"),
        *("</function>\n</seed:tool_call>", "\n<seed:tool_call>", ""),
    ),
    TagForm(
        *("coder", "<parameter=", "<tool_call>", "\n<function=", ">", "<parameter=", ">\n", "\n</parameter>"),
        *("</function>\n</tool_call>", "\n<tool_call>", ""),
    ),
)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _is_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def tagged_grammar(form: TagForm, tools: Schemas, *, required: bool, parallel: bool) -> str:
    """The grammar of replies with calls, in llguidance's Lark notation.

    Raises:
        StructureError: the schema of a text has keywords that are not supported, and its tool is strict.
    """

    def written(text: str) -> str:
        if not form.loose or "\n" not in text:
            return spelled(text, form.control) if text else ""
        return ' "\\n"? '.join(spelled(part, form.control) for part in text.split("\n") if part)

    line, rules = ('"\\n"?' if form.loose else '"\\n"'), list[str]()
    for number, (tool, (schema, strict)) in enumerate(tools.items()):
        found, needed = [f"{written(form.before_name + tool + form.after_name)} {line}"], schema.get("required")
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        for key, each in _properties(schema).items():
            after = written(form.after_value)
            if not _is_text(each):
                own = {**each, **shared} if isinstance(each, Mapping) else {}
                value = f"%json {written_schema(own, strict)} {after}"
            elif strict and (unknown := sorted(each.keys() - _KNOWN)):
                raise StructureError(
                    f"the keyword {unknown[0]!r} in {key} of the tool {tool} is not supported; leave it out, or strict"
                )
            elif isinstance(each.get("enum"), list) and each["enum"]:
                value = f"({' | '.join(json.dumps(str(text)) for text in each['enum'])}) {after}"
            else:
                value = "text"
            pair = f"{written(form.before_key + key + form.before_value)} {value} {line}"
            found.append(pair if isinstance(needed, list) and key in needed else f"({pair})?")
        rules.append(f"call{number}: {' '.join(found)} {written(form.closing)}")
    between = f"{line} {written(form.between.removeprefix(chr(10)))}" if form.between else ""
    several = f"call ({between} call)*" if parallel else "call"
    calls = f"{several} {written(form.end)}"
    rules.append(f"call: {' | '.join(f'call{number}' for number in range(len(tools)))}")
    start = called_or_text(form.opening, calls, form.control, required=required)
    return "\n".join([*start, until("text", form.after_value, form.control), *rules])


class TagParser(CallParser):
    """Splits the pieces of a reply into text and whole calls."""

    def __init__(self, form: TagForm) -> None:
        """Start a reply."""
        super().__init__(form.opening)
        self._form = form

    def _call(self) -> ToolPart | None:
        form, end = self._form, self._form.end.strip()
        if end and self._held.lstrip().startswith(end):
            self._held, self._inside = self._held.lstrip()[len(end) :], False
            return ToolPart()
        found = form.call.match(self._held) if form.closing in self._held else None
        if found is None:
            return None
        self._held, self._inside = self._held[found.end() :], bool(end)
        name, arguments = found[1], {}
        for key, value in form.pair.findall(found[2]):
            arguments[key] = value if (name, key) in form.texts else _read(value)
        self.calls += 1
        return ToolPart(call=self.calls - 1, name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _read(value: str) -> Any:
    """A value as JSON, or as text where it is none."""
    try:
        return json.loads(value)
    except ValueError:
        return value
