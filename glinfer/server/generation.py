"""Run the sequences of a checked request: shared by chats, completions and responses."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from glinfer.engine.logits import TokenLogprob
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.scheduler import Event
from glinfer.engine.score import TextScore
from glinfer.server.errors import ApiError, refused
from glinfer.server.json_text import json_bytes
from glinfer.server.protocol import StreamOptions
from glinfer.server.state import Asked
from glinfer.server.streaming import DONE, event_bytes
from glinfer.server.structured import tool_use
from glinfer.server.worker import Channel, Steps
from glinfer.structured.structure import OPTIONS, structure_of
from glinfer.structured.tools import CallForm, MessageForm
from glinfer.text.templates import Message, Rendering

News = tuple[int, Event, list[TokenLogprob]]
"""The number of a sequence, its event, and the log-probabilities of the event's ids."""
_CHECK_SIZE = 100
"""The size of the work of checking a request without a structure, see :data:`glinfer.server.off_loop.SMALL`."""


def new_id(prefix: str) -> str:
    """A fresh id, such as ``chatcmpl-…``."""
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


@dataclass
class Usage:
    """Token counts of one request; every ``each`` sequences continue one prompt."""

    prompt: int = 0
    each: int = 1
    completion: int = 0
    cached: int = 0

    def body(self) -> dict[str, Any]:
        """The counts in the form of chats and completions."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Chunks:
    """Writes the chunks of one answer, which share a head."""

    def __init__(self, head: dict[str, Any], usage: Usage, options: StreamOptions | None) -> None:
        """Write chunks with the current counts of ``usage``."""
        self._head, self._usage = head, usage
        self._begin = b"data: " + json_bytes(head)[:-1] + b',"choices":['
        self._running = bool(options and options.continuous_usage_stats)
        self._shown = self._running or bool(options and options.include_usage)

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """A chunk of one choice."""
        usage = b""
        if self._shown:
            usage = b',"usage":' + json_bytes(self._usage.body() if self._running else None)
        return b"".join((self._begin, json_bytes(choice), b"]", usage, b"}\n\n"))

    def end(self) -> list[bytes]:
        """The last events: the counts, if requested, and ``[DONE]``."""
        last = [event_bytes({**self._head, "choices": [], "usage": self._usage.body()})] if self._shown else []
        return [*last, DONE]


@asynccontextmanager
async def generating(
    asked: Asked[Any], requests: Sequence[BatchRequest], usage: Usage, *, whole: bool = False
) -> AsyncIterator[AsyncIterator[News]]:
    """Run sequences within the block, and cancel those that have not ended at its end.

    The news end when all sequences have ended, and update ``usage``. With ``whole`` each sequence has one, at its end.

    Raises:
        ApiError: the server is full, a request is invalid, or, while news are awaited, output is not a number or the
            context was lost.
    """
    if not requests:
        yield _news(Channel(asked.served, 0), [], usage)
        return
    worker = asked.state.worker
    channel = worker.admit(asked.served, len(requests), asked.client)
    channel.whole = whole
    try:
        model = asked.served.loaded
        structured = any(requests[0].options.get(kind) is not None for kind in OPTIONS)
        size = math.inf if structured else sum(len(each.prompt) + _CHECK_SIZE for each in requests)
        sequences = await asked.off_loop(lambda: [model.checked(request) for request in requests], size=size)
        worker.submit(channel, sequences)
        yield _news(channel, sequences, usage)
    finally:
        worker.cancel(channel)


async def _news(channel: Channel, sequences: Sequence[Running], usage: Usage) -> AsyncIterator[News]:
    numbers = {sequence: number for number, sequence in enumerate(sequences)}
    lengths, running = [0] * len(numbers), len(numbers)
    while running:
        event = await channel.get()
        if event.result is not None:
            running -= 1
            if event.result.error is not None:
                raise refused(event.result.error, channel.served.name, code="structure_too_complex")
        number = numbers[event.sequence]
        start, lengths[number] = lengths[number], lengths[number] + len(event.ids)
        usage.completion += len(event.ids)
        yield number, event, event.sequence.logprobs[start : lengths[number]]
    usage.completion = sum(sequence.stats.tokens for sequence in sequences)
    usage.cached = sum(sequence.stats.reused_tokens for sequence in sequences[:: usage.each])


def answer_size(sequences: Sequence[Running]) -> int:
    """The size of the work of writing the answers of sequences, see :data:`glinfer.server.off_loop.SMALL`."""
    return sum(len(each.ids) * (1 + 10 * (each.top or 0)) for each in sequences)


async def ended(asked: Asked[Any], requests: Sequence[BatchRequest], usage: Usage) -> list[Running]:
    """Run sequences to their end and return them; arguments and errors as in :func:`generating`."""
    async with generating(asked, requests, usage, whole=True) as news:
        found = {number: event.sequence async for number, event, _ in news}
    return [found[number] for number in sorted(found)]


async def in_steps(asked: Asked[Any], start: Callable[[Model], Steps]) -> Any:
    """Run work in steps, which counts as one sequence, and return its result.

    Raises:
        ApiError: the server is full, or output is not a number.
    """
    worker = asked.state.worker
    channel = worker.admit(asked.served, 1, asked.client)
    try:
        worker.work(channel, start)
        return await channel.get()
    finally:
        worker.cancel(channel)


async def scored(asked: Asked[Any], texts: Sequence[Sequence[int]]) -> list[TextScore]:
    """Score texts of ids with the request's adapter; errors as in :func:`in_steps`."""
    found: list[TextScore] = await in_steps(
        asked, lambda model: model.engine.scorer().steps(texts, adapter=model.adapters.number(asked.adapter))
    )
    return found


