"""Distribute lines to members (this process, others, or actors), and retry those of a dead member."""

from __future__ import annotations

import itertools
import os
import queue
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from glinfer.closing import Closing
from glinfer.errors import ContextError
from glinfer.gl.signals import signals_held
from glinfer.jobs.lines import LineResult, RequestLine
from glinfer.jobs.requests import unanswered

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_RETRIES = 2
"""Retries of a request after failures that it did not cause: a lost context, no memory, a dead process."""
MAX_STARTS = 5
"""Limit for deaths of a member in a row before it is ready."""


@dataclass(frozen=True)
class Ready:
    """A member has loaded its models; it runs ``window`` lines at once on ``renderer``."""

    window: int
    renderer: str


@dataclass(frozen=True)
class Failed:
    """A member cannot load its models or answer line ``number``, nor could a replacement."""

    error: BaseException
    number: int | None = None


@dataclass(frozen=True)
class Died:
    """A member has ended."""

    message: str


@dataclass(frozen=True)
class Answered:
    """A line has a result, with counts of prompt tokens and of tokens; ``draws`` are all of the member so far."""

    number: int
    data: dict[str, Any]
    failed: bool
    counts: Sequence[int]
    draws: int

    @classmethod
    def by(cls, number: int, result: LineResult, draws: int) -> Answered:
        """The event without the line itself, which the pool has."""
        return cls(number, result.data, result.failed, [result.prompt_tokens, result.tokens], draws)


class Member(ABC):
    """Answers lines, and puts (member, event) on the pool's queue."""

    @abstractmethod
    def send(self, number: int, line: RequestLine) -> None:
        """Send a line, whose events have this number; does nothing if the member has died."""

    @abstractmethod
    def close(self) -> None:
        """End the member; does nothing if it has ended."""


Event = Ready | Failed | Died | Answered


class Events(Protocol):
    """The pool's queue, for a member."""

    def put(self, event: tuple[Member, Event], /) -> None:
        """Add an event."""


Start = Callable[[Events], Member]
"""Starts a member that puts its events on this queue."""


@dataclass
class _Worker:
    """A member, its lines, and the function that starts a replacement."""

    start: Start
    member: Member
    window: int = 0
    held: dict[int, RequestLine] = field(default_factory=dict)
    starts: int = 0
    draws: int = 0


class Pool(Closing):
    """Answers lines with several members; use it in a ``with`` block.

    Each member runs a window of lines, and gets another line for each result. A dead member is replaced, and its lines
    run again: together at first, but one at a time after the second death, so that a line that kills its member does
    not affect others. A line that was present at MAX_RETRIES + 1 deaths gets an error as its result.

    Attributes:
        renderer: the renderer of the members.
        deaths: the number of members that have died.
    """

    def __init__(self, starts: Sequence[Start]) -> None:
        """Prepare a worker for each of ``starts``; members start with the block."""
        self._starts, self.renderer, self.deaths = starts, "", 0
        self._process, self._numbers = os.getpid(), itertools.count(1)
        self._events: queue.SimpleQueue[tuple[Member, Event]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._killed: dict[int, int] = {}
        self._again: deque[RequestLine] = deque()
        self._alone: deque[RequestLine] = deque()
        self._past_draws = 0
        self._lines: Iterator[RequestLine] | None = None

    def __enter__(self) -> Self:
        """Start all members, and wait until one is ready."""
        try:
            for start in self._starts:
                with signals_held():  # an interrupt would lose the member
                    self._workers.append(_Worker(start, start(self._events)))
            while not any(worker.window for worker in self._workers):
                list(self._take(*self._events.get()))
        except BaseException:
            self.close()
            raise
        return self

    @property
    def draws(self) -> int:
        """Draw calls that all members have reported so far."""
        return self._past_draws + sum(worker.draws for worker in self._workers)

    def run(self, lines: Iterator[RequestLine]) -> Iterator[LineResult]:
        """Yield results as they finish."""
        self._lines = lines
        try:
            while True:
                if os.getpid() != self._process:
                    raise ContextError(
                        "this process was forked from the one that runs this batch; start processes with "
                        "multiprocessing's 'spawn', or start another batch here"
                    )
                if not self._workers:
                    raise ContextError("this batch was closed; start another one")
                for worker in self._workers:
                    while (line := self._line_for(worker)) is not None:
                        number = next(self._numbers)
                        worker.held[number] = line
                        worker.member.send(number, line)
                waiting = self._again or self._alone or any(worker.held for worker in self._workers)
                if self._lines is None and not waiting:
                    return
                yield from self._take(*self._events.get())
        finally:  # after an error or an interrupt, later answers are ignored
            for worker in self._workers:
                worker.held.clear()
            for left in (self._again, self._alone, self._killed):
                left.clear()

    def _line_for(self, worker: _Worker) -> RequestLine | None:
        """The next line for a member; None if it has no room or no line is left."""
        suspected = any(self._killed.get(line.number, 0) >= MAX_RETRIES for line in worker.held.values())
        if suspected or len(worker.held) >= worker.window:
            return None
        if self._alone and worker is next(each for each in self._workers if each.window):
            return None if worker.held else self._alone.popleft()
        if self._again:
            return self._again.popleft()
        line = None if self._lines is None else next(self._lines, None)
        if line is None:
            self._lines = None
        return line

    def _take(self, member: Member, event: Event) -> Iterator[LineResult]:
        """Handle an event, and yield its results."""
        worker = next((each for each in self._workers if each.member is member), None)
        if worker is None:  # the member was replaced
            return
        if isinstance(event, Ready):
            worker.window, worker.starts = event.window, 0
            self.renderer = self.renderer or event.renderer
        elif isinstance(event, Failed):
            if event.number is None or event.number in worker.held:
                raise event.error
        elif isinstance(event, Died):
            yield from self._replace(worker, event)
        elif (line := worker.held.pop(event.number, None)) is not None:
            worker.draws = event.draws
            yield LineResult(line, event.data, event.failed, *event.counts)

    def _replace(self, worker: _Worker, event: Died) -> Iterator[LineResult]:
        self.deaths += 1
        worker.starts += not worker.window
        if worker.starts == MAX_STARTS:
            raise ContextError(f"a process died {MAX_STARTS} times in a row before it was ready: {event.message}")
        held, worker.held, worker.window = list(worker.held.values()), {}, 0
        self._past_draws, worker.draws = self._past_draws + worker.draws, 0
        worker.member.close()
        worker.member = worker.start(self._events)
        for line in held:
            killed = self._killed[line.number] = self._killed.get(line.number, 0) + 1
            if killed > MAX_RETRIES:
                yield unanswered(line, f"the processes that ran it died {killed} times: {event.message}")
            else:
                (self._alone if killed == MAX_RETRIES else self._again).append(line)

    def close(self) -> None:
        """End all members."""
        for worker in self._workers:
            worker.member.close()
        self._workers.clear()
