"""Call the server's routes in this process, so that batches and requests share one code path."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from starlette.responses import Response

from glinfer.engine.batch import SchedulerOptions
from glinfer.errors import ContextError
from glinfer.gl.context import Limits, open_device
from glinfer.jobs.lines import LineResult, RequestLine
from glinfer.jobs.pool import MAX_RETRIES, Answered, Event, Events, Failed, Member, Pool, Ready
from glinfer.jobs.requests import answered, sent_body
from glinfer.server.errors import ApiError, failed
from glinfer.server.metrics import Metrics
from glinfer.server.routes import ROUTES
from glinfer.server.served import ModelSource
from glinfer.server.state import ServerState
from glinfer.server.worker import Worker

_MANY = 1 << 20
_ROUTES = {route.path: route for route in ROUTES}
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


class LocalServer:
    """Models and the server's routes, on the running event loop."""

    def __init__(self, setup: LocalSetup) -> None:
        """Prepare; :meth:`start` loads the models."""
        limits = Limits.webgl2_minimum() if setup.webgl2 else None
        opening = partial(open_device, setup.device, api=setup.api, limits=limits)
        self._changed = asyncio.Event()
        self.worker = Worker(
            [ModelSource(*each, SchedulerOptions(**setup.scheduler)) for each in setup.models],
            opening,
            Metrics(),
            max_waiting=_MANY,  # the caller limits concurrency
            on_failure=self._changed.set,
            on_ready=self._changed.set,
        )
        self._state = ServerState(self.worker)

    async def start(self) -> None:
        """Load the models."""
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
        """Lines to run at once: twice the slots of all models, which keeps them busy."""
        return 2 * sum(served.slots for served in self.worker.served.values())

    @property
    def renderer(self) -> str:
        """The renderer of the models."""
        return str(next(iter(self.worker.served.values())).facts.get("renderer", ""))

    @property
    def draws(self) -> int:
        """Draw calls issued so far."""
        return sum(each.model.device.draws_issued for each in self.worker.served.values() if each.model)

    async def answer(self, line: RequestLine) -> LineResult:
        """Answer one line, with at most MAX_RETRIES retries after lost contexts."""
        request_id = f"req-{secrets.token_hex(8)}"
        for left in reversed(range(MAX_RETRIES + 1)):
            status, body = await self._answer(line)
            lost = status == 503 and body.get("error", {}).get("code") in _RETRIED
            if not (lost and left):
                break
            await self._until_ready()
        if self.worker.failure is not None:
            raise self.worker.failure
        return answered(line, status, request_id, body)

    async def _answer(self, line: RequestLine) -> tuple[int, Any]:
        """The status and body of the answer by the route of a line."""
        try:
            data = json.dumps(sent_body(line)).encode()
            response = cast(Response, await _ROUTES[line.url].answer(self._state, [data]))
            return response.status_code, json.loads(bytes(response.body))
        except ApiError as error:
            found = error
        except Exception as error:
            traceback.print_exception(error)
            found = failed()
        return found.status, found.body()

    async def stop(self) -> None:
        """Close the models and the server's threads; calling it again does nothing."""
        await self.worker.stop()
        self._state.close()


class LocalMember(Member):
    """The models in this process; their event loop has a thread, so that Ctrl-C never comes inside it."""

    def __init__(self, setup: LocalSetup, events: Events) -> None:
        """Start the thread."""
        self._setup, self._events, self._ended = setup, events, threading.Event()
        self._tasks = set[asyncio.Task[None]]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="glinfer-batch", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise ContextError(f"{error}: a batch needs a thread; raise ulimit -u, or end other processes") from None

    def _run(self) -> None:
        try:
            self._serving = self._loop.create_task(self._serve())
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._serving)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()
            self._ended.set()

    async def _serve(self) -> None:
        try:
            self._server = LocalServer(self._setup)
            try:
                await self._server.start()
                self._tell(Ready(self._server.window, self._server.renderer))
                await asyncio.Event().wait()  # until close() cancels it
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._server.stop()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._tell(Failed(error))

    def _tell(self, event: Event) -> None:
        self._events.put((self, event))

    def send(self, number: int, line: RequestLine) -> None:
        """Send a line."""
        self._loop.call_soon_threadsafe(self._begin, number, line)

    def _begin(self, number: int, line: RequestLine) -> None:
        task = self._loop.create_task(self._answer(number, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, line: RequestLine) -> None:
        try:
            result = await self._server.answer(line)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._tell(Failed(error, number))
        else:
            self._tell(Answered.by(number, result, self._server.draws))

    def close(self) -> None:
        """Close the models and end the thread; does nothing in a forked process."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just closed
                self._loop.call_soon_threadsafe(lambda: self._serving.cancel())
            self._ended.wait()  # Python takes a thread for ended when an interrupt ends join()
            self._thread.join()


class LocalRunner(Pool):
    """Answers lines in this process; a ``with`` block loads and closes the models."""

    def __init__(self, setup: LocalSetup) -> None:
        """Prepare."""
        super().__init__([partial(LocalMember, setup)])
