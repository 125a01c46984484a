"""Runs of many tokens of one sequence into its caches: pieces of a prompt, and drafted tokens with their choices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glinfer.engine.shortlist import Shortlists
from glinfer.models.fast.rows import LOGITS, PICKS, ROWS
from glinfer.models.feed import chunk_feed
from glinfer.models.session import Session
from glinfer.ops.fused.rows import fill_choices, row_table
from glinfer.ops.fused.shortlist import Shortlist
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn

Floats = npt.NDArray[np.float32]


class Chunks:
    """Runs tokens into the caches of one session."""

    def __init__(self, session: Session, kernels: KernelOptions) -> None:
        """Take over a session of the chunk plan; it is released with its owner."""
        self.session, self._targets, self._flush_every = session, kernels.rows_per_draw, kernels.flush_every
        self._table, self._texture = row_table(session.plan.table[ROWS].shape[0]), session.texture(ROWS)

    def run(self, ids: Sequence[int], position: int, base: int = 0, adapter: int = 0, *, long: bool = False) -> int:
        """Run as many of the tokens as fit, from ``position`` of the sequence at slot ``base``; returns how many.

        ``long`` says that they turn by the second set of angles, where the model has two.
        """
        rows = min(len(ids), self.session.plan.max_rows)
        values = chunk_feed(self._table, ids[:rows], position, self._targets, base, adapter, long=long)
        self.session.require_alive()
        self._texture.upload(self._table)
        self.session.run(values, flush_every=self._flush_every)
        return rows


class DraftedRows(Chunks):
    """Runs the plan ``drafted`` into the caches of one session."""

    def __init__(self, session: Session, kernels: KernelOptions) -> None:
        """Take over a session of the plan with these kernels; :meth:`release_lists` frees what else is made here."""
        super().__init__(session, kernels)
        for target in range(self._targets):  # so that no draft makes an object that stays
            session.make_readable(f"{LOGITS}.{target}")
        self._kernels = kernels
        self._shortlists: Shortlists | None = None

    @property
    def draws_issued(self) -> int:
        """Draw calls so far."""
        listed = 0 if self._shortlists is None else self._shortlists.session.draws_issued
        return self.session.draws_issued + listed

    def choose(
        self, ids: Sequence[int], position: int, draws: Sequence[Drawn], adapter: int = 0, *, long: bool = False
    ) -> None:
        """Run tokens from ``position`` on, as many as ``draws``, which say how the token after each is chosen."""
        fill_choices(self._table, draws)
        self.run(ids, position, adapter=adapter, long=long)

    def candidates(self, rows: int) -> Floats:
        """The candidates [rows, 64] of the choices of the last run."""
        return np.asarray(self.session.read(PICKS, rows), dtype=np.float32)

    def shortlists(self, draws: Sequence[Drawn]) -> list[Shortlist]:
        """The shortlists of the rows of the last run, drawn as ``draws`` say.

        Raises:
            PlanError: their plan does not fit the renderer.
        """
        if self._shortlists is None:
            self._shortlists = Shortlists(self.session, self._kernels)
        return self._shortlists.run(range(len(draws)), draws)

    def logits(self, row: int) -> Floats:
        """The logits [vocab] of a row of the last run."""
        slot, target = divmod(row, self._targets)
        return np.asarray(self.session.read_rows(f"{LOGITS}.{target}", slot)[0], dtype=np.float32)

    def release_lists(self) -> None:
        """Release the plan of the shortlists; harmless when repeated."""
        if self._shortlists is not None:
            self._shortlists.session.release()
            self._shortlists = None
