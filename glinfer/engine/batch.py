"""Runs of many sequences together: pieces of their prompts, and one token of each.

:mod:`glinfer.engine.scheduler` decides what runs when. Each sequence gives the same tokens as alone with the same
seed: a pass computes each row of its targets independently of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.nan_guard import NanGuard
from glinfer.engine.prefill import Prefill
from glinfer.engine.requests import Running
from glinfer.engine.shortlist import Shortlists, sample_shortlist
from glinfer.errors import InputError, PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.gl.readback import Readback
from glinfer.models.fast.parts import attention_layout, cache_format, cache_slots
from glinfer.models.fast.rows import LOGITS, PICKS, ROWS, batch_plan
from glinfer.models.options import PlanOptions
from glinfer.models.session import Session
from glinfer.models.transforms.recipe import Recipes
from glinfer.ops.fused.cached import SLOT_TOKENS, score_slots
from glinfer.ops.fused.rows import (
    BASE,
    CHOSEN,
    INVERSE_TEMPERATURE,
    NOISE,
    NOISE_KEY,
    POSITION,
    TARGETS,
    TOKEN,
    row_table,
)
from glinfer.ops.noise import noise_keys
from glinfer.quant.formats import DEFAULT_CACHE, FROM_FILE

MAX_SLOTS = 32
"""Default limit for sequences at once: more of them bring little speed, and each needs a cache."""
MAX_CACHE_BYTES = 1 << 30
"""Default limit for the texture memory of their caches."""


@dataclass(frozen=True)
class SchedulerOptions:
    """The limits of a scheduler; None takes the default.

    Attributes:
        slots: sequences at once at most.
        memory: bytes of texture memory for their caches.
        longest: tokens of the longest sequence, prompt and continuation together.
        piece: tokens of prompts in one step.
    """

    slots: int | None = None
    memory: int | None = None
    longest: int | None = None
    piece: int | None = None


def sequence_bytes(config: ModelConfig, capacity: int, cache: str = DEFAULT_CACHE) -> int:
    """Texture memory of the caches of one sequence of up to ``capacity`` tokens."""
    return config.num_hidden_layers * _cache_layout(config, 1, capacity, 1 << 20, cache).nbytes


def _cache_layout(config: ModelConfig, sequences: int, capacity: int, max_texture_size: int, cache: str) -> BlockLayout:
    """The layout of one layer's cache that all sequences share."""
    heads = Recipes(config, FROM_FILE).heads(0)
    return attention_layout(heads, sequences * capacity, capacity, cache_format(cache), max_texture_size)


