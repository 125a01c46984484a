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
from glinfer.engine.logits import TokenLogprob
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchResult, Running
from glinfer.engine.scheduler import Scheduler
from glinfer.errors import ContextError, GLError, GlinferError, StructureError
from glinfer.gl.context import Device
from glinfer.server.errors import ApiError, log, not_ready, refused
from glinfer.server.limits import share
from glinfer.server.metrics import Metrics
from glinfer.server.served import ModelSource, Served
from glinfer.text.reply import ChatPart

REOPEN_TRIES = 5
"""How often a lost context is opened again, a second apart, before the server gives up."""
EMBED_REQUESTS = 32
"""Requests at once of a model that embeds texts, which run one after the other; more have to wait."""


@dataclass(frozen=True)
class Update:
    """The outcome of one step for one sequence of a request.

    Attributes:
        index: which sequence of the request.
        ids: new tokens.
        text: new text of the answer.
        thinking: new text of the thoughts before it.
        calls: new pieces of calls of tools that are messages of their own.
        logprobs: of ``ids``, if they were asked for.
        result: everything, if the sequence has ended.
    """

    index: int
    ids: list[int]
    text: str
    thinking: str
    calls: Sequence[ChatPart]
    logprobs: list[TokenLogprob]
    result: BatchResult | None


@dataclass(frozen=True)
class Outcome:
    """What work in steps has returned."""

    value: Any


class Channel:
    """What the thread tells one request; made and read on the event loop.

    Attributes:
        served: the model that the request is for.
        client: whose request it is.
        started: when the request came.
    """

    def __init__(self, served: Served, count: int, client: Hashable = None) -> None:
        """Count the sequences as live until they have ended."""
        self.served, self.client, self.started = served, client, time.monotonic()
        self._inbox: asyncio.Queue[Update | Outcome | ApiError] = asyncio.Queue()
        self._live = count
        served.count(client, count)

    def put(self, item: Update | Outcome | ApiError) -> None:
        """Tell the request something."""
        if isinstance(item, ApiError):
            self.release()
        elif not isinstance(item, Update) or item.result is not None:
            self.release(1)
        self._inbox.put_nowait(item)

    def release(self, count: int | None = None) -> None:
        """Count so many sequences, or all that are left, as ended."""
        count = self._live if count is None else min(count, self._live)
        self._live -= count
        self.served.count(self.client, -count)

    async def get(self) -> Update | Outcome:
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


Told = tuple[Channel, Update | Outcome | ApiError]
Steps = Generator[object, None, Any]
"""Work that is done step by step, and what it returns."""


