"""Taking a prompt in: many tokens at once, straight into the caches that the fast plan goes on with."""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.config import ModelConfig
from glinfer.engine.shortlist import Shortlists
from glinfer.models.fast.parts import FastOptions, cache_slots
from glinfer.models.fast.rows import ROWS, fitting_chunk_plan
from glinfer.models.fast.token import HIDDEN
from glinfer.models.feed import chunk_feed
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.models.transforms.recipe import Formats
from glinfer.ops.fused.rows import row_table
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.formats import DEFAULT_CACHE

FEWEST = 3
"""So many tokens and more are run as a chunk; fewer are quicker one by one."""


class Prefill:
    """The chunk plan of one model; made at first use, and its scratch textures shared by all sequences."""

    def __init__(
        self,
        config: ModelConfig,
        weights: str,
        kernels: KernelOptions,
        formats: Formats | None = None,
        cache: str = DEFAULT_CACHE,
        *,
        sequences: int = 1,
        capacity: int | None = None,
        export_residual: bool = True,
    ) -> None:
        """For caches of so many sequences of at most ``capacity`` tokens; left out, of a whole context.

        With ``export_residual`` the fast plan, whose caches they are, can go on with the last block of the last token.
        """
        self._export_residual = export_residual
        self.config, self.weights, self.formats, self.kernels = config, weights, formats, kernels
        self.cache = cache
        self._capacity = cache_slots(config) if capacity is None else capacity
        self._slots = sequences * self._capacity
        self._plan: Plan | None = None
        self._first: Session | None = None

    @property
    def rows(self) -> int:
        """How many tokens one chunk has at most."""
        return min(self.kernels.chunk, self.config.max_position_embeddings, self._capacity)

    def plan(self, max_texture_size: int) -> Plan:
        """The chunk plan."""
        if self._plan is None:
            self._plan = fitting_chunk_plan(
                FastOptions(
                    self.config,
                    weights=self.weights,
                    formats=self.formats,
                    cache=self.cache,
                    kernels=self.kernels,
                    max_texture_size=max_texture_size,
                ),
                rows=self.rows,
                cache_slots=self._slots,
                every=self._capacity,
                export_residual=self._export_residual,
            )
        return self._plan

    def into(self, bound: Session) -> Chunks:
        """The plan bound to the caches of a session of another plan over the same weights.

        Raises:
            PlanError: the plan does not fit the renderer.
        """
        plan = self.plan(bound.device.limits.max_texture_size)
        made = bound.companion(plan, names=(HIDDEN,), scratch=self._first)
        if self._first is None:
            self._first = made
        return Chunks(made, self.kernels)

    def shortlists(self, bound: Session) -> Shortlists:
        """The plan ``shortlist``, bound to the logits of a session that the caches belong to.

        Raises:
            PlanError: the plan does not fit the renderer.
        """
        return Shortlists(bound, self.kernels)

    def give_back(self, chunks: Chunks) -> None:
        """Release what :meth:`into` has made, unless others use its scratch textures."""
        if chunks.session is not self._first:
            chunks.session.release()


class Chunks:
    """Runs tokens into the caches of one session."""

    def __init__(self, session: Session, kernels: KernelOptions) -> None:
        """Takes over a session of the chunk plan; it is released with its owner."""
        self.session, self._targets, self._flush_every = session, kernels.rows_per_draw, kernels.flush_every
        self._table, self._texture = row_table(session.plan.table[ROWS].shape[0]), session.texture(ROWS)

    def run(self, ids: Sequence[int], position: int, base: int = 0) -> int:
        """Run the first of some tokens, at ``position`` of the sequence that begins at slot ``base``; how many."""
        rows = min(len(ids), self.session.plan.max_rows)
        values = chunk_feed(self._table, ids[:rows], position, self._targets, base)
        self.session.require_alive()
        self._texture.upload(self._table)
        self.session.run(values, flush_every=self._flush_every)
        return rows
