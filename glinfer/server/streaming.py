"""Answers that end when their client disconnects, and server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from glinfer.server.errors import ApiError, failed, log
from glinfer.server.json_text import json_bytes

DONE = b"data: [DONE]\n\n"
Events = AsyncGenerator[bytes, None]
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise proxies buffer events
]


def event_bytes(data: dict[str, Any], name: str = "") -> bytes:
    """The bytes of an event, with a name if the protocol uses names."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + json_bytes(data) + b"\n\n"


class EndedError(Exception):
    """A block was ended early."""


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """A block of the current task, and a function that ends it from a callback; it does nothing after the block.

    Raises:
        EndedError: the function was called.
    """
    task, called, over = asyncio.current_task(), False, False
    assert task is not None

    def interrupt() -> None:
        nonlocal called
        called = called or (not over and task.cancel())

    try:
        yield interrupt
    except asyncio.CancelledError:
        if not called:
            raise
        raise EndedError from None
    finally:
        over = True


async def unless_gone(work: Awaitable[None], receive: Receive) -> None:
    """Await ``work``, and cancel it when the client disconnects."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        interrupt()

    with contextlib.suppress(EndedError), interruptible() as interrupt:
        gone = asyncio.ensure_future(leave())
        try:
            await work
        finally:
            gone.cancel()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the time of a block; EndedError if it takes longer."""
    with interruptible() as interrupt:
        timer = asyncio.get_running_loop().call_later(seconds, interrupt)
        try:
            yield
        finally:
            timer.cancel()


class EventStream:
    """An answer of server-sent events.

    An error before the first event becomes an ordinary answer; a later error becomes the last event. An empty event
    begins the answer, so that a waiting client knows that its request was accepted.
    """

    def __init__(self, events: Events, on_error: Callable[[ApiError], bytes] | None = None) -> None:
        """Send these events; ``on_error`` converts an error to an event."""
        self._events, self._on_error = events, on_error or (lambda error: event_bytes(error.body()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        started = False
        try:
            async with contextlib.aclosing(self._events):
                async for event in self._events:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                    if event:
                        await send(_body(event))
        except Exception as error:
            if not started:
                raise
            if not isinstance(error, ApiError):
                log(f"a stream failed: {type(error).__name__}: {error}")
                error = failed()
            await send(_body(self._on_error(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(event: bytes) -> Message:
    return {"type": "http.response.body", "body": event, "more_body": True}
