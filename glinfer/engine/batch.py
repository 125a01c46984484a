"""Runs of many sequences together: pieces of their prompts, and one token of each.

:mod:`glinfer.engine.scheduler` decides what runs when. Each sequence gives the same tokens as alone with the same
seed: a pass computes each row of its targets independently of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.decode import only_allowed
from glinfer.engine.logits import token_logprob
from glinfer.engine.nan_guard import NanGuard
from glinfer.engine.prefill import Prefill
from glinfer.engine.requests import Running
from glinfer.engine.sampler import gpu_chooses
from glinfer.engine.shortlist import AllowedPicks, Shortlists, sample_shortlist
from glinfer.errors import InputError, NumbersError, PlanError, StructureError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.gl.readback import Readback
from glinfer.models.fast.parts import cache_format, cache_slots, layer_cache_layouts
from glinfer.models.fast.rows import LOGITS, PICKS, ROWS, batch_plan
from glinfer.models.options import PlanOptions
from glinfer.models.session import Session
from glinfer.models.transforms.recipe import Recipes
from glinfer.ops.fused.allowed import Words
from glinfer.ops.fused.cached import SLOT_TOKENS, score_slots
from glinfer.ops.fused.low_rank import ADAPTER_WORD
from glinfer.ops.fused.rows import (
    BASE,
    CHOSEN,
    INVERSE_TEMPERATURE,
    LONG,
    NOISE,
    NOISE_KEY,
    POSITION,
    TARGETS,
    TOKEN,
    row_table,
)
from glinfer.ops.fused.shortlist import Shortlist
from glinfer.ops.noise import Drawn, noise_keys
from glinfer.quant.formats import DEFAULT_CACHE, FROM_FILE
from glinfer.structured.constraint import DeadEnd

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
    return sum(layout.nbytes * layers for layout, layers in _cache_layouts(config, 1, capacity, 1 << 20, cache))


def _cache_layouts(
    config: ModelConfig, sequences: int, capacity: int, max_texture_size: int, cache: str
) -> list[tuple[BlockLayout, int]]:
    """The layouts of the caches that all sequences share, and the number of layers that have each."""
    recipes, slots = Recipes(config, FROM_FILE), sequences * capacity
    layers: dict[str, list[int]] = {}
    for layer in range(config.num_hidden_layers):
        layers.setdefault(config.layer(layer).mixing, []).append(layer)
    return [
        (layout, len(alike))
        for alike in layers.values()
        for layout in layer_cache_layouts(recipes, alike[0], slots, capacity, cache_format(cache), max_texture_size)
    ]


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
        _cache_layouts(config, sequences, capacity, max_texture_size, cache)
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


class Choices(NamedTuple):
    """The outcome of a step, by place: chosen tokens, errors that end sequences, and dead ends of structures."""

    chosen: dict[int, int]
    broken: dict[int, Exception]
    dead: set[int]

    def lacks(self, place: int) -> bool:
        """Whether nothing is known of a place yet."""
        return place not in self.chosen and place not in self.broken and place not in self.dead


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
        self._allowed_picks: AllowedPicks | None = None
        self._allowed_lists: Shortlists | None = None
        self.logit_reads = 0
        """Rows of logits that were read back because a shortlist left a choice open."""
        plan = batch_plan(
            options,
            sequences=slots,
            capacity=capacity,
        )
        self._rows = plan.table[ROWS].shape[0]
        self._table = row_table(self._rows)
        self._bases = np.arange(slots) * capacity
        try:
            self.session = root.companion(plan, ("weight",))
            for target in range(self._targets):  # so that no request makes an object that stays
                self.session.make_readable(f"{LOGITS}.{target}")
            # While the choices of one step are looked at, those of the next are on their way.
            self._picks = [self.session.readback(PICKS, slots) for _ in range(2)]
            self._prefill = Prefill(options, sequences=slots, capacity=capacity, export_residual=False)
            self._chunks = {self._prefill.rows: self._prefill.into(self.session)}
        except BaseException:
            if hasattr(self, "session"):
                self.session.release()
            raise

    @property
    def draws_issued(self) -> int:
        """Draw calls so far."""
        runs = (*self._chunks.values(), *self._over_logits)
        others = (each.session.draws_issued for each in runs if each is not None)
        return self.session.draws_issued + sum(others)

    @property
    def _over_logits(self) -> tuple[Shortlists | AllowedPicks | None, ...]:
        """The plans over the logits, as far as they are bound; released with the batch."""
        return self._shortlists, self._allowed_picks, self._allowed_lists

    def take_in(self, place: int, ids: Sequence[int], position: int, adapter: int = 0, *, long: bool = False) -> int:
        """Run as many of the tokens as fit into the cache of a place, from ``position`` on; returns how many."""
        rows = self._prefill.rows_for(len(ids))
        if rows not in self._chunks:
            self._chunks[rows] = self._prefill.into(self.session, rows)
        return self._chunks[rows].run(ids, position, place * self.capacity, adapter, long=long)

    def is_long(self, tokens: int) -> bool:
        """Whether a sequence of ``tokens`` tokens turns by the second set of angles, where the model has two."""
        return self.session.plan.is_long(tokens)

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
        else:
            self.session.device.flush()  # so that the GPU computes while masks are made
        return Step(active, self.session.draws_issued - draws, picks, all(by_gpu))

    def _run(self, active: Mapping[int, Running], ahead: Collection[int], ends: Sequence[int]) -> None:
        table, spots = self._table, np.asarray(ends)
        table[:, [TOKEN, NOISE, ADAPTER_WORD]] = 0
        # Every place has a row in every run. The row of an idle place stores behind what the place keeps, and attends
        # to one group only.
        table[: self.slots, POSITION] = spots % SLOT_TOKENS
        table[: self.slots, BASE] = self._bases + spots - spots % SLOT_TOKENS
        places = list(active)
        lengths = [len(each.held) + (place in ahead) for place, each in active.items()]
        table[places, TOKEN] = [CHOSEN if place in ahead else each.held[-1] for place, each in active.items()]
        table[places, POSITION] = np.array(lengths) - 1
        table[places, BASE] = self._bases[places]
        table[places, ADAPTER_WORD] = [each.adapter for each in active.values()]
        drawn = [place for place, each in active.items() if not each.sampling.greedy and each.by_gpu]
        if drawn:
            samplers = [active[place].sampler for place in drawn]
            steps = [each.step + (place in ahead) for place, each in zip(drawn, samplers, strict=True)]
            heat = np.array([each.options.inverse_temperature for each in samplers], np.float32)
            table[drawn, NOISE] = 1
            table[drawn, NOISE_KEY] = noise_keys([each.folded_seed for each in samplers], steps)
            table[drawn, INVERSE_TEMPERATURE] = heat.view(np.uint32)
        table[places, NOISE] |= np.array([LONG * each.long for each in active.values()], np.uint32)
        self.session.write(ROWS, table)
        values = {"rows": self.slots, "score_slots": score_slots(max(lengths)) * self._rows}
        self.session.run(values, flush_every=self.kernels.flush_every)

    def choices(self, step: Step) -> Choices:
        """Wait for a step, and find the next tokens of its sequences that have not ended meanwhile."""
        active = {place: each for place, each in step.active.items() if not each.ended}
        picked = {place: each for place, each in active.items() if each.by_gpu}
        found = Choices({place: each.queued[0] for place, each in active.items() if each.queued}, {}, set())
        masks = self._masks_of(active, found)
        if picked:
            chosen, broken = self._nan_guard.choices(
                step.picks.read(), {place: each.held for place, each in picked.items()}
            )
            found.chosen.update(chosen)
            found.broken.update(broken)
        self._choose_allowed({place: each for place, each in active.items() if place in masks}, masks, found)
        for place in picked.keys() | {place for place, each in active.items() if each.queued}:
            active[place].sampler.advance()
        lists = self._lists_of({place: each for place, each in active.items() if found.lacks(place)}, masks)
        for place, each in active.items():
            if not found.lacks(place):
                continue
            token = sample_shortlist(each.sampler, lists[place], each.held) if place in lists else None
            try:
                found.chosen[place] = self._sampled(place, each, masks.get(place)) if token is None else token
            except Exception as error:
                if not isinstance(error, NumbersError) and each.own_sampler is None:
                    raise
                found.broken[place] = error  # of this sequence alone
        return found

    def _masks_of(self, active: Mapping[int, Running], found: Choices) -> dict[int, Words]:
        """The allowed tokens of the sequences that have a structure; others may end here."""
        masks = dict[int, Words]()
        for place, each in active.items():
            if each.constraint is None or each.queued:
                continue
            try:
                masks[place] = each.constraint.mask()
            except DeadEnd:
                found.dead.add(place)
            except StructureError as error:
                found.broken[place] = error
        return masks

    def _choose_allowed(self, active: Mapping[int, Running], masks: Mapping[int, Words], found: Choices) -> None:
        """Choose on the GPU for the sequences with a structure whose sampling it can do."""
        picked = {
            place: each
            for place, each in active.items()
            if not each.needs_row and gpu_chooses(each.sampling, self.config)
        }
        if not picked:
            return
        if self._allowed_picks is None:
            self._allowed_picks = self._prefill.allowed_picks(self.session)
        candidates = self._allowed_picks.run(*_asked_of(picked), _stacked(masks, picked))
        for row, (place, each) in enumerate(picked.items()):
            each.stats.draws += 1
            try:
                found.chosen[place] = self._nan_guard.choice(candidates[row], each.held)
                each.sampler.advance()
            except NumbersError as error:
                found.broken[place] = error

    def _lists_of(self, active: Mapping[int, Running], masks: Mapping[int, Words]) -> dict[int, Shortlist]:
        """The shortlists of the sequences that do not need the whole row, one draw for each kind."""
        lists = dict[int, Shortlist]()
        listed = {place: each for place, each in active.items() if not each.needs_row}
        free = {place: each for place, each in listed.items() if place not in masks}
        bound = {place: each for place, each in listed.items() if place in masks}
        if free:
            if self._shortlists is None:
                self._shortlists = self._prefill.shortlists(self.session)
            lists.update(zip(free, self._shortlists.run(*_asked_of(free)), strict=True))
        if bound:
            if self._allowed_lists is None:
                self._allowed_lists = self._prefill.shortlists(self.session, masked=True)
            made = self._allowed_lists.run(*_asked_of(bound), _stacked(masks, bound))
            lists.update(zip(bound, made, strict=True))
        for each in listed.values():
            each.stats.draws += 1
        return lists

    def _sampled(self, place: int, each: Running, mask: Words | None) -> int:
        """Choose a token from the whole row of logits.

        Raises:
            NumbersError: there is none to choose.
        """
        (logits,) = self._logits([place])
        self._nan_guard.look(logits, each.held)
        logits = self._nan_guard.usable(logits)
        changed = logits if each.changes is None else each.changes.applied(logits, each.ids)
        token = each.sampler.sample(changed if mask is None else only_allowed(changed, mask), each.held)
        if each.top is not None:
            each.logprobs.append(token_logprob(logits, token, each.top))
        return token

    def _logits(self, places: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits [places, vocab] of the sequences at some places, read back."""
        slots = [divmod(place, self._targets) for place in places]
        self.logit_reads += len(slots)
        return np.concatenate([self.session.read_rows(f"{LOGITS}.{target}", slot) for slot, target in slots])

    def close(self) -> None:
        """Release what is the batch's own; harmless when repeated."""
        for each in self._over_logits:
            if each is not None:
                each.session.release()
        for runs in self._chunks.values():
            runs.session.release()
        self.session.release()


def _asked_of(active: Mapping[int, Running]) -> tuple[list[int], list[Drawn]]:
    """The rows of logits of some sequences, and how the token of each is drawn."""
    return list(active), [each.sampler.draw for each in active.values()]


def _stacked(masks: Mapping[int, Words], places: Iterable[int]) -> Words:
    return np.stack([masks[place] for place in places])
