"""The scheduler: requests come and go at any time, and all running sequences share each run.

One :meth:`Scheduler.next` runs at most a piece of the prompts that wait, and one token of every sequence whose prompt
is in its cache. Prompts are first come, first served: one that is begun is finished before the next, which by then
finds what they have in common in the cache.

Where the GPU chooses every token by itself, a step is issued before the choices of the one before are looked at: its
rows take their tokens from those choices on the GPU. A sequence that turns out to have ended wastes a row of one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from glinfer.engine.batch import Batch, Step
from glinfer.engine.closing import Closing
from glinfer.engine.decode import common_prefix
from glinfer.engine.requests import BatchRequest, BatchResult, Running
from glinfer.errors import ContextError, InputError
from glinfer.models.fast.rows import slots_for

MIN_REUSED = 8
"""The fewest shared tokens worth reusing: running fewer again costs next to nothing, and spares a better cache."""

_CLOSED = "this scheduler was closed; make another one with model.scheduler()"


@dataclass(frozen=True)
class Event:
    """The outcome of one step for one sequence.

    Attributes:
        sequence: as :meth:`Scheduler.insert` has returned it.
        ids: new token ids, none or one; a stop id is none.
        text: the new piece of text, often empty; always empty for a prompt of ids.
        result: everything, if the sequence has ended with this step.
    """

    sequence: Running
    ids: list[int]
    text: str
    result: BatchResult | None


class _Place:
    """The cache of one sequence: which sequence has it, and the tokens that the last one left in it.

    Attributes:
        kept: tokens whose keys and values the cache of a free place holds, from its first slot on.
        freed: the time at which it became free; the place with the lowest is the one unused for longest.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.running: Running | None = None
        self.kept: list[int] = []
        self.freed = self.started = 0.0