async def structured_options(asked: Asked[Any], structures: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The options of a sequence with the requested structure, which is compiled here.

    ``structures`` has the options of each field that requests a structure.

    Raises:
        ApiError: several fields request one, or it cannot be used.
    """
    if not structures:
        return {}
    (name, options), *others = structures.items()
    for other, _ in others:
        raise ApiError(f"found both {name} and {other}; give one of them", param=other)

    def compiled() -> None:
        structure = structure_of(options)
        assert structure is not None
        asked.served.loaded.compiler().constraint(structure)

    await asked.off_loop(compiled, name, slow=True)
    return dict(options)


async def chat_requests(
    asked: Asked[Any],
    messages: Callable[[], Sequence[Message]],
    structures: Mapping[str, Mapping[str, Any]],
    options: Sequence[Mapping[str, Any]],
    *,
    param: str,
    how: Rendering,
) -> tuple[list[BatchRequest], CallForm | None]:
    """The sequences that reply to a conversation, and the form of their tool calls.

    ``messages`` returns the conversation, off the event loop. ``options`` has the options of each sequence;
    ``max_tokens`` is limited to the room in the context. ``param`` names the conversation's field in errors.

    Raises:
        ApiError: the model cannot chat, a field is wrong, or the context has no room.
    """
    served, body = asked.served, asked.body

    def read() -> tuple[CallForm | None, dict[str, Mapping[str, Any]], list[int]]:
        used = tool_use(served, body.tools or (), body.tool_choice, body.parallel_tool_calls is not False)
        form, definitions, grammar = used or (None, None, "")
        own = {"tools": {"grammar": grammar}} if used else {}
        ids, chat = served.chat_ids(messages(), definitions, how), served.chat_form()
        # A call may come after thoughts, unless it is required or the grammar has no token for their end.
        free = body.tool_choice in (None, "auto") and (chat.marks is None or chat.marks.are_text)
        return form, {**structures, **own}, chat.without_thoughts(ids) if structures or (used and not free) else ids

    form, asked_for, ids = await asked.off_loop(read, param, slow=True)
    structure, room = await structured_options(asked, asked_for), served.room(ids)
    calls = isinstance(form, MessageForm) or (form is not None and frozenset(form.control.values()))
    requests = [
        BatchRequest(
            ids,
            {**each, "lora": asked.adapter, "max_tokens": min(room, each["max_tokens"] or room), **structure},
            form=served.chat_form(),
            client=asked.client,
            calls=calls,
        )
        for each in options
    ]
    return requests, form