@dataclass
class _Runner:
    """What the thread knows of a served model."""

    served: Served
    scheduler: Scheduler | None = None
    requests: dict[Running, tuple[Channel, int]] = field(default_factory=dict)
    works: deque[tuple[Channel, Steps]] = field(default_factory=deque)
    draws: int = 0

    @property
    def busy(self) -> bool:
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
        self.served = {source.name: Served(source) for source in sources}
        self.metrics, self.max_waiting = metrics, max_waiting
        self.failure: BaseException | None = None
        self._open_device, self._on_failure, self._on_ready = open_device, on_failure, on_ready
        self._runners = {name: _Runner(served) for name, served in self.served.items()}
        self._device: Device | None = None
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._told: list[Told] = []
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

    def admit(self, served: Served, count: int, client: Hashable = None) -> Channel:
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
            raise ApiError(
                f"{served.live} of {places} sequences run or wait, and {own} of yours, of which {most} may; "
                "try again in a while",
                status=429,
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(served))},
            )
        return Channel(served, count, client)

    def _retry_after(self, served: Served) -> int:
        """Seconds after which a place may be free: one for each round of the slots that is waited for."""
        return max(1, min(60, served.live // max(1, served.slots)))

    def submit(self, channel: Channel, sequences: Sequence[Running]) -> None:
        """Run checked sequences; their updates have the numbers of their places here."""
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
                for runner in self._runners.values():
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
        idle = not any(runner.busy for runner in self._runners.values())
        with suppress(queue.Empty):
            while True:
                command = self._commands.get(block=idle)
                if command is None:
                    return False
                command()
                idle = idle and not any(runner.busy for runner in self._runners.values())
                if idle:
                    self._deliver()
        return True

    def _open(self) -> None:
        """Open the device and load every model."""
        self._device = self._open_device()
        for runner in self._runners.values():
            source = runner.served.source
            self._require_wanted()
            model = load_model(source.path, device=self._device, on_upload=self._require_wanted, **source.options)
            model.engine.nan_guard.traces = False  # which would keep all others waiting
            runner.draws = 0
            if model.config.embeds:
                runner.served.take(model, EMBED_REQUESTS)
                continue
            scheduler = self._schedule(runner, model)
            runner.served.take(model, scheduler.slots)
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
    def _schedule(runner: _Runner, model: Model) -> Scheduler:
        options = {name: value for name, value in vars(runner.served.source.scheduler).items() if value is not None}
        runner.scheduler = model.scheduler(**options)
        return runner.scheduler

    def _close(self) -> None:
        """Close models and device, as far as they can be."""
        for runner in self._runners.values():
            model, runner.served.model = runner.served.model, None
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

    def _step(self, runner: _Runner) -> None:
        """One step of a model; a lost context ends all that runs, and opens everything again."""
        try:
            self._step_scheduler(runner)
            self._step_work(runner)
        except Exception as error:
            self._recover(runner, error)

    def _recover(self, runner: _Runner, error: Exception) -> None:
        """Make a model usable again after an error that has closed its scheduler, or was none of a request's own.

        Raises:
            GlinferError: that did not work.
        """
        if isinstance(error, GLError) and not isinstance(error, ContextError):
            self._restart(runner, error)
            return
        if not isinstance(error, ContextError):
            traceback.print_exception(error)
        self._reopen(error)

    def _restart(self, runner: _Runner, error: GLError) -> None:
        """End the sequences of a model, whose weights are still there, and make another scheduler.

        Raises:
            GlinferError: that did not work.
        """
        log(error)
        for channel in {owner for owner, _ in runner.requests.values()}:
            self._told.append((channel, refused_by_driver(error)))
        runner.requests.clear()
        runner.draws = 0
        model = runner.served.model
        assert model is not None  # it has run
        try:
            self._schedule(runner, model)
        except GlinferError as again:
            self._reopen(again)
        self._count_sequences(runner)

    def _step_scheduler(self, runner: _Runner) -> None:
        scheduler = runner.scheduler
        if scheduler is None or not len(scheduler):
            return
        metrics, name = self.metrics, runner.served.name
        for event in scheduler.next():
            each = event.sequence
            channel, index = runner.requests[each]
            count = len(each.ids)
            logprobs = each.logprobs[count - len(event.ids) : count]
            if each.stats.tokens <= max(1, len(event.ids)):
                metrics.first_token.labels(name).observe(time.monotonic() - channel.started)
            if event.result is not None:
                del runner.requests[each]
                self._count_end(name, each)
            update = Update(index, event.ids, event.text, event.thinking, event.calls, logprobs, event.result)
            self._told.append((channel, update))
        self._count_draws(runner, scheduler.batch.draws_issued)
        self._count_sequences(runner)

    def _count_draws(self, runner: _Runner, draws: int) -> None:
        self.metrics.draws.labels(runner.served.name).inc(draws - runner.draws)
        runner.draws = draws

    def _step_work(self, runner: _Runner) -> None:
        if not runner.works:
            return
        channel, steps = runner.works[0]
        try:
            next(steps)
        except StopIteration as end:
            runner.works.popleft()
            self._told.append((channel, Outcome(end.value)))
        except ContextError:
            raise
        except GlinferError as error:
            runner.works.popleft()
            self._told.append((channel, broken(error, runner.served.name)))
        if not runner.works or runner.works[0][0] is not channel:  # whose client has its next turn after all others
            runner.works = deque(sorted(runner.works, key=lambda work: work[0].client == channel.client))
        if runner.scheduler is None and runner.served.model is not None:
            self._count_draws(runner, runner.served.model.bound.draws_issued)

    def _insert(self, channel: Channel, sequences: Sequence[Running]) -> None:
        runner = self._runners[channel.served.name]
        if runner.scheduler is None:
            self._told.append((channel, not_ready("the model is being loaded")))
            return
        try:
            for index, each in enumerate(sequences):
                runner.scheduler.add(each)
                runner.requests[each] = channel, index
                self.metrics.prompt_tokens.labels(runner.served.name).inc(len(each.prompt))
        except GlinferError as error:
            self._cancel(channel)
            self._told.append((channel, refused(error, runner.served.name)))
        self._count_sequences(runner)

    def _insert_work(self, channel: Channel, start: Callable[[Model], Steps]) -> None:
        runner = self._runners[channel.served.name]
        model = runner.served.model
        if model is None:
            self._told.append((channel, not_ready("the model is being loaded")))
            return
        try:
            runner.works.append((channel, start(model)))
        except ContextError as error:
            runner.works.append((channel, _nothing()))  # to be told as all others
            self._recover(runner, error)
        except GlinferError as error:
            answer = refused_by_driver(error) if isinstance(error, GLError) else refused(error, runner.served.name)
            self._told.append((channel, answer))
        except Exception as error:  # which ends this request, and not the thread
            traceback.print_exception(error)
            self._told.append((channel, ApiError("the server failed; its log says where", status=500)))
        self._count_textures()

    def _cancel(self, channel: Channel) -> None:
        runner = self._runners[channel.served.name]
        for each in [each for each, (owner, _) in runner.requests.items() if owner is channel]:
            del runner.requests[each]
            if runner.scheduler is not None:
                runner.scheduler.cancel(each)
            self._count_end(runner.served.name, each)
        runner.works = deque(item for item in runner.works if item[0] is not channel)
        self._count_sequences(runner)

    def _fail_all(self, error: ApiError) -> None:
        """End every request with an error."""
        for runner in self._runners.values():
            channels = {owner for owner, _ in runner.requests.values()} | {owner for owner, _ in runner.works}
            for channel in channels:
                if runner.scheduler is not None and self.failure is None:
                    self._cancel(channel)
                self._told.append((channel, error))
            runner.requests.clear()
            runner.works.clear()
            self._count_sequences(runner)

    def _reopen(self, error: BaseException) -> None:
        """Tell all requests that the context is gone, and load the models again.

        Raises:
            GlinferError: that did not work.
        """
        log(f"{error}; opening the context again")
        self.metrics.losses.inc()
        self._close()
        lost = ApiError(
            "the OpenGL context was lost; it is opened again, send the request again",
            status=503,
            code="context_lost",
            headers={"Retry-After": "2"},
        )
        self._fail_all(lost)
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
        """Hand what was told to the event loop, all at once."""
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

    def _count_sequences(self, runner: _Runner) -> None:
        name, scheduler = runner.served.name, runner.scheduler
        waiting = 0 if scheduler is None else scheduler.waiting
        self.metrics.waiting.labels(name).set(waiting)
        self.metrics.running.labels(name).set(len(runner.requests) - waiting)

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


def _nothing() -> Steps:
    """Work without a step."""
    yield from ()


def broken(error: GlinferError, name: str) -> ApiError:
    """The answer to a request whose numbers broke, or whose structure did, or for which the driver has no memory."""
    if isinstance(error, StructureError):
        return refused(error, name, code="structure_too_complex")
    if isinstance(error, GLError):
        return refused_by_driver(error)
    return refused(error, name, status=500, code="broken_numbers")


def refused_by_driver(error: GLError) -> ApiError:
    """The answer to a request that the driver of OpenGL cannot run, most often for want of memory."""
    return ApiError(str(error), status=503, code="driver_error", headers={"Retry-After": "2"})
