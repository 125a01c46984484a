"""Speculative decoding: draft the next tokens, and decide by run times and past drafts how many are worth a run.

:meth:`glinfer.engine.run.decode.DecodeSession.accept` keeps the drafts that the sampler chooses anyway, so the text
stays the same (Leviathan et al. 2023; seeded noise replaces their rejection step).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from glinfer.engine.prefill import DRAFT_ROWS
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.sampler import Sampler
from glinfer.errors import InputError
from glinfer.text.images import without_images

NGRAM = "ngram"
SPECULATE = (NGRAM,)
"""The values of ``speculate=`` and ``--speculate``."""
MIN_MATCH = 3
"""Tokens that must repeat before their continuation is drafted."""
_MAX_MATCH = 32  # longest match that is distinguished, in tokens
_MAX_MATCHES = 32  # newest matches to search for the longest one
_KEPT_TIMES = 9
_DECAY = 0.9  # factor of earlier outcomes at each new one
_PRIOR_TRIED = 3.0  # weight of the prior probability, in tries
_MODEL_RIGHT = 2 / 3  # prior probability that a smaller model's draft is right
_GROWTH = 1.5  # assumed time of an untimed run, relative to half the rows
_PATIENCE, _MAX_PATIENCE = 8, 256
_IDLE = 8  # tokens without an accepted draft before drafts are tried less often


def check_speculation(speculate: str | None, draft: object) -> None:
    """Refuse an unknown value of ``speculate``, or both options together, with an InputError."""
    if speculate is not None and speculate not in SPECULATE:
        raise InputError(f"there is no speculate={speculate!r}; expected {', '.join(map(repr, SPECULATE))}, or None")
    if speculate is not None and draft is not None:
        raise InputError("found both speculate and a draft model; give one of them")


class Drafter(Protocol):
    """Drafts the next tokens of a sequence."""

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far for drafts."""

    def offer(self, ids: Sequence[int]) -> int | None:
        """The kind of draft after these tokens, or None; drafts of one kind share their statistics."""

    def prior(self, kind: int) -> float:
        """The prior probability that a drafted token of this kind is right."""

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        """Draft at most ``count`` tokens that ``sampler`` will choose; called after :meth:`offer` with the same ids."""


class Ngrams:
    """Prompt lookup: draft the continuation of the longest earlier match of the newest tokens (Saxena 2023).

    A match has at least :data:`MIN_MATCH` tokens; of equally long matches the newest wins. A draft that reaches the
    end of the sequence repeats itself.
    """

    draws_issued = 0

    def __init__(self) -> None:
        """Start without tokens."""
        self._ids: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._match = 0

    def offer(self, ids: Sequence[int]) -> int | None:
        """See :class:`Drafter`; the kind is the length of the match, rounded down to a power of two."""
        self._learn(ids)
        end = len(self._ids)
        # The last one is the end of the sequence itself.
        ends = self._ends.get(tuple(self._ids[end - MIN_MATCH :]), [])[-_MAX_MATCHES - 1 : -1]
        best = 0
        for start in reversed(ends):
            length = MIN_MATCH
            while length < min(start, _MAX_MATCH) and self._ids[start - length - 1] == self._ids[end - length - 1]:
                length += 1
            if length > best:
                best, self._match = length, start
        return best.bit_length() if best else None

    def prior(self, kind: int) -> float:
        """See :class:`Drafter`; after n equal tokens Laplace's rule of succession, (n + 1) / (n + 2)."""
        equal = max(MIN_MATCH, 1 << (kind - 1))
        return (equal + 1) / (equal + 2)

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        """See :class:`Drafter`."""
        found = list(self._ids[self._match : self._match + count])
        period = len(self._ids) - self._match
        while len(found) < count:
            found.append(found[-period])
        return found

    def _learn(self, ids: Sequence[int]) -> None:
        """Record where each group of :data:`MIN_MATCH` tokens ends; start again if tokens were removed."""
        if self._ids != ids[: len(self._ids)]:
            self._ids, self._ends = [], {}
        for token in ids[len(self._ids) :]:
            self._ids.append(token)
            if len(self._ids) >= MIN_MATCH:
                self._ends.setdefault(tuple(self._ids[-MIN_MATCH:]), []).append(len(self._ids))


