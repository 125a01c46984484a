"""Run many tokens of one sequence into its caches: pieces of a prompt, or drafted tokens with their choices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glinfer.engine.choice import Choice
from glinfer.engine.sampler import SamplingOptions
from glinfer.models.fast.rows import LOGITS, PICKS, ROWS
from glinfer.models.feed import chunk_feed
from glinfer.models.session import Session
from glinfer.ops.fused.low_rank import ADAPTER
from glinfer.ops.fused.rows import fill_choices, row_table
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn

Floats = npt.NDArray[np.float32]


class Chunks:
    """Runs tokens into the caches of one session."""

    def __init__(self, session: Session, kernels: KernelOptions) -> None:
        """Use a session of the chunk plan, which its owner releases."""
        self.session, self._targets, self._flush_every = session, kernels.rows_per_draw, kernels.flush_every
        self._table, self._texture = row_table(session.plan.table[ROWS].shape[0]), session.texture(ROWS)

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
        return self.session.draws_issued

    def run(
        self,
        ids: Sequence[int],
        position: int,
        base: int = 0,
        adapter: int = 0,
        *,
        long: bool = False,
        draws: int | None = None,
    ) -> int:
        """Run the tokens that fit, from ``position`` of the sequence at slot ``base`` on; returns their number.

        ``long`` uses the second set of angles, in models with two; ``draws`` limits the draws of the run.
        """
        rows = min(len(ids), self.session.plan.max_rows)
        given = chunk_feed(self._table, ids[:rows], position, self._targets, base, long=long)
        self.session.require_alive()
        self._texture.upload(self._table)
        self.session.run({**given, ADAPTER: adapter}, draws=draws, flush_every=self._flush_every)
        return rows


class DraftedRows(Chunks):
    """Runs the plan ``drafted`` into the caches of one session."""

    def __init__(self, session: Session, kernels: KernelOptions) -> None:
        """Use a session of the plan with these kernels; :meth:`release_choice` releases the choice plan."""
        super().__init__(session, kernels)
        for target in range(self._targets):  # now, so that drafts make no lasting objects
            session.make_readable(f"{LOGITS}.{target}")
        self._kernels = kernels
        self._choice: Choice | None = None

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
        chosen = 0 if self._choice is None else self._choice.session.draws_issued
        return self.session.draws_issued + chosen

    def choose(
        self,
        ids: Sequence[int],
        position: int,
        options: SamplingOptions | None,
        draws: Sequence[Drawn],
        adapter: int = 0,
        *,
        long: bool = False,
    ) -> None:
        """Run tokens from ``position`` on, and choose the token after each.

        Args:
            ids: the tokens.
            position: of the first.
            options: for every choice; None chooses nothing.
            draws: the noise and temperature of each choice.
            adapter: the number of the LoRA adapter.
            long: as in :meth:`run`.

        Raises:
            PlanError: the plan ``choice`` does not fit the renderer.
        """
        if options is not None and not options.filters:
            fill_choices(self._table, draws)
            self.run(ids, position, adapter=adapter, long=long)
            return
        self.run(ids, position, adapter=adapter, long=long, draws=len(self.session.draws) - 1)
        if options is None:
            return
        if self._choice is None:
            self._choice = Choice(self.session, self._kernels)
        self._choice.write(range(len(ids)), [options] * len(ids), draws)
        self._choice.run(len(ids))

    def candidates(self, rows: int) -> Floats:
        """The candidates [rows, 64] of the last run."""
        return np.asarray(self.session.read(PICKS, rows), dtype=np.float32)

    def logits(self, row: int) -> Floats:
        """The logits [vocab] of a row of the last run."""
        slot, target = divmod(row, self._targets)
        return np.asarray(self.session.read_rows(f"{LOGITS}.{target}", slot)[0], dtype=np.float32)

    def release_choice(self) -> None:
        """Release the plan ``choice``; calling it again does nothing."""
        if self._choice is not None:
            self._choice.session.release()
            self._choice = None
