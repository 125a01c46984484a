"""A sequence of tokens that grows, is cut back and is copied, over either plan; no OpenGL here.

:class:`DecodeSession` is what both plans offer. :class:`CachedSession` runs the fast plan: each token once, its keys
and values kept in textures. :class:`RecomputeSession` runs the reference plan: the whole sequence each time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import ContextError, InputError
from glinfer.generation.ids import check_tokens, whole_number, whole_numbers
from glinfer.generation.prefill import FEWEST, Chunks, Prefill
from glinfer.generation.sampler import Sampler, SamplingOptions, checked_choice, gpu_chooses
from glinfer.gl.blocks import BLOCK_EDGE, BLOCK_FLOATS, BlockLayout
from glinfer.models.fast import HEAD_DRAWS, LOGITS, PICKS, TAIL_DRAWS
from glinfer.ops.cached import score_slots

if TYPE_CHECKING:
    from typing_extensions import Self

    from glinfer.models.session import Session

Floats = npt.NDArray[np.float32]
Forward = Callable[[Sequence[int]], Floats]
"""Token ids of a whole sequence → one float32 number [vocab] for each token that may come next."""


class DecodeSession(ABC):
    """Tokens held by a model, and what it says of the next one; made by :meth:`glinfer.generation.model.Model.session`.

    Appending is cheap, cutting back is free, and nothing that is still held is computed again. Close a session when
    it is no longer needed, or use it in a ``with`` block.

    A model holds ``context`` tokens. When that is full and one more has to be run, the oldest half is dropped and
    the rest is run again from position 0, so that a sequence may go on for ever. A token that was only chosen needs
    no place yet: a session may hold one token more than the context until then.

    Attributes:
        dropped: how many tokens were dropped so far because the context was full.
        draws_ahead: draws that were not issued because a chunk of the prompt had done their work.
    """

    def __init__(self, config: ModelConfig) -> None:
        """An empty session; use :meth:`glinfer.generation.model.Model.session`."""
        self._config = config
        self._context = config.max_position_embeddings
        self._ids: list[int] = []
        self._logits: Floats | None = None
        self._closed = ""
        self.dropped = self.draws_ahead = 0

    @property
    def ids(self) -> list[int]:
        """The tokens that are held, oldest first (a copy)."""
        return list(self._ids)

    def __len__(self) -> int:
        """How many tokens are held."""
        return len(self._ids)

    @property
    def room(self) -> int:
        """How many tokens can be chosen one after the other before the next ones are dropped; at least 1."""
        held = len(self._ids) if len(self._ids) <= self._context else self._context // 2 + 1
        return self._context + 1 - held

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return bool(self._closed)

    @property
    @abstractmethod
    def draws_issued(self) -> int:
        """Draw calls issued so far."""

    def chooses(self, options: SamplingOptions) -> bool:
        """Whether the GPU can choose tokens by itself as ``options`` say, several without a readback in between."""
        return False

    def prefill(self, ids: Sequence[int]) -> None:
        """Append tokens, and run all of them but the last, which waits until something is asked of it.

        Raises:
            InputError: an id is no whole number, or outside the vocabulary.
            ContextError: the session was closed.
        """
        self._require_open()
        self._extend(check_tokens("the tokens", ids, self._config))

    def _extend(self, tokens: list[int]) -> None:
        for token in tokens:
            if len(self._ids) >= self._context:
                self._drop_oldest()
            self._logits = None
            self._ids.append(token)
        self._catch_up()

    def step(self, token: int) -> None:
        """Append one token; errors as in :meth:`prefill`."""
        self.prefill([token])

    def rewind(self, count: int) -> None:
        """Forget the last ``count`` tokens; all of them leave an empty session.

        What the context has dropped before does not come back.

        Raises:
            InputError: ``count`` is no whole number from 0 to the tokens held.
            ContextError: the session was closed.
        """
        self._require_open()
        number = whole_number("to rewind by", count)
        if number > len(self._ids):
            raise InputError(f"cannot rewind by {number} tokens; the session holds {len(self._ids)}")
        if number:
            self._cut(len(self._ids) - number)

    def hold(self, ids: Sequence[int]) -> None:
        """Hold exactly these tokens, ready to go on: what is the same at the beginning is not run again.

        Errors as in :meth:`prefill`.
        """
        self._require_open()
        wanted = ids if isinstance(ids, list) else whole_numbers("the tokens", ids)
        common = _common_prefix(self._ids, wanted)
        new = check_tokens("the tokens", wanted[common:], self._config, first=common)
        if common < len(self._ids):
            self._cut(common)
        self._extend(new)
        if len(self._ids) > self._context:
            self._make_room()
            self._catch_up()

    def logits(self) -> Floats:
        """Logits [vocab] of the next token, float32; computed once, a copy each time.

        Raises:
            InputError: no token is held.
            ContextError: the session was closed.
        """
        self._require_tokens()
        if self._logits is None:
            self._logits = self._compute_logits()
        return self._logits.copy()

    def probs(self) -> Floats:
        """Softmax probabilities [vocab] of the next token, float32; errors as in :meth:`logits`."""
        logits = self.logits().astype(np.float64)
        weights = np.exp(logits - logits.max())
        return np.asarray(weights / weights.sum(), dtype=np.float32)

    def generate_ids(self, count: int, sampler: Sampler | None = None) -> list[int]:
        """Choose and append ``count`` tokens, with one readback where the GPU can choose; greedy without a sampler.

        The choices are those of ``sampler.sample`` on :meth:`logits`, token by token. No token stops it: read what
        was chosen, and :meth:`rewind` what is too much.

        Raises:
            InputError: no token is held, or the model's output is broken (NaN).
            ContextError: the session was closed.
        """
        wanted = whole_number("of tokens to generate", count)
        sampler = Sampler(SamplingOptions(temperature=0)) if sampler is None else sampler
        chosen: list[int] = []
        while len(chosen) < wanted:
            self._require_tokens()
            chosen += self._choose(min(wanted - len(chosen), self.room), sampler)
        return chosen

    def fork(self) -> Self:
        """An independent session that holds the same tokens; both go on by themselves, and either may close first."""
        self._require_open()
        made = self._copy()
        made._ids, made._logits, made.dropped = list(self._ids), self._logits, self.dropped
        return made

    def close(self, reason: str = "this session was closed; make another one with model.session()") -> None:
        """Release what is the session's own; harmless when repeated. ``reason`` is what later uses are told."""
        if not self._closed:
            self._release()
            self._closed = reason

    def __enter__(self) -> Self:
        """Use as a context manager: closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ContextError(self._closed)

    def _require_tokens(self) -> None:
        """Refuse an empty session, and make room for the newest token."""
        self._require_open()
        if not self._ids:
            raise InputError("the session holds no tokens; prefill at least one")
        self._make_room()

    def _make_room(self) -> None:
        if len(self._ids) > self._context:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest half of a full context, at least one token."""
        count = (self._context + 1) // 2
        self._forget(0)
        del self._ids[:count]
        self.dropped += count

    def _cut(self, length: int) -> None:
        self._forget(length)
        del self._ids[length:]

    def _forget(self, length: int) -> None:
        """Of what was computed, keep only what the first ``length`` tokens gave.

        Always before the tokens themselves change: a Ctrl-C in between must leave nothing that is not true.
        """
        self._logits = None

    @abstractmethod
    def _catch_up(self) -> None:
        """Run the tokens that were not run yet, but for the last."""

    def _choose(self, count: int, sampler: Sampler) -> list[int]:
        """Choose and append 1 to ``count`` tokens; called with tokens held, and room for so many more."""
        return self._append([sampler.sample(self.logits(), self._ids)])

    def _append(self, chosen: list[int]) -> list[int]:
        self._logits = None
        self._ids += chosen
        return chosen

    @abstractmethod
    def _release(self) -> None:
        """Release what is the session's own."""

    @abstractmethod
    def _compute_logits(self) -> Floats: ...

    @abstractmethod
    def _copy(self) -> Self:
        """Another session of the same model, with what this one has computed."""


