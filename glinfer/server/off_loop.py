"""Threads for slow work of requests, shared among clients: tokenizing, parsing, templates, structures, long answers.

A thread's turn takes the interpreter from the OpenGL thread several times, so small work runs on the event loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from glinfer.errors import GlinferError, InputError
from glinfer.server.limits import share
from glinfer.text.own_process import end_process_of

Result = TypeVar("Result")
_Outcome = tuple[Any, Exception | None]

THREADS = 6
"""Threads of a pool. More would not help: their work is short or waits for a child process. Each keeps its own
memory arena, so a server with many threads would grow for hours."""
SMALL = 2048
"""The largest work, in characters or tokens, that runs on the event loop; it takes a millisecond at most."""


def thread_pool(name: str, threads: int = THREADS) -> ThreadPoolExecutor:
    """A pool that starts all its threads at once, so the server's number of threads never grows.

    Raises:
        InputError: the system cannot start another thread.
    """
    pool, together = ThreadPoolExecutor(threads, thread_name_prefix=name), threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(together.wait)
    except RuntimeError as error:
        together.abort()  # otherwise the started threads would wait forever
        pool.shutdown()
        raise InputError(
            f"{error}: the server needs {threads} threads for {name}; raise ulimit -u, or end other processes"
        ) from None
    return pool


@dataclass(frozen=True, eq=False)
class _Work:
    """Work, its client, and the future that its request awaits."""

    work: Callable[[], Any]
    client: Hashable
    answer: asyncio.Future[_Outcome]


class Threads:
    """Threads for the work of requests, shared fairly among clients; use it on one event loop.

    Work waits here instead of the pool's queue, so that one client's work never waits for all of another's.
    """

    def __init__(self, name: str, threads: int = THREADS) -> None:
        """Start the pool of ``threads`` threads."""
        self.threads = threads
        self._pool = thread_pool(name, threads)
        self._waiting: list[_Work] = []
        self._running: Counter[Hashable] = Counter()
        self._working: set[int] = set()
        self._asked: set[asyncio.Future[_Outcome]] = set()

    @property
    def busy(self) -> bool:
        """Whether a request awaits work."""
        return bool(self._asked)

    async def run(self, work: Callable[[], Result], client: Hashable, size: float = math.inf) -> Result:
        """Run ``work`` on a thread when it is the client's turn, or at once if it is SMALL; return its result.

        A cancelled request leaves the queue; work that has begun keeps its thread until it ends.

        Raises:
            GlinferError: the work raised it.
            RuntimeError: the work raised another exception, which a future or the event loop might not carry.
        """
        found, error = self._outcome(work) if size <= SMALL else await self._queued(work, client)
        if error is not None:
            raise error
        result: Result = found
        return result

    async def _queued(self, work: Callable[[], Any], client: Hashable) -> _Outcome:
        answer: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._asked.add(answer)
        self._waiting.append(_Work(work, client, answer))
        self._begin()
        try:
            return await answer
        finally:
            self._asked.discard(answer)

    def abandon(self, error: GlinferError) -> None:
        """End every waiting request with an error, and kill the processes that work has started."""
        for answer in self._asked:
            if not answer.done():
                answer.set_result((None, error))
        for thread in tuple(self._working):
            end_process_of(thread)

    def close(self) -> None:
        """End the threads after their current work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Start waiting work, first that of the client with the least running."""
        self._waiting = [each for each in self._waiting if not each.answer.done()]
        free = self.threads - self._running.total()
        for each in sorted(self._waiting, key=lambda each: self._running[each.client]):
            own = self._running[each.client]
            if not free:
                break
            if own < share(free + own, self.threads):
                free -= 1
                self._waiting.remove(each)
                self._running[each.client] += 1
                tell = partial(_tell, asyncio.get_running_loop(), partial(self._end, each))
                self._pool.submit(self._outcome, each.work).add_done_callback(tell)
        self._running += Counter()  # drops clients at 0

    def _end(self, each: _Work, outcome: _Outcome) -> None:
        self._running[each.client] -= 1
        if not each.answer.done():
            each.answer.set_result(outcome)
        self._begin()

    def _outcome(self, work: Callable[[], Any]) -> _Outcome:
        """The result or error of work; a future cannot carry StopIteration, and SystemExit would end the event loop."""
        self._working.add(threading.get_ident())
        try:
            return work(), None
        except GlinferError as error:
            return None, error
        except BaseException as error:
            failed = RuntimeError(f"work off the event loop has raised {type(error).__name__}")
            failed.__cause__ = error
            return None, failed
        finally:
            self._working.discard(threading.get_ident())


def _tell(loop: asyncio.AbstractEventLoop, end: Callable[[_Outcome], None], done: Future[_Outcome]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(end, done.result())
