"""What all routes share: the state of the server, and one request with its model, its body and its client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from glinfer.errors import GlinferError
from glinfer.server.errors import ApiError, not_ready, refused
from glinfer.server.json_text import json_answer
from glinfer.server.limits import LIMITS, ConnectionLimits
from glinfer.server.off_loop import Threads
from glinfer.server.protocol import RequestBody
from glinfer.server.streaming import unless_gone
from glinfer.server.worker import Runner, Worker

Body = TypeVar("Body", bound=RequestBody)
Result = TypeVar("Result")
_CLOSE = {"Connection": "close"}
_THROWING_SECONDS = 2.0
_LARGE_BYTES = 1 << 16
"""Bytes of a body from which it is parsed off the event loop."""
CLIENT = "glinfer.client"
"""Where the scope of a request has its client: the number of its key, or its address."""


@dataclass
class ServerState:
    """The state of one server.

    Attributes:
        worker: the thread of OpenGL.
        page: the folder of the page at /; the chat page if there is none.
        connections: what is borne of connections.
        quick: the threads of what is done in this process.
        slow: those of what takes a process of its own and may take seconds; nothing else waits for it.
        ending: whether no new requests are taken.
    """

    worker: Worker
    page: Path | None = None
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    quick: Threads = field(default_factory=partial(Threads, "glinfer-work"))
    slow: Threads = field(default_factory=partial(Threads, "glinfer-slow"))
    ending: bool = False

    @classmethod
    def of(cls, request: Request) -> ServerState:
        """The state of the server that a request came to."""
        state: ServerState = request.app.state.glinfer
        return state

    def model(self, name: str) -> tuple[Runner, str | None]:
        """The model of a name, and its LoRA adapter where the name is ``adapter`` or ``model:adapter``.

        Raises:
            ApiError: there is none.
        """
        served = self.worker.served
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
        """Whether a request waits for work off the event loop."""
        return self.quick.busy or self.slow.busy

    def abandon(self, error: ApiError) -> None:
        """Have the requests that wait for such work end with an error, and end the processes that do it."""
        self.quick.abandon(error)
        self.slow.abandon(error)

    def close(self) -> None:
        """End the threads, and what they wait for."""
        self.abandon(not_ready("the server ends"))
        self.quick.close()
        self.slow.close()


@dataclass(frozen=True)
class Asked(Generic[Body]):
    """A request whose body was read.

    Attributes:
        state: of the server.
        served: the model that it is for.
        adapter: the LoRA adapter that its body names, or None for the model itself.
        body: its checked body.
        client: whose it is, for turns and for the reuse of prefixes.
    """

    state: ServerState
    served: Runner
    adapter: str | None
    body: Body
    client: Hashable

    async def off_loop(self, work: Callable[[], Result], param: str | None = None, *, slow: bool = False) -> Result:
        """Do what takes time on a thread, when it is the client's turn.

        ``param`` names the field that it is about, for errors; ``slow`` work starts a process of its own.

        Raises:
            ApiError: what glinfer refuses is 400.
        """
        try:
            return await (self.state.slow if slow else self.state.quick).run(work, self.client)
        except ApiError:
            raise
        except GlinferError as error:
            raise refused(error, self.served.name, param=param) from None

    async def answer(self, make: Callable[[], dict[str, Any]]) -> Response:
        """The answer that ``make`` gives, made and written off the event loop."""
        return await self.off_loop(lambda: json_answer(make()))


class Endpoint(Generic[Body]):
    """Answers the requests of a route that have bodies, each as long as its client is there."""

    def __init__(self, kind: type[Body], respond: Callable[[Asked[Body]], Awaitable[ASGIApp]]) -> None:
        """Read bodies of this kind, and answer what ``respond`` makes of them."""
        self._kind, self._respond = kind, respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            ApiError: the server ends, the body is too large or wrong, there is no such model, or the route refuses it.
        """
        request = Request(scope, receive)
        state = ServerState.of(request)
        if state.ending:
            raise not_ready("the server ends, and takes no new requests")
        data = [await read_body(request, state.connections.body_seconds)]

        async def work() -> None:
            given, client = data.pop(), scope.get(CLIENT)  # the bytes are not kept
            large = len(given) > _LARGE_BYTES
            body = await state.quick.run(partial(self._kind.read, given), client) if large else self._kind.read(given)
            del given
            served, adapter = state.model(body.model)
            served.loaded  # noqa: B018  # which refuses a model that is being loaded
            await (await self._respond(Asked(state, served, adapter, body, client)))(scope, receive, send)

        await unless_gone(work(), receive)


async def read_body(request: Request, seconds: float) -> bytes:
    """The bytes of a request's body.

    Raises:
        ApiError: there are more than the limit, they take longer than ``seconds``, or the client goes away.
    """
    most = LIMITS.body_bytes
    too_large = ApiError(
        f"the body has more than {most} bytes; send less at once", status=413, code="body_too_large", headers=_CLOSE
    )
    given = request.headers.get("content-length", "0")
    promised = int(given) if given.isascii() and given.isdecimal() and len(given) <= 20 else 1 << 80
    parts = list[bytes]()

    async def read() -> None:
        size = 0
        async for part in request.stream():
            size += len(part)
            if promised <= most:
                if size > most:
                    raise too_large
                parts.append(part)

    try:
        if promised <= most:
            await asyncio.wait_for(read(), seconds)
            return b"".join(parts)
        if "expect" not in request.headers and promised <= 2 * most:
            # A client that still sends when it is closed may not see the answer.
            with contextlib.suppress(asyncio.TimeoutError, ClientDisconnect):
                await asyncio.wait_for(read(), _THROWING_SECONDS)
        raise too_large
    except asyncio.TimeoutError:
        raise ApiError(
            f"the body has not come within {seconds:g} s", status=408, code="body_too_slow", headers=_CLOSE
        ) from None
    except ClientDisconnect:
        raise ApiError("the client has gone", status=499, code="client_gone") from None
