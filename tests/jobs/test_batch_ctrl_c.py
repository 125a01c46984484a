"""Ctrl-C at every step of a batch in one process: it is raised, and leaves no line, server or thread behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("pydantic", reason="pydantic is not installed")

from interrupts import files_of, heeds_ctrl_c, interrupted_everywhere

from glinfer.errors import ContextError
from glinfer.gl import signals
from glinfer.jobs import local, pool
from glinfer.jobs.lines import LineResult, RequestLine
from glinfer.jobs.local import LocalRunner, LocalSetup
from glinfer.jobs.requests import answered

__all__ = ["heeds_ctrl_c"]

FILES = files_of(local, pool, signals)
COUNT = 3


def lines() -> Iterator[RequestLine]:
    return (RequestLine(number, f"r{number}", "/v1/completions", {}) for number in range(1, COUNT + 1))


class Servers:
    """What was made of it, and has to be gone; each has room for two lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.answering, self.insist = 0, 0, False
        self.failure: BaseException | None = None
        servers = self

        class Server:
            window, renderer, draws = 2, "renderer", 0

            def __init__(self, setup: LocalSetup) -> None:
                servers.open += 1

            async def start(self) -> None:
                await asyncio.sleep(0)

            async def answer(self, line: RequestLine) -> LineResult:
                servers.answering += 1
                try:
                    await asyncio.sleep(0)
                    if servers.failure is not None:
                        raise servers.failure
                    return answered(line, 200, "", {"usage": {"prompt_tokens": 2, "completion_tokens": 1}})
                finally:
                    servers.answering -= 1

            async def stop(self) -> None:
                try:
                    await asyncio.sleep(0)
                    if servers.insist:
                        os.kill(os.getpid(), signal.SIGINT)
                    while servers.insist:
                        await asyncio.sleep(0.01)
                finally:
                    servers.open -= 1

        monkeypatch.setattr(local, "LocalServer", Server)

    def check(self, where: str) -> None:
        """Nothing is left."""
        assert (self.open, self.answering) == (0, 0), where
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, where


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, heeds_ctrl_c: None) -> Servers:
    monkeypatch.setattr(signals, "_NUMBERS", (int(signal.SIGINT),))  # of all others each would be a place
    return Servers(monkeypatch)


@pytest.fixture(autouse=True)
def silent(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither Python nor asyncio has anything to say, and no thread is left."""
    threads = threading.active_count()
    with warnings.catch_warnings(record=True) as said, caplog.at_level(logging.DEBUG, logger="asyncio"):
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(each.message) for each in said] == []
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.DEBUG] == []
    assert threading.active_count() <= threads


@pytest.mark.slow
def test_ctrl_c_anywhere_ends_a_batch_and_leaves_nothing(servers: Servers) -> None:
    runners, found = list[LocalRunner](), list[int]()

    def act() -> None:
        runners.append(LocalRunner(LocalSetup([])))
        with runners[-1] as runner:
            found.extend(each.line.number for each in runner.run(lines()))

    def after(where: str) -> None:
        assert len(found) == len({*found}) <= COUNT
        for each in runners:  # an interrupt may have kept the end of the block from beginning
            each.close()
        servers.check(where)
        runners.clear()
        found.clear()

    places = interrupted_everywhere(act, after, FILES)
    assert sorted(found) == [1, 2, 3]
    servers.check("the end")
    assert places > 100


def test_a_ctrl_c_while_it_closes_does_not_wait(servers: Servers) -> None:
    """Whoever insists gets out, and what is left can be closed."""
    runner = LocalRunner(LocalSetup([]))
    with pytest.raises(KeyboardInterrupt), runner:
        servers.insist = True
    assert servers.open == 1
    servers.insist = False
    runner.close()
    servers.check("the end")
    with pytest.raises(ContextError, match="this batch was closed; start another one"):
        list(runner.run(lines()))


def test_an_error_of_several_lines_at_once_is_told_once(servers: Servers) -> None:
    with LocalRunner(LocalSetup([])) as runner:
        failures = ContextError("the context is gone, planted"), SystemExit("planted")
        for width, servers.failure in itertools.product((1, 2), failures):
            with pytest.raises((ContextError, SystemExit), match="planted"):
                list(runner.run(iter(list(lines())[:width])))
            servers.failure = None
            assert len(list(runner.run(lines()))) == COUNT
    servers.check("the end")


def test_answers_to_a_run_that_was_left_are_ignored(servers: Servers) -> None:
    with LocalRunner(LocalSetup([])) as runner:
        for _ in runner.run(lines()):
            break
        gc.collect()
        found = [each.line for each in runner.run(line for line in lines() if line.number > 1)]
        assert sorted(line.number for line in found) == [2, 3]
    servers.check("the end")
