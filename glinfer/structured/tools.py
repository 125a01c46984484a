"""Tool calls in replies: the form of each family of chat templates, a grammar for its replies, and a parser.

Eight forms are supported, and the template's source shows which one a model has learned:

* ``hermes`` (Hermes, Qwen 2.5 and 3, SmolLM3): ``<tool_call>``, a line ``{"name": …, "arguments": {…}}``,
  ``</tool_call>``; several calls follow each other.
* ``list`` (SmolLM2): ``<tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>``.
* ``bare`` (Llama 3.1 to 3.3): the whole reply is one ``{"name": …, "parameters": {…}}``.
* ``glm-4.5`` (GLM-4.5 to 4.7), ``minimax`` (MiniMax-M2), ``coder`` (Qwen3-Coder, Qwen 3.5): tags enclose the name, each
  argument's name and its value, see :mod:`glinfer.structured.tagged`.
* ``harmony`` (gpt-oss): a call is a separate message, whose header names the tool:
  ``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>``. Text cannot spell these control
  tokens, so :class:`glinfer.text.chat.ReplySplitter` finds these calls instead of a parser here.
* ``gemma4`` (Gemma 4): control tokens enclose a call and its texts, see :mod:`glinfer.structured.gemma`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from glinfer.errors import StructureError
from glinfer.structured.gemma import OPENING, gemma_grammar
from glinfer.structured.names import named_by_patterns
from glinfer.structured.parts import ToolPart
from glinfer.structured.tagged import TAG_FORMS, Schemas, TagForm, tagged_grammar

_TAG, _END_TAG = "<tool_call>", "</tool_call>"
_JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: letters, digits, and ``_.-``.
        parameters: the JSON schema of its arguments.
        strict: refuse unsupported keywords of the schema; otherwise they are ignored.
    """

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True)
class ToolForm:
    """The text of tool calls in a family of templates.

    Attributes:
        name: ``hermes``, ``list`` or ``bare``.
        opening: the beginning of the first call; a reply without it has no calls.
        before_name: text before the name, after ``opening`` or ``between``.
        before_arguments: text between the name and the arguments.
        closing: text after the arguments of a call.
        between: text between two calls, up to ``before_name``; empty if a reply can have only one call.
        end: text after the last call.
        anywhere: whether text may come before the first call.
    """

    name: str
    opening: str
    before_name: str
    before_arguments: str
    closing: str
    between: str
    end: str
    anywhere: bool


@dataclass(frozen=True)
class MessageForm:
    """Tool calls between control tokens.

    Attributes:
        name: ``harmony``, or ``gemma4``, whose calls stand within a message.
    """

    name: str


CallForm = ToolForm | TagForm | MessageForm
_ARGUMENTS = '", "arguments": '
FORMS: Mapping[str, CallForm] = {
    form.name: form
    for form in (
        ToolForm("hermes", _TAG, '\n{"name": "', _ARGUMENTS, "}\n" + _END_TAG, "\n" + _TAG, "", True),
        ToolForm("list", _TAG + "[", '{"name": "', _ARGUMENTS, "}", ", ", "]" + _END_TAG, True),
        ToolForm("bare", '{"name": "', "", '", "parameters": ', "}", "", "", False),
        *TAG_FORMS,
        MessageForm("harmony"),
        MessageForm("gemma4"),
    )
}
"""The call forms by name."""


def tool_form(template: str) -> CallForm:
    """The call form of a chat template, found in its source."""
    if "<|channel|>" in template and "functions." in template:
        return FORMS["harmony"]
    if OPENING in template:
        return FORMS["gemma4"]
    tagged = next((form for form in TAG_FORMS if form.mark in template), None)
    if tagged is not None:
        return tagged
    if _TAG in template:
        return FORMS["list" if _TAG + "[" in template else "hermes"]
    if "python_tag" in template or '"parameters": ' in template:
        return FORMS["bare"]
    raise StructureError(
        f"this model's chat template writes tool calls in an unknown form; expected one of {', '.join(FORMS)}"
    )


def schemas_of(tools: Sequence[Tool]) -> Schemas:
    """The schema of each tool's arguments, and whether it is strict."""
    return {tool.name: (tool.parameters or _NO_ARGUMENTS, tool.strict) for tool in tools}


def call_grammar(form: CallForm, tools: Sequence[Tool], *, required: bool, parallel: bool) -> str:
    """The grammar of replies that may call these tools, in llguidance's Lark notation.

    Args:
        form: the form of the calls.
        tools: the tools that may be called, at least one.
        required: require a call, without other text. Otherwise a reply is text, or calls; if the form allows it, text
            may come before them.
        parallel: allow several calls if the form has them.
    """
    if form == FORMS["gemma4"]:
        return gemma_grammar(schemas_of(tools), required=required, parallel=parallel)
    if isinstance(form, TagForm):
        written_as = partial(_schema_of, separators={})
        return tagged_grammar(form, schemas_of(tools), written_as, required=required, parallel=parallel)
    written = _message_call if isinstance(form, MessageForm) else partial(_call, form)
    rules = [f"call{number}: {written(tool)}" for number, tool in enumerate(tools)]
    rules.append(f"call: {' | '.join(f'call{number}' for number in range(len(tools)))}")
    if isinstance(form, MessageForm):
        return "\n".join([f"start: thought* {'call' if required else '(answer | call)'}", *_MESSAGES, *rules])
    more = f" ({json.dumps(form.between + form.before_name)} call)*" if parallel and form.between else ""
    end = f" {json.dumps(form.end)}" if form.end else ""
    calls = f"call{more}{end}"
    head = json.dumps(form.opening + form.before_name)
    if required:
        start = [f"start: {head} {calls}"]
    elif form.anywhere:
        # The first opening ends the text before it.
        start = [
            "start: TEXT | called",
            f"called: opened {json.dumps(form.before_name)} {calls}",
            f"opened[lazy]: TEXT {json.dumps(form.opening)}",
            "TEXT: /(.|\\n)*/",
        ]
    else:
        start = [f"start: TEXT | {head} {calls}", "TEXT: /([^{](.|\\n)*)?/"]
    return "\n".join([*start, *rules])


