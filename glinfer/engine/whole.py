"""Whole sequences of a model that has no published plan: its reference plans, by length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.models.choice import ReferencePlans
from glinfer.models.reference.decoder import LAST_ROW
from glinfer.models.reference.parts import TOKENS
from glinfer.models.session import Session

_SHORTEST = 64


class WholeSequences:
    """The reference plan, bound for the shortest length that a sequence fits; longer ones as they come."""

    def __init__(self, plans: ReferencePlans, bound: Session) -> None:
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
            self._by_rows[rows] = self._bound.companion(self._plans.of(rows))
        session = self._by_rows[rows]
        table = np.zeros((rows, 1), dtype=np.int32)
        table[: len(ids), 0] = ids
        session.write(TOKENS, table)
        return session, session.run({LAST_ROW: len(ids) - 1})
