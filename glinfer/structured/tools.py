"""Tool calls in replies: the form of each family of chat templates, a grammar for its replies, and a parser.

docs/structured.md lists the forms. Text cannot spell the control tokens of ``harmony`` and ``gemma4``, so
:class:`glinfer.text.chat.ReplySplitter` finds these calls instead of a parser here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from glinfer.errors import StructureError
from glinfer.structured.calls import TEXT, CallParser, Schemas, ToolPart, called_or_text, spelled, written_schema
from glinfer.structured.gemma import OPENING, gemma_grammar
from glinfer.structured.python_calls import PythonArguments, python_rules
from glinfer.structured.tagged import TAG_FORMS, TagForm, tagged_grammar

_TAG, _END_TAG = "<tool_call>", "</tool_call>"
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a tool without arguments."""


@dataclass(frozen=True)
class ToolForm:
    """The text of tool calls in a family of templates.

    Attributes:
        name: a name in ``FORMS``.
        mark: text that only templates of this form, and of those after it in ``FORMS``, have.
        opening: the beginning of the first call; a reply without it has no calls.
        before_name: text before the name, after ``opening`` or ``between``.
        before_arguments: text between the name and the arguments.
        closing: text after the arguments of a call.
        between: text between two calls, up to ``before_name``; empty if a reply can have only one call.
        end: text after the last call.
        anywhere: whether text may come before the first call.
        python: whether arguments are Python's instead of JSON.
        control: ids of the control tokens in the texts.
    """

    name: str
    mark: str
    opening: str
    before_name: str
    before_arguments: str
    closing: str
    between: str
    end: str
    anywhere: bool = True
    python: bool = False
    control: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MessageForm:
    """Tool calls between control tokens: ``harmony``, or ``gemma4``, whose calls stand within a message."""

    name: str


CallForm = ToolForm | TagForm | MessageForm
_NAME, _ARGUMENTS = '{"name": "', '", "arguments": '
_LIST = (_NAME, _ARGUMENTS, "}", ", ")
_CALLS = ("", "(", ")", ", ")
FORMS: Mapping[str, CallForm] = {
    form.name: form
    for form in (
        MessageForm("harmony"),
        MessageForm("gemma4"),
        *TAG_FORMS,
        ToolForm("toolcall", "<TOOLCALL>[", "<TOOLCALL>[", *_LIST, "]</TOOLCALL>"),
        ToolForm("tool-calls", "<tool_calls>[", "<tool_calls>[", *_LIST, "]</tool_calls>"),
        ToolForm("list", _TAG + "[", _TAG + "[", *_LIST, "]" + _END_TAG),
        ToolForm("inline", _TAG + "{", _TAG, _NAME, _ARGUMENTS, "}" + _END_TAG, "\n" + _TAG, ""),
        ToolForm("hermes", _TAG, _TAG, "\n" + _NAME, _ARGUMENTS, "}\n" + _END_TAG, "\n" + _TAG, ""),
        ToolForm("args", "[ARGS]", "[TOOL_CALLS]", "", "[ARGS]", "", "[TOOL_CALLS]", ""),
        ToolForm("calls", "[TOOL_CALLS]", "[TOOL_CALLS][", *_LIST, "]"),
        ToolForm("token", "<|tool_call|>", "<|tool_call|>[", *_LIST, "]"),
        ToolForm("prefix", "<|tools_prefix|>", "<|tools_prefix|>[", '{"', '": ', "}", ", ", "]<|tools_suffix|>"),
        ToolForm(
            *("action", "<|START_ACTION|>", "<|START_ACTION|>[", '\n    {"tool_call_id": "0", "tool_name": "'),
            *('", "parameters": ', "}", "", "\n]<|END_ACTION|>"),
        ),
        ToolForm("liquid", "List of tools: ", "<|tool_call_start|>[", *_CALLS, "]<|tool_call_end|>", python=True),
        ToolForm("pythonic", "func_name1(", "[", *_CALLS, "]", False, python=True),
        ToolForm("bare", '"parameters": ', _NAME, "", '", "parameters": ', "}", "", "", False),
    )
}
"""The call forms by name."""
_OTHER_CALLS = ("<function", "tool_name")  # of templates with parameters in their own form


def tool_form(template: str, control: Mapping[str, int] | None = None) -> CallForm:
    """The call form of a chat template, found in its source, with the control tokens of the tokenizer in its texts."""
    if "<|channel|>" in template and "functions." in template:
        return FORMS["harmony"]
    if OPENING in template:
        return FORMS["gemma4"]
    forms = (form for form in FORMS.values() if not isinstance(form, MessageForm) and form.mark in template)
    found = next(forms, None)
    if found is None or (found.name == "bare" and any(text in template for text in _OTHER_CALLS)):
        raise StructureError(
            f"this model's chat template writes tool calls in an unknown form; expected one of {', '.join(FORMS)}"
        )
    texts = [value for value in vars(found).values() if isinstance(value, str)]
    used = {name: token for name, token in (control or {}).items() if any(name in text for text in texts)}
    return replace(found, control={name: token for name, token in used.items() if len(name) > 2})