class RecomputeSession(DecodeSession):
    """The reference plan, or any function of the whole sequence: nothing is kept but the last logits."""

    def __init__(
        self,
        config: ModelConfig,
        logits: Forward,
        probs: Forward | None = None,
        *,
        count_draws: Callable[[], int] = lambda: 0,
    ) -> None:
        """Nothing is held.

        Args:
            config: the model's shape.
            logits: ids of the whole sequence → logits of the next token.
            probs: ids → probabilities; left out, the softmax of the logits.
            count_draws: the running count of draw calls.
        """
        super().__init__(config)
        self._forward, self._forward_probs, self._count_draws = logits, probs, count_draws

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far, by every session of the model."""
        return self._count_draws()

    def probs(self) -> Floats:
        """Softmax probabilities [vocab] of the next token, float32, computed where the logits are."""
        if self._forward_probs is None:
            return super().probs()
        self._require_tokens()
        return self._forward_probs(self.ids)

    def _catch_up(self) -> None:
        """Nothing is kept of one token for the next."""

    def _release(self) -> None:
        """There is nothing of its own."""

    def _compute_logits(self) -> Floats:
        return self._forward(self.ids)

    def _copy(self) -> RecomputeSession:
        return RecomputeSession(self._config, self._forward, self._forward_probs, count_draws=self._count_draws)


class CachedSession(DecodeSession):
    """The fast plan: one token a run, keys and values in textures, plain sampling on the GPU.

    Per token only the numbers in one dictionary change: no GL object is made and none is looked up.
    """

    def __init__(self, prefill: Prefill, bound: Session, *, owns: bool = True) -> None:
        """Nothing is held.

        Args:
            prefill: takes prompts in for this model; has the model's shape and its kernels.
            bound: the fast plan, bound; its caches are this session's alone.
            owns: whether ``bound`` is released with this session.
        """
        super().__init__(prefill.config)
        self._prefill, self._bound, self._owns = prefill, bound, owns
        self._flush_every = prefill.kernels.flush_every
        self._chunks: Chunks | None = None
        self._picks, self._logits_texture = bound.texture(PICKS), bound.texture(LOGITS)
        assert isinstance(self._picks.layout, BlockLayout)
        self._places = self._picks.layout
        # How many of the first tokens are in the caches.
        self._cached = 0
        # For how many tokens the last one's stream lies where the last block takes it from; 0 for none.
        self._handed_over = 0
        self._body, self._head = len(bound.draws) - HEAD_DRAWS, len(bound.draws) - HEAD_DRAWS + 1
        self._tail = len(bound.draws) - TAIL_DRAWS
        self._values = bound.plan.values_for(1)

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
        return self._bound.draws_issued + (0 if self._chunks is None else self._chunks.session.draws_issued)

    def chooses(self, options: SamplingOptions) -> bool:
        """Whether a token is chosen from all tokens, by their logits alone: what the plan's last pass can do."""
        return gpu_chooses(options, self._config)

    def _run(self, position: int, token: int, draws: int | None = None) -> None:
        """Run one token, or the first draws of it; -1 is the token that the run before chose.

        Of a token that a chunk left half done, only the rest is run.
        """
        values = self._values
        half_done = self._handed_over == position + 1 and not self._bound.observers
        first = self._tail if half_done else 0
        self._handed_over = 0
        self.draws_ahead += first
        values["position"], values["token"] = position, token
        values["score_slots"] = score_slots(position + 1)
        self._bound.run(values, first=first, draws=draws, flush_every=self._flush_every)

    def _forget(self, length: int) -> None:
        super()._forget(length)
        self._cached = min(self._cached, length)
        self._handed_over = 0

    def _catch_up(self) -> None:
        # The last one too, as far as a chunk goes, unless it has no place in the context.
        end = min(len(self._ids), self._context)
        if end - self._cached > FEWEST and not self._bound.observers:  # who are told of one token at a time
            if self._chunks is None:
                self._chunks = self._prefill.into(self._bound)
            self._handed_over = 0
            while self._cached < end:
                self._cached += self._chunks.run(self._ids[self._cached : end], self._cached)
            self._handed_over = self._cached
        end = len(self._ids) - 1
        for position in range(self._cached, end):
            self._run(position, self._ids[position], self._body)
            self._cached = position + 1

    def _compute_logits(self) -> Floats:
        self._catch_up()
        last = len(self._ids) - 1
        self._run(last, self._ids[last], self._head)
        self._cached = last + 1
        return np.array(self._logits_texture.read()[0], dtype=np.float32)

    def _choose(self, count: int, sampler: Sampler) -> list[int]:
        if not self.chooses(sampler.options):
            return super()._choose(count, sampler)
        self._catch_up()
        values, first, step = self._values, len(self._ids) - 1, sampler.step
        values["noise"] = 0.0 if sampler.options.greedy else 1.0
        values["inverse_temperature"] = sampler.options.inverse_temperature
        try:
            for number in range(count):
                values["noise_key"] = 0 if sampler.options.greedy else sampler.noise_key()
                self._run(first + number, -1 if number else self._ids[first])
                sampler.advance()
            chosen = [checked_choice(candidates) for candidates in self._candidates(first, count)]
        except BaseException:
            sampler.step = step  # nothing was chosen
            raise
        self._append(chosen)
        self._cached = first + count
        return chosen

    def _candidates(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """What ``count`` runs left to choose from, [count, 64]."""
        if count > 1:
            return self._picks.read_rows(first, count)
        # A block is a square of texels, and the best of them is the best in any order.
        x, y = self._places.origin(first, 0)
        return self._picks.framebuffer.read(0, BLOCK_EDGE, BLOCK_EDGE, int(x), int(y)).reshape(1, BLOCK_FLOATS)

    def _copy(self) -> CachedSession:
        bound = self._bound.sharer()
        bound.copy_caches(self._bound)
        made = CachedSession(self._prefill, bound)
        # The stream is not copied: what a chunk left half done is run once more where its logits are asked for.
        made._cached = self._cached
        return made

    def _release(self) -> None:
        if self._chunks is not None:
            self._prefill.give_back(self._chunks)
        if self._owns:
            self._bound.release()


def _common_prefix(held: list[int], wanted: list[int]) -> int:
    """How many tokens at the beginning are the same."""
    if held == wanted[: len(held)]:  # mostly so, and fast
        return len(held)
    pairs = zip(held, wanted, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(wanted))