_MESSAGES = (
    'thought: <|channel|> ("analysis" | "commentary") <|message|> TEXT <|end|> <|start|> "assistant"',
    'answer: <|channel|> "final" <|message|> TEXT',
    'kind: (" "? <|constrain|>? "json")?',
    "TEXT: /(.|\\n)*/",
)


def _message_call(tool: Tool) -> str:
    name = json.dumps(f" to=functions.{tool.name}")
    header = f'(<|channel|> "commentary" {name} | {name} <|channel|> "commentary")'
    # Models write this JSON with or without spaces.
    return f"{header} kind <|message|> %json {_schema(tool, item_separator=', ?', key_separator=': ?')}"


def _call(form: ToolForm, tool: Tool) -> str:
    head = json.dumps(tool.name + form.before_arguments)
    return f"{head} %json {_schema(tool)} {json.dumps(form.closing)}"


def _schema(tool: Tool, **separators: str) -> str:
    """The schema of a tool's arguments, with llguidance's options."""
    return _schema_of(tool.parameters or _NO_ARGUMENTS, tool.strict, separators)


def _schema_of(given: Mapping[str, Any], strict: bool, separators: Mapping[str, str]) -> str:
    schema = {**given, "x-guidance": {**_JSON_FORM, **separators, "lenient": not strict}}
    try:
        return named_by_patterns(json.dumps(schema))
    except StructureError:
        if strict:
            raise
        return json.dumps(schema)


class ToolParser:
    """Splits the pieces of a reply into text and calls; the reply must follow the grammar.

    Text that may begin a call is held back until it is certain.
    """

    def __init__(self, form: ToolForm) -> None:
        """Start a reply."""
        self._form = form
        self._held = ""
        # The next part: text, or a call's name, its arguments, or the text after it.
        self._state = "text"
        self._begun = False
        self.calls = 0
        self._depth, self._quoted, self._escaped = 0, False, False

    def push(self, text: str) -> list[ToolPart]:
        """Add the next piece of the reply, and return the parts that are now certain."""
        self._held += text
        parts: list[ToolPart] = []
        while (part := self._next()) is not None:
            if part != ToolPart():
                parts.append(part)
        return parts

    def finish(self) -> list[ToolPart]:
        """End the reply, and return the text that was held back."""
        held, self._held = self._held, ""
        return [ToolPart(held)] if held and self._state == "text" else []

    def _next(self) -> ToolPart | None:
        """The next part, or None until more text comes."""
        return {"text": self._text, "name": self._name, "arguments": self._arguments, "behind": self._behind}[
            self._state
        ]()

    def _text(self) -> ToolPart | None:
        opening = self._form.opening
        if not self._form.anywhere and self._begun:
            found = -1
        else:
            found = self._held.find(opening) if self._form.anywhere else (0 if self._held.startswith(opening) else -1)
        if found >= 0:
            before, self._held = self._held[:found], self._held[found + len(opening) :]
            self._state = "name"
            # Spaces between the text and the call belong to the form.
            return ToolPart(before.rstrip() if before.strip() else "")
        open_at = self._open_tail(opening) if self._form.anywhere or not self._begun else len(self._held)
        sure = self._held[:open_at]
        if self._form.anywhere:  # spaces before a call are not shown
            sure = sure.rstrip()
        if not sure:
            return None
        self._begun = True
        self._held = self._held[len(sure) :]
        return ToolPart(sure)

    def _open_tail(self, opening: str) -> int:
        """The start of the longest tail that may begin ``opening``."""
        starts = range(len(self._held)) if self._form.anywhere else range(min(1, len(self._held)))
        return next((start for start in starts if opening.startswith(self._held[start:])), len(self._held))

    def _name(self) -> ToolPart | None:
        head = self._form.before_name
        end = self._held.find(self._form.before_arguments, len(head))
        if end < 0:
            return None
        name, self._held = self._held[len(head) : end], self._held[end + len(self._form.before_arguments) :]
        self._state, self._depth, self._quoted = "arguments", 0, False
        self.calls += 1
        return ToolPart(call=self.calls - 1, name=name)

    def _arguments(self) -> ToolPart | None:
        for place, letter in enumerate(self._held):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = letter == "\\", letter != '"'
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    found, self._held = self._held[: place + 1], self._held[place + 1 :]
                    self._state = "behind"
                    return ToolPart(call=self.calls - 1, arguments=found)
        found, self._held = self._held, ""
        return ToolPart(call=self.calls - 1, arguments=found) if found else None

    def _behind(self) -> ToolPart | None:
        more = self._form.closing + self._form.between
        if self._form.between and self._held.startswith(more):
            self._held, self._state = self._held[len(more) :], "name"
            return ToolPart()
        return None
