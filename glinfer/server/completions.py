"""POST /v1/completions; ``echo`` with ``logprobs`` also scores the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from glinfer.engine.ids import check_ids
from glinfer.engine.logits import TokenLogprob
from glinfer.engine.requests import BatchRequest
from glinfer.engine.score import TextScore
from glinfer.server.errors import ApiError
from glinfer.server.generation import (
    Chunks,
    Usage,
    answer_size,
    ended,
    generating,
    new_id,
    now,
    scored,
    structured_options,
)
from glinfer.server.limits import LIMITS
from glinfer.server.protocol import CompletionRequest, listed
from glinfer.server.served import Served
from glinfer.server.state import Asked
from glinfer.server.streaming import Events, EventStream
from glinfer.text.tokenizer import Tokenizer

MAX_TOKENS = 16
"""Default token limit of a completion, as in OpenAI's API."""


async def completions(asked: Asked[CompletionRequest]) -> ASGIApp:
    """Continue prompts."""
    served, body = asked.served, asked.body
    if body.echo and (body.logprobs or 0) > 1:
        raise ApiError(f"logprobs is {body.logprobs}; expected 0 or 1 together with echo", param="logprobs")
    given = listed(body.prompt)
    if (count := len(given) * (body.n or 1)) > LIMITS.sequences:
        message = f"the request has {count} sequences; this server takes at most {LIMITS.sequences} at once"
        raise ApiError(message, param="n")
    prompts = await asked.off_loop(
        lambda: [ids_of(served, prompt) for prompt in given], "prompt", size=sum(map(len, given))
    )
    wanted = MAX_TOKENS if body.max_tokens is None else body.max_tokens
    rooms = [served.room(ids, least=min(1, wanted)) for ids in prompts]
    structure = await structured_options(asked, body.structures())
    shared = {"lora": asked.adapter, "logprobs": body.logprobs, **structure}
    requests = [
        BatchRequest(
            ids,
            {**body.sampling(index=index), "max_tokens": min(room, wanted), **shared},
            text=True,
            client=asked.client,
        )
        for ids, room in zip(prompts, rooms, strict=True)
        for index in range(body.n or 1)
        if wanted
    ]
    if not wanted:  # nothing runs that would count them
        asked.state.worker.metrics.prompt_tokens.labels(served.name).inc(sum(map(len, prompts)))
    answer = _Answer(asked, prompts, requests)
    return EventStream(answer.events()) if body.stream else await answer.whole()


def ids_of(served: Served, prompt: str | Sequence[int]) -> list[int]:
    """The checked ids of a prompt; InputError if it has no tokens, or an id is outside the vocabulary."""
    if isinstance(prompt, str):
        served.refuse_long([prompt])
    ids = served.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    served.room(ids, least=0)
    return check_ids(ids, served.loaded.config)


