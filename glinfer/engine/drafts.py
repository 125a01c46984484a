"""Speculative decoding: guesses of the next tokens, and how many of them are worth a run.

A drafter guesses tokens, :meth:`glinfer.engine.decode.DecodeSession.accept` runs them together and keeps those that the
sampler chooses anyway, so the text is the same with and without (Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding"; here with seeded noise, which makes a draw repeatable, instead of a rejection
step). How many tokens are drafted follows from what runs take on this machine and from how often drafts were right.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Protocol

from glinfer.engine.decode import DecodeSession
from glinfer.engine.prefill import DRAFT_ROWS
from glinfer.engine.sampler import Sampler
from glinfer.errors import InputError

NGRAM = "ngram"
SPECULATE = (NGRAM,)
"""The values of ``speculate=`` and ``--speculate``."""
MIN_MATCH = 3
"""Tokens that have to repeat before what followed them is drafted."""
_MAX_MATCH = 32  # tokens by which matches are compared
_MAX_PLACES = 32  # of the newest matches, the longest is taken
_KEPT_TIMES = 9
_DECAY = 0.9  # weight of the acceptances before, for each new one
_PRIOR_TRIED = 3.0  # how many tries the probability before any of them counts for
_MODEL_RIGHT = 2 / 3  # the probability that a smaller model's first guess is right, before any was tried
_GROWTH = 1.5  # time of runs that were not timed yet, relative to those of half the rows
_PATIENCE, _MAX_PATIENCE = 8, 256
_IDLE = 8  # tokens without an accepted one after which several are chosen between two looks for a draft


def check_speculation(speculate: str | None, draft: object) -> None:
    """Refuse an unknown way to draft, and two of them.

    Raises:
        InputError: naming the choice.
    """
    if speculate is not None and speculate not in SPECULATE:
        raise InputError(f"there is no speculate={speculate!r}; expected one of {', '.join(SPECULATE)}, or None")
    if speculate is not None and draft is not None:
        raise InputError("found both speculate and a draft model; give one of them")


class Drafter(Protocol):
    """Guesses of the tokens that follow a sequence."""

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far for guesses."""

    def offer(self, ids: Sequence[int]) -> int | None:
        """The kind of guess that can be made after these tokens: of a kind equally many are right. None for none."""

    def prior(self, kind: int) -> float:
        """The probability that a token of a kind of guess is right, before any was tried."""

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        """Guess at most ``count`` tokens that ``sampler`` will choose; called after :meth:`offer` with the same ids."""


class Ngrams:
    """Prompt lookup: what followed the longest earlier match of the newest tokens (Saxena 2023).

    A match has at least :data:`MIN_MATCH` tokens. Of matches of equal length the newest counts. Where a match reaches
    the end of the sequence, the draft repeats itself.
    """

    draws_issued = 0

    def __init__(self) -> None:
        """Start without tokens."""
        self._ids: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._place = 0

    def offer(self, ids: Sequence[int]) -> int | None:
        """See :class:`Drafter`; the kind is the length of the match, rounded down to a power of two."""
        self._learn(ids)
        end = len(self._ids)
        # The newest match is the sequence's own end.
        places = self._places.get(tuple(self._ids[end - MIN_MATCH :]), [])[-_MAX_PLACES - 1 : -1]
        best = 0
        for place in reversed(places):
            length = MIN_MATCH
            while length < min(place, _MAX_MATCH) and self._ids[place - length - 1] == self._ids[end - length - 1]:
                length += 1
            if length > best:
                best, self._place = length, place
        return best.bit_length() if best else None

    def prior(self, kind: int) -> float:
        """See :class:`Drafter`; after n equal tokens Laplace's rule of succession, (n + 1) / (n + 2)."""
        equal = max(MIN_MATCH, 1 << (kind - 1))
        return (equal + 1) / (equal + 2)

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        """See :class:`Drafter`."""
        found = list(self._ids[self._place : self._place + count])
        period = len(self._ids) - self._place
        while len(found) < count:
            found.append(found[-period])
        return found

    def _learn(self, ids: Sequence[int]) -> None:
        """Note where each run of :data:`MIN_MATCH` tokens ends; anew if tokens were taken away."""
        if self._ids != ids[: len(self._ids)]:
            self._ids, self._places = [], {}
        for token in ids[len(self._ids) :]:
            self._ids.append(token)
            if len(self._ids) >= MIN_MATCH:
                self._places.setdefault(tuple(self._ids[-MIN_MATCH:]), []).append(len(self._ids))


