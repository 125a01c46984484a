"""Prefill: run many prompt tokens, or drafted tokens, at once into the caches for decoding."""

from __future__ import annotations

from dataclasses import replace

from glinfer.engine.choice import Choice
from glinfer.engine.runs import Chunks, DraftedRows
from glinfer.models.fast.parts import cache_slots
from glinfer.models.fast.rows import drafted_plan, few_chunk_rows, fitting_chunk_plan
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops.kernels import KernelOptions

MAX_SINGLE_TOKENS = 3
"""Limit for new tokens that run one by one; more run as a chunk."""
DRAFT_ROWS = (4, 8, 16)
"""Row counts of runs of drafted tokens; a run takes as long as the next larger count."""
MAX_SINGLE_TOKENS_BEFORE = 8
"""Tokens that run one by one before the first chunk, since building its plan and shaders takes about as long."""


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
        """Prepare for caches of ``sequences`` sequences of at most ``capacity`` tokens (default: a whole context).

        ``export_residual`` lets the decode plan continue the last token from its last block.
        """
        self.options, self._export_residual = options, export_residual
        self._capacity = cache_slots(options.config) if capacity is None else capacity
        self._slots = sequences * self._capacity
        self._plans: dict[int, Plan] = {}
        # The first session of each chunk plan, by its rows; the others share its scratch textures.
        self._firsts: dict[int, Session] = {}
        # The first session of each ``drafted`` plan; the others share its scratch textures.
        self._drafted: dict[KernelOptions, Session] = {}
        self._singles = 0

    @property
    def rows(self) -> int:
        """The size of a chunk, in tokens."""
        return min(self.options.kernels.chunk, self.options.config.max_position_embeddings, self._capacity)

    def rows_for(self, tokens: int) -> int:
        """The rows of the plan for ``tokens`` tokens; models with experts have a second plan for few tokens."""
        few = few_chunk_rows(self.options)
        return few if tokens <= few < self.rows else self.rows

    def plan(self, rows: int | None = None) -> Plan:
        """The chunk plan of at most ``rows`` rows (default: :attr:`rows`)."""
        rows = self.rows if rows is None else rows
        if rows not in self._plans:
            self._plans[rows] = fitting_chunk_plan(
                self.options,
                rows=rows,
                cache_slots=self._slots,
                every=self._capacity,
                export_residual=self._export_residual,
            )
        return self._plans[rows]

    def as_chunk(self, tokens: int) -> bool:
        """Whether ``tokens`` new tokens run as a chunk instead of one by one."""
        if tokens <= MAX_SINGLE_TOKENS:
            return False
        if self._firsts or self._singles + tokens > MAX_SINGLE_TOKENS_BEFORE:
            return True
        self._singles += tokens
        return False

    def into(self, bound: Session, rows: int | None = None) -> Chunks:
        """Bind the plan of at most ``rows`` rows to the caches of a session of another plan over the same weights.

        Raises:
            PlanError: the plan does not fit the renderer.
        """
        rows = self.rows if rows is None else rows
        made = bound.companion(self.plan(rows), scratch=self._firsts.get(rows))
        self._firsts.setdefault(rows, made)
        return Chunks(made, self.options.kernels)

    def choice(self, bound: Session, *, masked: bool = False, changed: bool = False) -> Choice:
        """Bind the plan ``choice`` to the logits of a session.

        Raises:
            PlanError: the plan does not fit the renderer.
        """
        return Choice(bound, self.options.kernels, masked=masked, changed=changed)

    def draft_width(self, rows: int) -> int:
        """The rows that a pass computes at once in a run of ``rows`` drafted rows."""
        return min(self.options.kernels.rows_per_draw, next(size for size in DRAFT_ROWS if size >= rows))

    def drafted(self, bound: Session, width: int) -> DraftedRows:
        """Bind the plan ``drafted`` to the caches of a session of another plan over the same weights.

        Args:
            bound: the session.
            width: limit for the rows that a pass computes at once, see :meth:`draft_width`.

        Raises:
            PlanError: the plan does not fit the renderer.
        """
        return self._drafted_with(self.options.kernels, bound, width)

    def _drafted_with(self, kernels: KernelOptions, bound: Session, width: int) -> DraftedRows:
        kernels = replace(kernels, rows_per_draw=min(kernels.rows_per_draw, width))
        first = self._drafted.get(kernels)
        if first is not None:
            made = bound.companion(first.plan, scratch=first)
        else:
            options = replace(self.options, kernels=kernels)
            made = bound.companion(drafted_plan(options, rows=DRAFT_ROWS[-1], cache_slots=self._slots))
            self._drafted[kernels] = made
        return DraftedRows(made, kernels)

    def give_back(self, runs: Chunks) -> None:
        """Release the runs of :meth:`into` or :meth:`drafted`, unless others share their scratch textures."""
        if isinstance(runs, DraftedRows):
            runs.release_choice()
        if runs.session not in (*self._firsts.values(), *self._drafted.values()):
            runs.session.release()
