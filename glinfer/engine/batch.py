"""Runs of many sequences together: pieces of their prompts, and one token of each.

A sequence gets the same tokens as alone with the same seed, because passes compute rows independently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.executor import Choices, Executor, Step
from glinfer.engine.logits import change_logits, token_logprobs
from glinfer.engine.prefill import Companions, Prefill
from glinfer.engine.requests import Running
from glinfer.engine.run.choice import Choice
from glinfer.engine.run.decode import only_allowed
from glinfer.engine.run.nan_guard import NanGuard
from glinfer.engine.sampler import NEUTRAL, gpu_chooses, sample_rows
from glinfer.errors import InputError, NumbersError, PlanError, StructureError
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.kernels.fused.allowed import Words
from glinfer.kernels.fused.cached import SLOT_TOKENS, score_slots
from glinfer.kernels.fused.changes import change_word, changes_fit
from glinfer.kernels.fused.choice import CHANGES, FILTER_WORDS
from glinfer.kernels.fused.low_rank import ADAPTER_WORD
from glinfer.kernels.fused.rows import (
    BACK,
    BASE,
    CHOICE_WORDS,
    CHOSEN,
    INVERSE_TEMPERATURE,
    LONG,
    NOISE,
    NOISE_KEY,
    POSITION,
    SOURCE,
    TARGETS,
    TOKEN,
    row_table,
)
from glinfer.kernels.fused.sample import best_candidates
from glinfer.kernels.noise import noise_keys
from glinfer.lower.fused.caches import cache_slots, layer_cache_layouts
from glinfer.lower.fused.rows import LOGITS, PICKS, ROWS, batch_plan, slots_for
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.recipe import Recipes
from glinfer.program.session import Session
from glinfer.quant.formats import CACHE_FORMATS, DEFAULT_CACHE, FROM_FILE
from glinfer.structured.constraint import DeadEnd
from glinfer.text.images import unready, without_images

MAX_SLOTS = 32
"""Default limit for concurrent sequences; more add little speed, and each needs a cache."""
MAX_CACHE_BYTES = 1 << 30
"""Default limit for the texture memory of their caches."""


@dataclass(frozen=True)
class SchedulerOptions:
    """The limits of a scheduler, see :meth:`glinfer.engine.model.Model.scheduler`; None takes the default."""

    slots: int | None = None
    memory: int | None = None
    longest: int | None = None
    piece: int | None = None


def sequence_bytes(config: ModelConfig, capacity: int, cache: str = DEFAULT_CACHE) -> int:
    """Bytes of the caches of one sequence of up to ``capacity`` tokens."""
    return sum(layout.nbytes * layers for layout, layers in _cache_layouts(config, 1, capacity, 1 << 20, cache))


def _cache_layouts(
    config: ModelConfig, sequences: int, capacity: int, max_texture_size: int, cache: str
) -> list[tuple[BlockLayout, int]]:
    """The layouts of the shared caches, each with its number of layers."""
    recipes, slots = Recipes(config, FROM_FILE), sequences * capacity
    layers: dict[tuple[str, int, int], list[int]] = {}
    for layer in range(config.producing_layers):
        of = config.layer(layer)
        layers.setdefault((of.mixing, of.kv_heads, of.head_dim), []).append(layer)
    return [
        (layout, len(alike))
        for alike in layers.values()
        for layout in layer_cache_layouts(recipes, alike[0], slots, capacity, CACHE_FORMATS[cache], max_texture_size)
    ]


def slots_and_capacity(
    config: ModelConfig, options: SchedulerOptions, max_texture_size: int, cache: str = DEFAULT_CACHE
) -> tuple[int, int]:
    """(Concurrent sequences, tokens of each) within the limits, for textures of ``max_texture_size`` texels a side.

    The defaults are :data:`MAX_SLOTS` sequences of a whole context in :data:`MAX_CACHE_BYTES`. Raises InputError if one
    sequence does not fit.
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
            f"{max_texture_size} texels a side; found room for {bound / 1e6:.1f} MB; raise the limit (--memory), "
            "or take a shorter context (--context) or fewer bits (--cache q8)"
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


def filters_by_passes(device: Device) -> bool:
    """Whether passes choose filtered tokens of many rows; for software renderers NumPy is faster."""
    return not device.in_main_memory


