"""Faults below a server, each in turn: memory that runs out, lost contexts, clocks that jump."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from broken_driver import GUILTY, BrokenDriver
from own_process import DEADLINE
from running_server import Running, refused, running
from tiers import tiered

from glinfer.engine import batch
from glinfer.engine.batch import SchedulerOptions
from glinfer.engine.requests import BatchRequest
from glinfer.errors import ContextError, FormatError, GLError
from glinfer.gl.context import Device, open_device
from glinfer.jobs.lines import RequestLine
from glinfer.jobs.local import LocalRunner, LocalSetup
from glinfer.server.errors import ApiError
from glinfer.server.metrics import Metrics
from glinfer.server.served import ModelSource
from glinfer.server.worker import Worker
from qa.kill_batch import comparable

pytestmark = pytest.mark.gl

TEXT, SCORE = "/v1/completions", "/v1/score"
PICKED: dict[str, Any] = {"model": "small", "prompt": "Once upon", "max_tokens": 4, "seed": 2}
LISTED = {**PICKED, "top_k": 5, "presence_penalty": 0.5}
SCORED: dict[str, Any] = {"model": "small", "input": ["Once upon", "a time"]}
REQUESTS = [(TEXT, LISTED), (SCORE, SCORED), (TEXT, PICKED)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> BrokenDriver:
    """It works again before a device closes, when all is done that glinfer does."""
    made, close = BrokenDriver(monkeypatch), Device.close

    def mending(self: Device) -> None:
        made.mend()
        close(self)

    monkeypatch.setattr(Device, "close", mending)
    return made


def content(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body.get("choices") or body["data"]


def later(answer: httpx.Response, code: str) -> str:
    assert "Retry-After" in answer.headers
    return str(refused(answer, 503, code=code)["message"])


@pytest.fixture(scope="module")
def server(small: Path) -> Iterator[Running]:
    with running(("small", small), slots=2) as found:
        yield found


@pytest.fixture
def own(small: Path) -> Iterator[Running]:
    """A server whose device may be opened again within the test."""
    with running(("small", small), slots=2) as found:
        yield found


def fail_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The next step of the model fails."""
    step, left = Worker._step_scheduler, [1]

    def failing(self: Worker, runner: Any) -> None:
        if runner.requests and left[0]:
            left[0] -= 1
            raise error
        step(self, runner)

    monkeypatch.setattr(Worker, "_step_scheduler", failing)


