"""POST /v1/responses, without state: every request has the whole conversation."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from starlette.types import ASGIApp

from glinfer.engine.requests import BatchRequest, Running
from glinfer.server.errors import ApiError
from glinfer.server.generation import Usage, chat_requests, ended, generating, new_id, now
from glinfer.server.protocol import ResponseRequest
from glinfer.server.response_items import OutputItems, messages_of
from glinfer.server.state import Asked
from glinfer.server.streaming import Events, EventStream, event_bytes
from glinfer.server.structured import ResponseText, asked_by
from glinfer.structured.tools import CallForm
from glinfer.text.chat import Rendering


async def responses(asked: Asked[ResponseRequest]) -> ASGIApp:
    """Respond to an input."""
    body = asked.body
    structure = asked_by(None if body.text is None else body.text.format)
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

        return await self.asked.answer(made)

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
