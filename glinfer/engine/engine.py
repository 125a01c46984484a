"""The engine of a model: its bound plans, and the sequences, batches and scores that they compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import SupportsIndex

import numpy as np

from glinfer.engine.batch import Batch, SchedulerOptions, slots_and_capacity
from glinfer.engine.prefill import Companions, Prefill, write_images
from glinfer.engine.progress import Progress, no_progress, run_steps
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.run.cached import CachedSession
from glinfer.engine.run.decode import DecodeSession, Floats, RecomputeSession
from glinfer.engine.run.fallback import KernelChoice
from glinfer.engine.run.nan_guard import NanGuard
from glinfer.engine.scheduler import Scheduler
from glinfer.engine.score import TextScore, TextScorer
from glinfer.engine.textures import TextureComparison, WeightSource
from glinfer.errors import InputError, NumbersError
from glinfer.kernels.options import KernelOptions
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.gab import LOGITS, PROBS, TOKENS
from glinfer.lower.plans import ReferencePlans
from glinfer.program.plan import Plan
from glinfer.program.session import Session
from glinfer.text.images import BEYOND

EMBEDS = "this model embeds texts and does not generate any; use embed or rerank"
"""Message when an embedding model should generate text."""


class Engine(ABC):
    """A model's plan bound to a device, and its operations; ``patches`` counts the patches added and removed."""

    def __init__(self, options: PlanOptions, bound: Session, source: WeightSource) -> None:
        """Take over a bound plan, which owns the weights; ``source`` makes their arrays again."""
        self.options, self.bound, self.source = options, bound, source
        self.textures = TextureComparison(bound, source)
        self.nan_guard = NanGuard(bound, self.session)
        self._scorer: TextScorer | None = None
        self.patches = 0
        self._own: DecodeSession | None = None

    @property
    def plan(self) -> Plan:
        """The bound plan."""
        return self.bound.plan

    def session(self, *, own: bool = False) -> DecodeSession:
        """An empty sequence of tokens, in the caches of the bound plan with ``own``, else in new caches."""
        made = self._new_session(own)
        made.nan_guard, made.usable = self.nan_guard, self.bound.device.require_usable
        made.patches = lambda: self.patches
        self._own = made if own else self._own
        return made

    def forget_own(self) -> None:
        """Make the sequence in the bound plan's caches run again later; call this before overwriting them."""
        if self._own is not None:
            self._own.forget()

    @abstractmethod
    def _new_session(self, own: bool) -> DecodeSession: ...

    def sessions_for(self, tokens: int) -> list[Session]:
        """The bound plans that compute the next token of a sequence of ``tokens`` tokens, in order."""
        return [self.bound]

    def scheduler(
        self, check: Callable[[BatchRequest], Running], usable: Callable[[], None], options: SchedulerOptions
    ) -> Callable[[], Scheduler]:
        """A function that binds the plans and makes a scheduler; InputError if one sequence does not fit."""
        raise InputError("several prompts together need the fast plan; leave out plan='reference' (--plan reference)")

    def score(
        self,
        texts: Sequence[Sequence[int]],
        *,
        stride: SupportsIndex | None = None,
        adapter: int | None = None,
        on_progress: Progress = no_progress,
    ) -> list[TextScore]:
        """The likelihood of texts, see :meth:`glinfer.engine.score.TextScorer.steps`, also for most errors.

        A NumbersError names the pass where NaN or an infinity began.
        """
        try:
            return run_steps(self.scorer().steps(texts, stride=stride, adapter=adapter), on_progress)
        except NumbersError as error:
            if not self.nan_guard.traces:
                raise
            context = self.options.config.max_position_embeddings
            origins = filter(None, (self.nan_guard.trace(each[:context]) for each in texts))
            raise NumbersError(f"{error}; {next(origins, 'a run token by token has only numbers')}") from None

    def scorer(self) -> TextScorer:
        """The scorer, bound at first use, released with the model; InputError for the reference plan."""
        if self._scorer is None:
            self._scorer = self._new_scorer()
        return self._scorer

    def _new_scorer(self) -> TextScorer:
        raise InputError("score needs the fast plan; leave out plan='reference' (--plan reference)")

    def forward(self, ids: Sequence[int]) -> int:
        """Run one pass over checked ids; returns the draw calls. InputError for the fast plan."""
        raise InputError(
            f"plan {self.plan.name} runs token by token; use logits or session, or load with plan='reference'"
        )


