"""The thread that owns OpenGL: it loads the models, runs their schedulers, and tells the event loop what came of it.

The event loop hands over commands and never waits for a draw. Between two commands the thread runs one step of every
model that has work: a piece of the waiting prompts and a token of each sequence, and a step of other work, such as
a score.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from glinfer.engine.loading import load_model
from glinfer.engine.model import Model
from glinfer.engine.requests import Running
from glinfer.engine.scheduler import Event, Scheduler
from glinfer.errors import ContextError, GLError, GlinferError
from glinfer.gl.context import Device
from glinfer.server.errors import FAILED, ApiError, again_soon, log, not_ready, refused
from glinfer.server.limits import EMBED_REQUESTS, share
from glinfer.server.metrics import Metrics
from glinfer.server.served import ModelSource, Served

REOPEN_TRIES = 5
"""How often a lost context is opened again, a second apart, before the server gives up."""


class Channel:
    """What the thread tells one request; made and read on the event loop.

    Attributes:
        served: the model that the request is for.
        client: whose request it is.
        started: when the request came.
        whole: whether it gets only the last event of each sequence.
    """

    whole = False

    def __init__(self, served: Runner, count: int, client: Hashable = None) -> None:
        """Count the sequences as live until they have ended."""
        self.served, self.client, self.started = served, client, time.monotonic()
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._live = count
        served.count(client, count)

    def put(self, item: Any) -> None:
        """Tell the request something: an event, what work in steps has returned, or an error."""
        if isinstance(item, ApiError):
            self.release()
        elif not isinstance(item, Event) or item.result is not None:
            self.release(1)
        self._inbox.put_nowait(item)

    def release(self, count: int | None = None) -> None:
        """Count so many sequences, or all that are left, as ended."""
        count = self._live if count is None else min(count, self._live)
        self._live -= count
        self.served.count(self.client, -count)

    async def get(self) -> Any:
        """The next thing that was told.

        Raises:
            ApiError: the sequences of the request cannot go on.
        """
        item = await self._inbox.get()
        if isinstance(item, ApiError):
            raise item
        return item


class _StoppedError(Exception):
    """The thread was told to end while it loads."""


Steps = Generator[object, None, Any]
"""Work that is done step by step, and what it returns."""


@dataclass
class Runner(Served):
    """A model, with what belongs to the thread alone.

    Attributes:
        scheduler: of a model that generates.
        requests: whose the sequences in it are.
        works: other work, of which the first is under way.
        draws: how many are counted.
    """

    scheduler: Scheduler | None = None
    requests: dict[Running, Channel] = field(default_factory=dict)
    works: deque[tuple[Channel, Steps]] = field(default_factory=deque)
    draws: int = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to run."""
        return bool(self.requests or self.works)