class Batch(Executor):
    """Runs up to ``slots`` sequences together, in its own caches; close it."""

    def __init__(self, options: PlanOptions, root: Session, nan_guard: NanGuard, *, slots: int, capacity: int) -> None:
        """Bind the plans over the weights of ``root``; PlanError if they do not fit the renderer."""
        config, kernels = options.config, options.kernels
        self.config, self.kernels, self.slots, self.capacity = config, kernels, slots, capacity
        self.piece = kernels.chunk
        self._nan_guard, self._targets = nan_guard, kernels.rows_per_draw
        self.filters_by_passes = filters_by_passes(root.device)
        self.logit_reads = 0
        """Rows of logits read back, for unsure choices or samplers that need a whole row."""
        plan = batch_plan(options, sequences=slots, capacity=capacity)
        # With split sums, decoding and prefill add in different orders. A prefix of rolling caches is rarely found
        # again, and their numbers depend on the pieces of a prompt anyway.
        self.same_sums = plan.rewinds > 0 or (kernels.part_steps == 0 and not kernels.split_values)
        rows = plan.table[ROWS].shape[0]
        size = rows, config.vocab_size, root.device.limits.max_texture_size
        self.changes_by_passes = self.filters_by_passes and changes_fit(*size)
        self._table = row_table(rows)
        self._bases = np.arange(slots) * capacity
        self._reached = np.zeros(slots, np.intp)
        """For each slot the number of its sequence's tokens that runs have reached, drafted and idle ones included."""
        try:
            self.session = root.companion(plan, ("weight",))
            for target in range(self._targets):  # now, so that requests make no lasting objects
                self.session.make_readable(f"{LOGITS}.{target}")
            # Two: the next step's choices are copied while those of the last step are read.
            self._picks = [self.session.readback(PICKS, slots) for _ in range(2)]
            self._prefill = Prefill(options, sequences=slots, capacity=capacity, export_residual=False)
            self._companions = Companions(self._prefill, self.session)
            self._companions.chunk(self._prefill.rows)
        except BaseException:
            if hasattr(self, "session"):
                self.session.release()
            raise

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
        return self._companions.draws_issued

    def run_prompt(self, slot: int, each: Running, most: int) -> tuple[int, int]:
        """See :class:`Executor`."""
        ids = each.held[each.cached : min(len(each.held) - 1, each.cached + most)]
        if (square := unready(ids)) is not None:
            square.reader.advance(square)
            return 0, most  # so that other sequences go on
        base = slot * self.capacity
        chunk = self._companions.chunk(len(ids))
        count = chunk.run(ids, each.cached, base, each.adapter, held=each.held, long=each.long)
        self._reach(np.array([slot]), np.array([each.cached]), count)
        return count, slots_for(count, self._targets) * self._targets

    def is_long(self, tokens: int) -> bool:
        """See :class:`Executor`."""
        return self.session.plan.is_long(tokens)

    def copy(self, source: int, target: int, rows: int) -> None:
        """See :class:`Executor`."""
        self.session.copy_rows(source, target, rows)
        self._reached[target] = self._reached[source]

    def usable(self, slot: int, tokens: int) -> int:
        """See :class:`Executor`."""
        return self.session.plan.usable(tokens, int(self._reached[slot]))

    def _reach(self, slots: npt.NDArray[np.intp], first: npt.NDArray[np.intp], count: int = 1) -> None:
        """Note that a run writes ``count`` tokens of each slot from ``first`` on; a sequence begins with token 0."""
        self._reached[slots] = np.maximum(np.where(first, self._reached[slots], 0), first + count)

    def run(self, active: dict[int, Running], ahead: Collection[int], ends: Sequence[int]) -> Step:
        """See :class:`Executor`."""
        draws = self.draws_issued
        able = {slot: each for slot, each in active.items() if each.able and not each.unsure}
        picked = {slot: each for slot, each in able.items() if self._passes_choose(each)}
        self._run(active, picked, ahead, ends)
        picks = self._picks[self.session.runs % 2]
        if picked:
            picks.start()
        else:
            self.session.device.flush()  # so that the GPU computes while masks are made
        return Step(active, picked, self.session.runs, self.draws_issued - draws, picks)

    def _run(
        self,
        active: Mapping[int, Running],
        picked: Mapping[int, Running],
        ahead: Collection[int],
        ends: Sequence[int],
    ) -> None:
        table, spots = self._table, np.array(ends)
        table[:, [TOKEN, NOISE, ADAPTER_WORD]] = 0
        # Every slot has a row in every run. An idle slot's row is stored after the rows that the slot keeps, and
        # attends to one group only.
        table[: self.slots, POSITION] = spots % SLOT_TOKENS
        table[: self.slots, BASE] = self._bases + spots - spots % SLOT_TOKENS
        slots = list(active)
        lengths = [len(each.held) + (slot in ahead) for slot, each in active.items()]
        table[slots, TOKEN] = [CHOSEN if slot in ahead else each.held[-1] for slot, each in active.items()]
        table[slots, POSITION] = np.array(lengths) - 1
        table[slots, BASE] = self._bases[slots]
        table[slots, ADAPTER_WORD] = [each.adapter for each in active.values()]
        spots[slots] = table[slots, POSITION]
        self._reach(np.arange(self.slots), spots)
        drawn = [slot for slot, each in picked.items() if not each.sampling.greedy]
        if drawn:
            samplers = [active[slot].sampler for slot in drawn]
            steps = [each.step + (slot in ahead) for slot, each in zip(drawn, samplers, strict=True)]
            heat = np.array([each.options.inverse_temperature for each in samplers], np.float32)
            table[drawn, NOISE] = 1
            table[drawn, NOISE_KEY] = noise_keys([each.folded_seed for each in samplers], steps)
            table[drawn, INVERSE_TEMPERATURE] = heat.view(np.uint32)
        filtered = {slot: each for slot, each in picked.items() if each.changed or each.sampling.filters}
        choice = None
        if filtered:  # the choice plan chooses for every row; rows without filters get neutral words
            choice = self._companions.choice(changed=any(each.changed for each in filtered.values()))
            choice.table[: self.slots, FILTER_WORDS] = NEUTRAL.filter_words
            choice.table[: self.slots, SOURCE] = range(self.slots)
            choice.table[: self.slots, CHANGES] = 0
            choice.table[list(filtered), FILTER_WORDS] = [each.sampling.filter_words for each in filtered.values()]
            choice.table[list(filtered), CHANGES] = self._follow(choice, filtered, ahead)
            choice.table[: self.slots, CHOICE_WORDS] = table[: self.slots, CHOICE_WORDS]
            choice.upload()
        table[slots, NOISE] |= np.array([LONG * each.long | BACK * each.back for each in active.values()], np.uint32)
        self.session.write(ROWS, table)
        values = {"rows": self.slots, "longest": max(lengths)}
        draws = None if choice is None else len(self.session.draws) - 1  # without the plan's own pick
        self.session.run(values, draws=draws, flush_every=self.kernels.flush_every)
        if choice is not None:
            choice.run(self.slots)

    def _follow(self, choice: Choice, rows: Mapping[int, Running], ahead: Collection[int] = ()) -> list[int]:
        """Write the changes to the logits of rows, and return the change word of each row."""
        words = []
        for slot, each in rows.items():
            if each.changed:
                assert choice.changes is not None
                text = each, each.stats.dropped
                choice.changes.follow(slot, text, each.sampling, each.held, each.changes, each.ids)
            words.append(change_word(slot in ahead) if each.changed else 0)
        return words

    def _passes_choose(self, each: Running) -> bool:
        """Whether passes choose the next token of a sequence that is able and sure, without a readback."""
        if each.changed and not self.changes_by_passes:
            return False
        return gpu_chooses(each.sampling, filters=self.filters_by_passes)

    def choices(self, step: Step) -> Choices:
        """See :class:`Executor`."""
        active = {slot: each for slot, each in step.active.items() if not each.ended}
        picked = {slot: each for slot, each in active.items() if slot in step.picked}
        found = Choices({slot: each.queued[0] for slot, each in active.items() if each.queued}, {}, set(), set())
        masks = self._masks_of(active, found)
        if picked and step.picks is not None:
            self._take(step.picks.read(), picked, found)
        if self.filters_by_passes:
            self._choose_allowed({slot: each for slot, each in active.items() if slot in masks}, masks, found)
        for slot in found.chosen:
            active[slot].sampler.advance()
        left = {slot: each for slot, each in active.items() if not any(slot in outcomes for outcomes in found)}
        if left and self.session.runs != step.run:
            found.again.update(left)
            for each in left.values():
                each.unsure = True
        elif left:
            self._sample(left, masks, found)
        return found

    def _take(self, candidates: npt.NDArray[np.float32], picked: Mapping[int, Running], found: Choices) -> None:
        """Take the sure choices of some slots from the candidates [rows, 64]."""
        doubts = best_candidates(candidates)[2]
        sure = {slot: each.held for slot, each in picked.items() if not doubts[slot]}
        chosen, broken = self._nan_guard.choices(candidates, sure)
        found.chosen.update(chosen)
        found.broken.update(broken)

    def _masks_of(self, active: Mapping[int, Running], found: Choices) -> dict[int, Words]:
        """The allowed tokens of sequences with a structure; records dead ends and errors."""
        masks = dict[int, Words]()
        for slot, each in active.items():
            if each.constraint is None or each.queued:
                continue
            try:
                masks[slot] = each.constraint.mask()
            except DeadEnd:
                found.dead.add(slot)
            except StructureError as error:
                found.broken[slot] = error
        return masks

    def _choose_allowed(self, active: Mapping[int, Running], masks: Mapping[int, Words], found: Choices) -> None:
        """Choose on the GPU for sequences with a structure, if it supports their sampling."""
        picked = {slot: each for slot, each in active.items() if not each.needs_row and self._passes_choose(each)}
        if not picked:
            return
        changed, slots = any(each.changed for each in picked.values()), list(picked)
        choice = self._companions.choice(masked=True, changed=changed)
        draws = choice.session.draws_issued
        choice.write(
            slots,
            [each.sampling for each in picked.values()],
            [each.sampler.draw for each in picked.values()],
            np.stack([masks[slot] for slot in slots]),
            self._follow(choice, picked),
        )
        choice.run(len(slots))
        candidates = np.zeros((self.slots, BLOCK_FLOATS), np.float32)
        candidates[slots] = self.session.read(PICKS, len(slots))
        for each in picked.values():
            each.stats.draws += choice.session.draws_issued - draws
        self._take(candidates, picked, found)

    def _sample(self, active: Mapping[int, Running], masks: Mapping[int, Words], found: Choices) -> None:
        """Choose from whole rows of logits for all remaining sequences together."""
        rows, logits = dict[int, Running](), self._logits(list(active))
        sound = np.isfinite(logits.max(axis=1))
        for row, (slot, each) in enumerate(active.items()):
            try:
                if not sound[row]:
                    self._nan_guard.look(logits[row], each.held)
                    logits[row] = self._nan_guard.usable(logits[row])
                rows[row] = each
            except NumbersError as error:
                found.broken[slot] = error
        slots, changes = list(active), {row: (each.changes, each.ids) for row, each in rows.items() if each.changes}
        listed = any(each.top is not None for each in active.values())
        changed = logits.copy() if listed and (changes or masks) else logits
        change_logits(changed, changes)
        for row in rows:
            if slots[row] in masks:
                changed[row] = only_allowed(changed[row], masks[slots[row]])
        chosen, own = dict[int, int](), [row for row, each in rows.items() if each.own_sampler is not None]
        for row in own:
            each = rows.pop(row)
            try:
                chosen[row] = each.sampler.sample(changed[row], each.held)
            except Exception as error:  # fails this sequence alone
                found.broken[slots[row]] = error
        if rows:
            numbers = list(rows)
            given = changed if len(numbers) == len(changed) else changed[numbers]
            # Only penalties need the earlier tokens, and checking hundreds of them a row takes time.
            held = [without_images(each.held) if each.sampling.penalises else () for each in rows.values()]
            tokens = sample_rows([each.sampler for each in rows.values()], given, held)
            chosen.update(zip(numbers, tokens, strict=True))
        found.chosen.update((slots[row], token) for row, token in chosen.items())
        asked = [row for row in chosen if active[slots[row]].top is not None]
        if asked:
            tops = [active[slots[row]].top or 0 for row in asked]
            logprobs = token_logprobs(logits[asked], [chosen[row] for row in asked], tops)
            for row, logprob in zip(asked, logprobs, strict=True):
                active[slots[row]].logprobs.append(logprob)

    def _logits(self, slots: Sequence[int]) -> npt.NDArray[np.float32]:
        """Read back the logits [slots, vocab] of some slots, with one read for each target."""
        self.logit_reads += len(slots)
        made = np.empty((len(slots), self.config.vocab_size), np.float32)
        wanted = np.array(slots)
        for target in range(self._targets):
            rows = np.flatnonzero(wanted % self._targets == target)
            if rows.size:
                lines = wanted[rows] // self._targets
                first = int(lines.min())
                read = self.session.read_rows(f"{LOGITS}.{target}", first, int(lines.max()) + 1 - first)
                made[rows] = read[lines - first]
        return made

    def close(self) -> None:
        """Release the plans and caches; calling it again does nothing."""
        self._companions.release()
        self._prefill.release()
        self.session.release()
