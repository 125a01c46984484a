"""What the forms of tool calls share: pieces of replies, the beginning of grammars, and a parser of replies."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glinfer.errors import StructureError
from glinfer.structured.names import named_by_patterns

Schemas = Mapping[str, tuple[Mapping[str, Any], bool]]
"""By the name of a tool (letters, digits, and ``_.-``): the JSON schema of its arguments, and whether it is strict.

A strict schema is refused if it has unsupported keywords; otherwise they are ignored.
"""
_JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
TEXT = "TEXT: /(.|\\n)*/"


@dataclass(frozen=True)
class ToolPart:
    """A piece of a reply: text, or the next piece of a call.

    Attributes:
        text: text outside calls.
        call: index of the call, from 0; None for text.
        name: the name of the tool, in the first piece of a call.
        arguments: the next piece of its arguments as JSON.
    """

    text: str = ""
    call: int | None = None
    name: str = ""
    arguments: str = ""


def spelled(text: str, control: Mapping[str, int]) -> str:
    """A text in a grammar, with control tokens as ids."""
    names = "|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)"
    return (
        " ".join(
            f"<[{control[part]}]>" if part in control else json.dumps(part)
            for part in re.split(f"({names})", text)
            if part
        )
        or '""'
    )


def until(rule: str, end: str, control: Mapping[str, int]) -> str:
    """The rule of a text up to and with the first ``end``; text cannot spell one that begins with a control token."""
    written = spelled(end, control)
    return f"{rule}{'' if written.startswith('<[') else '[lazy]'}: TEXT {written}"


def called_or_text(opening: str, calls: str, control: Mapping[str, int], *, required: bool) -> list[str]:
    """The rules of a reply that is text, or ``calls`` after ``opening``, whose first occurrence ends the text before.

    ``required`` allows only calls, without text before them. ``control`` are the control tokens in texts of the form.
    """
    if required:
        return [f"start: {spelled(opening, control)} {calls}", TEXT]
    return ["start: TEXT | called", f"called: opened {calls}", until("opened", opening, control), TEXT]


def written_schema(given: Mapping[str, Any], strict: bool, **separators: str) -> str:
    """A schema with llguidance's options, for a grammar."""
    schema = {**given, "x-guidance": {**_JSON_FORM, **separators, "lenient": not strict}}
    try:
        return named_by_patterns(json.dumps(schema))
    except StructureError:
        if strict:
            raise
        return json.dumps(schema)


class CallParser(ABC):
    """Splits the pieces of a reply into text and calls; the reply must follow the grammar.

    Text that may begin a call is held back until it is certain.

    Attributes:
        calls: the number of calls so far.
    """

    def __init__(self, opening: str, *, anywhere: bool = True) -> None:
        """Start a reply, in which ``opening`` begins calls; text comes before it only if it may be ``anywhere``."""
        self._opening, self._anywhere = opening, anywhere
        self._held, self._said, self._inside, self.calls = "", False, False, 0

    def push(self, text: str) -> list[ToolPart]:
        """Add the next piece of the reply, and return the parts that are now certain."""
        self._held += text
        parts = list[ToolPart]()
        while (part := self._call() if self._inside else self._text()) is not None:
            if part != ToolPart():
                parts.append(part)
        return parts

    def finish(self) -> list[ToolPart]:
        """End the reply, and return the text that was held back."""
        held, self._held = self._held, ""
        shown = held.strip() if self.calls else held
        return [ToolPart(held)] if shown and not self._inside else []

    def _text(self) -> ToolPart | None:
        """The text before the opening; None until more text comes."""
        held, opening = self._held, self._opening
        starts = range(len(held) if self._anywhere else not self._said)
        begins = (at for at in starts if held.startswith(opening, at) or opening.startswith(held[at:]))
        at = next(begins, len(held))
        sure = held[:at].rstrip() if self._anywhere else held[:at]  # spaces before a call belong to the form
        if held.startswith(opening, at):
            self._held, self._inside = held[at + len(opening) :], True
            return ToolPart(sure)
        self._held, self._said = held[len(sure) :], self._said or bool(sure)
        return ToolPart(sure) if sure else None

    @abstractmethod
    def _call(self) -> ToolPart | None:
        """The next part after the opening, or None until more text comes."""
