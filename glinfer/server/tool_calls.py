"""Tool calls of an answer in the form of chat completions: whole, or as deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glinfer.server.generation import new_id
from glinfer.structured.calls import CallParser, ToolPart
from glinfer.structured.gemma import GemmaArguments
from glinfer.structured.tagged import TagForm, TagParser
from glinfer.structured.tools import FORMS, CallForm, ToolForm, ToolParser
from glinfer.text.reply import ChatPart

_MISTRAL_ID = 9  # letters and digits in ids, which its templates require


class CallDeltas:
    """The text and the calls of one answer."""

    def __init__(self, form: CallForm) -> None:
        """Start an answer of a model with this call form."""
        self._parser: CallParser | None = ToolParser(form) if isinstance(form, ToolForm) else None
        if isinstance(form, TagForm):
            self._parser = TagParser(form)
        self._id_length = _MISTRAL_ID if form.name in ("calls", "args") else None
        self._gemma, self._arguments = form == FORMS["gemma4"], GemmaArguments()
        self._apart = -1
        self._content = ""
        self._calls: list[dict[str, Any]] = []

    def push(self, text: str, more: Sequence[ChatPart] = (), *, last: bool) -> list[dict[str, Any]]:
        """Add the next piece of the answer, and the calls in ``more``, which are separate messages; return deltas."""
        if self._parser is None:
            parts = [ToolPart(text)] if text else []
        else:
            parts = [*self._parser.push(text), *(self._parser.finish() if last else ())]
        return [self._delta(part) for part in (*parts, *(self._message(part) for part in more if part.kind == "call"))]

    def _message(self, part: ChatPart) -> ToolPart:
        self._apart += bool(part.name)
        if self._gemma and part.name:
            self._arguments = GemmaArguments()
        text = self._arguments.push(part.text) if self._gemma else part.text
        return ToolPart(call=self._apart, name=part.name, arguments=text)

    def _delta(self, part: ToolPart) -> dict[str, Any]:
        if part.call is None:
            self._content += part.text
            return {"content": part.text}
        if part.call == len(self._calls):  # a name may be empty
            function = {"name": part.name, "arguments": part.arguments}
            call = {
                "id": new_id("call" if self._id_length else "call_")[: self._id_length],
                "type": "function",
                "function": function,
            }
            self._calls.append({**call, "function": {**function}})
            return {"tool_calls": [{"index": part.call, **call}]}
        self._calls[part.call]["function"]["arguments"] += part.arguments
        return {"tool_calls": [{"index": part.call, "function": {"arguments": part.arguments}}]}

    def message(self) -> dict[str, Any]:
        """The fields of the whole message; the content is None if it has only calls."""
        calls = {"tool_calls": self._calls} if self._calls else {}
        return {"content": self._content if self._content or not calls else None, **calls}

    def finish_reason(self, reason: str | None) -> str | None:
        """The reason, with ``tool_calls`` instead of ``stop`` if there are calls."""
        return "tool_calls" if self._calls and reason == "stop" else reason