class FastEngine(Engine):
    """The fast plans of any family."""

    def __init__(self, options: PlanOptions, bound: Session, source: WeightSource, *, fixed: bool = False) -> None:
        """Take over a bound plan; unless ``fixed``, its other plans may use safer kernels."""
        super().__init__(options, bound, source)
        self._choice = KernelChoice(options.kernels, fixed=fixed, same_layouts=True)
        self._prefill = Prefill(options, choice=self._choice)
        self._chosen: Session | None = None

    def _new_session(self, own: bool) -> DecodeSession:
        return CachedSession(self._prefill, self.bound if own else self.bound.sharer(), owns=not own)

    def sessions_for(self, tokens: int) -> list[Session]:
        """See :class:`Engine`; includes the plan that chooses filtered tokens."""
        if self._chosen is None:
            self._chosen = Companions(self._prefill, self.bound).choice().session
        return [self.bound, self._chosen]

    def scheduler(
        self, check: Callable[[BatchRequest], Running], usable: Callable[[], None], options: SchedulerOptions
    ) -> Callable[[], Scheduler]:
        """See :class:`Engine`."""
        own = self.options
        slots, capacity = slots_and_capacity(own.config, options, self.bound.device.limits.max_texture_size, own.cache)

        def made(kernels: KernelOptions) -> Scheduler:
            plans, batch = replace(own, kernels=kernels), None
            try:
                batch = Batch(plans, self.bound, self.nan_guard, slots=slots, capacity=capacity)
                return Scheduler(batch, check, usable, piece=options.piece)
            except BaseException:  # an interrupt too
                if batch is not None:
                    batch.close()
                raise

        return lambda: self._choice.make(made)

    def _new_scorer(self) -> TextScorer:
        return self._choice.make(lambda kernels: TextScorer(replace(self.options, kernels=kernels), self.bound))


class WholeEngine(Engine):
    """The reference plan, which runs the whole sequence for each token."""

    def __init__(
        self, options: PlanOptions, bound: Session, source: WeightSource, plans: ReferencePlans | None = None
    ) -> None:
        """Take over a bound plan; ``plans`` has one for each length, for models without a published plan."""
        super().__init__(options, bound, source)
        self._plans, self._by_rows, self._issued = plans, {bound.plan.max_rows: bound}, 0

    def forward(self, ids: Sequence[int]) -> int:
        """See :class:`Engine`."""
        (session,) = self.sessions_for(len(ids))
        table = np.zeros((session.plan.max_rows, 1), dtype=np.int32)
        table[: len(ids), 0] = ids
        if self.options.images is not None:
            table[list(write_images(session, self.options, [(ids, 0, 0)])), 0] = BEYOND
        session.write(TOKENS, table)
        issued = session.run(session.plan.values_for(len(ids)))
        self._issued += issued
        return issued

    def sessions_for(self, tokens: int) -> list[Session]:
        """See :class:`Engine`; the shortest plan for the sequence, bound at first use."""
        if self._plans is None:
            return [self.bound]
        rows = self._plans.rows_for(tokens)
        if rows not in self._by_rows:
            self._by_rows[rows] = self.bound.companion(self._plans.of(rows))
        return [self._by_rows[rows]]

    def _logits(self, ids: Sequence[int]) -> Floats:
        self.forward(ids)
        return self._row(LOGITS, ids)

    def _row(self, name: str, ids: Sequence[int]) -> Floats:
        """Read a tensor of one row after the newest run, which was over ``ids``."""
        (session,) = self.sessions_for(len(ids))
        return np.array(session.read(name)[0], dtype=np.float32)

    def _new_session(self, own: bool) -> DecodeSession:
        return RecomputeSession(
            self.options.config, self._logits, lambda ids: self._row(PROBS, ids), count_draws=lambda: self._issued
        )