class _Answer:
    """The answer to one request; its choices are numbered prompt by prompt."""

    def __init__(
        self, asked: Asked[CompletionRequest], prompts: list[list[int]], requests: Sequence[BatchRequest]
    ) -> None:
        self.asked, self.body, self.prompts, self.requests = asked, asked.body, prompts, requests
        self.each = asked.body.n or 1
        self.usage, self.tokenizer = Usage(sum(map(len, prompts)), self.each), asked.served.tokenizer
        self.count = len(prompts) * self.each
        self.head = {"id": new_id("cmpl-"), "object": "text_completion", "created": now(), "model": self.body.model}

    async def _scores(self) -> list[TextScore | None]:
        """The scores of the prompts if requested; None for a prompt of one token."""
        if not self.body.echo or self.body.logprobs is None:
            return [None] * len(self.prompts)
        longer = [ids for ids in self.prompts if len(ids) > 1]
        found = iter(await scored(self.asked, longer) if longer else [])
        return [next(found) if len(ids) > 1 else None for ids in self.prompts]

    def _opening(self, prompt: int, score: TextScore | None) -> tuple[str, dict[str, Any] | None]:
        """The text and log-probabilities at the beginning of an answer: the prompt's, or none."""
        if not self.body.echo:
            return "", None
        ids = self.prompts[prompt]
        text = self.tokenizer.decode(ids)
        if self.body.logprobs is None:
            return text, None
        known: list[TokenLogprob | None] = [None]
        if score is not None:
            for token, logprob, likeliest, best in zip(
                ids[1:], score.logprobs, score.likeliest, score.best, strict=True
            ):
                top = [(int(likeliest), float(best))] if self.body.logprobs else []
                known.append(TokenLogprob(token, float(logprob), top))
        return text, completion_logprobs(self.tokenizer, ids, known, 0)

    def _choice(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    async def whole(self) -> ASGIApp:
        """The whole answer."""
        scores = await self._scores()
        sequences = await ended(self.asked, self.requests, self.usage)

        def made() -> dict[str, Any]:
            choices = []
            for index in range(self.count):
                text, logprobs = self._opening(index // self.each, scores[index // self.each])
                ids, known, more, reason = list[int](), list[TokenLogprob](), "", "length"
                if sequences:
                    each = sequences[index]
                    ids, known, more = each.ids, each.logprobs[: len(each.ids)], each.result.text or ""
                    reason = each.stats.finish_reason or reason
                if self.body.logprobs is not None:
                    names = completion_logprobs(self.tokenizer, ids, known, len(text))
                    logprobs = names if logprobs is None else {name: logprobs[name] + names[name] for name in names}
                choices.append(self._choice(index, text + more, logprobs, reason))
            return {**self.head, "choices": choices, "usage": self.usage.body()}

        size = math.inf if self.body.echo else answer_size(sequences)
        return await self.asked.answer(made, size)

    async def events(self) -> Events:
        """The chunks of the answer."""
        chunks = Chunks(self.head, self.usage, self.body.stream_options)
        scores, lengths = await self._scores(), [0] * self.count
        async with generating(self.asked, self.requests, self.usage) as news:
            yield b""
            if self.body.echo or not self.requests:
                for index in range(self.count):
                    prompt = index // self.each
                    text, logprobs = await self.asked.off_loop(partial(self._opening, prompt, scores[prompt]))
                    lengths[index] = len(text)
                    yield chunks.chunk(self._choice(index, text, logprobs, None if self.requests else "length"))
            async for index, event, found in news:
                reason, text = None if event.result is None else event.result.stats.finish_reason, event.text
                logprobs = completion_logprobs(self.tokenizer, event.ids, found, lengths[index]) if found else None
                lengths[index] += len(text)
                if text or logprobs or reason:
                    yield chunks.chunk(self._choice(index, text, logprobs, reason))
        for last in chunks.end():
            yield last


def completion_logprobs(
    tokenizer: Tokenizer, ids: Sequence[int], known: Sequence[TokenLogprob | None], offset: int
) -> dict[str, Any]:
    """Log-probabilities in the form of completions; the first token is at character ``offset`` of the text."""
    tokens, offsets = [_name(tokenizer, token) for token in ids], []
    for token in ids:
        offsets.append(offset)
        offset += len(tokenizer.token_bytes(token).decode("utf-8", errors="replace"))
    return {
        "tokens": tokens,
        "token_logprobs": [None if each is None else each.logprob for each in known],
        "top_logprobs": [None if each is None else _top(tokenizer, each) for each in known],
        "text_offset": offsets,
    }


def _top(tokenizer: Tokenizer, each: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and the chosen one, by name; of tokens with the same name, the likelier one."""
    found: dict[str, float] = {}
    for token, logprob in (*each.top, (each.token, each.logprob)):
        name = _name(tokenizer, token)
        found[name] = max(logprob, found.get(name, logprob))
    return found


def _name(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token, or ``bytes:\\x…`` if its bytes are not UTF-8."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
