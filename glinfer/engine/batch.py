"""Requests, and the runs of many sequences together: pieces of their prompts, and one token of each.

:mod:`glinfer.engine.scheduler` says what is run when. Each sequence gives what it gives alone with the same seed: a
pass computes a row of its targets without regard to the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.ids import check_ids, check_max_tokens, check_stop_ids
from glinfer.engine.loop import GenerationStats
from glinfer.engine.nan_guard import Numbers
from glinfer.engine.prefill import Prefill
from glinfer.engine.sampler import Sampler, SamplingOptions, gpu_chooses
from glinfer.engine.shortlist import Shortlists, sample_shortlist
from glinfer.errors import InputError, PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.gl.readback import Readback
from glinfer.models.fast.parts import FastOptions, attention_layout, cache_format, cache_slots
from glinfer.models.fast.rows import LOGITS, PICKS, ROWS, batch_plan
from glinfer.models.session import Session
from glinfer.models.transforms.recipe import Formats, Recipes
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
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import noise_keys
from glinfer.quant.formats import DEFAULT_CACHE, FROM_FILE
from glinfer.text.assembler import TextAssembler
from glinfer.text.tokenizer import Tokenizer

MOST_SLOTS = 32
"""Sequences at once where nobody says how many: more of them bring little, and each needs a cache."""
MEMORY = 1 << 30
"""Bytes of texture memory for their caches where nobody says how many."""


@dataclass(frozen=True)
class BatchRequest:
    """One prompt, text or ids, with the options that :meth:`glinfer.engine.model.Model.stream` takes.

    ``key`` is the caller's own, and comes back with the result.
    """

    prompt: str | Sequence[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    key: object = None


@dataclass(frozen=True)
class BatchResult:
    """What came of a request: the ids, the text of a text prompt, and counts.

    ``stats.draws`` are those of all runs that the sequence took part in, most of them shared with others, and
    ``stats.seconds`` the time from its prompt to its end.
    """

    request: BatchRequest
    ids: list[int]
    text: str | None
    stats: GenerationStats


@dataclass(eq=False)
class Running:
    """A checked request on its way: its tokens, how the next one is chosen, and when it ends.

    Ends are those of :class:`glinfer.engine.loop.TokenStream` and :class:`glinfer.engine.stream.TextStream`.

    Attributes:
        ids: what was chosen so far, without a stop id.
        stats: counts and times; ``stats.finish_reason`` is None until the end.
        held: the tokens of the sequence, the prompt among them, after what the context has dropped.
        cached: how many of ``held`` have their keys and values in the cache; all but the last when a step may follow.
        prompted: how many of those the chunk plan has computed, as it computes a prompt.
    """

    request: BatchRequest
    prompt: list[int]
    sampling: SamplingOptions
    max_tokens: int
    stop_ids: frozenset[int]
    stop: Sequence[str]
    tokenizer: Tokenizer | None

    def __post_init__(self) -> None:
        """Nothing was chosen yet."""
        self.held, self.ids = list(self.prompt), list[int]()
        self.cached = self.prompted = 0
        self.sampler = Sampler(self.sampling)
        self.stats = GenerationStats(prompt_tokens=len(self.prompt))
        self.assembler = TextAssembler(self.stop)
        self.pieces: list[str] = []

    @property
    def ended(self) -> bool:
        """Whether it is finished, or was cancelled."""
        return self.stats.finish_reason is not None

    def push(self, token: int) -> None:
        """Take the next token; ``stats.finish_reason`` says whether it was the last one."""
        self.cached = len(self.held)
        self.held.append(token)
        self.stats.tokens += 1
        if token in self.stop_ids:
            self.end("stop")
            return
        self.ids.append(token)
        if self.tokenizer is not None:
            self.pieces.append(self.assembler.push(self.tokenizer.token_bytes(token)))
        if self.assembler.stopped:
            self.stats.finish_reason = "stop"
        elif self.stats.tokens >= self.max_tokens:
            self.end("length")

    def end(self, reason: str) -> None:
        """Take no more; the text that was held back for a stop string is part of it after all."""
        self.pieces.append(self.assembler.finish())
        self.stats.finish_reason = "stop" if self.assembler.stopped else reason

    @property
    def result(self) -> BatchResult:
        """The ids, text and counts so far."""
        return BatchResult(self.request, self.ids, None if self.tokenizer is None else "".join(self.pieces), self.stats)


def check_request(
    request: BatchRequest, config: ModelConfig, tokenizer: Tokenizer | None, text_stops: tuple[int, ...] = ()
) -> Running:
    """A request that can be run; ``tokenizer`` is None for a prompt of ids, ``text_stops`` end a text by default.

    Raises:
        InputError: a prompt or an option that cannot be run.
    """
    options = {**DEFAULTS, **request.options}
    if unknown := sorted(set(options) - set(DEFAULTS)):
        raise InputError(f"there is no option {unknown[0]!r} for a batch; expected some of {', '.join(DEFAULTS)}")
    max_tokens, stop, stop_ids = (options.pop(name) for name in ("max_tokens", "stop", "stop_ids"))
    sampling = SamplingOptions(**options)
    if isinstance(request.prompt, str):
        assert tokenizer is not None  # the model has one, or refused the prompt
        ids: Sequence[int] = tokenizer.encode(request.prompt)
        default_stops = text_stops
    else:
        ids, default_stops, tokenizer = request.prompt, (), None
        if stop:
            raise InputError("stop strings need a text prompt; use stop_ids with a prompt of ids")
    return Running(
        request,
        check_ids(ids, config),
        sampling,
        check_max_tokens(max_tokens),
        frozenset(default_stops if stop_ids is None else check_stop_ids(stop_ids, config)),
        stop,
        tokenizer,
    )


DEFAULTS: Mapping[str, Any] = {
    "max_tokens": 128,
    **{each.name: each.default for each in fields(SamplingOptions)},
    "stop": (),
    "stop_ids": None,
}
"""The options of a request, with what they are when left out."""


def sequence_bytes(config: ModelConfig, capacity: int, cache: str = DEFAULT_CACHE) -> int:
    """Texture memory of the caches of one sequence of up to ``capacity`` tokens."""
    return config.num_hidden_layers * _cache_layout(config, 1, capacity, 1 << 20, cache).nbytes


def _cache_layout(config: ModelConfig, sequences: int, capacity: int, max_texture_size: int, cache: str) -> BlockLayout:
    """The layout of one layer's cache that all sequences share."""
    heads = Recipes(config, FROM_FILE).heads(0)
    return attention_layout(heads, sequences * capacity, capacity, cache_format(cache), max_texture_size)


