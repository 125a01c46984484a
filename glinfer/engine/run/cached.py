"""Sequences of the fast plan: each token runs once, and keys and values stay in textures."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from glinfer.engine.prefill import DRAFT_ROWS, Companions, Prefill
from glinfer.engine.run.choice import Choice
from glinfer.engine.run.decode import DecodeSession, Floats
from glinfer.engine.run.pictured import running_image
from glinfer.engine.sampler import OwnSampler, Sampler, SamplingOptions, gpu_chooses
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BLOCK_FLOATS, BlockLayout
from glinfer.gl.texture import Texture
from glinfer.kernels.fused.allowed import Words
from glinfer.kernels.fused.changes import AHEAD, change_word
from glinfer.kernels.fused.delta import SPAN, snapshot_slots
from glinfer.kernels.fused.low_rank import ADAPTER
from glinfer.kernels.fused.sample import best_candidate, best_candidates, ordinary, unsure
from glinfer.kernels.noise import Drawn
from glinfer.lower.fused.caches import delta_layers
from glinfer.lower.fused.choice import STEPS
from glinfer.lower.fused.token import HEAD_DRAWS, LOGITS, PICKS
from glinfer.program.session import Session
from glinfer.text.images import ImageToken, rotary_positions, without_images

_FIRST_RUN = 8  # tokens that passes choose before the first readback
_QUEUED = 4  # tokens between two fences
_MARGIN = 8
"""Tokens before the end of a prompt that the next prompt of a chat may lack, such as the beginning of thoughts."""


class _Snapshot:
    """What rolling caches hold near the end of a prompt, so that a long rewind need not start from token 0."""

    def __init__(self, bound: Session) -> None:
        """A snapshot of no tokens of a session's sequence."""
        self.tokens = 0
        self._bound = bound
        self._textures: dict[str, Texture] = {}

    def take(self, tokens: int) -> None:
        """Copy what the caches hold after the first ``tokens`` tokens."""
        self.tokens = 0
        self._copy(tokens, back=False)
        self.tokens = tokens

    def put_back(self) -> None:
        """Copy it back into the caches."""
        self._copy(self.tokens, back=True)

    def _copy(self, tokens: int, *, back: bool) -> None:
        edge = self._bound.device.limits.max_texture_size
        for tensor in self._bound.plan.of_kind("cache"):
            layout, cache = tensor.layout, self._bound.texture(tensor.name)
            if not isinstance(layout, BlockLayout) or not layout.rolls:
                continue
            pieces = snapshot_slots(tensor.name, layout, tokens)
            if not pieces:
                continue
            name, rows = tensor.name.partition(".state.")[0], sum(slots for _, slots in pieces)
            if name not in self._textures:  # one for both states
                made = BlockLayout.by_block((rows, layout.cols), edge, together=4)
                self._textures[name] = Texture(self._bound.device, made, f"snapshot of {name}")
            kept, first = self._textures[name], 0
            for slot, slots in pieces:
                if back:
                    cache.copy_rows(kept, first, slot, slots)
                else:
                    kept.copy_rows(cache, slot, first, slots)
                first += slots

    def release(self) -> None:
        """Release its textures."""
        for texture in self._textures.values():
            texture.release()