class ModelDrafts:
    """What a smaller model chooses with the same sampler, seed and steps."""

    def __init__(self, session: DecodeSession, context: int, vocab: int, accepted_vocab: int) -> None:
        """Use a session of that model, which then holds what the sequence holds.

        Args:
            session: of the smaller model; others may use it in between.
            context: its longest sequence.
            vocab: its tokens.
            accepted_vocab: tokens of the model that it drafts for.
        """
        self._session, self._context = session, context
        self._vocab, self._accepted_vocab = vocab, accepted_vocab
        self._start = 0

    @property
    def draws_issued(self) -> int:
        """See :class:`Drafter`."""
        return self._session.draws_issued

    def offer(self, ids: Sequence[int]) -> int | None:
        """See :class:`Drafter`; there is one kind."""
        return 0

    def prior(self, kind: int) -> float:
        """See :class:`Drafter`."""
        return _MODEL_RIGHT

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        """See :class:`Drafter`; shorter where the model chooses a token that the other one does not have."""
        # A shorter context begins later in the sequence, and there until it is full again.
        if self._start >= len(ids):
            self._start = 0
        before = self._session.before
        before = before if list(ids[: len(before)]) == before else []  # which stays first in the shorter context too
        if len(ids) - self._start + count > self._context - (len(before) if self._start else 0):
            self._start = len(ids) - max(1, min(self._context // 2, self._context - len(before) - count))
        held = [*(before if self._start else []), *ids[self._start :]]
        if max(held) >= self._vocab:
            return []
        own = Sampler(dataclasses.replace(sampler.options, seed=sampler.seed))
        own.step = sampler.step
        self._session.hold(held)
        found = self._session.generate_ids(min(count, self._session.room), own)
        return found[: next((n for n, token in enumerate(found) if token >= self._accepted_vocab), len(found))]


class RunTimes:
    """What runs of one model take on this machine: medians of the newest ones, by their rows."""

    def __init__(self) -> None:
        """Start without any."""
        self._times: dict[int, deque[float]] = {}

    def note(self, rows: int, seconds: float) -> None:
        """Note a run of so many rows; 1 is a token without a draft, 0 the making of a drafted one.

        The first of a kind warms up and is left out.
        """
        if rows not in self._times:
            self._times[rows] = deque(maxlen=_KEPT_TIMES)
        else:
            self._times[rows].append(seconds)

    def of(self, rows: int) -> float | None:
        """Seconds of a run of so many rows, estimated where none was timed; None before the first token was."""
        found = self._times.get(rows)
        if found:
            return median(found)
        if rows <= 1:
            return None
        place = DRAFT_ROWS.index(rows)
        # A few rows take hardly longer than one: that is what makes a draft worth a try.
        fewer = self.of(DRAFT_ROWS[place - 1]) if place else self.of(1)
        return None if fewer is None else fewer * (_GROWTH if place else 1.0)


@dataclasses.dataclass
class _Odds:
    """How often drafted tokens of one kind were right, and how long to leave them out while they do not pay."""

    right: float
    tried: float = _PRIOR_TRIED
    skipped: int = 0
    patience: int = _PATIENCE

    @property
    def each(self) -> float:
        """The probability that a token is right where all before it were."""
        return self.right / self.tried

    def tokens(self, drafted: int) -> float:
        """The expected number of tokens of a run with so many drafted ones."""
        return sum(self.each**place for place in range(drafted + 1))

    def note(self, drafted: int, accepted: int) -> None:
        self.right = _DECAY * self.right + accepted
        self.tried = _DECAY * self.tried + min(drafted, accepted + 1)

    def retries(self) -> bool:
        """Whether a kind that does not pay is tried again: after twice as many chances each time."""
        self.skipped += 1
        if self.skipped <= self.patience:
            return False
        self.skipped, self.patience = 0, min(2 * self.patience, _MAX_PATIENCE)
        return True


class Speculation:
    """Chooses the tokens of one stream with the drafts of a drafter, each as long as pays best."""

    def __init__(self, drafter: Drafter, times: RunTimes, clock: Callable[[], float] = perf_counter) -> None:
        """Draft by ``drafter``; ``times`` are those of the model, which its streams share."""
        self._drafter, self._times, self._clock = drafter, times, clock
        self._odds: dict[int, _Odds] = {}
        self._draft_times = RunTimes()
        self._idle = 0

    @property
    def draws_issued(self) -> int:
        """Draw calls that the drafter has issued."""
        return self._drafter.draws_issued

    def choose(
        self, session: DecodeSession, ids: Sequence[int], sampler: Sampler, *, most: int, chunk: int, ready: bool
    ) -> list[int]:
        """Choose and append 1 to ``most`` tokens, the same that ``session.generate_ids`` would.

        Args:
            session: holds ``ids``.
            ids: the tokens.
            sampler: chooses.
            most: at most the room of the session.
            chunk: how many tokens may be chosen together where no draft is likely.
            ready: whether the tokens were run before; right behind a prompt nothing is drafted, and no time counts.
        """
        kind = self._drafter.offer(ids) if ready and most > 1 else None
        length = 0 if kind is None else self._length(self._odds_of(kind), most - 1)
        draft: list[int] = []
        if length:
            started = self._clock()
            draft = self._drafter.draft(ids, length, sampler)
            self._draft_times.note(0, (self._clock() - started) / length)
        started = self._clock()
        if not draft:
            self._idle += 1
            count = min(chunk, most) if self._idle > _IDLE else 1
            chosen = session.generate_ids(count, sampler)
            rows = 1
        else:
            before = session.drafted
            chosen = session.accept(draft, sampler)
            ready = session.drafted > before  # not while the model is watched
            if ready and kind is not None:
                self._odds[kind].note(len(draft), len(chosen) - 1)
            self._idle = 0 if len(chosen) > 1 else self._idle + 1
            rows = next(size for size in DRAFT_ROWS if size > len(draft))
        if ready:
            self._times.note(rows, (self._clock() - started) / (len(chosen) if rows == 1 else 1))
        return chosen

    def _odds_of(self, kind: int) -> _Odds:
        if kind not in self._odds:
            self._odds[kind] = _Odds(_PRIOR_TRIED * self._drafter.prior(kind))
        return self._odds[kind]

    def _length(self, odds: _Odds, most: int) -> int:
        """The length of draft that gives most tokens a second; 0 where none does better than single tokens."""
        single = self._times.of(1)
        if single is None:
            return 0
        best, length = 0.0, 0
        for rows in DRAFT_ROWS:
            drafted, seconds = min(rows - 1, most), self._times.of(rows)
            if seconds is not None:
                rate = odds.tokens(drafted) / (seconds + drafted * (self._draft_times.of(0) or 0.0))
                if rate > best:
                    best, length = rate, drafted
        if best * single > 1.0:
            odds.patience = _PATIENCE
            return length
        return length if odds.retries() else 0
