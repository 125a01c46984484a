"""The second half of tuning: the fields of :class:`KernelOptions` that shape passes over many rows, by a prompt's time.

They change nothing of how a single token is run, so the kernels that were found for that stay bound, and every
candidate shares their weights and caches.
"""

from __future__ import annotations

import dataclasses
import time

from glinfer.config import ModelConfig
from glinfer.engine.cached import CachedSession
from glinfer.engine.prefill import FEWEST, Prefill
from glinfer.inspect.draws import example_ids
from glinfer.inspect.tune.search import Change, Search, Trial
from glinfer.models.options import PlanOptions
from glinfer.models.session import Session
from glinfer.models.transforms.recipe import Formats
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array

ROW_FIELDS = ("rows_per_draw", "row_tiles", "largest_cell", "blends", "chunk")
"""What is chosen here; see :class:`glinfer.ops.kernels.KernelOptions`."""
PROMPT = 512
"""Tokens that are taken in to choose them, or as many as the context has."""
LONG_PROMPT = 1024
"""The same where ``chunk`` is chosen: no longer chunk than the prompt can show what it is worth."""


class RowsCandidate:
    """Kernels whose chunk plan is bound over a session of the fast plan."""

    def __init__(
        self, config: ModelConfig, root: Session, weights: str, kernels: KernelOptions, formats: Formats | None = None
    ) -> None:
        """Bind it.

        Raises:
            PlanError: the kernels do not fit this model or device.
            ShaderError: the driver does not compile them.
        """
        self.kernels = kernels
        self._ids = [int(token) for token in example_ids(config, min(LONG_PROMPT, config.max_position_embeddings))]
        prefill = Prefill(PlanOptions(config, weights, kernels, root.device.limits.max_texture_size, formats))
        self._scratch = prefill.into(root).session  # compiles; what a session makes beside it shares its textures
        self._session = CachedSession(prefill, root, owns=False)

    def prefill(self, tokens: int) -> Array:
        """The logits [vocab] after the first tokens of the prompt, taken in anew, in Python."""
        self._session.rewind(len(self._session))
        self._session.prefill(self._ids[:tokens])
        return self._session.logits()

    def logits(self) -> Array:
        """Logits [1, vocab] after the prompt, whose cells and slots are those that are measured."""
        return self.prefill(PROMPT)[None]

    def milliseconds(self, count: int, tokens: int = PROMPT) -> float:
        """Of a prompt of so many tokens, the mean of ``count``."""
        started = time.perf_counter()
        for _ in range(count):
            self.prefill(tokens)
        return 1000.0 * (time.perf_counter() - started) / count

    def release(self) -> None:
        """Give back what is its own; the weights and caches are the root's."""
        self._session.close()
        self._scratch.release()


class RowsSearch(Search[RowsCandidate]):
    """A search over :data:`ROW_FIELDS` alone. A prompt takes long, so each candidate is measured fewer times."""

    rounds = 3
    patience = 1
    counts = (1, 8)

    def __init__(
        self,
        config: ModelConfig,
        root: Session,
        weights: str,
        kernels: KernelOptions,
        plainest: KernelOptions,
        deadline: float,
        formats: Formats | None = None,
    ) -> None:
        """Start from ``kernels``, those of the root; compare with their chunk plan as plain as it can be.

        Raises:
            PlanError: not even that fits.
        """
        self._context, self._tokens = config.max_position_embeddings, PROMPT
        plain = dataclasses.replace(kernels, **{name: getattr(plainest, name) for name in ROW_FIELDS})

        def bind(kernels: KernelOptions) -> RowsCandidate:
            return RowsCandidate(config, root, weights, kernels, formats)

        super().__init__(bind, kernels, plain, deadline)

    @property
    def prompt(self) -> int:
        """How many tokens the times of :meth:`confirm` are for."""
        return min(PROMPT, self._context)

    def measure(self, contender: RowsCandidate, count: int) -> float:
        """Milliseconds of one prompt, the mean of so many."""
        return contender.milliseconds(count, self._tokens)

    def try_out(self, kernels: KernelOptions, change: Change) -> Trial:
        """Measure a candidate; it takes the place of the best where it wins."""
        rows, before = (min(each.chunk, self._context) for each in (kernels, self.best.kernels))
        if "chunk" in change and rows == before:
            return Trial(dict(change), None, f"the same within a context of {self._context}")
        self._tokens = LONG_PROMPT if "chunk" in change else PROMPT
        try:
            return super().try_out(kernels, change)
        finally:
            self._tokens = PROMPT


def can_search(config: ModelConfig) -> bool:
    """Whether a context is long enough for a chunk to be run at all."""
    return config.max_position_embeddings > FEWEST
