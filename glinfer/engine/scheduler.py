"""The scheduler: requests come and go at any time, and all running sequences share each run.

One :meth:`Scheduler.next` runs at most a piece of the prompts that wait, and one token of every sequence whose prompt
is in its cache. The client with the fewest tokens of prompts under way comes first, then the prompt of which least was
run, then the shortest, counted in pieces, then the one that came first: so a new short prompt waits for one piece of
others and one step, however long theirs are.
A prompt that has waited for PATIENCE pieces gets half of the next one. A prompt that begins like one of the same client
under way lets that go first, and finds what they have in common in the cache.

Where the GPU chooses every token by itself, a step is issued before the choices of the one before are looked at: its
rows take their tokens from those choices on the GPU. A sequence that turns out to have ended wastes a row of one step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from glinfer.closing import Closing
from glinfer.engine.batch import Batch, Choices, Step
from glinfer.engine.decode import common_prefix
from glinfer.engine.ids import room_made
from glinfer.engine.prefill import MAX_SINGLE_TOKENS
from glinfer.engine.requests import BatchRequest, BatchResult, Running, text_of
from glinfer.errors import ContextError, InputError, StructureError
from glinfer.gl.signals import signals_held
from glinfer.models.fast.rows import slots_for
from glinfer.text.reply import ChatPart

MIN_REUSED = 8
"""The fewest shared tokens worth reusing: running fewer again costs next to nothing, and spares a better cache."""

PATIENCE = 8
"""Pieces of others after which half a piece goes to the prompt that has waited for longest."""

_CLOSED = "this scheduler was closed; make another one with model.scheduler()"


@dataclass(frozen=True)
class Event:
    """The outcome of one step for one sequence.

    Attributes:
        sequence: as :meth:`Scheduler.insert` has returned it.
        ids: new token ids, often one; a stop id is none, and forced tokens come with the one before them.
        text: the new piece of text, often empty; always empty for a prompt of ids.
        result: everything, if the sequence has ended with this step; ``result.error`` says what broke it.
        thinking: the new piece of thoughts before the answer of a chat.
        calls: new pieces of calls of tools, where the request asked to have them apart.
    """

    sequence: Running
    ids: list[int]
    text: str
    result: BatchResult | None
    thinking: str = ""
    calls: Sequence[ChatPart] = ()


class _Place:
    """The cache of one sequence: which sequence has it, and the tokens that the last one left in it.

    Attributes:
        kept: tokens whose keys and values the cache of a free place holds, from its first slot on.
        owner: client, adapter and angles of the sequence that has it, or had it last.
        freed: the time at which it became free; the place with the lowest is the one unused for longest.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.running: Running | None = None
        self.kept: list[int] = []
        self.owner: tuple[Hashable, int, bool] = None, 0, False
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
        # Kernels that split sums add them up in another order in decoding than in prefill, and so does a delta rule.
        self._same_sums = kernels.part_steps == 0 and not kernels.split_values and not batch.config.family.delta_rule
        self._places = [_Place(number) for number in range(batch.slots)]
        self._seats: dict[Running, _Place] = {}
        # Sequences with tokens that are not in a cache yet, with or without a place.
        self._line: deque[Running] = deque()
        self._ahead: Step | None = None
        self._clock = 0
        self._closed = False
        # Sequences that ended before they ran, whose structure forces all of their tokens.
        self._ended: list[Running] = []

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
        running.force(self.batch.config.max_position_embeddings, at_once=0)
        running.resumes = False
        running.long = self.batch.is_long(len(running.held))
        (self._ended if running.ended else self._line).append(running)
        return running

    def __len__(self) -> int:
        """The number of sequences whose end was not told, including those that wait."""
        return len({*self._seats, *self._line}) + len(self._ended)

    @property
    def waiting(self) -> int:
        """The number of sequences that wait for a place."""
        return sum(each not in self._seats for each in self._line)

    def next(self) -> list[Event]:
        """Run a piece of the waiting prompts and a step of all other sequences; returns the step's outcome, by place.

        The list is empty while prompts run alone, and when there is nothing to do.

        A sequence whose numbers are broken ends alone, with an error in its result (:mod:`glinfer.engine.nan_guard`).

        Raises:
            ContextError: the scheduler or its model was closed.
            GLError: the driver failed.

        Every exception, Ctrl-C included, closes the scheduler.
        """
        self._require_open()
        try:
            if self._ended:
                ended, self._ended = self._ended, []
                return [_event(each) for each in ended]
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

        Raises:
            NumbersError: the numbers of a sequence are broken.
            StructureError: the structure of one is too complex.
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
                        if event.result.error is not None:
                            raise event.result.error
                        yield event.result

    def _take_in(self) -> None:
        """Run a piece of the waiting prompts, and of contexts that were full."""
        left = self.piece
        for waiting in self._line:
            waiting.waited += 1
        overdue = self._next_prompt(overdue=True)
        if overdue is not None:
            left -= self._run_piece(overdue, max(1, left // 2))
        while left > 0 and (each := self._next_prompt()) is not None:
            left -= self._run_piece(each, left)

    def _next_prompt(self, *, overdue: bool = False) -> Running | None:
        """The sequence whose prompt goes on, with a place of its own; None if none has one or can have one.

        With ``overdue`` the one that has waited for longest, if that is more than PATIENCE pieces.
        """
        free = any(place.running is None for place in self._places)
        seated = [each for each in self._line if each in self._seats]
        able = list(self._line) if free else seated
        if overdue:
            able = [each for each in able if each.waited > PATIENCE]
        if not able:
            return None
        under_way, seats = Counter[Hashable](), Counter(each.request.client for each in self._seats)
        for each in seated:
            under_way[each.request.client] += each.cached

        def turn(each: Running) -> tuple[int, ...]:
            client = each.request.client
            pieces = -(-(len(each.held) - each.cached) // self.piece)
            return not each.resumes, under_way[client], each.cached, 0 if each in self._seats else seats[client], pieces

        # Of equals, min and max take the first, which has waited for longest.
        chosen = max(able, key=lambda each: each.waited) if overdue else min(able, key=turn)
        if chosen in self._seats:
            return chosen
        leaders = (each for each in seated if each.owner == chosen.owner)
        for leader in leaders:
            # What both begin with is run once.
            if common_prefix(leader.held[:-1], chosen.held[:-1]) >= leader.cached + MIN_REUSED:
                return leader
        self._seat(chosen)
        return chosen

    def _run_piece(self, each: Running, most: int) -> int:
        """Run at most ``most`` tokens of a prompt; returns how many of a piece they count."""
        place, targets, used = self._seats[each], self.batch.kernels.rows_per_draw, 0
        end, started, draws = len(each.held) - 1, perf_counter(), self.batch.draws_issued
        each.waited = 0
        if each.cached < end:
            ids = each.held[each.cached : min(end, each.cached + most)]
            rows = self.batch.take_in(place.number, ids, each.cached, each.adapter, long=each.long)
            # Between tokens of the prompt and forced ones there may be some that decoding has added.
            each.prompted = each.cached + rows if each.prompted == each.cached else each.prompted
            each.cached += rows
            used = slots_for(rows, targets) * targets
        if each.resumes:
            each.stats.draws += self.batch.draws_issued - draws
        else:
            each.stats.prompt_seconds += perf_counter() - started
            each.stats.prompt_draws += self.batch.draws_issued - draws
        if each.cached == end:
            self._line.remove(each)
            each.resumes = False
        return used

    def _seat(self, each: Running) -> None:
        """Give a sequence a free place, with as much of its prompt as any place of the same client holds."""
        free = [place for place in self._places if place.running is None]
        wanted, owner = each.held[:-1], each.owner
        shared = [common_prefix(self._kept(place), wanted) if place.owner == owner else 0 for place in self._places]
        best = max(self._places, key=lambda place: (shared[place.number], place.running is None))
        rows = shared[best.number] if shared[best.number] >= MIN_REUSED else 0
        place = best if rows and best.running is None else min(free, key=lambda place: place.freed)
        place.started = perf_counter()
        if rows and place is not best:
            self.batch.copy(best.number, place.number, rows)
        each.cached = each.prompted = each.stats.reused_tokens = rows
        place.running, place.kept, place.owner = each, [], owner
        self._seats[each] = place

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
            place.kept, place.freed = [] if each.error else self._kept(place), self._clock
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
            if unknown and self.batch.is_long(len(each.held) + 1) != each.long:
                continue  # what it holds has to turn by other angles first
            active[number] = each
            if unknown:
                ahead.add(number)
        return self.batch.run(active, ahead, ends) if active else None

    def _events(self, step: Step) -> list[Event]:
        """Read the tokens that a step has chosen, and hand them to their sequences."""
        events = []
        choices = self.batch.choices(step)
        for place in choices.again:
            each = step.active[place]
            each.stats.draws += step.draws
            if self._ahead is not None and self._ahead.active.pop(place, None) is each:
                each.stats.draws += self._ahead.draws
        for place in sorted({*choices.chosen, *choices.broken, *choices.dead}):
            each = step.active[place]
            self._continue(each, place, choices)
            each.stats.draws += step.draws
            if each.ended:
                if self._ahead is not None and self._ahead.active.get(place) is each:
                    each.stats.surplus += 1
                    each.stats.draws += self._ahead.draws
                self._leave(each)
            elif len(each.held) > self.batch.config.max_position_embeddings:
                self._make_room(each)
            elif self._turns(each) or each.resumes:
                self._line.appendleft(each)
            events.append(_event(each))
        return events

    def _continue(self, each: Running, place: int, choices: Choices) -> None:
        """Give a sequence its token, and those that its structure forces behind it, or end it."""
        if place in choices.dead:
            each.end("length")
            return
        error = choices.broken.get(place)
        try:
            if error is None:
                each.push(choices.chosen[place])
                each.force(self.batch.config.max_position_embeddings, at_once=MAX_SINGLE_TOKENS)
        except StructureError as found:
            error = found
        if error is not None:
            each.error = error
            each.end("error")

    def _make_room(self, each: Running) -> None:
        """Drop the oldest half of a full context, as a session does; the rest runs again before the waiting prompts."""
        oldest = room_made(each.held, each.before, each.keep, self.batch.config.max_position_embeddings)
        del each.held[oldest]
        each.cached = each.prompted = 0
        each.stats.dropped += oldest.stop - oldest.start
        self._turns(each)
        self._line.appendleft(each)

    def _turns(self, each: Running) -> bool:
        """Take other angles where the sequence's length asks for them; all of it then runs again, as a session does."""
        if self.batch.is_long(len(each.held)) == each.long:
            return False
        each.long = not each.long
        each.cached = each.prompted = 0
        self._seats[each].owner = each.owner
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise ContextError(_CLOSED)
        self._usable()

    def close(self) -> None:
        """End every sequence and release what is the scheduler's own; harmless when repeated."""
        if not self._closed:
            with signals_held():  # or a Ctrl-C would leave some of it
                self.batch.close()  # from another thread this fails, and the scheduler stays as it was
                self._closed = True
                for each in {*self._seats, *self._line}:
                    each.end("closed")


def _event(each: Running) -> Event:
    """What is new of a sequence."""
    ids, new = each.news()
    result = each.result if each.ended else None
    calls = [part for part in new if part.kind == "call"]
    return Event(each, ids, text_of(new, "answer"), result, text_of(new, "thinking"), calls)
