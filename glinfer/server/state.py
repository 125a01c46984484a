"""What all routes share: the worker, the options of the server, and how a request finds its model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from glinfer.server.errors import ApiError, not_ready
from glinfer.server.limits import LIMITS, ConnectionLimits
from glinfer.server.protocol import RequestBody
from glinfer.server.served import Served
from glinfer.server.slow import SlowTurn, SlowWork
from glinfer.server.worker import Worker

Body = TypeVar("Body", bound=RequestBody)
_CLOSE = {"Connection": "close"}
_THROWING_SECONDS = 2.0
CLIENT = "glinfer.client"
"""Where the scope of a request has its client: the number of its key, or its address."""


@dataclass
class ServerState:
    """The state of one server.

    Attributes:
        worker: the thread of OpenGL.
        page: the folder of the page at /; the chat page if there is none.
        connections: what is borne of connections.
        slow: the threads of what takes a process of its own.
        ending: whether no new requests are taken.
    """

    worker: Worker
    page: Path | None = None
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    slow: SlowWork = field(default_factory=SlowWork)
    ending: bool = False

    @classmethod
    def of(cls, request: Request) -> ServerState:
        """The state of the server that a request came to."""
        state: ServerState = request.app.state.glinfer
        return state

    def model(self, name: str) -> tuple[Served, str | None]:
        """The model of a name, and its LoRA adapter where the name is ``adapter`` or ``model:adapter``.

        Raises:
            ApiError: there is none.
        """
        served = self.worker.served
        if name in served:
            return served[name], None
        found = [
            (each, own) for each in served.values() for own in each.adapters if name in (own, f"{each.name}:{own}")
        ]
        if len(found) != 1:
            known = (*served, *(own for each in served.values() for own in each.adapters))
            raise ApiError(
                f"there is no model {name[:100]!r}; expected {', '.join(known)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return found[0]


async def read_request(request: Request, kind: type[Body]) -> tuple[ServerState, Served, Body]:
    """The state, the model and the checked body of a request.

    Raises:
        ApiError: the server ends, the body is too large or wrong, or there is no such model.
    """
    state = ServerState.of(request)
    if state.ending:
        raise not_ready("the server ends, and takes no new requests")
    body = kind.read(await read_body(request, state.connections.body_seconds))
    served, body.adapter = state.model(body.model)
    served.loaded  # noqa: B018  # which refuses a model that is being loaded
    return state, served, body


async def read_body(request: Request, seconds: float) -> bytes:
    """The bytes of a request's body.

    Raises:
        ApiError: there are more than the limit, they take longer than ``seconds``, or the client goes away.
    """
    most = LIMITS.body_bytes
    too_large = ApiError(
        f"the body has more than {most} bytes; send less at once", status=413, code="body_too_large", headers=_CLOSE
    )
    promised = request.headers.get("content-length", "0")
    if len(promised) > 20 or int(promised) > most:
        if "expect" not in request.headers and len(promised) <= 20 and int(promised) <= 2 * most:
            await _throw_away(request)
        raise too_large

    async def read() -> bytes:
        parts, size = list[bytes](), 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
        return b"".join(parts)

    try:
        return await asyncio.wait_for(read(), seconds)
    except asyncio.TimeoutError:
        raise ApiError(
            f"the body has not come within {seconds:g} s", status=408, code="body_too_slow", headers=_CLOSE
        ) from None
    except ClientDisconnect:
        raise ApiError("the client has gone", status=499, code="client_gone") from None


async def _throw_away(request: Request) -> None:
    """Take a body that is refused, for a while: a client that still sends when it is closed may not see the answer."""

    async def read() -> None:
        async for _ in request.stream():
            pass

    with contextlib.suppress(asyncio.TimeoutError, ClientDisconnect):
        await asyncio.wait_for(read(), _THROWING_SECONDS)


def client_of(request: Request) -> Hashable:
    """Whose request it is, for turns and for the reuse of prefixes."""
    client: Hashable = request.scope.get(CLIENT)
    return client


def turn_of(request: Request) -> SlowTurn:
    """Where the slow work of a request waits for its turn."""
    return SlowTurn(ServerState.of(request).slow, client_of(request))
