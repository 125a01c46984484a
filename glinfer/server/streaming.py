"""Answers that end when their client goes away, as a whole or as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import click
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from glinfer.server.errors import ApiError

DONE = "[DONE]"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies hold events back otherwise
]


def event_bytes(data: dict[str, Any] | str, name: str = "") -> bytes:
    """One event, with a name where the protocol has names."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode("utf-8", errors="replace")


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless_gone(work: Awaitable[None], receive: Receive) -> None:
    """Await ``work``; it is cancelled when the client goes away."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(asyncio.CancelledError):
            await gone


class WholeAnswer:
    """An answer that is sent when it is whole; its making is cancelled when the client goes away."""

    def __init__(self, make: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Answer with what ``make`` gives, or with the ApiError that it raises."""
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""

        async def work() -> None:
            try:
                response = JSONResponse(await self._make())
            except ApiError as error:
                response = error.response()
            await response(scope, receive, send)

        await _unless_gone(work(), receive)


class EventStream:
    """Server-sent events; their making is cancelled when the client goes away.

    An error before the first event is an ordinary answer. A later one is an event of its own, and the last. An empty
    event begins the answer, so that a client that waits for a place knows that it was taken.
    """

    def __init__(self, events: AsyncIterator[bytes], on_error: Callable[[ApiError], bytes] | None = None) -> None:
        """Send these events; ``on_error`` makes one of an error."""
        self._events, self._on_error = events, on_error or (lambda error: event_bytes(error.body()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        await _unless_gone(self._work(scope, receive, send), receive)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async for event in self._events:
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                if event:
                    await send(_body(event))
        except ApiError as error:
            if not started:
                await error.response()(scope, receive, send)
                return
            await send(_body(self._on_error(error)))
        except Exception as error:
            if not started:
                raise
            click.echo(f"glinfer: a stream failed: {type(error).__name__}: {error}", err=True)
            await send(_body(self._on_error(ApiError("the server failed; its log says where", status=500))))
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(event: bytes) -> Message:
    return {"type": "http.response.body", "body": event, "more_body": True}