def places_for(
    config: ModelConfig,
    longest: int | None,
    wanted: int | None,
    memory: int | None,
    max_texture_size: int,
    cache: str = DEFAULT_CACHE,
) -> tuple[int, int]:
    """(how many sequences at once, how many tokens each may hold) within the bounds that are given.

    Args:
        config: the model's shape.
        longest: tokens of the longest sequence; left out, a whole context.
        wanted: how many at once at most; left out, :data:`MOST_SLOTS`.
        memory: bytes of texture memory for the caches; left out, :data:`MEMORY`.
        max_texture_size: of the renderer, in texels.
        cache: the format of keys and values.

    Raises:
        InputError: there is no room for one.
    """
    most = cache_slots(config)
    capacity = most if longest is None else min(most, score_slots(longest) * SLOT_TOKENS)
    each, bound = sequence_bytes(config, capacity, cache), MEMORY if memory is None else memory
    count = min(MOST_SLOTS if wanted is None else wanted, bound // each)
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
    """A run of one token of each of several sequences, by their places, that nobody has waited for yet.

    With ``by_gpu`` the GPU chooses all of their next tokens by itself.
    """

    active: Mapping[int, Running]
    draws: int
    picks: Readback
    by_gpu: bool


class Batch:
    """The runs of ``slots`` sequences, in caches of their own; close it."""

    def __init__(
        self,
        config: ModelConfig,
        root: Session,
        weights: str,
        kernels: KernelOptions,
        numbers: Numbers,
        formats: Formats | None = None,
        cache: str = DEFAULT_CACHE,
        *,
        slots: int,
        capacity: int,
    ) -> None:
        """Bind the plans over the weights of ``root``; ``numbers`` watches what is read back.

        Raises:
            PlanError: they do not fit the renderer.
        """
        self.config, self.kernels, self.slots, self.capacity = config, kernels, slots, capacity
        self._numbers, self._targets = numbers, kernels.rows_per_draw
        edge = root.device.limits.max_texture_size
        self._shortlists: Shortlists | None = None
        self.logit_reads = 0
        """Rows of logits that were read back because a shortlist left a choice open."""
        plan = batch_plan(
            FastOptions(config, weights=weights, formats=formats, cache=cache, kernels=kernels, max_texture_size=edge),
            sequences=slots,
            capacity=capacity,
        )
        self.session = root.companion(plan, ("weight",))
        try:
            # While the choices of one step are looked at, those of the next are on their way.
            self._picks = [self.session.readback(PICKS, slots) for _ in range(2)]
            places = {"sequences": slots, "capacity": capacity}
            self._prefill = Prefill(config, weights, kernels, formats, cache, export_residual=False, **places)
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
        """Run the first of some tokens into the cache of a place, from ``position`` on; how many."""
        return self._chunks.run(ids, position, place * self.capacity)

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copy keys and values of the first tokens from place to place."""
        self.session.copy_rows(source * self.capacity, target * self.capacity, rows)

    def run(self, active: Mapping[int, Running], ahead: Collection[int], ends: Sequence[int]) -> Step:
        """Issue a step, and wait for nothing.

        Args:
            active: the sequences, by their places.
            ahead: those places whose newest token the step before chooses, and nobody knows yet.
            ends: the first cache slot of each place, counted from its own, that holds nothing to be kept.
        """
        draws = self.session.draws_issued
        self._run(active, ahead, ends)
        picks = self._picks[self.session.runs % 2]
        by_gpu = [self._by_gpu(each) for each in active.values()]
        if any(by_gpu):
            picks.start()
        return Step(active, self.session.draws_issued - draws, picks, all(by_gpu))

    def _by_gpu(self, each: Running) -> bool:
        return gpu_chooses(each.sampling, self.config)

    def _run(self, active: Mapping[int, Running], ahead: Collection[int], ends: Sequence[int]) -> None:
        table, spots = self._table, np.asarray(ends)
        table[:, [TOKEN, NOISE]] = 0
        # Every place has a row in every run. Where it takes no part, what the row stores comes behind what is kept, and
        # it looks back on no more than a group.
        table[: self.slots, POSITION] = spots % SLOT_TOKENS
        table[: self.slots, BASE] = self._bases + spots - spots % SLOT_TOKENS
        places = list(active)
        lengths = [len(each.held) + (place in ahead) for place, each in active.items()]
        table[places, TOKEN] = [CHOSEN if place in ahead else each.held[-1] for place, each in active.items()]
        table[places, POSITION] = np.array(lengths) - 1
        table[places, BASE] = self._bases[places]
        drawn = [place for place, each in active.items() if not each.sampling.greedy and self._by_gpu(each)]
        if drawn:
            samplers = [active[place].sampler for place in drawn]
            steps = [each.step + (place in ahead) for place, each in zip(drawn, samplers, strict=True)]
            heat = np.array([each.options.inverse_temperature for each in samplers], np.float32)
            table[drawn, NOISE] = 1
            table[drawn, NOISE_KEY] = noise_keys([each.folded_seed for each in samplers], steps)
            table[drawn, INVERSE_TEMPERATURE] = heat.view(np.uint32)
        groups = score_slots(max(lengths))
        self.session.write(ROWS, table)
        values = {"rows": self.slots, "groups": groups, "score_slots": groups * self._rows}
        self.session.run(values, flush_every=self.kernels.flush_every)

    def choices(self, step: Step) -> dict[int, int]:
        """The tokens that a step has chosen for those of its sequences that have not ended meanwhile; waits for it."""
        active = {place: each for place, each in step.active.items() if not each.ended}
        picked = {place: each for place, each in active.items() if self._by_gpu(each)}
        chosen: dict[int, int] = {}
        if picked:
            chosen = self._numbers.choices(step.picks.read(), {place: each.held for place, each in picked.items()})
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
                    self._numbers.look(logits, each.held)
                    token = each.sampler.sample(self._numbers.usable(logits), each.held)
                chosen[place] = token
        return chosen

    def _logits(self, places: Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """The logits of some sequences, or of all places, read back [places, vocab]."""
        places = range(self._rows) if places is None else places
        slots = [divmod(place, self._targets) for place in places]
        self.logit_reads += len(slots)
        return np.concatenate([self.session.read_rows(f"{LOGITS}.{target}", slot) for slot, target in slots])

    def close(self) -> None:
        """Release what is the batch's own; harmless when repeated."""
        if self._shortlists is not None:
            self._shortlists.session.release()
        self._chunks.session.release()
        self.session.release()