class Scheduler(Closing):
    """Sequences decoded together; made by :meth:`glinfer.engine.model.Model.scheduler`, used in a ``with`` block.

    It belongs to the thread that opened the model, like everything that runs it.

    Attributes:
        slots: the number of sequences that have caches at once; others wait.
        capacity: the number of tokens that each may hold, prompt and continuation together.
        piece: the most prompt tokens that one :meth:`next` runs, counted in whole groups of the rows that a pass
            computes at once.
    """

    def __init__(
        self,
        batch: Batch,
        check: Callable[[BatchRequest], Running],
        usable: Callable[[], None],
        *,
        piece: int | None = None,
    ) -> None:
        """Take over a batch.

        Args:
            batch: what runs; closed with this.
            check: makes a request ready to be run, or raises InputError.
            usable: raises ContextError if the model was closed or belongs to another thread.
            piece: see above (default: the chunk size of the kernels).
        """
        self.slots, self.capacity = batch.slots, batch.capacity
        self.piece = batch.kernels.chunk if piece is None else piece
        self.batch, self._check, self._usable = batch, check, usable
        kernels = batch.kernels
        # Kernels that split sums add them up in another order in decoding than in prefill.
        self._same_sums = kernels.part_steps == 0 and not kernels.split_values
        self._places = [_Place(number) for number in range(batch.slots)]
        self._seats: dict[Running, _Place] = {}
        # Sequences with tokens that are not in a cache yet, with or without a place.
        self._line: deque[Running] = deque()
        self._ahead: Step | None = None
        self._clock = 0
        self._closed = False

    def insert(self, request: BatchRequest) -> Running:
        """Queue a request; it gets a place when one is free.

        Returns:
            The sequence, as :meth:`next` names it, with its ``ids``, ``stats`` and ``result`` so far.

        Raises:
            InputError: a prompt or an option that cannot be run, or more tokens than a place holds.
            ContextError: the scheduler or its model was closed.
        """
        self._require_open()
        return self.add(self._check(request))

    def add(self, running: Running) -> Running:
        """Queue a checked request; errors as in :meth:`insert`."""
        self._require_open()
        # The last token is only chosen, never run; and of a full context the oldest half makes room.
        needed = min(len(running.prompt) + running.max_tokens - 1, self.batch.config.max_position_embeddings)
        if needed > self.capacity:
            raise InputError(
                f"a prompt of {len(running.prompt)} tokens and {running.max_tokens} more need room for {needed}; "
                f"a place holds {self.capacity}; ask for fewer, or make the scheduler with longest={needed}"
            )
        self._line.append(running)
        return running

    def __len__(self) -> int:
        """The number of sequences that have not ended, including those that wait."""
        return len({*self._seats, *self._line})

    def next(self) -> list[Event]:
        """Run a piece of the waiting prompts and a step of all other sequences; returns the step's outcome, by place.

        The list is empty while prompts run alone, and when there is nothing to do.

        Raises:
            NumbersError: a model's output is broken, see :mod:`glinfer.engine.nan_guard`.
            ContextError: the scheduler or its model was closed.

        Every exception, Ctrl-C included, closes the scheduler.
        """
        self._require_open()
        try:
            self._take_in()
            step, self._ahead = self._ahead or self._issue(None), None
            if step is None:
                return []
            self._ahead = self._issue(step)
            return self._events(step)
        except BaseException:
            self.close()
            raise

    def cancel(self, sequence: Running) -> None:
        """End a sequence and free its place at once; harmless when it has ended.

        Raises:
            InputError: the sequence is not one of this scheduler.
        """
        if sequence.ended:
            return
        if sequence not in self._seats and sequence not in self._line:
            raise InputError(
                "there is no such sequence to cancel; expected what insert() of this scheduler has returned"
            )
        self._leave(sequence, "cancelled")

    def results(self, waiting: Iterator[Running]) -> Iterator[BatchResult]:
        """Results of checked requests, as they are finished; the next one is asked for when a place is free.

        The scheduler is closed when they end, or when the iterator is closed.
        """
        with self:
            more = True
            while True:
                while more and len(self) < self.slots:
                    found = next(waiting, None)
                    more = found is not None and self.add(found) is found
                if not len(self):
                    return
                for event in self.next():
                    if event.result is not None:
                        yield event.result

    def _take_in(self) -> None:
        """Run a piece of the waiting prompts, in order, and of contexts that were full."""
        left, targets = self.piece, self.batch.kernels.rows_per_draw
        while self._line and left > 0:
            each = self._line[0]
            place = self._seats.get(each) or self._seat(each)
            if place is None:
                return
            end, started, draws = len(each.held) - 1, perf_counter(), self.batch.draws_issued
            if each.cached < end:
                ids = each.held[each.cached : min(end, each.cached + left)]
                rows = self.batch.take_in(place.number, ids, each.cached)
                each.cached = each.prompted = each.cached + rows
                left -= slots_for(rows, targets) * targets
            if not each.stats.tokens:
                each.stats.prompt_seconds += perf_counter() - started
                each.stats.prompt_draws += self.batch.draws_issued - draws
            if each.cached == end:
                self._line.popleft()

    def _seat(self, each: Running) -> _Place | None:
        """Give a sequence a place, with as much of its prompt as any place holds; None if no place is free."""
        free = [place for place in self._places if place.running is None]
        if not free:
            return None
        wanted = each.held[:-1]
        shared = [common_prefix(self._kept(place), wanted) for place in self._places]
        best = max(self._places, key=lambda place: (shared[place.number], place.running is None))
        rows = shared[best.number] if shared[best.number] >= MIN_REUSED else 0
        place = best if rows and best.running is None else min(free, key=lambda place: place.freed)
        place.started = perf_counter()
        if rows and place is not best:
            self.batch.copy(best.number, place.number, rows)
        each.cached = each.prompted = each.stats.reused_tokens = rows
        place.running, place.kept = each, []
        self._seats[each] = place
        return place

    def _kept(self, place: _Place) -> list[int]:
        """The tokens, from the first on, whose keys and values in a place have the bits that prefill would give."""
        each = place.running
        return place.kept if each is None else each.held[: each.cached if self._same_sums else each.prompted]

    def _leave(self, each: Running, reason: str = "") -> None:
        """Free the place of a sequence that has ended, or end it with ``reason``."""
        if reason:
            each.end(reason)
        if each in self._line:
            self._line.remove(each)
        place = self._seats.pop(each, None)
        if place is not None:
            self._clock += 1
            place.kept, place.freed = self._kept(place), self._clock
            place.running = None
            each.stats.seconds = perf_counter() - place.started - each.stats.prompt_seconds

    def _issue(self, before: Step | None) -> Step | None:
        """Issue a step of all sequences that can continue; those in the step ``before`` use the tokens that it chooses.

        None if there are none, or if the choices of the step before have to be read first.
        """
        if before is not None and not before.by_gpu:
            return None
        flying = {} if before is None else before.active
        context = self.batch.config.max_position_embeddings
        active, ahead, ends = {}, set(), []
        for place in self._places:
            each, number = place.running, place.number
            unknown = each is not None and flying.get(number) is each
            length = len(place.kept) if each is None else len(each.held) if unknown else each.cached
            ends.append(min(length, self.capacity - 1))  # no prompt of the next one reaches as far as the last slot
            if each is None or each.cached + 1 != len(each.held):
                continue
            if unknown and (each.stats.tokens + 1 == each.max_tokens or len(each.held) == context):
                continue  # this one is its last, or has to make room first
            active[number] = each
            if unknown:
                ahead.add(number)
        return self.batch.run(active, ahead, ends) if active else None

    def _events(self, step: Step) -> list[Event]:
        """Read the tokens that a step has chosen, and hand them to their sequences."""
        events = []
        for place, token in sorted(self.batch.choices(step).items()):
            each = step.active[place]
            ids, pieces = len(each.ids), len(each.pieces)
            each.push(token)
            each.stats.draws += step.draws
            if each.ended:
                if self._ahead is not None and self._ahead.active.get(place) is each:
                    each.stats.surplus += 1
                    each.stats.draws += self._ahead.draws
                self._leave(each)
            elif len(each.held) > self.batch.config.max_position_embeddings:
                self._make_room(each)
            result = each.result if each.ended else None
            events.append(Event(each, each.ids[ids:], "".join(each.pieces[pieces:]), result))
        return events

    def _make_room(self, each: Running) -> None:
        """Drop the oldest half of a full context, as a session does; the rest runs again before the waiting prompts."""
        count = (self.batch.config.max_position_embeddings + 1) // 2
        del each.held[:count]
        each.cached = each.prompted = 0
        each.stats.dropped += count
        self._line.appendleft(each)

    def _require_open(self) -> None:
        if self._closed:
            raise ContextError(_CLOSED)
        self._usable()

    def close(self) -> None:
        """End every sequence and release what is the scheduler's own; harmless when repeated."""
        if not self._closed:
            self.batch.close()  # from another thread this fails, and the scheduler stays as it was
            self._closed = True
            for each in {*self._seats, *self._line}:
                each.end("closed")
