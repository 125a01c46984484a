"""Work that takes a process of its own and may take seconds: rendering chat templates, compiling structures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from glinfer.errors import InputError

Result = TypeVar("Result")

THREADS = 6
"""Threads of a pool. Their work is short or waits for a child process, and one thread draws: more would bring nothing.
Each keeps memory of its own, so that a server with many grows for hours."""


def thread_pool(name: str, threads: int = THREADS) -> ThreadPoolExecutor:
    """A pool that has all of its threads from the beginning, so that a server never has more than it began with.

    Raises:
        InputError: the system starts no more threads.
    """
    pool, together = ThreadPoolExecutor(threads, thread_name_prefix=name), threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(together.wait)
    except RuntimeError as error:
        together.abort()  # or those that have begun would wait for the others for ever
        pool.shutdown()
        raise InputError(
            f"{error}: the server needs {threads} for {name}; allow more (ulimit -u), or end others"
        ) from None
    return pool


@dataclass
class _Turns:
    """The turns of one client.

    Attributes:
        free: how much of its work may begin.
        users: requests that wait for a turn, or have one.
    """

    free: asyncio.Semaphore
    users: int = 0


class SlowWork:
    """Threads for such work alone, so that tokenizing and all else never waits for it; one client has half of them.

    Use it on one event loop.
    """

    def __init__(self, threads: int = THREADS) -> None:
        """Start the pool; ``threads`` is how much of such work runs at once."""
        self.threads = threads
        self._pool = thread_pool("glinfer-slow", threads)
        self._turns: dict[Hashable, _Turns] = {}

    async def run(self, work: Callable[[], Result], client: Hashable) -> Result:
        """What ``work`` returns, when it is the client's turn; errors are those of the work."""
        turns = self._turns.setdefault(client, _Turns(asyncio.Semaphore(max(1, self.threads // 2))))
        turns.users += 1
        try:
            await turns.free.acquire()
        except BaseException:
            self._leave(client)
            raise
        loop = asyncio.get_running_loop()

        def over(_: Future[Result]) -> None:
            # Also of work that nobody waits for any more, which takes its thread to the end.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._end, client)

        future = self._pool.submit(work)
        future.add_done_callback(over)
        return await asyncio.wrap_future(future)

    def _end(self, client: Hashable) -> None:
        self._turns[client].free.release()
        self._leave(client)

    def _leave(self, client: Hashable) -> None:
        turns = self._turns[client]
        turns.users -= 1
        if not turns.users:
            del self._turns[client]


@dataclass(frozen=True)
class SlowTurn:
    """Where the slow work of one request waits for its turn.

    Attributes:
        slow: the threads.
        client: whose request it is.
    """

    slow: SlowWork
    client: Hashable

    async def run(self, work: Callable[[], Result]) -> Result:
        """See :meth:`SlowWork.run`."""
        return await self.slow.run(work, self.client)
