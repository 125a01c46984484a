"""Prefill: many tokens of a prompt in one run, into the caches that decoding continues with."""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.engine.shortlist import Shortlists
from glinfer.models.fast.parts import cache_slots
from glinfer.models.fast.rows import ROWS, fitting_chunk_plan
from glinfer.models.fast.token import HIDDEN
from glinfer.models.feed import chunk_feed
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops.fused.rows import row_table
from glinfer.ops.kernels import KernelOptions

MAX_SINGLE_TOKENS = 3
"""The most new tokens that run one by one; more of them run as a chunk."""


class Prefill:
    """The chunk plan of a model, built at first use; all sequences share its scratch textures.

    Attributes:
        options: how the plan is built.
    """

    def __init__(
        self,
        options: PlanOptions,
        *,
        sequences: int = 1,
        capacity: int | None = None,
        export_residual: bool = True,
    ) -> None:
        """Prepare for caches of this many sequences of at most ``capacity`` tokens (default: a whole context).

        With ``export_residual`` the decode plan can continue before the last block of the last token.
        """
        self.options, self._export_residual = options, export_residual
        self._capacity = cache_slots(options.config) if capacity is None else capacity
        self._slots = sequences * self._capacity
        self._plan: Plan | None = None
        self._first: Session | None = None

    @property
    def rows(self) -> int:
        """The most tokens of one chunk."""
        return min(self.options.kernels.chunk, self.options.config.max_position_embeddings, self._capacity)

    def plan(self) -> Plan:
        """The chunk plan."""
        if self._plan is None:
            self._plan = fitting_chunk_plan(
                self.options,
                rows=self.rows,
                cache_slots=self._slots,
                every=self._capacity,
                export_residual=self._export_residual,
            )
        return self._plan

    def into(self, bound: Session) -> Chunks:
        """Bind the plan to the caches of a session of another plan over the same weights.

        Raises:
            PlanError: the plan does not fit the renderer.
        """
        plan = self.plan()
        made = bound.companion(plan, names=(HIDDEN,), scratch=self._first)
        if self._first is None:
            self._first = made
        return Chunks(made, self.options.kernels)

    def shortlists(self, bound: Session) -> Shortlists:
        """Bind the plan ``shortlist`` to the logits of the session that owns the caches.

        Raises:
            PlanError: the plan does not fit the renderer.
        """
        return Shortlists(bound, self.options.kernels)

    def give_back(self, chunks: Chunks) -> None:
        """Release chunks that :meth:`into` made, unless others use their scratch textures."""
        if chunks.session is not self._first:
            chunks.session.release()


class Chunks:
    """Runs tokens into the caches of one session."""

    def __init__(self, session: Session, kernels: KernelOptions) -> None:
        """Take over a session of the chunk plan; it is released with its owner."""
        self.session, self._targets, self._flush_every = session, kernels.rows_per_draw, kernels.flush_every
        self._table, self._texture = row_table(session.plan.table[ROWS].shape[0]), session.texture(ROWS)

    def run(self, ids: Sequence[int], position: int, base: int = 0) -> int:
        """Run as many of the tokens as fit, from ``position`` of the sequence at slot ``base``; returns how many."""
        rows = min(len(ids), self.session.plan.max_rows)
        values = chunk_feed(self._table, ids[:rows], position, self._targets, base)
        self.session.require_alive()
        self._texture.upload(self._table)
        self.session.run(values, flush_every=self._flush_every)
        return rows
