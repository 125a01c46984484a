"""Sequences of a decoder (:mod:`glinfer.models.decoder`): prompts in chunks, tokens one by one, logits read back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.generation.decode import DecodeSession, Floats
from glinfer.models.choice import DecoderPlans
from glinfer.models.decoder import LOGITS, TOKENS
from glinfer.models.decoder_fast import APPENDED, LAST_ROW, POSITION, ROWS
from glinfer.models.plan import Plan
from glinfer.models.session import Session

CHUNKS = (16, 128, 512)
"""How many tokens the plans for prompts take: the largest is run that what is left fills by half."""
FEWEST = 3
"""So many tokens and more are run as a chunk; fewer are quicker one by one."""
_SHORTEST = 64
HEAD = "lm_head"


def head_draws(plan: Plan) -> int:
    """How many of a plan's last draws only make logits out of the stream."""
    count = 0
    while count < len(plan.draws) and plan.draws[-1 - count].kind == HEAD:
        count += 1
    return count


def token_rows(ids: Sequence[int], rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Ids as the input of a plan, [rows, 1], zeros behind them."""
    made = np.zeros((rows, 1), dtype=np.int32)
    made[: len(ids), 0] = ids
    return made


class Prompts:
    """The plans that take in many tokens at once; made at first use, and their scratch textures shared by all."""

    def __init__(self, plans: DecoderPlans) -> None:
        """Nothing is built yet."""
        self.plans = plans
        self.flush_every = plans.kernels.flush_every
        context = plans.config.max_position_embeddings
        self.sizes = tuple(sorted({min(size, context) for size in CHUNKS}))
        self._made: dict[int, tuple[Plan, Session]] = {}

    def size_for(self, tokens: int) -> int:
        """How many rows the plan has that takes in the first of so many tokens."""
        return max((size for size in self.sizes if size <= 2 * tokens), default=self.sizes[0])

    def into(self, bound: Session, size: int) -> Session:
        """The plan of that size over the weights and caches of a session."""
        if size in self._made:
            plan, first = self._made[size]
            return bound.companion(plan, scratch=first)
        plan = self.plans.fast(size)
        made = bound.companion(plan)
        self._made[size] = plan, made
        return made

    def give_back(self, session: Session) -> None:
        """Release what :meth:`into` has made, unless others use its scratch textures."""
        if all(session is not first for _, first in self._made.values()):
            session.release()


class CachedDecoder(DecodeSession):
    """The fast plan of a decoder: keys and values stay in textures, tokens are chosen by NumPy."""

    def __init__(self, prompts: Prompts, bound: Session, *, owns: bool = True) -> None:
        """Nothing is held.

        Args:
            prompts: takes prompts in for this model.
            bound: the plan for one token, bound; its caches are this session's alone.
            owns: whether ``bound`` is released with this session.
        """
        super().__init__(prompts.plans.config)
        self._prompts, self._bound, self._owns = prompts, bound, owns
        self._chunks: dict[int, Session] = {}
        self._heads = prompts.plans.config.num_key_value_heads
        self._body = len(bound.draws) - head_draws(bound.plan)
        self._cached = 0  # how many of the first tokens are in the caches
        self._values: dict[str, int | float] = {POSITION: 0, ROWS: 1, APPENDED: self._heads}
        self._token = np.zeros((1, 1), dtype=np.int32)

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
        return self._bound.draws_issued + sum(chunk.draws_issued for chunk in self._chunks.values())

    def _forget(self, length: int) -> None:
        super()._forget(length)
        self._cached = min(self._cached, length)

    def _catch_up(self) -> None:
        end = len(self._ids) - 1
        while end - self._cached >= FEWEST and not self._bound.observers:  # who are told of one token at a time
            self._cached += self._run_chunk(self._ids[self._cached : end])
        while self._cached < end:
            self._run(self._cached, self._body)
            self._cached += 1

    def _run_chunk(self, ids: Sequence[int]) -> int:
        """Run the first of some tokens; how many."""
        size = self._prompts.size_for(len(ids))
        if size not in self._chunks:
            self._chunks[size] = self._prompts.into(self._bound, size)
        session, count = self._chunks[size], min(size, len(ids))
        session.write(TOKENS, token_rows(ids[:count], size))
        values = {POSITION: self._cached, ROWS: count, APPENDED: count * self._heads, LAST_ROW: count - 1}
        # The row of the last token is asked for by nobody here.
        session.run(values, draws=_body_of(session), flush_every=self._prompts.flush_every)
        return count

    def _run(self, position: int, draws: int | None = None) -> None:
        self._token[0, 0] = self._ids[position]
        self._values[POSITION] = position
        self._bound.write(TOKENS, self._token)
        self._bound.run(self._values, draws=draws, flush_every=self._prompts.flush_every)

    def _compute_logits(self) -> Floats:
        self._catch_up()
        last = len(self._ids) - 1
        self._run(last)
        self._cached = last + 1
        return np.array(self._bound.read(LOGITS)[0], dtype=np.float32)

    def _copy(self) -> CachedDecoder:
        bound = self._bound.sharer()
        bound.copy_caches(self._bound)
        made = CachedDecoder(self._prompts, bound)
        made._cached = self._cached
        return made

    def _release(self) -> None:
        for chunk in self._chunks.values():
            self._prompts.give_back(chunk)
        if self._owns:
            self._bound.release()


def _body_of(session: Session) -> int:
    return len(session.draws) - head_draws(session.plan)


class WholeSequences:
    """The reference plan of a decoder, bound for the shortest length that a sequence fits; longer ones as they come."""

    def __init__(self, plans: DecoderPlans, bound: Session) -> None:
        """``bound`` is the plan for the shortest sequences, which owns the weights."""
        self._plans, self._bound = plans, bound
        self._by_rows = {bound.plan.max_rows: bound}

    @staticmethod
    def shortest(context: int) -> int:
        """Tokens of the sequences that the first plan is for."""
        return min(_SHORTEST, context)

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
        return sum(session.draws_issued for session in self._by_rows.values())

    def run(self, ids: Sequence[int]) -> tuple[Session, int]:
        """Run checked ids; the session whose textures have the results, and the draw calls issued."""
        rows = self.shortest(self._plans.config.max_position_embeddings)
        while rows < len(ids):
            rows *= 4
        rows = min(rows, self._plans.config.max_position_embeddings)
        if rows not in self._by_rows:
            self._by_rows[rows] = self._bound.companion(self._plans.reference(rows))
        session = self._by_rows[rows]
        session.write(TOKENS, token_rows(ids, rows))
        return session, session.run({LAST_ROW: len(ids) - 1})
