"""From a checked body to sequences that run: shared by chats, completions and responses."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from glinfer.engine.logits import TokenLogprob
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, BatchResult
from glinfer.engine.score import TextScore
from glinfer.errors import GlinferError
from glinfer.server.errors import ApiError
from glinfer.server.state import Asked
from glinfer.server.structured import ToolUse
from glinfer.server.worker import Channel, Outcome, Steps, Update, broken
from glinfer.structured.structure import structure_of
from glinfer.structured.tools import CallForm
from glinfer.text.chat import Rendering
from glinfer.text.reply import ChatPart
from glinfer.text.templates import Message


def new_id(prefix: str) -> str:
    """A fresh id, such as ``chatcmpl-…``."""
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


@dataclass
class Choice:
    """An answer so far.

    Attributes:
        text: the answer.
        thinking: the thoughts before it.
        calls: pieces of calls of tools that are messages of their own.
        ids: its tokens.
        logprobs: of these, if they were asked for.
        result: counts, and why it ended; None while it runs.
    """

    text: str = ""
    thinking: str = ""
    calls: list[ChatPart] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    result: BatchResult | None = None

    def add(self, update: Update) -> None:
        """Take in what is new."""
        self.text += update.text
        self.thinking += update.thinking
        self.calls += update.calls
        self.ids += update.ids
        self.logprobs += update.logprobs
        self.result = update.result

    @property
    def finish_reason(self) -> str | None:
        """``stop`` or ``length``; None while it runs."""
        return None if self.result is None else self.result.stats.finish_reason


@dataclass
class Usage:
    """Counts of tokens of one request."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def count(self, answers: Sequence[Choice], *, each: int = 1) -> None:
        """Count answers that have ended, of which ``each`` are to one prompt."""
        stats = [choice.result.stats for choice in answers if choice.result is not None]
        self.completion = sum(found.tokens for found in stats)
        self.cached = sum(found.reused_tokens for found in stats[::each])

    def body(self) -> dict[str, Any]:
        """As chats and completions have it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Generation:
    """The running sequences of a request.

    Attributes:
        choices: the answers so far, by their numbers.
    """

    def __init__(self, channel: Channel, count: int) -> None:
        """Read what the channel tells of ``count`` sequences."""
        self._channel = channel
        self.choices = [Choice() for _ in range(count)]

    async def updates(self) -> AsyncIterator[Update]:
        """What is new, until all have ended.

        Raises:
            ApiError: the numbers of one are broken, or the context was lost.
        """
        while any(choice.result is None for choice in self.choices):
            update = await self._channel.get()
            assert isinstance(update, Update)
            if update.result is not None and update.result.error is not None:
                assert isinstance(update.result.error, GlinferError)  # no request has a sampler of its own
                raise broken(update.result.error, self._channel.served.name)
            self.choices[update.index].add(update)
            yield update

    async def finish(self) -> None:
        """Wait for the end of all."""
        async for _ in self.updates():
            pass


@asynccontextmanager
async def generating(asked: Asked[Any], requests: Sequence[BatchRequest]) -> AsyncIterator[Generation]:
    """Run sequences within the block; what has not ended at its end is cancelled.

    Raises:
        ApiError: the server is full, or a request cannot be run.
    """
    worker = asked.state.worker
    channel = worker.admit(asked.served, len(requests), asked.client)
    try:
        model = asked.served.loaded
        sequences = await asked.off_loop(lambda: [model.checked(request) for request in requests])
        worker.submit(channel, sequences)
        yield Generation(channel, len(requests))
    finally:
        worker.cancel(channel)


async def in_steps(asked: Asked[Any], start: Callable[[Model], Steps]) -> Any:
    """What work in steps, which takes the place of one sequence, returns.

    Raises:
        ApiError: the server is full, or the numbers are broken.
    """
    worker = asked.state.worker
    channel = worker.admit(asked.served, 1, asked.client)
    try:
        worker.work(channel, start)
        found = await channel.get()
        assert isinstance(found, Outcome)
        return found.value
    finally:
        worker.cancel(channel)


async def scored(asked: Asked[Any], texts: Sequence[Sequence[int]]) -> list[TextScore]:
    """The likelihoods of texts of ids, with the request's adapter; errors as in :func:`in_steps`."""

    def start(model: Model) -> Steps:
        return model.engine.scorer().steps(texts, adapter=model.adapters.number(asked.body.adapter))

    found: list[TextScore] = await in_steps(asked, start)
    return found


async def structured_options(asked: Asked[Any], structures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The options of a sequence that has the structure which one field asks for, compiled once.

    Args:
        asked: the request.
        structures: by the names of fields, the options that they stand for; without those that are left out.

    Raises:
        ApiError: several fields ask for one, or it cannot be used.
    """
    if len(structures) > 1:
        first, second = list(structures)[:2]
        raise ApiError(f"found both {first} and {second}; give one of them", param=second)
    for name, options in structures.items():

        def compiled(options: Mapping[str, Any] = options) -> None:
            structure = structure_of(options)
            assert structure is not None
            asked.served.loaded.compiler().constraint(structure)

        await asked.off_loop(compiled, name, slow=True)
        return dict(options)
    return {}


async def chat_requests(
    asked: Asked[Any],
    messages: Callable[[], Sequence[Message]],
    tools: Callable[..., ToolUse | None],
    structures: Mapping[str, Mapping[str, Any]],
    options: Sequence[Mapping[str, Any]],
    *,
    param: str,
    how: Rendering,
) -> tuple[list[BatchRequest], CallForm | None]:
    """The sequences that reply to a conversation, and the form in which they may call tools.

    ``messages`` makes the conversation, off the event loop, and ``tools`` finds the tools, as
    :func:`glinfer.server.structured.tool_use` does. ``options`` are those of each sequence; ``max_tokens`` becomes at
    most what the context has room for. ``param`` is the field of the conversation, for errors.

    Raises:
        ApiError: the model cannot chat, a field is wrong, or the context has no room.
    """
    served, body = asked.served, asked.body

    def read() -> tuple[ToolUse | None, list[int]]:
        used = tools(served, body.tools or (), body.tool_choice, body.parallel_tool_calls is not False)
        return used, served.chat_ids(messages(), None if used is None else used.definitions, how)

    used, ids = await asked.off_loop(read, param, slow=True)
    own = {} if used is None else {"tools": {"grammar": used.grammar}}
    structure, room = await structured_options(asked, {**structures, **own}), served.room(ids)
    requests = [
        BatchRequest(
            ids,
            {**each, "max_tokens": min(room, each["max_tokens"] or room), **structure},
            form=served.chat_form(),
            client=asked.client,
            calls=used is not None and used.apart,
        )
        for each in options
    ]
    return requests, None if used is None else used.form