class TestGraphics:
    @tiered(("url", "body"), REQUESTS[:2])
    def test_no_memory_at_any_allocation_of_a_request(
        self,
        small: Path,
        server: Running,
        driver: BrokenDriver,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
        url: str,
        body: Any,
    ) -> None:
        monkeypatch.setattr(batch, "filters_by_passes", lambda device: True)  # whose plan is bound by a request
        with running(("small", small), slots=2) as fresh:
            failures = 0
            while True:
                driver.fail_at(failures + 1)
                answer = fresh.post(url, body)
                if not driver.failed:
                    break
                failures += 1
                assert "found no memory for " in later(answer, "driver_error")
                driver.mend()
                assert content(fresh.post(TEXT, PICKED))
            expected = content(answer)
            assert fresh.metric("glinfer_context_losses_total") == 0, "the models stay"
            assert fresh.metric("glinfer_running") == 0
        assert content(server.post(url, body)) == expected
        assert failures >= 1
        said = capfd.readouterr().err
        assert said.count("\n") == (failures if url == TEXT else 0), "a line for each scheduler that was made anew"

    def test_no_memory_for_another_scheduler_opens_everything_again(
        self, own: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        schedule, left = Worker._schedule, [1]

        def scheduling(*given: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise GLError("creating texture kv: no memory, planted")
            return schedule(*given)

        expected = content(own.post(TEXT, PICKED))
        fail_once(monkeypatch, GLError("drawing: no memory, planted"))
        monkeypatch.setattr(Worker, "_schedule", scheduling)
        assert later(own.post(TEXT, PICKED), "driver_error") == "drawing: no memory, planted"
        own.ready()
        assert content(own.post(TEXT, PICKED)) == expected
        assert own.metric("glinfer_context_losses_total") == 1
        assert capfd.readouterr().err.splitlines() == [
            "glinfer: drawing: no memory, planted",
            "glinfer: creating texture kv: no memory, planted; opening the context again",
        ]

    @pytest.mark.slow
    @pytest.mark.parametrize(("url", "body"), REQUESTS[:2])
    def test_a_context_lost_at_any_readback(
        self, driver: BrokenDriver, own: Running, url: str, body: dict[str, Any]
    ) -> None:
        expected, losses = content(own.post(url, body)), 0
        while True:
            driver.mend()
            at = losses + 1
            driver.after_read = lambda *_, at=at: driver.lose(GUILTY) if driver.reads == at else None
            answer = own.post(url, body)
            if answer.status_code == 200 and driver.reads < at:
                assert content(answer) == expected
                break
            losses += 1
            if answer.status_code == 200:  # lost with the last readback, when all was there; the next finds out
                assert content(answer) == expected
                answer = own.post(url, body)
            assert "opened again" in later(answer, "context_lost")
            own.ready()
            assert content(own.post(url, body)) == expected
        assert losses >= 1
        assert own.metric("glinfer_context_losses_total") == losses
        assert own.metric("glinfer_running") == 0

    @pytest.mark.slow
    def test_a_batch_whose_context_is_lost_at_any_readback_has_the_same_results(
        self, small: Path, driver: BrokenDriver
    ) -> None:
        lines = [
            RequestLine(number, f"r{number}", url, body | {"model": "m"})
            for number, (url, body) in enumerate(REQUESTS, 1)
        ]
        expected, losses = dict[str, Any](), 0
        with LocalRunner(LocalSetup([("m", str(small), {})], {"slots": 2})) as runner:
            while True:
                driver.mend()
                at = losses + 1 if expected else 0
                driver.after_read = lambda *_, at=at: driver.lose(GUILTY) if driver.reads == at else None
                found = {each.line.key: comparable(each.data) for each in runner.run(iter(lines))}
                expected = expected or found
                assert found == expected
                if at and driver.reads < at:
                    break
                losses += at > 0
        assert losses >= 3


class TestCommands:
    """What the thread is told to do while it ends."""

    @tiered("late", [False, True], ids=["before its end", "behind it"])
    def test_nobody_waits_for_a_thread_that_has_ended(self, small: Path, late: bool) -> None:
        async def asked() -> None:
            failed = asyncio.Event()
            ready = asyncio.Event()
            worker = Worker(
                [ModelSource("small", str(small), {}, SchedulerOptions(slots=2))],
                partial(open_device, None),
                Metrics(),
                max_waiting=9,
                on_failure=failed.set,
                on_ready=ready.set,
            )
            worker.start()
            await ready.wait()
            served = worker.served["small"]
            sequences = [served.loaded.checked(BatchRequest("Once", {"max_tokens": 3}))]
            channels = [worker.admit(served, 1) for _ in range(2)]

            def broken() -> None:
                raise ContextError("planted")

            worker._commands.put(broken)
            if late:
                await failed.wait()
                await asyncio.to_thread(worker._thread.join)
            worker.submit(channels[0], sequences)
            worker.work(channels[1], lambda model: iter(()))  # type: ignore[arg-type, return-value]
            for channel in channels:
                with pytest.raises(ApiError, match=r"the model is being loaded|the server is shutting down"):
                    await asyncio.wait_for(channel.get(), DEADLINE)
            assert str(worker.failure) == "planted"
            assert worker.live == 0
            with pytest.raises(ApiError):
                worker.admit(served, 1)
            await worker.stop()
            await worker.stop()

        asyncio.run(asked())

    def test_a_batch_ends_where_the_models_cannot_be_opened_again(
        self, small: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(self: Worker) -> None:
            raise FormatError("small.gab: cannot read it: No such file, planted")

        def lost(self: Worker, runner: Any) -> None:
            raise ContextError("the context was lost, planted")

        monkeypatch.setattr("glinfer.server.worker.REOPEN_TRIES", 1)
        lines = [RequestLine(number, f"r{number}", TEXT, PICKED | {"model": "m"}) for number in range(9)]
        with LocalRunner(LocalSetup([("m", str(small), {})], {"slots": 2})) as runner:
            monkeypatch.setattr(Worker, "_open", gone)
            monkeypatch.setattr(Worker, "_step_scheduler", lost)
            with pytest.raises(FormatError, match="No such file, planted"):
                list(runner.run(iter(lines)))

    def test_nobody_reads_what_is_said_of_a_loss(self, own: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        def closed(*given: Any, **named: Any) -> None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        monkeypatch.setattr("click.echo", closed)
        fail_once(monkeypatch, ContextError("the context was lost, planted"))
        later(own.post(TEXT, PICKED), "context_lost")
        own.ready()
        assert content(own.post(TEXT, PICKED))


class TestClocks:
    @tiered("jump", [-1e9, 3600.0], keep=1)
    def test_a_clock_that_jumps_ends_nothing_and_holds_nothing_up(
        self, server: Running, monkeypatch: pytest.MonkeyPatch, jump: float
    ) -> None:
        real, offset = time.time, [0.0]

        def jumping() -> float:
            offset[0] += jump
            return max(0.0, real() + offset[0])

        expected = content(server.post(TEXT, PICKED))
        monkeypatch.setattr(time, "time", jumping)
        monkeypatch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(server.post, TEXT, PICKED) for _ in range(6)]
            assert all(content(each.result(DEADLINE)) == expected for each in asked)
        lines = server.post(TEXT, {**PICKED, "stream": True}).text.splitlines()
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.get("/metrics").status_code == 200
        assert server.get("/v1/models").json()["data"][0]["created"] >= 0
        assert server.failure is None