def call_grammar(form: CallForm, tools: Schemas, *, required: bool, parallel: bool) -> str:
    """The grammar of replies that may call these tools, in llguidance's Lark notation.

    Args:
        form: the form of the calls.
        tools: the tools that may be called, at least one.
        required: require a call, without other text. Otherwise a reply is text, or calls; if the form allows it, text
            may come before them.
        parallel: allow several calls if the form has them.
    """
    if form == FORMS["gemma4"]:
        return gemma_grammar(tools, required=required, parallel=parallel)
    if isinstance(form, TagForm):
        return tagged_grammar(form, tools, required=required, parallel=parallel)
    if isinstance(form, MessageForm):
        rules = _rules(_message_call(name, *schema) for name, schema in tools.items())
        return "\n".join([f"start: thought* {'call' if required else '(answer | call)'}", *_MESSAGES, *rules])
    if form.python:
        arguments, shared = python_rules(tools)
    else:
        arguments, shared = [f"%json {written_schema(*schema)}" for schema in tools.values()], []
    middle, closing = spelled(form.before_arguments, form.control), spelled(form.closing, form.control)
    rules = _rules(f"{json.dumps(name)} {middle} {each} {closing}" for name, each in zip(tools, arguments, strict=True))
    between, before, end = (
        spelled(text, form.control) for text in (form.between + form.before_name, form.before_name, form.end)
    )
    more = f"({between} call)*" if parallel and form.between else ""
    calls = f"{before} call {more} {end}"
    if required or form.anywhere:
        start = called_or_text(form.opening, calls, form.control, required=required)
    else:
        start = [
            f"start: TEXT | {json.dumps(form.opening)} {calls}",
            f"TEXT: /([^\\{form.opening[0]}](.|\\n)*)?/",
        ]
    return "\n".join([*start, *rules, *shared])


def _rules(calls: Iterable[str]) -> list[str]:
    """The rule ``call``, for each of these."""
    rules = [f"call{number}: {call}" for number, call in enumerate(calls)]
    return [*rules, f"call: {' | '.join(f'call{number}' for number in range(len(rules)))}"]


_MESSAGES = (
    'thought: <|channel|> ("analysis" | "commentary") <|message|> TEXT <|end|> <|start|> "assistant"',
    'answer: <|channel|> "final" <|message|> TEXT',
    'kind: (" "? <|constrain|>? "json")?',
    TEXT,
)


def _message_call(name: str, schema: Mapping[str, Any], strict: bool) -> str:
    named = json.dumps(f" to=functions.{name}")
    header = f'(<|channel|> "commentary" {named} | {named} <|channel|> "commentary")'
    # Models write this JSON with or without spaces.
    return (
        f"{header} kind <|message|> %json {written_schema(schema, strict, item_separator=', ?', key_separator=': ?')}"
    )


class ToolParser(CallParser):
    """Splits the pieces of a reply into text and calls, whose arguments come in pieces."""

    def __init__(self, form: ToolForm) -> None:
        """Start a reply."""
        super().__init__(form.opening, anywhere=form.anywhere)
        self._form = form
        # The next part of a call: its name, its arguments, or the text after it.
        self._state = "name"
        self._depth, self._quoted, self._escaped, self._python = 0, False, False, PythonArguments()

    def _call(self) -> ToolPart | None:
        return {"name": self._name, "arguments": self._arguments, "behind": self._behind}[self._state]()

    def _name(self) -> ToolPart | None:
        head = self._form.before_name
        end = self._held.find(self._form.before_arguments, len(head))
        if end < 0:
            return None
        name, self._held = self._held[len(head) : end], self._held[end + len(self._form.before_arguments) :]
        self._state, self._depth, self._quoted, self._python = "arguments", 0, False, PythonArguments()
        self.calls += 1
        return ToolPart(call=self.calls - 1, name=name)

    def _arguments(self) -> ToolPart | None:
        found, self._held, ended = (self._python.take if self._form.python else self._json)(self._held)
        self._state = "behind" if ended else "arguments"
        return ToolPart(call=self.calls - 1, arguments=found) if found else None

    def _json(self, text: str) -> tuple[str, str, bool]:
        """Arguments in JSON, the text after them, and whether they have ended."""
        for index, letter in enumerate(text):
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
                    return text[: index + 1], text[index + 1 :], True
        return text, "", False

    def _behind(self) -> ToolPart | None:
        more = self._form.closing + self._form.between
        if self._form.between and self._held.startswith(more):
            self._held, self._state = self._held[len(more) :], "name"
            return ToolPart()
        return None