class CachedSession(DecodeSession):
    """A sequence of the fast plan: one token a run, keys and values in textures, tokens chosen on the GPU.

    A token changes only the numbers of one dictionary; it makes no GL object and looks none up.
    """

    def __init__(self, prefill: Prefill, bound: Session, *, owns: bool = True) -> None:
        """Start without tokens in caches of ``bound``, which no other sequence uses; ``owns`` releases it with this."""
        super().__init__(prefill.options.config)
        self.adapter = prefill.options.adapters.default
        self._prefill, self._bound, self._owns = prefill, bound, owns
        self._flush_every = prefill.options.kernels.flush_every
        self._companions = Companions(prefill, bound)
        # Tokens that the choice plan chooses between two readbacks: few after an unsure choice.
        self._run_length = _FIRST_RUN
        self._picks, self._logits_texture = bound.texture(PICKS), bound.texture(LOGITS)
        assert isinstance(self._picks.layout, BlockLayout)
        self._pick_layout = self._picks.layout
        # Tokens, from the first on, whose keys and values are in the caches.
        self._cached = 0
        # How often tokens may have been dropped from the sequence.
        self._cuts = 0
        # Tokens from the first on that runs have reached, refused drafts included.
        self._reached = 0
        self._snapshot = _Snapshot(bound)
        # States are there at the ends of spans alone; rings of inputs have what precedes each of the last tokens.
        self._align = SPAN if delta_layers(self._config) else 1
        # Tokens of the sequence whose last residual stream is ready for the last block; 0: none is.
        self._residual_tokens = 0
        # Whether the cached keys use the second set of angles, in models with two.
        self._long = False
        # Positions that images have left out.
        self._back = 0
        self._body, self._head = len(bound.draws) - HEAD_DRAWS, len(bound.draws) - HEAD_DRAWS + 1
        self._token_draws = len(bound.draws)
        self._tail = bound.plan.last_layer
        self._values = bound.plan.values_for(1)

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
        return self._companions.draws_issued

    def chooses(self, options: SamplingOptions) -> bool:
        """Whether passes over the logits can choose the token."""
        return gpu_chooses(options)

    def _run(self, position: int, token: int, draws: int | None = None, *, read: bool = True) -> None:
        """Run one token, or its first ``draws`` draws; token -1 is the one that the previous run chose.

        If prefill has computed the token up to its last block, only the rest runs. ``read`` is as in Session.run.
        """
        values, image = self._values, isinstance(token, ImageToken)
        half_done = self._residual_tokens == position + 1 and not self._bound.observers
        first = self._tail if half_done else 0
        self._residual_tokens = 0
        self.draws_saved += first
        values["position"], values["token"], values[ADAPTER] = position, 0 if image else token, self.adapter
        values["long"], values["back"] = int(self._long), self._back
        self._reach(position)
        held = self._ids[: position + 1] if image else ()
        with running_image(self._bound, self._prefill.options, held, self._back) if image else nullcontext():
            self._bound.run(values, first=first, draws=draws, flush_every=self._flush_every, read=read)

    def _forget(self, length: int) -> None:
        super()._forget(length)
        self._cuts += 1
        if length < self._snapshot.tokens:
            self._snapshot.tokens = 0
        self._cached = min(self._cached, length)
        self._residual_tokens = 0
        self._back = rotary_positions(self._ids[:length])[1] if self._back else 0

    def _reach(self, first: int, count: int = 1) -> None:
        """Note that a run writes tokens from ``first`` on; a sequence begins with token 0."""
        self._reached = max(self._reached if first else 0, first + count)

    def _switch_angles(self, tokens: int) -> None:
        """Use the angles of a text of ``tokens`` tokens; keys in the cache with other angles are computed again."""
        if self._bound.plan.is_long(tokens) != self._long:
            self._forget(0)
            self._long = not self._long

    def _alike(self, count: int) -> int:
        """How many of the next ``count`` tokens leave the set of angles unchanged; at least 1."""
        limit, held = self._config.long_after, len(self._ids)
        return min(count, limit - held + 1) if held <= limit else count

    def _go_back(self) -> None:
        """Continue from the snapshot, or the start, if the caches hold only tokens too far after those cached."""
        self._cached = self._bound.plan.usable(self._cached, self._reached)
        if not self._cached and 0 < self._snapshot.tokens < len(self._ids):
            self._snapshot.put_back()
            self._cached = self._snapshot.tokens
            # The tokens before are out of reach.
            self._reached = self._cached + self._bound.plan.rewinds + 1

    def _catch_up(self) -> None:
        self._switch_angles(len(self._ids))
        self._go_back()
        # The chunk includes the last token, up to its last block, unless the context is full.
        end = min(len(self._ids), self._context)
        pictured = any(isinstance(token, ImageToken) for token in self._ids[self._cached : end])
        positions, back = rotary_positions(self._ids) if pictured else (None, self._back)
        if not self._bound.observers and (pictured or self._prefill.as_chunk(end - self._cached)):
            self._residual_tokens = 0
            kept = (end - _MARGIN) // self._align * self._align if self._bound.plan.rewinds else 0
            while self._cached < end:
                first = self._cached
                ids = self._ids[first : kept if first < kept and self._align > 1 else end]
                chunk = self._companions.chunk(len(ids))
                self._cached += chunk.run(ids, first, adapter=self.adapter, held=self._ids, long=self._long)
                self._reach(first, self._cached - first)
                if first < kept <= self._cached:
                    self._snapshot.take(kept)
            self._residual_tokens = self._cached
        end = len(self._ids) - 1  # observers see one token at a time
        for position in range(self._cached, end):
            self._back = back if positions is None else position - int(positions[position, 0])
            self._run(position, self._ids[position], self._body, read=False)
            self._cached = position + 1
        self._back = back

    def _compute_logits(self) -> Floats:
        self._run_head()
        return self._read_logits()

    def _run_head(self) -> None:
        """Run all tokens, the last one up to its logits."""
        self._catch_up()
        last = len(self._ids) - 1
        self._run(last, self._ids[last], self._head)
        self._cached = last + 1

    def _read_logits(self) -> Floats:
        return self._keep(np.array(self._logits_texture.read()[0], dtype=np.float32))

    def _choice(self, options: SamplingOptions, *, masked: bool = False) -> Choice:
        choice = self._companions.choice(masked=masked, changed=options.penalises)
        if choice.changes is not None:
            text = self._cuts, options.penalty_factors
            choice.changes.follow(0, text, options, without_images(self._ids), None, ())
        return choice

    def _choose(self, count: int, sampler: Sampler) -> list[int]:
        options, passes = sampler.options, sampler.options.filters or sampler.options.penalises
        if isinstance(sampler, OwnSampler) or not self.chooses(options) or (passes and self._logits is not None):
            return super()._choose(1, sampler)
        self._catch_up()
        first, count = len(self._ids) - 1, self._alike(count)
        if passes:
            # Prefill has half computed the last prompt token; an unsure choice must not rerun it from the start.
            most = min(AHEAD if options.penalises else STEPS, self._bound.plan.rewinds or STEPS)
            count = min(count, 1 if self._residual_tokens else self._run_length, most)
        self._run_ahead(first, sampler.draws(count), options, self._choice(options) if passes else None)
        found, chosen = self._candidates(first, count), list[int]()
        tokens, _, doubts = best_candidates(found)
        for token, candidates, sound, doubt in zip(tokens, found, ordinary(found), doubts, strict=True):
            if passes and doubt:
                break
            chosen.append(int(token) if sound else self._chosen(candidates, chosen))
        sampler.step += len(chosen)
        self._append(chosen)
        self._cached = first + len(chosen)
        if len(chosen) == count:
            self._run_length = min(2 * self._run_length, STEPS)
            return chosen
        self._run_length = 1
        if len(chosen) < count - 1:  # the texture has the logits of a later token
            self._run_head()
        self._cached = len(self._ids)
        return chosen + self._append([self._sampled(self._read_logits(), sampler)])

    def _run_ahead(self, first: int, draws: list[Drawn], options: SamplingOptions, choice: Choice | None) -> None:
        """Run a token for each of ``draws``; the GPU chooses each next token, with ``choice`` by further passes."""
        count, values = len(draws), self._values
        if choice is not None:
            words = [change_word(number, number) for number in range(count)] if options.penalises else ()
            choice.write([0] * count, [options] * count, draws, changes=words)
        values["noise"] = 0.0 if options.greedy else 1.0
        values["inverse_temperature"] = options.inverse_temperature
        self._picks.fill(math.nan)  # which the driver leaves there if it drops a draw
        for number, draw in enumerate(draws):
            values["noise_key"] = 0 if draw is None else draw[0]
            token, last = -1 if number else self._ids[first], number == count - 1
            self._run(first + number, token, None if choice is None else self._head, read=last)
            if choice is not None:
                choice.run(1, row=number, slot=first + number, read=last)
            if number % _QUEUED == 0:
                self._bound.device.limit_queue()

    def _choose_allowed(self, allowed: Callable[[], Words], sampler: Sampler) -> int:
        if self._logits is not None or isinstance(sampler, OwnSampler):
            return super()._choose_allowed(allowed, sampler)
        self._run_head()
        self._bound.device.flush()  # so that the GPU computes while the mask is made
        words, last = allowed(), len(self._ids) - 1
        if self.chooses(sampler.options):
            choice = self._choice(sampler.options, masked=True)
            choice.write([0], [sampler.options], [sampler.draw], words[None], [change_word()])
            self._picks.fill(math.nan)
            choice.run(1, slot=last)
            (candidates,) = self._candidates(last, 1)
            if not unsure(candidates):
                sampler.advance()
                return self._chosen(candidates, [])
        return self._sampled(self._read_logits(), sampler, words)

    def _accept(self, draft: list[int], sampler: Sampler) -> list[int]:
        # Observers see one token at a time.
        if not draft or self._bound.observers or isinstance(sampler, OwnSampler):
            return self._choose(1, sampler)
        draft = [*takewhile(lambda token: not isinstance(token, ImageToken), draft)][: self._alike(DRAFT_ROWS[-1]) - 1]
        self._catch_up()
        if self._residual_tokens == len(self._ids) or not draft:
            return self._choose(1, sampler)
        first, step = len(self._ids) - 1, sampler.step
        draws = sampler.draws(len(draft) + 1)
        runs = self._companions.drafted(len(draws))
        options = sampler.options if gpu_chooses(sampler.options, changes=False) else None
        self._reach(first, len(draws))
        ids, long, back = [self._ids[first], *draft], self._long, self._back
        runs.choose(ids, first, options, draws, self.adapter, long=long, back=back)
        self.drafted += len(draft)
        candidates = None if options is None else runs.candidates(len(draws))
        chosen: list[int] = []
        try:
            for row, expected in enumerate((*draft, None)):
                if candidates is None or unsure(candidates[row]):
                    before = [*self._ids, *chosen]
                    chosen.append(self._sampled(self._looked(runs.logits(row), before), sampler, ids=before))
                else:
                    chosen.append(self._chosen(candidates[row], chosen))
                    sampler.advance()
                if chosen[-1] != expected:
                    break
        except BaseException:
            sampler.step = step  # nothing was chosen
            raise
        self._append(chosen)
        self._cached = first + len(chosen)
        return chosen

    def _chosen(self, candidates: Floats, before: list[int]) -> int:
        """The best of a run's candidates; ``before`` has the tokens chosen earlier in the same call."""
        if self.nan_guard is None:
            return best_candidate(candidates)
        return self.nan_guard.choice(candidates, self._ids, before)

    def _candidates(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """The candidates [count, 64] of ``count`` runs."""
        if count > 1:
            return self._picks.read_rows(first, count)
        # A block is a square of texels; the best candidate does not depend on their order.
        x, y = self._pick_layout.origin(first, 0)
        return self._picks.framebuffer.read(0, BLOCK_EDGE, BLOCK_EDGE, int(x), int(y)).reshape(1, BLOCK_FLOATS)

    def _copy(self) -> CachedSession:
        bound = self._bound.sharer()
        bound.copy_caches(self._bound)
        made = CachedSession(self._prefill, bound)
        # The residual stream is not copied; the copy reruns the last token when it needs logits.
        made._cached, made._reached, made._long, made._back = self._cached, self._reached, self._long, self._back
        return made

    def _release(self) -> None:
        self._companions.release()
        self._snapshot.release()
        if self._owns:
            self._bound.release()
