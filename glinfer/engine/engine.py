"""What runs a model: its plans, bound, behind one interface.

:class:`FastEngine` has the fast plans of any family (:mod:`glinfer.models.fast.token`,
:mod:`glinfer.models.fast.rows`), :class:`WholeEngine` the reference plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from glinfer.config import ModelConfig
from glinfer.engine.batch import Batch, BatchRequest, Running, places_for
from glinfer.engine.cached import CachedSession
from glinfer.engine.decode import DecodeSession, Floats, RecomputeSession
from glinfer.engine.fallback import KernelChoice, PlainerPrefill
from glinfer.engine.nan_guard import Numbers
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.scheduler import Scheduler
from glinfer.engine.score import Scorer, TextScore
from glinfer.engine.whole import WholeSequences
from glinfer.errors import InputError, NumbersError
from glinfer.models.choice import ReferencePlans
from glinfer.models.plan import Plan
from glinfer.models.reference.gab import LOGITS, PROBS, TOKENS
from glinfer.models.session import Session
from glinfer.models.transforms.recipe import DEFAULT_CACHE, Formats
from glinfer.ops.kernels import Kernels


class Engine(ABC):
    """A model's plan bound to a device, and what can be done with it.

    Attributes:
        config: the model's shape.
        bound: the plan, bound; it owns the weights.
        weights: the format of the weights.
        cache: that of keys and values.
        formats: of the file's tensors.
        kernels: how passes are shaped.
        numbers: the watch over what is read back.
    """

    def __init__(
        self,
        config: ModelConfig,
        bound: Session,
        weights: str,
        kernels: Kernels,
        formats: Formats | None = None,
        cache: str = DEFAULT_CACHE,
    ) -> None:
        """Take over a bound plan."""
        self.config, self.bound, self.weights, self.kernels = config, bound, weights, kernels
        self.formats, self.cache = formats, cache
        self.numbers = Numbers(bound, self.session)
        self._judge: Scorer | None = None

    @property
    def plan(self) -> Plan:
        """What one run draws."""
        return self.bound.plan

    def session(self, *, own: bool = False) -> DecodeSession:
        """A sequence of tokens, empty; ``own`` in the caches of the bound plan itself, others in new ones."""
        made = self._new_session(own)
        made.numbers, made.usable = self.numbers, self.bound.device.require_usable
        return made

    @abstractmethod
    def _new_session(self, own: bool) -> DecodeSession: ...

    def scheduler(
        self,
        check: Callable[[BatchRequest], Running],
        usable: Callable[[], None],
        *,
        longest: int | None = None,
        slots: int | None = None,
        memory: int | None = None,
        piece: int | None = None,
    ) -> Callable[[], Scheduler]:
        """What makes a scheduler; nothing is bound before it is called.

        ``check``, ``usable`` and ``piece`` are those of :class:`glinfer.engine.scheduler.Scheduler`, the others
        those of :func:`glinfer.engine.batch.places_for`.

        Raises:
            InputError: there is no room for one sequence, or the plan keeps no keys and values.
        """
        raise InputError("several prompts together need the fast plan; load the model without plan='reference'")

    def judge(self) -> Scorer:
        """What scores texts; made at first use.

        Raises:
            InputError: the plan keeps no keys and values.
        """
        if self._judge is None:
            self._judge = self._new_judge()
        return self._judge

    def score(
        self,
        texts: Sequence[Sequence[int]],
        *,
        stride: int | None = None,
        on_progress: Progress = no_progress,
    ) -> list[TextScore]:
        """How likely texts are, see :meth:`glinfer.engine.score.Scorer.score`.

        Raises:
            InputError: see there, or the plan keeps no keys and values.
            NumbersError: the model's output is broken; names the pass where that began.
        """
        try:
            return self.judge().score(texts, stride=stride, on_progress=on_progress)
        except NumbersError as error:
            context = self.config.max_position_embeddings
            places = filter(None, (self.numbers.trace(each[:context]) for each in texts))
            raise NumbersError(f"{error}; {next(places, 'run again token by token, all are numbers')}") from None

    @abstractmethod
    def _new_judge(self) -> Scorer: ...

    def forward(self, ids: Sequence[int]) -> int:
        """Run one pass over a whole sequence of checked ids; returns the draw calls issued.

        Raises:
            InputError: the plan runs token by token.
        """
        raise InputError(
            f"plan {self.plan.name} runs token by token; use logits or session, or load with plan='reference'"
        )


class FastEngine(Engine):
    """The fast plans of a model of any family."""

    def __init__(
        self,
        config: ModelConfig,
        bound: Session,
        weights: str,
        kernels: Kernels,
        formats: Formats | None = None,
        cache: str = DEFAULT_CACHE,
        *,
        fixed: bool = False,
    ) -> None:
        """Take over a bound plan; its other plans are shaped otherwise only if the kernels are not ``fixed``."""
        super().__init__(config, bound, weights, kernels, formats, cache)
        self._choice = KernelChoice(kernels, fixed=fixed, same_layouts=True)
        self._prefill = PlainerPrefill(config, weights, self._choice, formats, cache)

    def _new_session(self, own: bool) -> DecodeSession:
        return CachedSession(self._prefill, self.bound if own else self.bound.sharer(), owns=not own)

    def scheduler(
        self,
        check: Callable[[BatchRequest], Running],
        usable: Callable[[], None],
        *,
        longest: int | None = None,
        slots: int | None = None,
        memory: int | None = None,
        piece: int | None = None,
    ) -> Callable[[], Scheduler]:
        """What makes a scheduler."""
        edge = self.bound.device.limits.max_texture_size
        count, capacity = places_for(self.config, longest, slots, memory, edge, self.cache)
        model, kept = (self.config, self.bound, self.weights), (self.numbers, self.formats, self.cache)

        def made(kernels: Kernels) -> Scheduler:
            batch = Batch(*model, kernels, *kept, slots=count, capacity=capacity)
            return Scheduler(batch, check, usable, piece=piece)

        return lambda: self._choice.make(made)

    def _new_judge(self) -> Scorer:
        return self._choice.make(
            lambda kernels: Scorer(self.config, self.bound, self.weights, kernels, self.formats, self.cache)
        )


class WholeEngine(Engine):
    """The reference plan: the whole sequence in each run; ``whole`` has it by length, where none is published."""

    def __init__(
        self, config: ModelConfig, bound: Session, weights: str, kernels: Kernels, plans: ReferencePlans | None = None
    ) -> None:
        """Take over a bound plan; ``plans`` are those of a model without a published one."""
        super().__init__(config, bound, weights, kernels)
        self.whole = None if plans is None else WholeSequences(plans, bound)

    def forward(self, ids: Sequence[int]) -> int:
        """See :class:`Engine`."""
        return self._run(ids)[1]

    def _run(self, ids: Sequence[int]) -> tuple[Session, int]:
        if self.whole is not None:
            return self.whole.run(ids)
        self.bound.write(TOKENS, np.asarray(ids, dtype=np.int32)[:, None])
        return self.bound, self.bound.run({"rows": len(ids)})

    def _row(self, name: str, ids: Sequence[int]) -> Floats:
        session, _ = self._run(ids)
        return np.array(session.read(name)[0], dtype=np.float32)

    def _new_session(self, own: bool) -> DecodeSession:
        return RecomputeSession(
            self.config,
            lambda ids: self._row(LOGITS, ids),
            lambda ids: self._row(PROBS, ids),
            count_draws=self._draws_issued,
        )

    def _draws_issued(self) -> int:
        return self.bound.draws_issued if self.whole is None else self.whole.draws_issued

    def _new_judge(self) -> Scorer:
        raise InputError("score needs the fast plan; load the model without plan='reference'")
