"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp

from glinfer.engine.logits import TokenLogprob
from glinfer.engine.requests import BatchRequest, Running
from glinfer.server.errors import ApiError
from glinfer.server.generation import Chunks, Usage, answer_size, chat_requests, ended, generating, new_id, now
from glinfer.server.protocol import ChatCompletionRequest, conversation
from glinfer.server.state import Asked
from glinfer.server.streaming import Events, EventStream
from glinfer.server.tool_calls import CallDeltas
from glinfer.structured.tools import CallForm
from glinfer.text.tokenizer import Tokenizer


async def chat_completions(asked: Asked[ChatCompletionRequest]) -> ASGIApp:
    """Reply to a conversation."""
    body = asked.body
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")

    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    requests, form = await chat_requests(
        asked,
        lambda: conversation(body.messages),
        body.structures(),
        [{**body.sampling(index=index), "max_tokens": wanted, "logprobs": logprobs} for index in range(body.n or 1)],
        param="messages",
        how=body.rendering(),
    )
    answer = _Answer(asked, requests, form)
    return EventStream(answer.events()) if body.stream else await answer.whole()


class _Answer:
    """The answer to one request, whole or in chunks."""

    def __init__(
        self, asked: Asked[ChatCompletionRequest], requests: Sequence[BatchRequest], form: CallForm | None
    ) -> None:
        self.asked, self.body, self.requests = asked, asked.body, requests
        self.usage, self.tokenizer = Usage(len(requests[0].prompt), len(requests)), asked.served.tokenizer
        self.calls = [None if form is None else CallDeltas(form) for _ in requests]
        kind = "chat.completion.chunk" if self.body.stream else "chat.completion"
        self.head = {"id": new_id("chatcmpl-"), "object": kind, "created": now(), "model": self.body.model}

    async def whole(self) -> ASGIApp:
        """The whole answer."""
        sequences = await ended(self.asked, self.requests, self.usage)

        def made() -> dict[str, Any]:
            choices = [self._choice(index, each) for index, each in enumerate(sequences)]
            return {**self.head, "choices": choices, "usage": self.usage.body()}

        return await self.asked.answer(made, answer_size(sequences))

    def _choice(self, index: int, sequence: Running) -> dict[str, Any]:
        result, calls = sequence.result, self.calls[index]
        message: dict[str, Any] = {"role": "assistant", "content": result.text, "refusal": None}
        reason = result.stats.finish_reason
        if calls is not None:
            calls.push(result.text or "", sequence.parts, last=True)
            message |= calls.message()
            reason = calls.finish_reason(reason)
        if result.thinking:
            message["reasoning_content"] = result.thinking
        logprobs = chat_logprobs(self.tokenizer, sequence.logprobs[: len(result.ids)]) if self.body.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    async def events(self) -> Events:
        """The chunks of the answer."""
        chunks = Chunks(self.head, self.usage, self.body.stream_options)

        def of(index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
            return chunks.chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

        async with generating(self.asked, self.requests, self.usage) as news:
            for index in range(len(self.requests)):
                yield of(index, {"role": "assistant", "content": ""})
            async for index, event, found in news:
                calls, result = self.calls[index], event.result
                texts = {"reasoning_content": event.thinking, "content": event.text if calls is None else ""}
                deltas = [{name: text for name, text in texts.items() if text}]
                if calls is not None:
                    deltas = [*filter(None, deltas), *calls.push(event.text, event.calls, last=result is not None)]
                logprobs = chat_logprobs(self.tokenizer, found) if found else None
                for part, delta in enumerate(deltas or [{}]):
                    if delta or (logprobs and not part):
                        yield of(index, delta, None, None if part else logprobs)
                if result is not None:
                    reason = result.stats.finish_reason
                    yield of(index, {}, reason if calls is None else calls.finish_reason(reason))
        for last in chunks.end():
            yield last


def chat_logprobs(tokenizer: Tokenizer, found: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities in the form of chat completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": data.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        {**entry(each.token, each.logprob), "top_logprobs": [entry(*likely) for likely in each.top]} for each in found
    ]
    return {"content": content, "refusal": None}
