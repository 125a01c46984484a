"""From a checked body to sequences that run: shared by chats, completions and responses."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from glinfer.engine.logits import TokenLogprob
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, BatchResult
from glinfer.engine.score import TextScore
from glinfer.errors import GlinferError
from glinfer.server.errors import ApiError
from glinfer.server.served import Served
from glinfer.server.slow import SlowTurn
from glinfer.server.worker import Channel, Outcome, Steps, Update, Worker, broken
from glinfer.text.reply import ChatPart

Result = TypeVar("Result")


def new_id(prefix: str) -> str:
    """A fresh id, such as ``chatcmpl-…``."""
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


async def off_loop(work: Callable[[], Result], param: str | None = None, turn: SlowTurn | None = None) -> Result:
    """Do what takes time, such as tokenizing, on a thread of a pool.

    Args:
        work: what to do.
        param: the field that it is about, for errors.
        turn: whose turn it takes if it starts a process of its own, see :mod:`glinfer.server.slow`.

    Raises:
        ApiError: what glinfer refuses is 400; ``param`` names the field.
    """
    try:
        return await (asyncio.to_thread(work) if turn is None else turn.run(work))
    except ApiError:
        raise
    except GlinferError as error:
        raise ApiError(str(error), param=param) from None


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
                raise broken(update.result.error)
            self.choices[update.index].add(update)
            yield update

    async def finish(self) -> None:
        """Wait for the end of all."""
        async for _ in self.updates():
            pass


@asynccontextmanager
async def generating(worker: Worker, served: Served, requests: Sequence[BatchRequest]) -> AsyncIterator[Generation]:
    """Run sequences within the block; what has not ended at its end is cancelled.

    Raises:
        ApiError: the server is full, or a request cannot be run.
    """
    channel = worker.admit(served, len(requests))
    try:
        model = served.loaded
        sequences = await off_loop(lambda: [model.checked(request) for request in requests])
        worker.submit(channel, sequences)
        yield Generation(channel, len(requests))
    finally:
        worker.cancel(channel)


async def in_steps(worker: Worker, served: Served, start: Callable[[Model], Steps]) -> Any:
    """What work in steps, which takes the place of one sequence, returns.

    Raises:
        ApiError: the server is full, or the numbers are broken.
    """
    channel = worker.admit(served, 1)
    try:
        worker.work(channel, start)
        found = await channel.get()
        assert isinstance(found, Outcome)
        return found.value
    finally:
        worker.cancel(channel)


async def scored(
    worker: Worker, served: Served, texts: Sequence[Sequence[int]], lora: str | None = None
) -> list[TextScore]:
    """The likelihoods of texts of ids, with an adapter; errors as in :func:`in_steps`."""

    def start(model: Model) -> Steps:
        return model.engine.scorer().steps(texts, adapter=model.adapters.number(lora))

    found: list[TextScore] = await in_steps(worker, served, start)
    return found
