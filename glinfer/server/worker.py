"""The thread that owns OpenGL: it loads the models, runs their schedulers and sends events to the event loop.

The event loop queues commands and never waits for a draw. Between two commands the thread runs one step of every
busy model: a piece of the waiting prompts, a token of each sequence, and a step of other work, such as a score.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from glinfer.engine.loading import load_model
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.scheduler import Event, Scheduler
from glinfer.errors import ContextError, GLError, GlinferError
from glinfer.gl.context import Device
from glinfer.server.errors import ApiError, again_soon, failed, log, refused
from glinfer.server.limits import EMBED_REQUESTS, share
from glinfer.server.metrics import Metrics
from glinfer.server.served import ModelSource, Served
from glinfer.text.encoder import EncodedText

EVENT_SECONDS = 0.002
"""Shortest time between two events of a stream, for each other running sequence; many send 500 a second in all."""
REOPEN_TRIES = 5
"""Attempts to reopen a lost context, a second apart, before the server gives up."""


class Channel:
    """Events from the thread to one request; created and read on the event loop."""

    whole = False
    """Whether the request gets only the last event of each sequence."""

    def __init__(self, served: Runner, count: int, client: Hashable = None) -> None:
        """Count ``count`` sequences as live until they end."""
        self.served, self.client, self.started = served, client, time.monotonic()
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._live = count
        served.count(client, count)

    def put(self, item: Any) -> None:
        """Queue an event, the result of work in steps, or an error."""
        if isinstance(item, ApiError):
            self.release()
        elif not isinstance(item, Event) or item.result is not None:
            self.release(1)
        self._inbox.put_nowait(item)

    def release(self, count: int | None = None) -> None:
        """Count ``count`` sequences, by default all live ones, as ended."""
        count = self._live if count is None else min(count, self._live)
        self._live -= count
        self.served.count(self.client, -count)

    async def get(self) -> Any:
        """Wait for the next item; ApiError if the sequences of the request cannot continue."""
        item = await self._inbox.get()
        if isinstance(item, ApiError):
            raise item
        return item


class _StoppedError(Exception):
    """The thread was stopped while it was loading a model."""


Steps = Generator[object, None, Any]
"""Work in steps, with a result at its end."""


@dataclass
class Runner(Served):
    """A model with the state that only the thread uses.

    Attributes:
        scheduler: of a model that generates.
        requests: the request of each sequence in the scheduler.
        works: other work; the first item is running.
    """

    scheduler: Scheduler | None = None
    requests: dict[Running, Channel] = field(default_factory=dict)
    works: deque[tuple[Channel, Steps]] = field(default_factory=deque)

    @property
    def busy(self) -> bool:
        """Whether sequences or other work are waiting or running."""
        return bool(self.requests or self.works)

    @property
    def running(self) -> int:
        """The number of running sequences; any thread may ask."""
        return 0 if self.scheduler is None else self.scheduler.running

    @property
    def waiting(self) -> int:
        """The number of sequences that wait for a slot."""
        return max(0, self.live - self.running - len(self.works))


class Worker:
    """The thread of OpenGL and its models; ``failure`` is the error that stopped loading and the thread."""

    def __init__(
        self,
        sources: Sequence[ModelSource],
        open_device: Callable[[], Device],
        metrics: Metrics,
        *,
        max_waiting: int,
        on_failure: Callable[[], None] = lambda: None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a stopped worker; :meth:`start` loads the models.

        Args:
            sources: the models.
            open_device: opens their shared device, on the thread.
            metrics: the metrics to update.
            max_waiting: limit for the waiting sequences of a model.
            on_failure, on_ready: called on the event loop when loading fails, or when all models are loaded.
        """
        self.served = {source.name: Runner(source) for source in sources}
        self.metrics, self.max_waiting = metrics, max_waiting
        for name, runner in self.served.items():
            metrics.running.labels(name).set_function(partial(getattr, runner, "running"))
            metrics.waiting.labels(name).set_function(partial(getattr, runner, "waiting"))
        self.failure: BaseException | None = None
        self._open_device, self._on_failure, self._on_ready = open_device, on_failure, on_ready
        self._device: Device | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outgoing: list[tuple[Channel, Any]] = []
        self._thread = threading.Thread(target=self._run, name="glinfer-gl", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = self._stopped = False

    # On the event loop

    def start(self) -> None:
        """Load the models and run requests until :meth:`stop`."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether all models are loaded."""
        return all(served.model is not None for served in self.served.values())

    @property
    def live(self) -> int:
        """The number of live sequences of all models."""
        return sum(served.live for served in self.served.values())

    def admit(self, served: Runner, count: int, client: Hashable = None) -> Channel:
        """Admit a request of ``count`` sequences; a client may use its share of the waiting slots.

        Raises:
            ApiError: the model is being loaded, or the limit of all clients or of this one is reached.
        """
        served.loaded  # noqa: B018
        own, slots = served.clients[client], served.slots + self.max_waiting
        if count > (most := share(slots, self.max_waiting)):
            raise ApiError(f"the request has {count} sequences; this server takes at most {most} at once", param="n")
        most = share(slots - served.live + own, self.max_waiting)
        if own + count > most:
            self.metrics.rejected.labels("queue_full").inc()
            rounds = served.live // max(1, served.slots)  # each takes about a second
            raise ApiError(
                f"{served.live} of {slots} sequences are running or waiting, {own} of them yours; "
                f"one client may have {most}; try again later",
                status=429,
                code="queue_full",
                headers={"Retry-After": str(max(1, min(60, rounds)))},
            )
        return Channel(served, count, client)

    def submit(self, channel: Channel, sequences: Sequence[Running]) -> None:
        """Run checked sequences; their events go to the channel."""
        self._command(lambda: self._insert(channel, sequences))

    def work(self, channel: Channel, start: Callable[[Model], Steps]) -> None:
        """Run other work of a model, one step between two steps of the sequences."""
        self._command(lambda: self._insert_work(channel, start))

    def cancel(self, channel: Channel) -> None:
        """Cancel the live sequences and work of a request; harmless if none is live."""
        channel.release()
        self._command(lambda: self._cancel(channel))

    def fail_all(self, error: ApiError) -> None:
        """End every request with an error."""
        self._command(lambda: self._fail_all(error))

    def _command(self, command: Callable[[], None]) -> None:
        """Queue a command for the thread; if the thread has ended, run it here, which refuses new work."""
        self._commands.put(command)
        if self._ended:
            self._follow_the_last()

    def _follow_the_last(self) -> None:
        """Run the commands that the thread left, so that no request waits for ever."""
        with suppress(queue.Empty):
            while True:
                command = self._commands.get(block=False)
                if command is not None:
                    command()
        self._deliver()

    async def stop(self) -> None:
        """Close the models and end the thread, even while it loads weights; harmless when repeated."""
        self._stopped = True
        self._commands.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    # On the thread

    def _run(self) -> None:
        try:
            self._open()
            while self._take_commands():
                for runner in self.served.values():
                    if runner.busy:
                        self._step(runner)
                if not any(runner.requests for runner in self.served.values()):
                    self._deliver()  # otherwise the next step's pause does
        except _StoppedError:
            pass
        except BaseException as error:
            self.failure = error
            self._tell_loop(self._on_failure)
        finally:
            self._close()
            self._fail_all(again_soon("the server is shutting down"))
            self._deliver()
            self._ended = True
            self._tell_loop(self._follow_the_last)

    def _take_commands(self) -> bool:
        """Run queued commands, and wait for one if there is no other work. False at the end."""
        idle = not any(runner.busy for runner in self.served.values())
        with suppress(queue.Empty):
            while True:
                command = self._commands.get(block=idle)
                if command is None:
                    return False
                command()
                idle = idle and not any(runner.busy for runner in self.served.values())
                if idle:
                    self._deliver()
        return True

    def _open(self) -> None:
        """Open the device and load every model."""
        self._device = self._open_device()
        for runner in self.served.values():
            source = runner.source
            self._require_wanted()
            try:
                model = load_model(source.path, device=self._device, on_upload=self._require_wanted, **source.options)
            except GlinferError as error:
                if len(self.served) > 1 and source.name not in str(error):
                    error.args = (f"{source.name}: {error}",)
                raise
            model.engine.nan_guard.traces = False  # which would keep all others waiting
            slots = EMBED_REQUESTS if model.config.embeds else self._schedule(runner, model).slots
            self._warm_up(runner, model)
            runner.take(model, slots)
        self._count_textures()
        self._tell_loop(self._on_ready)

    def _require_wanted(self, *_: int) -> None:
        """Stop loading after :meth:`stop`; takes the arguments of ``on_upload``."""
        if self._stopped:
            raise _StoppedError

    def _warm_up(self, runner: Runner, model: Model) -> None:
        """Run a short request before the server is ready, since drivers compile a shader at its first draw."""
        prompt = [0] * min(2, model.config.max_position_embeddings)
        if model.config.embeds:
            for _ in model.embedder.encoder.steps([EncodedText(prompt, [0] * len(prompt))]):
                self._require_wanted()
        if runner.scheduler is not None:
            runner.scheduler.insert(BatchRequest(prompt, {"max_tokens": 2}, client=object()))
            while len(runner.scheduler):
                self._require_wanted()
                runner.scheduler.next()

    def _schedule(self, runner: Runner, model: Model) -> Scheduler:
        options = {name: value for name, value in vars(runner.source.scheduler).items() if value is not None}
        runner.scheduler = model.scheduler(**options)
        # The event loop takes the interpreter to send events: while the GPU computes, this costs no time.
        runner.scheduler.on_pause = self._deliver
        return runner.scheduler

    def _close(self) -> None:
        """Close models and device, ignoring errors."""
        for runner in self.served.values():
            model, runner.model = runner.model, None
            with suppress(GlinferError):
                if runner.scheduler is not None:
                    runner.scheduler.close()
            runner.scheduler = None
            with suppress(GlinferError):
                if model is not None:
                    model.close()
        with suppress(GlinferError):
            if self._device is not None:
                self._device.close()
        self._device = None

    def _step(self, runner: Runner) -> None:
        """Run one step of a model; errors that affect other requests are handled by :meth:`_reopen`."""
        device = self._device
        assert device is not None  # until the thread ends
        before = device.draws_issued
        try:
            self._step_scheduler(runner)
            self._step_work(runner)
            self.metrics.draws.labels(runner.name).inc(device.draws_issued - before)
        except ContextError as error:
            self._reopen(error)
        except GLError as error:
            self._restart(runner, error)
        except Exception as error:
            traceback.print_exception(error)
            self._reopen(error)

    def _restart(self, runner: Runner, error: GLError) -> None:
        """End the sequences of a model, keep its weights, and create a new scheduler."""
        log(error)
        self._outgoing += [(channel, refused(error, runner.name)) for channel in {*runner.requests.values()}]
        runner.requests.clear()
        assert runner.model is not None  # it has run
        try:
            self._schedule(runner, runner.model)
        except GlinferError as again:
            self._reopen(again)

    def _step_scheduler(self, runner: Runner) -> None:
        scheduler = runner.scheduler
        if scheduler is None or not len(scheduler):
            return
        metrics, name, now = self.metrics, runner.name, time.perf_counter()
        for event in scheduler.next():
            each = event.sequence
            channel = runner.requests[each]
            if each.stats.tokens <= max(1, len(event.ids)):
                metrics.first_token.labels(name).observe(time.monotonic() - channel.started)
            if event.result is not None:
                del runner.requests[each]
                self._count_end(name, each)
            each.due = math.inf if channel.whole else now + EVENT_SECONDS * (len(runner.requests) - 1)
            if event.result is not None or not channel.whole:
                self._outgoing.append((channel, event))

    def _step_work(self, runner: Runner) -> None:
        if not runner.works:
            return
        channel, steps = runner.works[0]
        try:
            next(steps)
            return
        except StopIteration as end:
            outcome = end.value
        except ContextError:
            raise
        except GlinferError as error:
            outcome = refused(error, runner.name)
        except Exception as error:  # which ends this request, and not the others
            traceback.print_exception(error)
            outcome = failed()
        finally:
            self._count_textures()
        self._outgoing.append((channel, outcome))
        runner.works.popleft()  # and the client has its next turn after all others
        runner.works = deque(sorted(runner.works, key=lambda work: work[0].client == channel.client))

    def _insert(self, channel: Channel, sequences: Sequence[Running]) -> None:
        runner = channel.served
        if runner.scheduler is None:
            self._outgoing.append((channel, again_soon("the model is being loaded")))
            return
        try:
            for each in sequences:
                runner.scheduler.add(each)
                runner.requests[each] = channel
                self.metrics.prompt_tokens.labels(runner.name).inc(len(each.prompt))
        except GlinferError as error:
            self._cancel(channel)
            self._outgoing.append((channel, refused(error, runner.name)))

    def _insert_work(self, channel: Channel, start: Callable[[Model], Steps]) -> None:
        if channel.served.model is None:
            self._outgoing.append((channel, again_soon("the model is being loaded")))
        else:
            channel.served.works.append((channel, _started(start, channel.served.model)))

    def _cancel(self, channel: Channel) -> None:
        runner = channel.served
        for each in [each for each, owner in runner.requests.items() if owner is channel]:
            del runner.requests[each]
            if runner.scheduler is not None:
                runner.scheduler.cancel(each)
            self._count_end(runner.name, each)
        runner.works = deque(item for item in runner.works if item[0] is not channel)

    def _fail_all(self, error: ApiError) -> None:
        """End every request with an error."""
        for runner in self.served.values():
            for channel in {*runner.requests.values(), *(owner for owner, _ in runner.works)}:
                if runner.scheduler is not None and self.failure is None:
                    self._cancel(channel)
                self._outgoing.append((channel, error))
            runner.requests.clear()
            runner.works.clear()

    def _reopen(self, error: BaseException) -> None:
        """Fail all requests because the context was lost, and load the models again."""
        log(f"{error}; opening the context again")
        self.metrics.losses.inc()
        self._close()
        self._fail_all(
            again_soon("the OpenGL context was lost; it is opened again, send the request again", "context_lost")
        )
        self._deliver()
        for left in reversed(range(REOPEN_TRIES)):
            try:
                self._open()
                break
            except GlinferError:
                self._close()
                if not left:
                    raise
                time.sleep(1)

    # Telling and counting

    def _deliver(self) -> None:
        """Send all new items to the event loop in one call."""
        if self._outgoing:
            items, self._outgoing = self._outgoing, []

            def tell() -> None:
                for channel, item in items:
                    channel.put(item)

            self._tell_loop(tell)

    def _tell_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _count_end(self, name: str, each: Running) -> None:
        stats = each.stats
        self.metrics.tokens.labels(name).inc(stats.tokens)
        self.metrics.reused_tokens.labels(name).inc(stats.reused_tokens)
        self.metrics.finished.labels(name, stats.finish_reason or "cancelled").inc()
        if stats.seconds > 0 and stats.tokens > 1:
            self.metrics.rate.labels(name).observe(stats.tokens_per_second)

    def _count_textures(self) -> None:
        if self._device is not None:
            textures = self._device.owned("texture")
            self.metrics.texture_bytes.set(sum(texture.layout.nbytes for texture in textures))


def _started(start: Callable[[Model], Steps], model: Model) -> Steps:
    """Start work with its first step, so that all its errors are reported in one way."""
    return (yield from start(model))
