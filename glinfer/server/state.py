"""Shared by all routes: the state of the server, and a request with its model, body and client."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from glinfer.errors import GlinferError
from glinfer.server.errors import ApiError, again_soon, refused
from glinfer.server.json_text import json_answer
from glinfer.server.limits import LIMITS, ConnectionLimits
from glinfer.server.off_loop import Threads
from glinfer.server.protocol import DrawnBody, RequestBody
from glinfer.server.streaming import EndedError, unless_gone, within
from glinfer.server.worker import Runner, Worker

Body = TypeVar("Body", bound=RequestBody)
Result = TypeVar("Result")
_CLOSE = {"Connection": "close"}
_THROWING_SECONDS = 2.0
_LARGE_BYTES = 1 << 16
"""Larger bodies are parsed off the event loop (bytes)."""
CLIENT = "glinfer.client"
"""The key of the client in a request's scope: the index of its API key, or its address."""


@dataclass
class ServerState:
    """The state of one server.

    Attributes:
        page: the folder of the page at /, or None for the chat page.
        quick: threads for work in this process.
        slow: threads for work in separate processes, which may take seconds.
        ending: whether new requests are refused.
    """

    worker: Worker
    page: Path | None = None
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    quick: Threads = field(default_factory=partial(Threads, "glinfer-work"))
    slow: Threads = field(default_factory=partial(Threads, "glinfer-slow"))
    ending: bool = False

    def model(self, name: str | None) -> tuple[Runner, str | None]:
        """The model with this name, and its LoRA adapter if the name is ``adapter`` or ``model:adapter``.

        Raises:
            ApiError: no model has this name; or the name is None, and there are several models.
        """
        served = self.worker.served
        if name is None:
            if len(served) != 1:
                message = f"the request names no model; expected one of {', '.join(served)}"
                raise ApiError(message, param="model", code="missing_parameter")
            (name,) = served
        if name in served:
            return served[name], None
        adapters = [(each, own) for each in served.values() for own in each.source.adapters]
        found = [(each, own) for each, own in adapters if name in (own, f"{each.name}:{own}")]
        if len(found) != 1:
            known = (*served, *(own for _, own in adapters))
            raise ApiError(
                f"there is no model {name[:100]!r}; expected {', '.join(known)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return found[0]

    @property
    def busy(self) -> bool:
        """Whether a request awaits work off the event loop."""
        return self.quick.busy or self.slow.busy

    def abandon(self, error: ApiError) -> None:
        """End requests that await such work with an error, and kill the processes that do it."""
        self.quick.abandon(error)
        self.slow.abandon(error)

    def close(self) -> None:
        """End the threads and their processes."""
        self.abandon(again_soon("the server is shutting down"))
        self.quick.close()
        self.slow.close()


@dataclass(frozen=True)
class Asked(Generic[Body]):
    """A request with its checked body and its model, of which ``adapter`` is the requested LoRA adapter or None.

    ``client`` is for fair shares and the reuse of prefixes.
    """

    state: ServerState
    served: Runner
    adapter: str | None
    body: Body
    client: Hashable

    async def off_loop(
        self, work: Callable[[], Result], param: str | None = None, *, size: float = math.inf, slow: bool = False
    ) -> Result:
        """Run ``work`` on a thread when it is the client's turn, or at once if its ``size`` is small.

        ``param`` names its field of the request in errors; ``slow`` work starts a separate process.

        Raises:
            ApiError: the work raised a GlinferError; see :func:`glinfer.server.errors.refused`.
        """
        try:
            return await (self.state.slow if slow else self.state.quick).run(work, self.client, size)
        except ApiError:
            raise
        except GlinferError as error:
            raise refused(error, self.served.name, param=param) from None

    async def answer(self, make: Callable[[], dict[str, Any]], size: float = math.inf) -> Response:
        """The JSON answer from ``make``, made and written as :meth:`off_loop` does its work."""
        return await self.off_loop(lambda: json_answer(make()), size=size)


@dataclass(frozen=True)
class ApiRoute:
    """A route; requests with bodies are cancelled when their client disconnects.

    Attributes:
        path: the path, in OpenAPI's form.
        endpoint: answers an :class:`Asked`, or without a body the server's state and a request.
        summary: its description in the OpenAPI document.
        body: the model of its body, or None for a route without one.
    """

    path: str
    endpoint: Callable[..., Awaitable[ASGIApp]]
    summary: str
    body: type[RequestBody] | None = None

    @property
    def method(self) -> str:
        """Its HTTP method."""
        return "GET" if self.body is None else "POST"

    @property
    def streams(self) -> bool:
        """Whether it can answer with server-sent events."""
        return self.body is not None and issubclass(self.body, DrawnBody)

    async def respond(self, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request over ASGI.

        Raises:
            ApiError: the server is shutting down, the body is too large or invalid, the model does not exist, or the
                route refuses the request.
        """
        if self.body is None:
            await (await self.endpoint(state, Request(scope)))(scope, receive, send)
            return
        if state.ending:
            raise again_soon("the server is shutting down, and accepts no new requests")
        data = [await read_body(scope, receive, state.connections.body_seconds)]

        async def work() -> None:
            await (await self.answer(state, data, scope.get(CLIENT)))(scope, receive, send)

        await unless_gone(work(), receive)

    async def answer(self, state: ServerState, data: list[bytes], client: Hashable = None) -> ASGIApp:
        """The answer to a body, the only item of ``data``, which is removed to free its memory early.

        Raises:
            ApiError: as in :meth:`respond`.
        """
        assert self.body is not None
        given = data.pop()
        if len(given) > LIMITS.body_bytes:
            raise too_large()
        large = len(given) > _LARGE_BYTES
        body = await state.quick.run(partial(self.body.read, given), client) if large else self.body.read(given)
        del given
        served, adapter = state.model(body.model)
        served.loaded  # noqa: B018  # raises ApiError while the model is loading
        return await self.endpoint(Asked(state, served, adapter, body, client))


def too_large() -> ApiError:
    """The error 413 for a body that exceeds the limit."""
    message = f"the body has more than {LIMITS.body_bytes} bytes; send less at once"
    return ApiError(message, status=413, code="body_too_large", headers=_CLOSE)


async def read_body(scope: Scope, receive: Receive, seconds: float) -> bytes:
    """The bytes of a request's body.

    Raises:
        ApiError: the body exceeds the limit, takes longer than ``seconds``, or the client disconnects.
    """
    most, headers, parts = LIMITS.body_bytes, Headers(scope=scope), list[bytes]()
    given = headers.get("content-length", "0")
    promised = int(given) if given.isascii() and given.isdecimal() and len(given) <= 20 else 1 << 80

    async def read() -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError("the client has disconnected", status=499, code="client_gone")
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if promised <= most:
                if size > most:
                    raise too_large()
                parts.append(part)

    if promised > most:
        if "expect" not in headers and promised <= 2 * most:
            # A client whose connection closes while it sends may not see the answer.
            with contextlib.suppress(EndedError, ApiError), within(_THROWING_SECONDS):
                await read()
        raise too_large()
    try:
        with within(seconds):
            await read()
    except EndedError:
        raise ApiError(
            f"the body did not arrive within {seconds:g} s", status=408, code="body_too_slow", headers=_CLOSE
        ) from None
    return b"".join(parts)
