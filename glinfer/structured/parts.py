"""The pieces of a reply with calls of tools."""

from __future__ import annotations

from dataclasses import dataclass


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
