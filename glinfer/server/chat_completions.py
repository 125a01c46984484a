"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.types import ASGIApp

from glinfer.engine.logits import TokenLogprob
from glinfer.engine.requests import BatchRequest
from glinfer.server.chunks import Chunks
from glinfer.server.errors import ApiError
from glinfer.server.generation import Choice, Usage, chat_requests, generating, new_id, now
from glinfer.server.protocol import ChatCompletionRequest, conversation
from glinfer.server.state import Asked
from glinfer.server.streaming import EventStream
from glinfer.server.structured import tool_use
from glinfer.server.tool_calls import CallDeltas
from glinfer.structured.tools import CallForm
from glinfer.text.tokenizer import Tokenizer


async def chat_completions(asked: Asked[ChatCompletionRequest]) -> ASGIApp:
    """Reply to a conversation."""
    body = asked.body
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")

    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    logprobs = {"logprobs": body.top_logprobs or 0} if body.logprobs else {}
    requests, form = await chat_requests(
        asked,
        lambda: conversation(body.messages),
        tool_use,
        body.structures(),
        [{**body.sampling(index=index), "max_tokens": wanted, **logprobs} for index in range(body.n or 1)],
        param="messages",
        how=body.rendering(),
    )
    answer = _Answer(asked, requests, form)
    return EventStream(answer.events()) if body.stream else await answer.whole()


class _Answer:
    """The answer to one request, as a whole or as chunks."""

    def __init__(
        self,
        asked: Asked[ChatCompletionRequest],
        requests: Sequence[BatchRequest],
        form: CallForm | None,
    ) -> None:
        self.asked, self.requests, self.form = asked, requests, form
        self.body, self.tokenizer = asked.body, asked.served.tokenizer
        self.id, self.created, self.usage = new_id("chatcmpl-"), now(), Usage(len(requests[0].prompt))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.body.model}

    async def whole(self) -> ASGIApp:
        """The answer in one piece."""
        async with generating(self.asked, self.requests) as generation:
            await generation.finish()
        self.usage.count(generation.choices, each=len(self.requests))

        def made() -> dict[str, Any]:
            choices = [self._choice(index, choice) for index, choice in enumerate(generation.choices)]
            return {**self._head("chat.completion"), "choices": choices, "usage": self.usage.body()}

        return await self.asked.answer(made)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        reason = choice.finish_reason
        if self.form is not None:
            calls = CallDeltas(self.form)
            calls.push(choice.text, choice.calls, last=True)
            message |= calls.message()
            reason = calls.finish_reason(reason)
        if choice.thinking:
            message["reasoning_content"] = choice.thinking
        logprobs = chat_logprobs(self.tokenizer, choice.logprobs) if self.body.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    async def events(self) -> AsyncIterator[bytes]:
        """The chunks."""
        chunks = Chunks(self._head("chat.completion.chunk"), self.usage, self.body.stream_options)

        def of(index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
            return chunks.chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

        async with generating(self.asked, self.requests) as generation:
            for index in range(len(self.requests)):
                yield of(index, {"role": "assistant", "content": ""})
            calls = [None if self.form is None else CallDeltas(self.form) for _ in self.requests]
            async for update in generation.updates():
                chunks.count(update)
                last = update.result is not None
                parser = calls[update.index]
                texts = {"reasoning_content": update.thinking, "content": update.text if parser is None else ""}
                deltas = [{name: text for name, text in texts.items() if text}]
                if parser is not None:
                    deltas = [*filter(None, deltas), *parser.push(update.text, update.calls, last=last)]
                logprobs = chat_logprobs(self.tokenizer, update.logprobs) if update.logprobs else None
                for place, delta in enumerate(deltas or [{}]):
                    if delta or (logprobs and not place):
                        yield of(update.index, delta, None, None if place else logprobs)
                if update.result is not None:
                    reason = generation.choices[update.index].finish_reason
                    yield of(update.index, {}, reason if parser is None else parser.finish_reason(reason))
        for event in chunks.end(generation.choices, each=len(self.requests)):
            yield event


def chat_logprobs(tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities as chats have them."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": data.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        {**entry(each.token, each.logprob), "top_logprobs": [entry(*likely) for likely in each.top]} for each in found
    ]
    return {"content": content, "refusal": None}
