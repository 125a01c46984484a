"""Ctrl-C at every step of a batch in one process: it is raised, and leaves no task, coroutine or loop behind."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.events
import gc
import logging
import signal
import threading
import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("pydantic", reason="pydantic is not installed")

from interrupts import files_of, heeds_ctrl_c, interrupted_everywhere

from glinfer.batch import local, turns
from glinfer.batch.lines import LineResult
from glinfer.batch.local import LocalRunner, LocalSetup
from glinfer.batch.requests import RequestLine, answered
from glinfer.batch.turns import Turns
from glinfer.errors import ContextError
from glinfer.gl import signals

__all__ = ["heeds_ctrl_c"]

FILES = files_of(local, turns, signals)
LOOP = files_of(asyncio.base_events, asyncio.events)
COUNT = 3


def lines() -> Iterator[RequestLine]:
    return (RequestLine(number, f"r{number}", "/v1/completions", {}) for number in range(1, COUNT + 1))


class Servers:
    """What was made of it, and has to be gone; each has room for two lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.answering, self.loops = 0, 0, list[asyncio.AbstractEventLoop]()
        self.failure: Exception | None = None
        made, servers = turns._new_loop, self

        class Server:
            window, renderer, draws = 2, "renderer", 0

            def __init__(self, setup: LocalSetup) -> None:
                servers.open += 1
                self.closed = False

            async def start(self) -> None:
                await asyncio.sleep(0)

            async def answer(self, line: RequestLine) -> LineResult[RequestLine]:
                servers.answering += 1
                try:
                    await asyncio.sleep(0)
                    if servers.failure is not None:
                        raise servers.failure
                    return answered(line, 200, "", {"usage": {"prompt_tokens": 2, "completion_tokens": 1}})
                finally:
                    servers.answering -= 1

            async def stop(self) -> None:
                await asyncio.sleep(0)
                servers.open -= not self.closed
                self.closed = True

        def new_loop() -> asyncio.AbstractEventLoop:
            self.loops.append(made())
            return self.loops[-1]

        monkeypatch.setattr(local, "LocalServer", Server)
        monkeypatch.setattr(turns, "_new_loop", new_loop)

    def check(self, where: str) -> None:
        """Nothing is left."""
        assert (self.open, self.answering) == (0, 0), where
        assert all(loop.is_closed() for loop in self.loops), where
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, where
        self.loops.clear()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, heeds_ctrl_c: None) -> Servers:
    monkeypatch.setattr(signals, "_NUMBERS", (int(signal.SIGINT),))  # of all others each would be a place
    return Servers(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> Iterator[None]:
    """What was made before this module is no matter of it, and takes long to be gone through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def silent(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither Python nor asyncio has anything to say."""
    threads = threading.active_count()
    with warnings.catch_warnings(record=True) as said, caplog.at_level(logging.DEBUG, logger="asyncio"):
        warnings.simplefilter("always")
        yield
        gc.collect()
    told = [str(each.message) for each in said]
    assert told == []
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.DEBUG] == []
    assert threading.active_count() <= threads


def closed(runner: LocalRunner) -> None:
    """Close, as the end of the block does, which an interrupt may have kept from beginning."""
    runner.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("coarse", [LOOP, set()], ids=["loop", "steps"])
def test_ctrl_c_anywhere_ends_a_batch_and_leaves_nothing(servers: Servers, coarse: set[str]) -> None:
    runners, found = list[LocalRunner](), list[int]()

    def act() -> None:
        runners.append(LocalRunner(LocalSetup([])))
        with runners[-1] as runner:
            found.extend(each.line.number for each in runner.run(lines()))

    def after(where: str) -> None:
        assert len(found) == len({*found}) <= COUNT
        for each in runners:
            closed(each)
        servers.check(where)
        runners.clear()
        found.clear()

    places = interrupted_everywhere(act, after, set() if coarse else FILES, coarse)
    assert sorted(found) == [1, 2, 3]
    servers.check("the end")
    assert places > 100


def test_a_second_ctrl_c_does_not_wait(servers: Servers) -> None:
    """Whoever insists gets out of a loop that does not end, and what is left can be closed."""

    async def forever() -> None:
        while True:  # takes the loop, so that nothing ends the turn
            signal.raise_signal(signal.SIGINT)

    with LocalRunner(LocalSetup([])) as runner:
        tasks = [runner._turns.begin(forever), runner._turns.begin(forever)]
        with pytest.raises(KeyboardInterrupt):
            runner._turns.run(tasks)
        with pytest.raises(ContextError, match="a second Ctrl-C has interrupted this"):
            list(runner.run(lines()))
    servers.check("the end")


def test_an_error_of_several_lines_at_once_is_told_once(servers: Servers) -> None:
    with LocalRunner(LocalSetup([])) as runner:
        for width in (1, 2):
            servers.failure = ContextError("the context is gone, planted")
            with pytest.raises(ContextError, match="planted"):
                list(runner.run(iter(list(lines())[:width])))
            servers.failure = None
            assert len(list(runner.run(lines()))) == COUNT
    servers.check("the end")


def test_a_generator_that_is_left_ends_its_lines(servers: Servers) -> None:
    Turns().close(lambda: asyncio.sleep(0))  # which has none
    with LocalRunner(LocalSetup([])) as runner:
        for _ in runner.run(lines()):
            break
        gc.collect()
        assert len(list(runner.run(lines()))) == COUNT
        assert servers.answering == 0
    servers.check("the end")
