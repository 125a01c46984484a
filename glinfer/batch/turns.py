"""An event loop that runs in turns, so that Ctrl-C takes effect between two turns and never inside the loop.

An interrupt inside the loop would leave unawaited coroutines and unfinished tasks, and Python warns of each.
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
_BROKEN = "a second Ctrl-C has interrupted this, so it cannot continue; make another one"
_FORKED = (
    "this process was forked from the one that has this event loop and its threads; start processes with "
    "multiprocessing's 'spawn', or make another one here"
)


class Turns:
    """An event loop and its tasks; not for use inside another loop.

    The first Ctrl-C ends the turn and is raised after it. A second Ctrl-C raises at once, anywhere in the loop; only
    :meth:`close` may follow. A forked process cannot continue, because the threads that end a turn and wake the loop
    belong to the parent.
    """

    def __init__(self) -> None:
        """Prepare; the first task makes the loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broken = ""  # why no task can start
        _all.add(self)

    def begin(self, work: Work[Result]) -> asyncio.Task[Result]:
        """Start a task of the coroutine that ``work`` makes; it runs only during turns.

        Raises:
            ContextError: a turn was interrupted, or this process was forked.
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
        """Run until a task has ended, and return all ended tasks in order.

        Raises:
            ContextError: this process was forked after the tasks began.
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
        """End the turn, from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _abandon(self, why: str) -> None:
        """Drop a loop that cannot run any more, and its tasks, without warnings."""
        loop, self._loop, self._broken = self._loop, None, why
        if loop is None:
            return
        asyncio._set_running_loop(None)
        loop.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(loop):
            with suppress(RuntimeError, ValueError):  # it awaits in its cleanup, or is the task that forked
                task.get_coro().close()
        with suppress(RuntimeError):  # it considers itself running
            loop.close()

    def drop(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Cancel tasks whose results are no longer needed."""
        with signals_held():
            for each in tasks if self._loop is not None else ():
                each.cancel()

    def close(self, last: Work[None]) -> None:
        """Cancel all tasks, await the coroutine that ``last`` makes, and close the loop; may be called again.

        A Ctrl-C waits for its end; a second one interrupts it, and it can be called again.
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
    """Drop all loops, in a process that was just forked."""
    for each in tuple(_all):
        each._abandon(_FORKED)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop without epoll, which a forked process would share with its parent and could not close."""
    if hasattr(os, "fork") and hasattr(selectors, "PollSelector"):
        return asyncio.SelectorEventLoop(selectors.PollSelector())
    return asyncio.new_event_loop()


def _end_turn(task: asyncio.Task[Any]) -> None:
    task.get_loop().stop()
    if not task.cancelled():
        task.exception()  # mark it as retrieved, or asyncio writes it to stderr


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
