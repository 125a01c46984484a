"""POST /v1/responses, without state: every request has the whole conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.types import ASGIApp

from glinfer.engine.requests import BatchRequest, Running
from glinfer.server.errors import ApiError
from glinfer.server.generation import Usage, answer_size, chat_requests, ended, generating, new_id, now
from glinfer.server.protocol import InputItem, ResponseRequest, joined
from glinfer.server.state import Asked
from glinfer.server.streaming import Events, EventStream, event_bytes
from glinfer.server.structured import CalledFunction, ResponseText, ToolCall, schema_of_format
from glinfer.server.tool_calls import CallDeltas
from glinfer.structured.tools import CallForm
from glinfer.text.reply import ChatPart
from glinfer.text.templates import Rendering

Event = tuple[str, dict[str, Any]]


async def responses(asked: Asked[ResponseRequest]) -> ASGIApp:
    """Respond to an input."""
    body = asked.body
    structure = schema_of_format(None if body.text is None else body.text.format)
    (request,), form = await chat_requests(
        asked,
        lambda: messages_of(body.input, body.instructions),
        {} if structure is None else {"text.format": structure},
        [{**body.sampling(), "max_tokens": body.max_output_tokens}],
        param="input",
        how=Rendering(kwargs=body.chat_template_kwargs or {}),
    )
    answer = _Answer(asked, request, form)
    return EventStream(answer.events(), answer.failed) if body.stream else await answer.whole()


class _Answer:
    """The answer to one request, whole or as events."""

    def __init__(self, asked: Asked[ResponseRequest], request: BatchRequest, form: CallForm | None) -> None:
        self.asked, self.body, self.request = asked, asked.body, request
        self.id, self.output, self.created = new_id("resp_"), OutputItems(form), now()
        self.usage, self.number = Usage(len(request.prompt)), -1

    def _response(self, status: str, error: ApiError | None = None) -> dict[str, Any]:
        usage = None
        if status in ("incomplete", "completed"):
            usage = {
                "input_tokens": self.usage.prompt,
                "input_tokens_details": {"cached_tokens": self.usage.cached},
                "output_tokens": self.usage.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.usage.prompt + self.usage.completion,
            }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None if error is None else {"code": "server_error", "message": str(error)},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "model": self.body.model,
            "output": [] if usage is None else self.output.items,
            "parallel_tool_calls": self.body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": self.body.temperature,
            "text": {"format": _format(self.body.text)},
            "tool_choice": _plain(self.body.tool_choice) or "auto",
            "tools": [_plain(tool) for tool in self.body.tools or ()],
            "top_p": self.body.top_p,
            "truncation": "disabled",
            "usage": usage,
            "metadata": {},
        }

    async def whole(self) -> ASGIApp:
        """The whole answer."""
        (sequence,) = await ended(self.asked, [self.request], self.usage)

        def made() -> dict[str, Any]:
            status = _status(sequence)
            text, parts = sequence.result.text or "", sequence.parts
            for _ in (*self.output.push(text, parts, last=True), *self.output.finish(status)):
                pass  # the events are not sent
            return self._response(status)

        return await self.asked.answer(made, answer_size([sequence]))

    def _event(self, name: str, /, **data: Any) -> bytes:
        self.number += 1
        return event_bytes({"type": name, "sequence_number": self.number, **data}, name)

    async def events(self) -> Events:
        """The events, from response.created to response.completed or response.incomplete."""
        async with generating(self.asked, [self.request], self.usage) as news:
            yield self._event("response.created", response=self._response("in_progress"))
            yield self._event("response.in_progress", response=self._response("in_progress"))
            async for _, event, _ in news:
                for name, data in self.output.push(event.text, event.calls, last=event.result is not None):
                    yield self._event(name, **data)
        status = _status(event.sequence)
        for name, data in self.output.finish(status):
            yield self._event(name, **data)
        yield self._event(f"response.{status}", response=self._response(status))

    def failed(self, error: ApiError) -> bytes:
        """The last event of a failed answer."""
        return self._event("response.failed", response=self._response("failed", error))


def _status(sequence: Running) -> str:
    """The answer's status for a finished sequence."""
    return "incomplete" if sequence.stats.finish_reason == "length" else "completed"


def _format(text: ResponseText | None) -> dict[str, Any]:
    form = None if text is None else text.format
    return {"type": "text"} if form is None else _plain(form)


def _plain(given: Any) -> Any:
    """A part of the request as plain JSON values."""
    return given.model_dump(by_alias=True, exclude_none=True) if isinstance(given, BaseModel) else given


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
    for index, item in enumerate(given):
        if item.type == "function_call":
            call = _call(index, item)
            names[item.call_id or ""] = call["function"]["name"]
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output":
            if item.call_id is None or item.output is None:
                raise ApiError(f"input item {index} lacks call_id or output; expected both", param="input")
            name = {"name": names[item.call_id]} if item.call_id in names else {}
            messages.append({"role": "tool", "content": joined(item.output), "tool_call_id": item.call_id, **name})
        elif item.type != "reasoning":
            messages.append(_message(index, item))
    if first and messages and messages[0]["role"] == "system":  # templates accept one system prompt
        head = messages.pop(0)
        first[0]["content"] += f"\n\n{head['content']}"
    return [*first, *messages]


def _message(index: int, item: InputItem) -> dict[str, Any]:
    if item.type == "item_reference":
        raise ApiError(
            f"input item {index} refers to an earlier answer, and none are kept; send the item itself", param="input"
        )
    if item.role is None or item.content is None:
        raise ApiError(f"input item {index} lacks role or content; expected a message", param="input")
    return {"role": "system" if item.role == "developer" else item.role, "content": joined(item.content)}


def _call(index: int, item: InputItem) -> dict[str, Any]:
    if item.name is None or item.arguments is None or item.call_id is None:
        raise ApiError(f"input item {index} lacks call_id, name or arguments; expected a call", param="input")
    function = CalledFunction(name=item.name, arguments=item.arguments)
    return ToolCall(id=item.call_id, function=function).for_template(index, "input")


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
                yield from self._continue_call(call)

    def finish(self, status: str) -> Iterator[Event]:
        """End the last item with the status of the answer; an answer without items gets an empty message."""
        if not self.items:
            yield from self._say("")
        yield from self._close(status)

    @property
    def _item(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _say(self, text: str) -> Iterator[Event]:
        if not self._open or self.items[-1]["type"] != "message":
            yield from self._begin({"id": new_id("msg_"), "type": "message", "role": "assistant", "content": []})
            self.items[-1]["content"] = [_part("")]
            yield "response.content_part.added", {**self._item, "content_index": 0, "part": _part("")}
        self.items[-1]["content"][0]["text"] += text
        if text:
            yield "response.output_text.delta", {**self._item, "content_index": 0, "delta": text, "logprobs": []}

    def _continue_call(self, call: dict[str, Any]) -> Iterator[Event]:
        function = call["function"]
        if "id" in call:
            item = {"id": new_id("fc_"), "type": "function_call", "call_id": call["id"], "name": function["name"]}
            yield from self._begin({**item, "arguments": ""})
        self.items[-1]["arguments"] += function["arguments"]
        if function["arguments"]:
            yield "response.function_call_arguments.delta", {**self._item, "delta": function["arguments"]}

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
            where, (part,) = {**self._item, "content_index": 0}, item["content"]
            yield "response.output_text.done", {**where, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**where, "part": part}
        else:
            function = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", {**self._item, **function}
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