def places_for(
    config: ModelConfig, options: SchedulerOptions, max_texture_size: int, cache: str = DEFAULT_CACHE
) -> tuple[int, int]:
    """(sequences at once, tokens that each may hold) within the given limits.

    Args:
        config: the model's shape.
        options: the limits; without them :data:`MAX_SLOTS` sequences of a whole context, and :data:`MAX_CACHE_BYTES`.
        max_texture_size: of the renderer, in texels.
        cache: the format of keys and values.

    Raises:
        InputError: there is no room for one.
    """
    most = cache_slots(config)
    capacity = most if options.longest is None else min(most, score_slots(options.longest) * SLOT_TOKENS)
    each = sequence_bytes(config, capacity, cache)
    bound = MAX_CACHE_BYTES if options.memory is None else options.memory
    count = min(MAX_SLOTS if options.slots is None else options.slots, bound // each)
    while count > 0 and not _fits(config, count, capacity, max_texture_size, cache):
        count -= 1
    if count < 1:
        raise InputError(
            f"the cache of one sequence of {capacity} tokens takes {each / 1e6:.1f} MB in textures of at most "
            f"{max_texture_size} texels a side; found room for {bound / 1e6:.1f} MB; allow more, or ask for less"
        )
    return count, capacity


def _fits(config: ModelConfig, sequences: int, capacity: int, max_texture_size: int, cache: str) -> bool:
    heads, rows = config.num_attention_heads, -(-sequences // TARGETS[-1]) * TARGETS[-1]
    try:
        _cache_layout(config, sequences, capacity, max_texture_size, cache)
        BlockLayout.of((score_slots(capacity) * rows, heads * BLOCK_FLOATS), max_texture_size)
    except PlanError:
        return False
    return True


class Step(NamedTuple):
    """An issued run of one token of each of several sequences, whose results were not read yet.

    ``active`` has the sequences by their places. With ``by_gpu`` the GPU chooses the next tokens of all of them.
    """

    active: Mapping[int, Running]
    draws: int
    picks: Readback
    by_gpu: bool


class Batch:
    """Runs of up to ``slots`` sequences together, in caches of their own; close it."""

    def __init__(
        self,
        options: PlanOptions,
        root: Session,
        nan_guard: NanGuard,
        *,
        slots: int,
        capacity: int,
    ) -> None:
        """Bind the plans over the weights of ``root``; ``nan_guard`` watches what is read back.

        Raises:
            PlanError: they do not fit the renderer.
        """
        config, kernels = options.config, options.kernels
        self.config, self.kernels, self.slots, self.capacity = config, kernels, slots, capacity
        self._nan_guard, self._targets = nan_guard, kernels.rows_per_draw
        self._shortlists: Shortlists | None = None
        self.logit_reads = 0
        """Rows of logits that were read back because a shortlist left a choice open."""
        plan = batch_plan(
            options,
            sequences=slots,
            capacity=capacity,
        )
        self.session = root.companion(plan, ("weight",))
        try:
            # While the choices of one step are looked at, those of the next are on their way.
            self._picks = [self.session.readback(PICKS, slots) for _ in range(2)]
            self._prefill = Prefill(options, sequences=slots, capacity=capacity, export_residual=False)
            self._chunks = self._prefill.into(self.session)
        except BaseException:
            self.session.release()
            raise
        self._rows = plan.table[ROWS].shape[0]
        self._table = row_table(self._rows)
        self._bases = np.arange(slots) * capacity

    @property
    def draws_issued(self) -> int:
        """Draw calls so far."""
        others = (each.session.draws_issued for each in (self._chunks, self._shortlists) if each is not None)
        return self.session.draws_issued + sum(others)

    def take_in(self, place: int, ids: Sequence[int], position: int) -> int:
        """Run as many of the tokens as fit into the cache of a place, from ``position`` on; returns how many."""
        return self._chunks.run(ids, position, place * self.capacity)

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copy keys and values of the first tokens from place to place."""
        self.session.copy_rows(source * self.capacity, target * self.capacity, rows)

    def run(self, active: Mapping[int, Running], ahead: Collection[int], ends: Sequence[int]) -> Step:
        """Issue a step, and wait for nothing.

        Args:
            active: the sequences, by their places.
            ahead: the places whose newest token is still being chosen by the step before.
            ends: the first cache slot of each place, counted from its own, that may be overwritten.
        """
        draws = self.session.draws_issued
        self._run(active, ahead, ends)
        picks = self._picks[self.session.runs % 2]
        by_gpu = [each.by_gpu for each in active.values()]
        if any(by_gpu):
            picks.start()
        return Step(active, self.session.draws_issued - draws, picks, all(by_gpu))

    def _run(self, active: Mapping[int, Running], ahead: Collection[int], ends: Sequence[int]) -> None:
        table, spots = self._table, np.asarray(ends)
        table[:, [TOKEN, NOISE]] = 0
        # Every place has a row in every run. The row of an idle place stores behind what the place keeps, and attends
        # to one group only.
        table[: self.slots, POSITION] = spots % SLOT_TOKENS
        table[: self.slots, BASE] = self._bases + spots - spots % SLOT_TOKENS
        places = list(active)
        lengths = [len(each.held) + (place in ahead) for place, each in active.items()]
        table[places, TOKEN] = [CHOSEN if place in ahead else each.held[-1] for place, each in active.items()]
        table[places, POSITION] = np.array(lengths) - 1
        table[places, BASE] = self._bases[places]
        drawn = [place for place, each in active.items() if not each.sampling.greedy and each.by_gpu]
        if drawn:
            samplers = [active[place].sampler for place in drawn]
            steps = [each.step + (place in ahead) for place, each in zip(drawn, samplers, strict=True)]
            heat = np.array([each.options.inverse_temperature for each in samplers], np.float32)
            table[drawn, NOISE] = 1
            table[drawn, NOISE_KEY] = noise_keys([each.folded_seed for each in samplers], steps)
            table[drawn, INVERSE_TEMPERATURE] = heat.view(np.uint32)
        self.session.write(ROWS, table)
        values = {"rows": self.slots, "score_slots": score_slots(max(lengths)) * self._rows}
        self.session.run(values, flush_every=self.kernels.flush_every)

    def choices(self, step: Step) -> dict[int, int]:
        """Wait for a step; returns the chosen tokens of its sequences that have not ended meanwhile, by place."""
        active = {place: each for place, each in step.active.items() if not each.ended}
        picked = {place: each for place, each in active.items() if each.by_gpu}
        chosen: dict[int, int] = {}
        if picked:
            chosen = self._nan_guard.choices(step.picks.read(), {place: each.held for place, each in picked.items()})
            for each in picked.values():
                each.sampler.advance()
        listed = {place: each for place, each in active.items() if place not in picked}
        if listed:
            if self._shortlists is None:
                self._shortlists = self._prefill.shortlists(self.session)
            issued = self._shortlists.session.draws_issued
            found = self._shortlists.run(list(listed), [each.sampler.draw for each in listed.values()])
            issued = self._shortlists.session.draws_issued - issued
            for (place, each), shortlist in zip(listed.items(), found, strict=True):
                each.stats.draws += issued
                token = sample_shortlist(each.sampler, shortlist, each.held)
                if token is None:
                    (logits,) = self._logits([place])
                    self._nan_guard.look(logits, each.held)
                    token = each.sampler.sample(self._nan_guard.usable(logits), each.held)
                chosen[place] = token
        return chosen

    def _logits(self, places: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits [places, vocab] of the sequences at some places, read back."""
        slots = [divmod(place, self._targets) for place in places]
        self.logit_reads += len(slots)
        return np.concatenate([self.session.read_rows(f"{LOGITS}.{target}", slot) for slot, target in slots])

    def close(self) -> None:
        """Release what is the batch's own; harmless when repeated."""
        if self._shortlists is not None:
            self._shortlists.session.release()
        self._chunks.session.release()
        self.session.release()
