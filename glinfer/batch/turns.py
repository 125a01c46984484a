"""An event loop that is run in turns, so that Ctrl-C comes between two of them and never inside the loop.

An interrupt inside would leave coroutines that nobody awaits and tasks that nobody ends, and Python a line of its own
for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from glinfer.errors import ContextError
from glinfer.gl.signals import signals_held

Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, Result]]


class Turns:
    """An event loop, and the tasks in it; not for use inside another loop.

    The first Ctrl-C of a turn ends it and is raised behind it. A second one raises at once, after which nothing but
    :meth:`close` is of use: it may have come anywhere in the loop.
    """

    def __init__(self) -> None:
        """Prepare; the loop is made by the first task."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broken = False

    def begin(self, work: Work[Result]) -> asyncio.Task[Result]:
        """A task of the coroutine that ``work`` makes; it runs within turns alone.

        Raises:
            ContextError: a turn was broken off.
        """
        if self._broken:
            raise ContextError("this was broken off by a second Ctrl-C and cannot go on; make another one")
        with signals_held():
            return self._begin(work)

    def _begin(self, work: Work[Result]) -> asyncio.Task[Result]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(work())
        task.add_done_callback(_end_turn)
        return task

    def run(self, tasks: Collection[asyncio.Task[Result]]) -> list[asyncio.Task[Result]]:
        """Run until one of the tasks has ended; returns all that have, in their order."""
        with signals_held(self._wake) as came:
            self._turn(lambda: bool(came) or any(each.done() for each in tasks))
        return [each for each in tasks if each.done()]

    def _turn(self, ended: Callable[[], bool]) -> None:
        assert self._loop is not None
        try:
            while not ended():
                self._loop.run_forever()
        except BaseException:
            with signals_held():
                self._abandon()
            raise

    def _wake(self) -> None:
        """End the turn, from a handler of signals."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _abandon(self) -> None:
        """Let go of a loop that cannot be run any more, and of all that is in it, without a word."""
        assert self._loop is not None
        loop, self._loop, self._broken = self._loop, None, True
        asyncio._set_running_loop(None)
        loop.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(loop):
            with suppress(RuntimeError):  # it awaits something at its end
                task.get_coro().close()
        with suppress(RuntimeError):  # it believes that it runs
            loop.close()

    def drop(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """End tasks whose results nobody waits for any more."""
        with signals_held():
            for each in tasks if self._loop is not None else ():
                each.cancel()

    def close(self, last: Work[None]) -> None:
        """End all tasks, await what ``last`` then makes, and close the loop; harmless when repeated.

        A Ctrl-C waits for the end of this; a second one breaks it off, and it can be called again.
        """
        with signals_held(lambda: None):
            with signals_held():
                if self._loop is None and not self._broken:
                    return
                task = self._begin(lambda: _ended(last))
            self._turn(task.done)
            with signals_held():
                assert self._loop is not None
                self._loop.close()
                self._loop, self._broken = None, False
            task.result()


def _end_turn(task: asyncio.Task[Any]) -> None:
    task.get_loop().stop()
    if not task.cancelled():
        task.exception()  # asked for, or asyncio would write to stderr what nobody waits for any more


async def _ended(last: Work[None]) -> None:
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    others = [each for each in asyncio.all_tasks() if each is not own]
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    try:
        await last()
    finally:
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()
