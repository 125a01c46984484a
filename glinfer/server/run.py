"""A running server: uvicorn with a service's signals, and the OpenGL thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn

from glinfer.errors import InputError
from glinfer.formats.files import reason
from glinfer.gl.context import Limits, open_device
from glinfer.gl.malloc import return_large_blocks
from glinfer.server.app import App
from glinfer.server.auth import Access, is_host_name, is_loopback, is_origin
from glinfer.server.connections import BoundedConnection, bounded
from glinfer.server.errors import again_soon
from glinfer.server.limits import MAX_WAITING, ConnectionLimits
from glinfer.server.metrics import Metrics
from glinfer.server.served import ModelSource
from glinfer.server.state import ServerState
from glinfer.server.worker import Worker

_HANGUP = getattr(signal, "SIGHUP", None)
_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    *([_HANGUP] if _HANGUP is not None and signal.getsignal(_HANGUP) is signal.SIG_DFL else []),
)
"""Signals that end the server; not the terminal's end if nohup has it ignored."""
_OFF_LOOP_SECONDS = 1
"""Time limit after SIGTERM for work off the event loop, such as tokenizing."""
_CLOSING_SECONDS = 5
"""Time limit of the running step after the grace period."""
_LAST_SECONDS = 2
"""Time limit for connections to close after the last answer."""
_BACKLOG = 2048
"""Connections that may wait in the system until the server accepts them."""
_SWITCH_SECONDS = 0.0001
"""How long one thread keeps the interpreter while the other waits for it; Python's 5 ms are a whole step on a GPU."""


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server.

    Attributes:
        access: who may send requests.
        port: a port, or 0 for any free one.
        grace: seconds that running requests may take to finish after SIGTERM.
        max_waiting: limit of a model's waiting sequences.
        page: the folder of the page at /, or None for the chat page.
        device, api, limits: arguments of :func:`glinfer.gl.context.open_device`.
        connections: limits of connections.
    """

    access: Access = field(default_factory=Access)
    port: int = 8000
    grace: float = 30.0
    max_waiting: int = MAX_WAITING
    page: Path | None = None
    device: str | int | None = None
    api: str | None = None
    limits: Limits | None = None
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to :class:`HttpServer`, and ends connections that do not close in time."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave all signals to :class:`HttpServer`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; ``backlog`` then bounds only what one turn of the loop accepts, not what waits in the system."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close; requests on ended connections see a disconnected client, and log no error."""
        asyncio.get_running_loop().call_later(0 if self.force_exit else _LAST_SECONDS, self.end_connections)
        await super().shutdown(sockets)

    def end_connections(self) -> None:
        """End all connections at once."""
        for each in tuple(self.server_state.connections):
            cast(BoundedConnection, each).end()


