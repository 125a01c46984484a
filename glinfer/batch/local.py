"""Call the server's application in this process, so that batches and requests share one code path."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from glinfer.batch.lines import LineResult
from glinfer.batch.requests import RequestLine, answered
from glinfer.batch.turns import Turns
from glinfer.engine.batch import SchedulerOptions
from glinfer.gl.context import Limits, open_device
from glinfer.server.app import make_app
from glinfer.server.auth import Access
from glinfer.server.errors import ApiError
from glinfer.server.metrics import Metrics
from glinfer.server.served import ModelSource
from glinfer.server.state import ServerState
from glinfer.server.worker import Worker

MAX_RETRIES = 2
"""Retries of a request after failures that it did not cause: a lost context, no memory, a dead process."""
_MANY = 1 << 20
_RETRIED = ("context_lost", "driver_error", "not_ready")


@dataclass(frozen=True)
class LocalSetup:
    """Models and a device, in a form to send to a process.

    Attributes:
        models: name, path and options of each model, as in :class:`glinfer.server.served.ModelSource`.
        scheduler: fields of :class:`glinfer.engine.batch.SchedulerOptions`.
        device, api: arguments of :func:`glinfer.gl.context.open_device`.
        webgl2: whether texture layouts stay within WebGL2's guaranteed minimum.
    """

    models: Sequence[tuple[str, str, Mapping[str, Any]]]
    scheduler: Mapping[str, int | None] = field(default_factory=dict)
    device: str | int | None = None
    api: str | None = None
    webgl2: bool = False

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def sources(self) -> list[ModelSource]:
        """The models."""
        return [ModelSource(*each, SchedulerOptions(**self.scheduler)) for each in self.models]


class LocalServer:
    """Models and the server's application, on the running event loop.

    Attributes:
        worker: the OpenGL thread.
    """

    def __init__(self, setup: LocalSetup) -> None:
        """Prepare; :meth:`start` loads the models."""
        limits = Limits.webgl2_minimum() if setup.webgl2 else None
        opening = partial(open_device, setup.device, api=setup.api, limits=limits)
        self._changed = asyncio.Event()
        self.worker = Worker(
            setup.sources(),
            opening,
            Metrics(),
            max_waiting=_MANY,  # the caller limits concurrency
            on_failure=self._changed.set,
            on_ready=self._changed.set,
        )
        self._state = ServerState(self.worker)
        self._app = make_app(self._state, Access())

    async def start(self) -> None:
        """Load the models.

        Raises:
            GlinferError: a model cannot be loaded.
        """
        self.worker.start()
        await self._until_ready()

    async def _until_ready(self) -> None:
        while not self.worker.ready:
            if self.worker.failure is not None:
                raise self.worker.failure
            self._changed.clear()
            if not self.worker.ready and self.worker.failure is None:
                await self._changed.wait()

    @property
    def window(self) -> int:
        """Lines to run at once: twice the places of all models, which keeps them busy."""
        return 2 * sum(served.slots for served in self.worker.served.values())

    @property
    def renderer(self) -> str:
        """The renderer of the models."""
        return str(next(iter(self.worker.served.values())).facts.get("renderer", ""))

    @property
    def draws(self) -> int:
        """Draw calls issued so far."""
        return sum(each.model.device.draws_issued for each in self.worker.served.values() if each.model)

    async def answer(self, line: RequestLine) -> LineResult[RequestLine]:
        """Answer one line, with at most MAX_RETRIES retries after lost contexts.

        Raises:
            GlinferError: the context was lost and cannot be reopened.
        """
        try:
            data = json.dumps(line.sent()).encode()
        except ApiError as error:
            return answered(line, error.status, f"req-{secrets.token_hex(8)}", error.body())
        for left in reversed(range(MAX_RETRIES + 1)):
            status, request_id, body = await self._post(line.url, data)
            lost = status == 503 and body.get("error", {}).get("code") in _RETRIED
            if not (lost and left):
                break
            await self._until_ready()
        if self.worker.failure is not None:
            raise self.worker.failure
        return answered(line, status, request_id, body)

    async def _post(self, path: str, data: bytes) -> tuple[int, str, Any]:
        """Status, id and body of the application's answer."""
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*headers, (b"content-length", str(len(data)).encode())],
            "client": ("127.0.0.1", 0),
            "server": ("localhost", 80),
        }
        waiting: list[dict[str, Any]] = [{"type": "http.request", "body": data, "more_body": False}]
        status, found, parts = 500, dict[bytes, bytes](), list[bytes]()

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()  # the client never disconnects
            raise AssertionError

        async def send(message: Any) -> None:
            nonlocal status, found
            if message["type"] == "http.response.start":
                status, found = message["status"], dict(message["headers"])
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app(scope, receive, send)
        except Exception:  # the application has already answered 500
            if not parts:
                raise
        return status, found.get(b"x-request-id", b"").decode(), json.loads(b"".join(parts))

    async def stop(self) -> None:
        """Close the models and the server's threads; calling it again does nothing."""
        await self.worker.stop()
        self._state.close()


class LocalRunner:
    """Answers lines in this process; a ``with`` block loads and closes the models.

    Attributes:
        renderer: the renderer of the models.
    """

    def __init__(self, setup: LocalSetup) -> None:
        """Prepare."""
        self._setup, self.renderer = setup, ""
        self._server: LocalServer | None = None
        self._turns = Turns()

    def __enter__(self) -> LocalRunner:
        """Load the models.

        Raises:
            GlinferError: a model cannot be loaded.
        """
        try:
            (task,) = self._turns.run([self._turns.begin(self._started)])
            task.result()
            self.renderer = self._open.renderer
            return self
        except BaseException:
            self._close()
            raise

    async def _started(self) -> None:
        self._server = LocalServer(self._setup)
        await self._server.start()

    async def _stopped(self) -> None:
        if self._server is not None:
            await self._server.stop()

    @property
    def _open(self) -> LocalServer:
        assert self._server is not None  # in a block
        return self._server

    @property
    def draws(self) -> int:
        """Draw calls issued so far."""
        return self._open.draws

    def run(self, lines: Iterator[RequestLine]) -> Iterator[LineResult[RequestLine]]:
        """Yield results as they finish."""
        pending: list[asyncio.Task[LineResult[RequestLine]]] = []
        done: list[asyncio.Task[LineResult[RequestLine]]] = []
        more = True
        try:
            while True:
                while more and len(pending) < self._open.window:
                    line = next(lines, None)
                    more = line is not None
                    if line is not None:
                        pending.append(self._turns.begin(partial(self._open.answer, line)))
                if not pending:
                    return
                done = self._turns.run(pending)
                pending = [each for each in pending if each not in done]
                for each in done:
                    yield each.result()
        finally:
            self._turns.drop([*pending, *done])

    def _close(self) -> None:
        self._turns.close(self._stopped)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the models."""
        self._close()