class Worker:
    """The thread of OpenGL and its models.

    Attributes:
        served: the models by their names.
        metrics: where it counts.
        failure: why the models cannot be loaded, after which the thread has ended.
    """

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
        """Prepare; nothing is loaded before :meth:`start`.

        Args:
            sources: the models.
            open_device: opens the device that they share, on the thread.
            metrics: where to count.
            max_waiting: sequences of a model that may wait for a place.
            on_failure: called on the event loop when the models cannot be loaded.
            on_ready: called there when they are.
        """
        self.served = {source.name: Runner(source) for source in sources}
        self.metrics, self.max_waiting = metrics, max_waiting
        self.failure: BaseException | None = None
        self._open_device, self._on_failure, self._on_ready = open_device, on_failure, on_ready
        self._device: Device | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._told: list[tuple[Channel, Any]] = []
        self._thread = threading.Thread(target=self._run, name="glinfer-gl", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = self._stopped = False

    # On the event loop

    def start(self) -> None:
        """Load the models, and serve what comes until :meth:`stop`."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether all models are loaded."""
        return all(served.model is not None for served in self.served.values())

    @property
    def live(self) -> int:
        """Sequences of all models that have not ended."""
        return sum(served.live for served in self.served.values())

    def admit(self, served: Runner, count: int, client: Hashable = None) -> Channel:
        """Room for a request of so many sequences; a client may have its share of the places for waiting.

        Raises:
            ApiError: the model is being loaded, or as many sequences run or wait as may, of all clients or of this one.
        """
        served.loaded  # noqa: B018
        own, places = served.clients[client], served.slots + self.max_waiting
        if count > (most := share(places, self.max_waiting)):
            raise ApiError(f"the request has {count} sequences; this server takes at most {most} at once", param="n")
        most = share(places - served.live + own, self.max_waiting)
        if own + count > most:
            self.metrics.rejected.labels("queue_full").inc()
            rounds = served.live // max(1, served.slots)  # each takes about a second
            raise ApiError(
                f"{served.live} of {places} sequences run or wait, and {own} of yours, of which {most} may; "
                "try again in a while",
                status=429,
                code="queue_full",
                headers={"Retry-After": str(max(1, min(60, rounds)))},
            )
        return Channel(served, count, client)

    def submit(self, channel: Channel, sequences: Sequence[Running]) -> None:
        """Run checked sequences, whose events the channel tells."""
        self._command(lambda: self._insert(channel, sequences))

    def work(self, channel: Channel, start: Callable[[Model], Steps]) -> None:
        """Do other work of a model, a step of it between two steps of the sequences."""
        self._command(lambda: self._insert_work(channel, start))

    def cancel(self, channel: Channel) -> None:
        """End what still runs of a request; harmless when nothing does."""
        channel.release()
        self._command(lambda: self._cancel(channel))

    def fail_all(self, error: ApiError) -> None:
        """End every request with an error."""
        self._command(lambda: self._fail_all(error))

    def _command(self, command: Callable[[], None]) -> None:
        """Have the thread do something, or do it here where the thread has ended, which refuses what is to be run."""
        self._commands.put(command)
        if self._ended:
            self._follow_the_last()

    def _follow_the_last(self) -> None:
        """Follow the commands that the thread has not come to, so that nobody waits for an answer to them."""
        with suppress(queue.Empty):
            while True:
                command = self._commands.get(block=False)
                if command is not None:
                    command()
        self._deliver()

    async def stop(self) -> None:
        """Close the models and end the thread, soon while it loads weights; harmless when it has ended."""
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
                self._deliver()
        except _StoppedError:
            pass
        except BaseException as error:
            self.failure = error
            self._tell_loop(self._on_failure)
        finally:
            self._close()
            self._fail_all(not_ready("the server ends"))
            self._deliver()
            self._ended = True
            self._tell_loop(self._follow_the_last)

    def _take_commands(self) -> bool:
        """Follow what the event loop has said; waits for it if there is nothing else to do. False at the end."""
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
            model = load_model(source.path, device=self._device, on_upload=self._require_wanted, **source.options)
            model.engine.nan_guard.traces = False  # which would keep all others waiting
            runner.draws = 0
            runner.take(model, EMBED_REQUESTS if model.config.embeds else self._schedule(runner, model).slots)
        self._count_textures()
        self._tell_loop(self._on_ready)

    def _require_wanted(self, *_: int) -> None:
        """Stop to load where the end was asked for; takes what ``on_upload`` is told.

        Raises:
            _StoppedError: it was.
        """
        if self._stopped:
            raise _StoppedError

    @staticmethod
    def _schedule(runner: Runner, model: Model) -> Scheduler:
        options = {name: value for name, value in vars(runner.source.scheduler).items() if value is not None}
        runner.scheduler = model.scheduler(**options)
        return runner.scheduler

    def _close(self) -> None:
        """Close models and device, as far as they can be."""
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
        """One step of a model; errors that end more than their own request are as in :meth:`_reopen`."""
        try:
            self._step_scheduler(runner)
            self._step_work(runner)
        except ContextError as error:
            self._reopen(error)
        except GLError as error:
            self._restart(runner, error)
        except Exception as error:
            traceback.print_exception(error)
            self._reopen(error)

    def _restart(self, runner: Runner, error: GLError) -> None:
        """End the sequences of a model, whose weights are still there, and make another scheduler."""
        log(error)
        self._told += [(channel, refused(error, runner.name)) for channel in {*runner.requests.values()}]
        runner.requests.clear()
        runner.draws = 0
        assert runner.model is not None  # it has run
        try:
            self._schedule(runner, runner.model)
        except GlinferError as again:
            self._reopen(again)

    def _step_scheduler(self, runner: Runner) -> None:
        scheduler = runner.scheduler
        if scheduler is None or not len(scheduler):
            return
        metrics, name = self.metrics, runner.name
        for event in scheduler.next():
            each = event.sequence
            channel = runner.requests[each]
            if each.stats.tokens <= max(1, len(event.ids)):
                metrics.first_token.labels(name).observe(time.monotonic() - channel.started)
            if event.result is not None:
                del runner.requests[each]
                self._count_end(name, each)
            if event.result is not None or not channel.whole:
                self._told.append((channel, event))
        self._count_draws(runner, scheduler.batch.draws_issued)

    def _count_draws(self, runner: Runner, draws: int) -> None:
        self.metrics.draws.labels(runner.name).inc(draws - runner.draws)
        runner.draws = draws

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
            outcome = ApiError(FAILED, status=500)
        finally:
            self._count_textures()
            if runner.scheduler is None and runner.model is not None:
                self._count_draws(runner, runner.model.bound.draws_issued)
        self._told.append((channel, outcome))
        runner.works.popleft()  # and the client has its next turn after all others
        runner.works = deque(sorted(runner.works, key=lambda work: work[0].client == channel.client))

    def _insert(self, channel: Channel, sequences: Sequence[Running]) -> None:
        runner = channel.served
        if runner.scheduler is None:
            self._told.append((channel, not_ready("the model is being loaded")))
            return
        try:
            for each in sequences:
                runner.scheduler.add(each)
                runner.requests[each] = channel
                self.metrics.prompt_tokens.labels(runner.name).inc(len(each.prompt))
        except GlinferError as error:
            self._cancel(channel)
            self._told.append((channel, refused(error, runner.name)))
        self._count_sequences()

    def _insert_work(self, channel: Channel, start: Callable[[Model], Steps]) -> None:
        if channel.served.model is None:
            self._told.append((channel, not_ready("the model is being loaded")))
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
                self._told.append((channel, error))
            runner.requests.clear()
            runner.works.clear()

    def _reopen(self, error: BaseException) -> None:
        """Tell all requests that the context is gone, and load the models again.

        Raises:
            GlinferError: that did not work.
        """
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
        """Hand what was told to the event loop, all at once, and count what runs."""
        self._count_sequences()
        if self._told:
            told, self._told = self._told, []

            def tell() -> None:
                for channel, item in told:
                    channel.put(item)

            self._tell_loop(tell)

    def _tell_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _count_sequences(self) -> None:
        for runner in self.served.values():
            waiting = 0 if runner.scheduler is None else runner.scheduler.waiting
            self.metrics.waiting.labels(runner.name).set(waiting)
            self.metrics.running.labels(runner.name).set(len(runner.requests) - waiting)

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
    """Work that starts with its first step, so that its errors are told alike."""
    return (yield from start(model))