class HttpServer:
    """A server of models, which listens on ``address``; :meth:`run` ends with a signal, or with :meth:`end`."""

    def __init__(
        self,
        sources: Sequence[ModelSource],
        options: ServerOptions,
        *,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind the port; ``on_ready`` is called each time the models have been loaded.

        Raises:
            InputError: the port or the address cannot be used, or two models have the same name.
        """
        names = [name for source in sources for name in (source.name, *source.adapters)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"found two models with the name {twice}; rename one with NAME=MODEL")
        return_large_blocks()
        connections = options.connections.fitted()
        self.options = options
        self._socket = _bound(options.access.host, options.port)
        opening = partial(open_device, options.device, api=options.api, limits=options.limits)
        self.worker = Worker(
            sources,
            opening,
            Metrics(),
            max_waiting=options.max_waiting,
            on_failure=self._stop_uvicorn,
            on_ready=on_ready,
        )
        self.state = ServerState(self.worker, options.page, connections)
        config = uvicorn.Config(
            App(self.state, options.access),
            http=bounded(connections, self.worker.metrics),
            ws="none",
            backlog=max(1, connections.connections // 16),  # so that a burst leaves files to end the surplus
            proxy_headers=False,  # otherwise a client could claim another's address, and with it its share and prefixes
            log_level="error",
            access_log=False,
            use_colors=False,  # standard error shows escapes as text
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=_LAST_SECONDS + _CLOSING_SECONDS,
        )
        self._uvicorn = _Uvicorn(config)
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._noted = 0
        host, port = self._socket.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self) -> None:
        """Serve until the end; GlinferError if the models cannot be loaded."""
        with contextlib.closing(self._socket), self._noting_signals(), _switching_soon():
            asyncio.run(self._serve())
        if self.worker.failure is not None:
            raise self.worker.failure

    @contextlib.contextmanager
    def _noting_signals(self) -> Iterator[None]:
        """Record signals before the loop handles them; a Ctrl-C in asyncio's code would abandon its coroutine."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda *_: self.end()) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # not the main thread, or Windows
            for number in _SIGNALS:
                self._loop.add_signal_handler(number, self._begin_end)
        for _ in range(self._noted):
            self._begin_end()
        self.worker.start()
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            await self.worker.stop()
            self.state.close()

    def end(self) -> None:
        """End as after SIGTERM, or prevent the start; thread-safe, and harmless after the end."""
        if self._loop is None:
            self._noted += 1
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begin_end)

    def _begin_end(self) -> None:
        """Refuse new requests and let running ones finish; a second call ends these too."""
        if self._ending is not None:
            self._uvicorn.force_exit = True
            self._uvicorn.end_connections()
            self._stop_uvicorn()
            return
        self.state.ending = True
        self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        """Let requests finish, fail those that do not in time, and close; work off the event loop gets less time."""
        late = again_soon("the server is shutting down, and this request exceeded the grace period")
        await self._idle(min(self.options.grace, _OFF_LOOP_SECONDS), lambda: self.state.busy)
        self.state.abandon(late)
        await self._idle(self.options.grace, lambda: self.worker.live)
        if self.worker.live:
            self.worker.fail_all(late)
            await self._idle(_CLOSING_SECONDS, lambda: self.worker.live)
        self.state.abandon(late)
        self._stop_uvicorn()

    @staticmethod
    async def _idle(seconds: float, busy: Callable[[], object]) -> None:
        """Wait until ``busy`` is false, at most ``seconds``."""
        time = asyncio.get_running_loop().time
        deadline = time() + seconds
        while busy() and time() < deadline:
            await asyncio.sleep(0.02)

    def _stop_uvicorn(self) -> None:
        self._uvicorn.should_exit = True


def check_access(access: Access, *, no_key: bool) -> None:
    """Refuse to accept other machines' requests without a key by accident, and settings that no request can match.

    Raises:
        InputError: the host is not loopback, and neither a key nor ``no_key`` is given; or both are; or the host is not
            an address; or a key, an allowed host or an origin cannot be that of a request.
    """
    for key in access.keys:
        if not key or not key.isprintable() or key != key.strip():
            raise InputError("found an API key that is empty, or has spaces around it or control characters; change it")
    if not is_host_name(access.host):
        raise InputError(f"--host is {access.host!r}; expected an address or a name, without scheme and port (--port)")
    for host in access.hosts:
        if not is_host_name(host):
            raise InputError(
                f"--allowed-host is {host!r}; expected a name without scheme, port and *, such as llm.example.org"
            )
    for origin in access.origins:
        if not is_origin(origin):
            raise InputError(
                f"--cors-origin is {origin!r}; expected scheme and host, such as https://example.org, or *"
            )
    if access.keys and no_key:
        raise InputError("found both an API key and --no-api-key; give one of them")
    if not access.keys and not no_key and not is_loopback(access.host):
        raise InputError(
            f"--host {access.host} is reachable from other machines; give an --api-key (or "
            "GLINFER_API_KEY), or --no-api-key"
        )


@contextlib.contextmanager
def _switching_soon() -> Iterator[None]:
    """Let threads take turns often within the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only if told TCP
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        made.close()
        words = reason(error) if isinstance(error, OSError) else "there is no such port"
        raise InputError(f"cannot serve on {host}, port {port}: {words}; try another --host or --port") from None
    return made