class ModelDrafts:
    """Drafts the choices of a smaller model with the same sampler, seed and steps."""

    def __init__(self, session: DecodeSession, accepted_vocab: int) -> None:
        """Draft for a model of the vocabulary ``accepted_vocab`` with a session, which other drafters may share."""
        self._session, self._accepted_vocab, self._start = session, accepted_vocab, 0
        self._context, self._vocab = session._config.max_position_embeddings, session._config.vocab_size

    @property
    def draws_issued(self) -> int:
        """See :class:`Drafter`."""
        return self._session.draws_issued

    def offer(self, ids: Sequence[int]) -> int | None:
        """See :class:`Drafter`; all drafts are of one kind."""
        return 0

    def prior(self, kind: int) -> float:
        """See :class:`Drafter`."""
        return _MODEL_RIGHT

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        """See :class:`Drafter`; ends before a token that the large model does not have. Images are left out."""
        ids = without_images(ids)
        # A shorter context begins later in the sequence, and moves on only when it is full.
        if self._start >= len(ids):
            self._start = 0
        before = self._session.before
        before = before if list(ids[: len(before)]) == before else []  # stay first in the shorter context
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
    """Median times of the newest runs of one model, by their number of rows."""

    def __init__(self) -> None:
        """Start without times."""
        self._times: dict[int, deque[float]] = {}

    def note(self, rows: int, seconds: float) -> None:
        """Record a run of ``rows`` rows; 1 is a token without a draft, 0 the making of a drafted token.

        The first run of each size is a warm-up and does not count.
        """
        if rows not in self._times:
            self._times[rows] = deque(maxlen=_KEPT_TIMES)
        else:
            self._times[rows].append(seconds)

    def of(self, rows: int) -> float | None:
        """Seconds of a run of ``rows`` rows, estimated if none was timed; None before the first token."""
        found = self._times.get(rows)
        if found:
            ordered, half = sorted(found), len(found) // 2
            return (ordered[~half] + ordered[half]) / 2
        if rows <= 1:
            return None
        index = DRAFT_ROWS.index(rows)
        # A few rows take hardly longer than one, which makes drafts worthwhile.
        fewer = self.of(DRAFT_ROWS[index - 1]) if index else self.of(1)
        return None if fewer is None else fewer * (_GROWTH if index else 1.0)


@dataclasses.dataclass
class _Odds:
    """How often drafted tokens of one kind were right, and how long to pause unprofitable drafts."""

    right: float
    tried: float = _PRIOR_TRIED
    skipped: int = 0
    patience: int = _PATIENCE

    @property
    def each(self) -> float:
        """The probability that a token is right after right ones."""
        return self.right / self.tried

    def tokens(self, drafted: int) -> float:
        """The expected number of tokens from a run with ``drafted`` drafted tokens."""
        return sum(self.each**count for count in range(drafted + 1))

    def note(self, drafted: int, accepted: int) -> None:
        self.right = _DECAY * self.right + accepted
        self.tried = _DECAY * self.tried + min(drafted, accepted + 1)

    def retries(self) -> bool:
        """Whether to retry an unprofitable kind; each pause is twice as long as the last."""
        self.skipped += 1
        if self.skipped <= self.patience:
            return False
        self.skipped, self.patience = 0, min(2 * self.patience, _MAX_PATIENCE)
        return True


class Speculation:
    """Chooses the tokens of one stream with drafts of the most profitable length."""

    def __init__(self, drafter: Drafter, times: RunTimes, clock: Callable[[], float] = perf_counter) -> None:
        """Use the drafts of ``drafter``; all streams of a model share ``times``."""
        self._drafter, self._times, self._clock = drafter, times, clock
        self._odds: dict[int, _Odds] = {}
        self._draft_times = RunTimes()
        self._idle = 0

    @property
    def draws_issued(self) -> int:
        """Draw calls that the drafter has issued."""
        return self._drafter.draws_issued

    def choose(self, session: DecodeSession, sampler: Sampler, *, most: int, chunk: int, ready: bool) -> list[int]:
        """Choose and append 1 to ``most`` tokens, within the session's room; the same as ``session.generate_ids``.

        While drafts are unlikely, ``chunk`` tokens are chosen between two readbacks. Right after a prompt the tokens
        are not ``ready``: nothing is drafted or timed.
        """
        ids = session.ids
        kind = self._drafter.offer(ids) if ready and most > 1 else None
        odds = None if kind is None else self._odds.setdefault(kind, _Odds(_PRIOR_TRIED * self._drafter.prior(kind)))
        length = 0 if odds is None else self._length(odds, most - 1)
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
            ready = session.drafted > before  # False while the model is observed
            if ready and odds is not None:
                odds.note(len(draft), len(chosen) - 1)
            self._idle = 0 if len(chosen) > 1 else self._idle + 1
            rows = next(size for size in DRAFT_ROWS if size > len(draft))
        if ready:
            self._times.note(rows, (self._clock() - started) / (len(chosen) if rows == 1 else 1))
        return chosen

    def _length(self, odds: _Odds, most: int) -> int:
        """The draft length with most tokens a second; 0 if single tokens are faster."""
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
