"""The scheduler: requests come and go at any time, and all running sequences share each run.

One :meth:`Scheduler.next` runs at most a piece of waiting prompts, and one token of every sequence whose prompt is in
its cache. First comes the client with the fewest prompt tokens in progress, then the prompt that has run least, then
the shortest in pieces, then the oldest: a new short prompt waits for one piece of others and one step. A prompt that
shares a prefix with a running prompt of its client waits for it, and finds the prefix in the cache.

If the GPU chooses every token, the next step is issued before the previous choices are read; its rows take their tokens
from those choices on the GPU. A sequence that has ended wastes one row of that step.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from glinfer.closing import Closing
from glinfer.engine.executor import Choices, Executor, Step
from glinfer.engine.ids import room_made
from glinfer.engine.prefill import MAX_SINGLE_TOKENS
from glinfer.engine.requests import BatchRequest, BatchResult, Running, text_of
from glinfer.engine.run.decode import common_prefix
from glinfer.errors import ContextError, InputError, StructureError
from glinfer.gl.signals import signals_held
from glinfer.text.images import rotary_positions
from glinfer.text.reply import ChatPart

MIN_REUSED = 8
"""Shared tokens worth reusing; running fewer again is cheap, and spares a cache with a longer prefix."""

PATIENCE = 8
"""Pieces of others after which the prompt that has waited longest gets half a piece."""


@dataclass(frozen=True)
class Event:
    """The outcome of one step for one sequence.

    Attributes:
        sequence: the sequence that :meth:`Scheduler.insert` returned.
        ids: new token ids, often one; without stop ids, and with forced tokens after a chosen one.
        parts: the new pieces of text, often none; always none for a prompt of ids.
        result: the whole result if the sequence ended with this step; ``result.error`` if an error ended it.
    """

    sequence: Running
    ids: list[int]
    parts: list[ChatPart]
    result: BatchResult | None

    @property
    def text(self) -> str:
        """The new piece of text, or of the answer of a chat."""
        return text_of(self.parts, "answer")

    @property
    def thinking(self) -> str:
        """The new piece of thoughts before the answer of a chat."""
        return text_of(self.parts, "thinking")

    @property
    def calls(self) -> list[ChatPart]:
        """New pieces of tool calls, if the request wants them separate."""
        return [part for part in self.parts if part.kind == "call"]


@dataclass(eq=False)
class _Slot:
    """The cache of one sequence: ``running``, or the ``kept`` tokens of the last one, from its first row on.

    ``owner`` has client, adapter and angles of either; ``started`` is the time at which the current one got the slot.
    The lowest ``freed``, a counter, has been unused for longest.
    """

    number: int
    running: Running | None = None
    kept: list[int] = field(default_factory=list)
    owner: tuple[Hashable, int, bool] = None, 0, False
    freed: float = 0.0
    started: float = 0.0


class Scheduler(Closing):
    """Decodes sequences together; made by :meth:`glinfer.engine.model.Model.scheduler`, used in a ``with`` block.

    It belongs to the thread that opened the model.

    Attributes:
        slots: the number of caches; further sequences wait.
        capacity: the tokens of a cache, prompt and continuation together.
        piece: limit for the prompt tokens of one :meth:`next`, in whole groups of the rows that a pass computes.
        on_pause: :meth:`next` calls this before it waits for the GPU or runs a prompt, for other threads.
    """

    def __init__(
        self,
        batch: Executor,
        check: Callable[[BatchRequest], Running],
        usable: Callable[[], None],
        *,
        piece: int | None = None,
    ) -> None:
        """Run sequences in slots of ``batch``, which closes with the scheduler; ``piece`` is by default the batch's.

        ``check`` checks a request; ``usable`` raises ContextError if the model was closed or belongs to another thread.
        """
        self.slots, self.capacity = batch.slots, batch.capacity
        self.piece = batch.piece if piece is None else piece
        self.batch, self._check, self._usable = batch, check, usable
        self.on_pause: Callable[[], None] = lambda: None
        self._slots = [_Slot(number) for number in range(batch.slots)]
        self._taken: dict[Running, _Slot] = {}
        # Sequences with uncached tokens, with or without a slot.
        self._line: deque[Running] = deque()
        self._ahead: Step | None = None
        self._clock = 0
        self._closed = False
        # Sequences that ended before they ran, because their structure forces all tokens.
        self._ended: list[Running] = []

    def insert(self, request: BatchRequest) -> Running:
        """Queue a request, which gets a slot when one is free; returns its sequence.

        That has the ``ids``, ``stats`` and ``result`` so far; the events of :meth:`next` refer to it.

        Raises:
            InputError: the prompt or an option is invalid, or the sequence needs more tokens than a slot holds.
            ContextError: the scheduler or its model was closed.
        """
        self._require_open()
        return self.add(self._check(request))

    def add(self, running: Running) -> Running:
        """Queue a checked request; errors as in :meth:`insert`."""
        self._require_open()
        # The last token is chosen but never run, and a full context drops its oldest half.
        needed = min(len(running.prompt) + running.max_tokens - 1, self.batch.config.max_position_embeddings)
        if needed > self.capacity:
            raise InputError(
                f"a prompt of {len(running.prompt)} tokens and {running.max_tokens} more need room for {needed}; "
                f"a slot holds {self.capacity}; ask for fewer, or make the scheduler with longest={needed}"
            )
        running.force(self.batch.config.max_position_embeddings, at_once=0)
        running.resumes = False
        running.long = self.batch.is_long(len(running.held))
        (self._ended if running.ended else self._line).append(running)
        return running

    def __len__(self) -> int:
        """The number of sequences whose end was not reported, including waiting ones."""
        return len({*self._taken, *self._line}) + len(self._ended)

    @property
    def running(self) -> int:
        """The number of sequences that have a slot; any thread may ask."""
        return len(self._taken)

    @property
    def waiting(self) -> int:
        """The number of sequences that wait for a slot."""
        return sum(each not in self._taken for each in self._line)

    def next(self) -> list[Event]:
        """Run a piece of the waiting prompts and a step of all other sequences; returns the step's events, by slot.

        The list is empty while only prompts run, and when nothing waits. A sequence with NaN or infinities ends alone,
        with an error in its result (:mod:`glinfer.engine.run.nan_guard`). Every exception closes the scheduler, even
        KeyboardInterrupt: a ContextError if it or its model was closed, a GLError if the driver failed.
        """
        self._require_open()
        try:
            if self._ended:
                ended, self._ended = self._ended, []
                return [_event(each) for each in ended]
            self._run_prompts()
            step, self._ahead = self._ahead or self._issue(None), None
            if step is not None:
                self._ahead = self._issue(step)
            self.on_pause()
            return [] if step is None else self._events(step)
        except BaseException:
            self.close()
            raise

    def cancel(self, sequence: Running) -> None:
        """End a sequence and free its slot at once, unless it has ended; InputError if it is another scheduler's."""
        if isinstance(sequence, Running) and sequence.ended:
            return
        if sequence not in (*self._taken, *self._line):
            raise InputError("found no sequence of this scheduler; expected one that its insert() returned")
        self._leave(sequence, "cancelled")

    def results(self, waiting: Iterator[Running]) -> Iterator[BatchResult]:
        """Yield the results of checked requests as they finish, and fetch the next request when a slot is free.

        The scheduler closes after the last result, or with the iterator. The error of a sequence is raised.
        """
        with self:
            while True:
                for found in itertools.islice(waiting, self.slots - len(self)):
                    found.due = math.inf
                    self.add(found)
                if not len(self):
                    return
                for event in self.next():
                    if event.result is not None:
                        if event.result.error is not None:
                            raise event.result.error
                        yield event.result

    def _run_prompts(self) -> None:
        """Run a piece of the waiting prompts and of truncated contexts."""
        if not self._line:
            return
        left = self.piece
        for waiting in self._line:
            waiting.waited += 1
        overdue = self._next_prompt(overdue=True)
        if overdue is not None:
            left -= self._run_piece(overdue, max(1, left // 2))
        while left > 0 and (each := self._next_prompt()) is not None:
            left -= self._run_piece(each, left)

    def _next_prompt(self, *, overdue: bool = False) -> Running | None:
        """The sequence whose prompt runs next, in its slot; None if all slots are busy.

        With ``overdue``, the one that has waited longest, if that is more than PATIENCE pieces.
        """
        started = [each for each in self._line if each in self._taken]
        able = list(self._line) if len(self._taken) < self.slots else started
        if overdue:
            able = [each for each in able if each.waited > PATIENCE]
        if not able:
            return None
        # In ties min and max take the first, which has waited longest.
        if overdue:
            chosen = max(able, key=lambda each: each.waited)
        else:
            under_way, slots = Counter[Hashable](), Counter(each.request.client for each in self._taken)
            for each in started:
                under_way[each.request.client] += each.cached

            def turn(each: Running) -> tuple[int, ...]:
                client = each.request.client
                pieces = -(-(len(each.held) - each.cached) // self.piece)
                own = 0 if each in self._taken else slots[client]
                return not each.resumes, under_way[client], each.cached, own, pieces

            chosen = min(able, key=turn)
        if chosen in self._taken:
            return chosen
        leaders = (each for each in started if each.owner == chosen.owner)
        for leader in leaders:
            # Run the common prefix once.
            if common_prefix(leader.held[:-1], chosen.held[:-1]) >= leader.cached + MIN_REUSED:
                return leader
        self._admit(chosen)
        return chosen

    def _run_piece(self, each: Running, most: int) -> int:
        """Run at most ``most`` tokens of a prompt; returns their share of the piece, in tokens."""
        slot, used = self._taken[each], 0
        end, started, draws = len(each.held) - 1, time.perf_counter(), self.batch.draws_issued
        each.waited = 0
        if each.cached < end:
            self.on_pause()
            rows, used = self.batch.run_prompt(slot.number, each, most)
            # Decoded tokens may come between the prompt and forced tokens.
            each.prompted = each.cached + rows if each.prompted == each.cached else each.prompted
            each.cached += rows
        if each.resumes:
            each.stats.draws += self.batch.draws_issued - draws
        else:
            each.stats.prompt_seconds += time.perf_counter() - started
            each.stats.prompt_draws += self.batch.draws_issued - draws
        if each.cached == end:
            self._line.remove(each)
            each.resumes = False
        return used

    def _admit(self, each: Running) -> None:
        """Give a sequence a free slot, with the longest prefix of its prompt in any slot of its owner."""
        free = [slot for slot in self._slots if slot.running is None]
        wanted, owner = each.held[:-1], each.owner
        shared = [self._shared(slot, wanted) if slot.owner == owner else 0 for slot in self._slots]
        best = max(self._slots, key=lambda slot: (shared[slot.number], slot.running is None))
        rows = shared[best.number] if shared[best.number] >= MIN_REUSED else 0
        slot = best if rows and best.running is None else min(free, key=lambda slot: slot.freed)
        slot.started = time.perf_counter()
        if rows and slot is not best:
            self.batch.copy(best.number, slot.number, rows)
        each.cached = each.prompted = each.stats.reused_tokens = rows
        slot.running, slot.kept, slot.owner = each, [], owner
        self._taken[each] = slot

    def _shared(self, slot: _Slot, wanted: list[int]) -> int:
        """The first tokens of a slot with which a prompt can begin."""
        return self.batch.usable(slot.number, common_prefix(self._kept(slot), wanted))

    def _kept(self, slot: _Slot) -> list[int]:
        """The first tokens of a slot whose keys and values equal those of prefill bit for bit."""
        each = slot.running
        return slot.kept if each is None else each.held[: each.cached if self.batch.same_sums else each.prompted]

    def _leave(self, each: Running, reason: str = "") -> None:
        """Free the slot of a sequence that has ended, or end it with ``reason``."""
        if reason:
            each.end(reason)
        if each in self._line:
            self._line.remove(each)
        slot = self._taken.pop(each, None)
        if slot is not None:
            self._clock += 1
            slot.kept, slot.freed = [] if each.error else self._kept(slot), self._clock
            slot.running = None
            self.batch.leave(each)
            each.stats.seconds = time.perf_counter() - slot.started - each.stats.prompt_seconds

    def _issue(self, before: Step | None) -> Step | None:
        """Issue a step of all sequences that can continue; those in the step ``before`` use its choices.

        Returns None if no sequence can, or if the choices of the step before must be read first.
        """
        if before is not None and not before.by_gpu:
            return None
        flying = {} if before is None else before.active
        context = self.batch.config.max_position_embeddings
        active, ahead, ends = {}, set(), []
        for slot in self._slots:
            each, number = slot.running, slot.number
            unknown = each is not None and flying.get(number) is each
            length = len(slot.kept) if each is None else len(each.held) if unknown else each.cached
            ends.append(min(length, self.capacity - 1))  # no later prompt reaches the last row
            if each is None or each.cached + 1 != len(each.held):
                continue
            if unknown and (each.stats.tokens + 1 == each.max_tokens or len(each.held) == context):
                continue  # its last token, or it must drop tokens first
            if unknown and self.batch.is_long(len(each.held) + 1) != each.long:
                continue  # it must switch to the other angles first
            active[number] = each
            if unknown:
                ahead.add(number)
        return self.batch.run(active, ahead, ends) if active else None

    def _events(self, step: Step) -> list[Event]:
        """Read the tokens that a step chose, and append them to their sequences."""
        events, now = [], time.perf_counter()
        choices = self.batch.choices(step)
        for slot in choices.again:
            each = step.active[slot]
            each.stats.draws += step.draws
            if self._ahead is not None and self._ahead.active.pop(slot, None) is each:
                each.stats.draws += self._ahead.draws
        for slot in sorted({*choices.chosen, *choices.broken, *choices.dead}):
            each = step.active[slot]
            self._continue(each, slot, choices)
            each.stats.draws += step.draws
            if each.ended:
                if self._ahead is not None and self._ahead.active.get(slot) is each:
                    each.stats.surplus += 1
                    each.stats.draws += self._ahead.draws
                self._leave(each)
            elif len(each.held) > self.batch.config.max_position_embeddings:
                self._make_room(each)
            elif self._turns(each) or each.resumes:
                self._line.appendleft(each)
            if each.has_news(now):
                events.append(_event(each))
        return events

    def _continue(self, each: Running, slot: int, choices: Choices) -> None:
        """Append a sequence's token and the tokens that its structure forces next, or end it."""
        if slot in choices.dead:
            each.end("length")
            return
        error = choices.broken.get(slot)
        try:
            if error is None:
                each.push(choices.chosen[slot])
                each.force(self.batch.config.max_position_embeddings, at_once=MAX_SINGLE_TOKENS)
        except StructureError as found:
            error = found
        if error is not None:
            each.error = error
            each.end("error")

    def _make_room(self, each: Running) -> None:
        """Drop the oldest half of a full context; the rest runs again before waiting prompts."""
        oldest = room_made(each.held, each.before, each.keep, self.batch.config.max_position_embeddings)
        del each.held[oldest]
        each.cached = each.prompted = 0
        _, each.back = rotary_positions(each.held)
        each.stats.dropped += oldest.stop - oldest.start
        self._turns(each)
        self._line.appendleft(each)

    def _turns(self, each: Running) -> bool:
        """Switch the set of angles if the sequence's length requires it; the whole sequence then runs again."""
        if self.batch.is_long(len(each.held)) == each.long:
            return False
        each.long = not each.long
        each.cached = each.prompted = 0
        self._taken[each].owner = each.owner
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise ContextError("this scheduler was closed; make another one with model.scheduler()")
        self._usable()

    def close(self) -> None:
        """End every sequence and release the caches; calling it again does nothing."""
        if not self._closed:
            with signals_held():  # an interrupt would leave some of it
                self.batch.close()  # fails in another thread, before anything changes
                self._closed = True
                for each in {*self._taken, *self._line}:
                    each.end("closed")


def _event(each: Running) -> Event:
    """The event with the news of a sequence."""
    return Event(each, *each.news(), each.result if each.ended else None)
