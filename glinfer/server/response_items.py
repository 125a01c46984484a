"""The items of /v1/responses: a request's items as messages, and an answer's items with their events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from glinfer.server.errors import ApiError
from glinfer.server.generation import new_id
from glinfer.server.protocol import InputItem, joined
from glinfer.server.structured import CalledFunction, ToolCall
from glinfer.server.tool_calls import CallDeltas
from glinfer.structured.tools import CallForm
from glinfer.text.reply import ChatPart

Event = tuple[str, dict[str, Any]]


def messages_of(given: str | Sequence[InputItem], instructions: str | None) -> list[dict[str, Any]]:
    """The conversation of a request in the form for templates; ``instructions`` come first.

    Calls are added to the assistant's message before them, if any.

    Raises:
        ApiError: an item is malformed or not supported.
    """
    first = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*first, {"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for place, item in enumerate(given):
        if item.type == "function_call":
            call = _call(place, item)
            names[item.call_id or ""] = call["function"]["name"]
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output":
            if item.call_id is None or item.output is None:
                raise ApiError(f"input item {place} lacks call_id or output; expected both", param="input")
            name = {"name": names[item.call_id]} if item.call_id in names else {}
            messages.append({"role": "tool", "content": joined(item.output), "tool_call_id": item.call_id, **name})
        elif item.type != "reasoning":
            messages.append(_message(place, item))
    if first and messages and messages[0]["role"] == "system":  # templates accept one system prompt
        head = messages.pop(0)
        first[0]["content"] += f"\n\n{head['content']}"
    return [*first, *messages]


def _message(place: int, item: InputItem) -> dict[str, Any]:
    if item.type == "item_reference":
        raise ApiError(
            f"input item {place} refers to an earlier answer, and none are kept; send the item itself", param="input"
        )
    if item.role is None or item.content is None:
        raise ApiError(f"input item {place} lacks role or content; expected a message", param="input")
    return {"role": "system" if item.role == "developer" else item.role, "content": joined(item.content)}


def _call(place: int, item: InputItem) -> dict[str, Any]:
    if item.name is None or item.arguments is None or item.call_id is None:
        raise ApiError(f"input item {place} lacks call_id, name or arguments; expected a call", param="input")
    function = CalledFunction(name=item.name, arguments=item.arguments)
    return ToolCall(id=item.call_id, function=function).for_template(place, "input")


class OutputItems:
    """The output of an answer in progress: a message, calls, or both.

    Attributes:
        items: the items so far; complete after :meth:`finish`.
    """

    def __init__(self, form: CallForm | None) -> None:
        """Start an answer of a model with this call form, or None without calls."""
        self.items: list[dict[str, Any]] = []
        self._calls = None if form is None else CallDeltas(form)
        self._open = False

    def push(self, text: str, calls: Sequence[ChatPart] = (), *, last: bool) -> Iterator[Event]:
        """Add the next piece of the answer and yield its events; consume them all."""
        deltas: list[dict[str, Any]]
        deltas = [{"content": text}] if self._calls is None else self._calls.push(text, calls, last=last)
        for delta in deltas:
            if delta.get("content"):
                yield from self._say(delta["content"])
            for call in delta.get("tool_calls", ()):
                yield from self._go_on_calling(call)

    def finish(self, status: str) -> Iterator[Event]:
        """End the last item with the status of the answer; an answer without items gets an empty message."""
        if not self.items:
            yield from self._say("")
        yield from self._close(status)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _say(self, text: str) -> Iterator[Event]:
        if not self._open or self.items[-1]["type"] != "message":
            yield from self._begin({"id": new_id("msg_"), "type": "message", "role": "assistant", "content": []})
            self.items[-1]["content"] = [_part("")]
            yield "response.content_part.added", {**self._place, "content_index": 0, "part": _part("")}
        self.items[-1]["content"][0]["text"] += text
        if text:
            yield "response.output_text.delta", {**self._place, "content_index": 0, "delta": text, "logprobs": []}

    def _go_on_calling(self, call: dict[str, Any]) -> Iterator[Event]:
        function = call["function"]
        if "id" in call:
            item = {"id": new_id("fc_"), "type": "function_call", "call_id": call["id"], "name": function["name"]}
            yield from self._begin({**item, "arguments": ""})
        self.items[-1]["arguments"] += function["arguments"]
        if function["arguments"]:
            yield "response.function_call_arguments.delta", {**self._place, "delta": function["arguments"]}

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        yield from self._close("completed")
        self.items.append({**item, "status": "in_progress"})
        self._open = True
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": dict(self.items[-1])}

    def _close(self, status: str) -> Iterator[Event]:
        if not self._open:
            return
        item, self._open = self.items[-1], False
        item["status"] = status
        if item["type"] == "message":
            place, (part,) = {**self._place, "content_index": 0}, item["content"]
            yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**place, "part": part}
        else:
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", {**self._place, **told}
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
