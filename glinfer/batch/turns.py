"""An event loop that is run in turns, so that Ctrl-C comes between two of them and never inside the loop.

An interrupt inside would leave coroutines that nobody awaits and tasks that nobody ends, and Python a line of its own
for each.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from glinfer.errors import ContextError
from glinfer.gl.signals import signals_held

Result = TypeVar("Result")
Work = Callable[[], Coroutine[Any, Any, Result]]
_BROKEN = "this was broken off by a second Ctrl-C and cannot go on; make another one"
_FORKED = (
    "this process was forked from the one that has this event loop and its threads; start processes by "
    "multiprocessing's 'spawn', or make another one here"
)


class Turns:
    """An event loop, and the tasks in it; not for use inside another loop.

    The first Ctrl-C of a turn ends it and is raised behind it. A second one raises at once, after which nothing but
    :meth:`close` is of use: it may have come anywhere in the loop. In a process that is forked there is nothing to
    go on with: the threads that would end a turn are the parent's, and so is what wakes its loop.
    """

    def __init__(self) -> None:
        """Prepare; the loop is made by the first task."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broken = ""  # why nothing can be begun
        _all.add(self)

    def begin(self, work: Work[Result]) -> asyncio.Task[Result]:
        """A task of the coroutine that ``work`` makes; it runs within turns alone.

        Raises:
            ContextError: a turn was broken off, or this process was forked.
        """
        self._require_whole()
        with signals_held():
            return self._begin(work)

    def _begin(self, work: Work[Result]) -> asyncio.Task[Result]:
        if self._loop is None:
            self._loop = _new_loop()
        task = self._loop.create_task(work())
        task.add_done_callback(_end_turn)
        return task

    def run(self, tasks: Collection[asyncio.Task[Result]]) -> list[asyncio.Task[Result]]:
        """Run until one of the tasks has ended; returns all that have, in their order.

        Raises:
            ContextError: this process was forked since they have begun.
        """
        self._require_whole()
        with signals_held(self._wake) as came:
            self._turn(lambda: bool(came) or any(each.done() for each in tasks))
        return [each for each in tasks if each.done()]

    def _require_whole(self) -> None:
        if self._broken:
            raise ContextError(self._broken)

    def _turn(self, ended: Callable[[], bool]) -> None:
        assert self._loop is not None
        try:
            while not ended():
                self._loop.run_forever()
        except BaseException:
            with signals_held():
                self._abandon(_BROKEN)
            raise

    def _wake(self) -> None:
        """End the turn, from a handler of signals."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _abandon(self, why: str) -> None:
        """Let go of a loop that cannot be run any more, and of all that is in it, without a word."""
        loop, self._loop, self._broken = self._loop, None, why
        if loop is None:
            return
        asyncio._set_running_loop(None)
        loop.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(loop):
            with suppress(RuntimeError, ValueError):  # it awaits something at its end, or is the one that forks
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
                if self._broken == _FORKED or (self._loop is None and not self._broken):
                    return
                task = self._begin(lambda: _ended(last))
            self._turn(task.done)
            with signals_held():
                assert self._loop is not None
                self._loop.close()
                self._loop, self._broken = None, ""
            task.result()


_all: WeakSet[Turns] = WeakSet()


def _abandon_all() -> None:
    """In a process that was just forked."""
    for each in tuple(_all):
        each._abandon(_FORKED)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop that a forked process can close without an effect on its parent, whose epoll it would share."""
    if hasattr(os, "fork") and hasattr(selectors, "PollSelector"):
        return asyncio.SelectorEventLoop(selectors.PollSelector())
    return asyncio.new_event_loop()


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
