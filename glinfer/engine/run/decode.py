"""Token sequences that grow, rewind and fork; those of the fast plan are in :mod:`glinfer.engine.run.cached`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.config import ModelConfig
from glinfer.engine.ids import Ids, check_tokens, integer, integers, room_made
from glinfer.engine.logits import softmax
from glinfer.engine.sampler import OwnSampler, Sampler, SamplerFunction, SamplingOptions
from glinfer.errors import ContextError, GLError, InputError, NumbersError
from glinfer.kernels.fused.allowed import Words, allowed_tokens
from glinfer.notebook import table
from glinfer.text.images import without_images
from glinfer.text.labels import token_label
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

    from glinfer.engine.run.nan_guard import NanGuard

Floats = npt.NDArray[np.float32]
T = TypeVar("T")
Forward = Callable[[Sequence[int]], Floats]
"""Token ids of a whole sequence → logits or probabilities [vocab] of the next token, float32."""


class DecodeSession(Closing):
    """A sequence of tokens and the model's prediction of the next; made by :meth:`glinfer.engine.model.Model.session`.

    Appending is cheap, and held tokens are not computed again. Rewinding is free, but a model with delta rules that
    goes back more than 28 tokens runs again from near the end of the last prompt, or from the start. Close a session
    after use, or use it in a ``with`` block.

    A session runs at most ``context`` tokens. To run one more, it drops the oldest half and runs the rest again from
    position 0, so a sequence can grow without end. Tokens that the tokenizer puts before every text, such as ``<s>``,
    stay first, and so do the first ``keep`` tokens. A newly chosen token has not run yet, so a session may hold one
    token more than the context.

    Attributes:
        keep, before: the number of first tokens, and the tokenizer's ids before every text, that are never dropped.
        dropped: tokens dropped so far because the context was full.
        draws_saved: draws skipped because prefill, :meth:`logits` or :meth:`probs` already computed them.
        logit_reads: whole rows of logits read back so far; choosing a token seldom needs one.
        drafted, accepted: drafted tokens that :meth:`accept` has run so far, and how many of them were chosen.
        nan_guard: the model's check of numbers read back.
        usable: raises ContextError if the model's device was closed, lost, or belongs to another thread.
        require_tokenizer: returns the model's tokenizer, or raises an InputError if it has none.
        patches: counts the patches added and removed; results of an earlier count are discarded.
    """

    nan_guard: NanGuard | None = None
    usable: Callable[[], None] | None = None
    require_tokenizer: Callable[[], Tokenizer] | None = None
    patches: Callable[[], int] | None = None

    def __init__(self, config: ModelConfig) -> None:
        """Start without tokens; use :meth:`glinfer.engine.model.Model.session`."""
        self._config = config
        self._context = config.max_position_embeddings
        self._ids: list[int] = []
        self.before: list[int] = []
        self._logits: Floats | None = None
        # The probabilities of those logits, if the plan computes them.
        self._probs: Floats | None = None
        # Draws of one token, which a choice from held logits saves.
        self._token_draws = 0
        self._closed = ""
        self._patches = self.adapter = self.keep = 0
        self.dropped = self.draws_saved = self.logit_reads = self.drafted = self.accepted = 0

    @property
    def ids(self) -> list[int]:
        """The tokens held, oldest first (a copy)."""
        return list(self._ids)

    def __len__(self) -> int:
        """The number of tokens held."""
        return len(self._ids)

    def __repr__(self) -> str:
        """The class, and the number of tokens held or "closed"."""
        state = "closed" if self._closed else f"{len(self._ids)} of {self._context} tokens"
        return f"<{type(self).__name__}: {state}>"

    def _repr_html_(self) -> str:
        tokenizer = None
        if self.require_tokenizer is not None:
            with suppress(InputError):  # ids alone
                tokenizer = self.require_tokenizer()
        rows = [(position, token, token_label(token, tokenizer)) for position, token in enumerate(self._ids)]
        return table(("position", "id", "token"), rows, repr(self))

    @property
    def room(self) -> int:
        """The number of tokens that can be chosen before the context is full; at least 1."""
        dropped = len(self._ids[self._oldest]) if len(self._ids) > self._context else 0
        return self._context + 1 - len(self._ids) + dropped

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return bool(self._closed)

    @property
    @abstractmethod
    def draws_issued(self) -> int:
        """Draw calls issued so far."""

    def chooses(self, options: SamplingOptions) -> bool:
        """Whether the GPU can choose several tokens with these options between two readbacks."""
        return False

    def prefill(self, ids: str | Ids) -> None:
        """Append tokens, and run all but the last, which runs when its logits or a choice are needed.

        ``ids`` are token ids, or text (needs a tokenizer). Text in an empty session also gets the tokens that the
        tokenizer puts before every text, such as ``<s>``.

        Raises:
            InputError: an id is not an integer or outside the vocabulary, or text needs a tokenizer.
            ContextError: the session was closed, as in all methods but :meth:`close`.
        """
        self._require_open()
        if isinstance(ids, str):
            tokenizer = self._tokenizer()
            ids = tokenizer.encode_more(ids) if self._ids else tokenizer.encode(ids)
        self._extend(check_tokens("the tokens", ids, self._config, images=True))

    def _tokenizer(self) -> Tokenizer:
        if self.require_tokenizer is None:
            raise InputError("this session has no tokenizer; give token ids, or make it with model.session()")
        return self.require_tokenizer()

    def use_adapter(self, number: int) -> None:
        """Switch to another LoRA adapter, 0 for none, and recompute the held tokens with it."""
        self._require_open()
        if number != self.adapter:
            self._forget(0)
            self.adapter = number

    def _extend(self, tokens: list[int]) -> None:
        for token in tokens:
            if len(self._ids) >= self._context:
                self._drop_oldest()
            self._logits = None
            self._ids.append(token)
        self._computing(self._catch_up)

    def step(self, token: SupportsIndex) -> None:
        """Append one token; errors as in :meth:`prefill`."""
        self.prefill([token])

    def rewind(self, count: SupportsIndex) -> None:
        """Forget the last ``count`` tokens; InputError if the session holds fewer.

        Tokens that a full context dropped do not come back.
        """
        self._require_not_closed()
        number = integer("to rewind by", count)
        if number > len(self._ids):
            raise InputError(f"cannot rewind by {number} tokens; the session holds {len(self._ids)}")
        if number:
            self._cut(len(self._ids) - number)

    def hold(self, ids: str | Ids) -> None:
        """Hold exactly these tokens, and run only those after the prefix already held.

        ``ids`` may be a text, which gets all special tokens of the tokenizer. Errors as in :meth:`prefill`.
        """
        self._require_open()
        if isinstance(ids, str):
            ids = self._tokenizer().encode(ids)
        wanted = ids if isinstance(ids, list) else integers("the tokens", ids)
        common = common_prefix(self._ids, wanted)
        new = check_tokens("the tokens", wanted[common:], self._config, first=common, images=True)
        if common < len(self._ids):
            self._cut(common)
        self._extend(new)
        if len(self._ids) > self._context:
            self._make_room()
            self._computing(self._catch_up)

    def logits(self) -> Floats:
        """Logits [vocab] of the next token, float32: a copy, computed once per token.

        Raises:
            InputError: no token is held.
            NumbersError: the model's output is broken, see :mod:`glinfer.engine.run.nan_guard`.
        """
        self._require_tokens()
        return (self._computing(self._compute_logits) if self._logits is None else self._logits).copy()

    def _computing(self, run: Callable[..., T], *arguments: object) -> T:
        """Call a function that runs the model; after an error discard the caches."""
        try:
            return run(*arguments)
        except (GLError, NumbersError):
            self._forget(0)
            raise

    def _keep(self, logits: Floats) -> Floats:
        """Check logits read back, and keep them until the tokens change."""
        self._logits = self._looked(logits, self._ids)
        return logits

    def _looked(self, logits: Floats, ids: Sequence[int]) -> Floats:
        """Count and check logits read back, of the token after ``ids``."""
        self.logit_reads += 1
        if self.nan_guard is not None:
            self.nan_guard.look(logits, ids)
        return logits

    def probs(self) -> Floats:
        """Softmax probabilities [vocab] of the next token, float32; errors as in :meth:`logits`."""
        logits = self.logits()
        return softmax(logits).astype(np.float32) if self._probs is None else self._probs.copy()

    def generate_ids(self, count: SupportsIndex, sampler: Sampler | SamplerFunction | None = None) -> list[int]:
        """Choose and append ``count`` tokens; greedy without a sampler. If the GPU can choose, one readback suffices.

        The choices are those of ``sampler.sample`` on :meth:`logits`, token by token, or those of a function, see
        :meth:`glinfer.engine.model.Model.stream`. No token ends generation early; :meth:`rewind` drops surplus tokens.
        Errors are those of :meth:`logits`.
        """
        wanted = integer("of tokens to generate", count)
        sampler = Sampler(SamplingOptions(temperature=0)) if sampler is None else sampler
        sampler = sampler if isinstance(sampler, Sampler) else OwnSampler(sampler, {})
        chosen: list[int] = []
        while len(chosen) < wanted:
            self._require_tokens()
            chosen += self._computing(self._choose, min(wanted - len(chosen), self.room), sampler)
        return chosen

    def accept(self, draft: Ids, sampler: Sampler) -> list[int]:
        """Choose and append the tokens of :meth:`generate_ids`, several in one run if the draft is right.

        The newest token and the drafted tokens run together. Each choice of ``sampler`` uses the same logits as without
        a draft, so the choices are the same; a wrong draft only costs time.

        Args:
            draft: drafts of the next tokens, cut to the room in the context. They are ignored right after a prompt,
                whose last token is half computed, while the model is observed, and by the reference plan.
            sampler: chooses the tokens.

        Returns the accepted tokens of the draft, and the token chosen after them. Errors are those of :meth:`logits`,
        and an InputError for a drafted token outside the vocabulary.
        """
        drafts = check_tokens("the draft", draft, self._config)
        self._require_tokens()
        chosen = self._computing(self._accept, drafts[: self.room - 1], sampler)
        self.accepted += len(chosen) - 1
        return chosen

    def choose_allowed(self, allowed: Callable[[], Words], sampler: Sampler) -> int:
        """Choose and append one of the allowed tokens.

        The choice is that of ``sampler.sample`` on :meth:`logits` with -inf for all other tokens.

        Args:
            allowed: returns the bits of the allowed tokens, a row of the table of :mod:`glinfer.kernels.fused.allowed`
                with at least one bit set. It is called while the GPU computes the logits; its exceptions propagate.
            sampler: chooses the token.

        Errors are those of :meth:`logits`.
        """
        self._require_tokens()
        token: int = self._computing(self._choose_allowed, allowed, sampler)
        self._append([token])
        return token

    def fork(self) -> Self:
        """An independent copy with the same tokens; either session may close first."""
        self._require_open()
        made = self._copy()
        made._ids, made._logits, made._probs, made.dropped = list(self._ids), self._logits, self._probs, self.dropped
        made._token_draws = self._token_draws
        made.nan_guard, made.usable, made.require_tokenizer = self.nan_guard, self.usable, self.require_tokenizer
        made.patches, made._patches, made.adapter = self.patches, self._patches, self.adapter
        made.before, made.keep = self.before, self.keep
        return made

    def forget(self) -> None:
        """Discard all results but keep the tokens, which run again when the session continues."""
        self._forget(0)

    def close(self, reason: str = "this session was closed; make another one with model.session()") -> None:
        """Release what the session owns; later uses raise an error with ``reason``. Closing again does nothing."""
        if not self._closed:
            self._release()
            self._closed = reason

    def _require_not_closed(self) -> None:
        if self._closed:
            raise ContextError(self._closed)

    def _require_open(self) -> None:
        self._require_not_closed()
        if self.usable is not None:
            self.usable()  # before anything changes
        if self.patches is not None and self._patches != self.patches():
            self._forget(0)
            self._patches = self.patches()

    def _require_tokens(self) -> None:
        """Refuse an empty session, and make room for the newest token."""
        self._require_open()
        if not self._ids:
            raise InputError("the session holds no tokens; prefill at least one")
        self._make_room()

    def _make_room(self) -> None:
        if len(self._ids) > self._context:
            self._drop_oldest()

    @property
    def _oldest(self) -> slice:
        return room_made(self._ids, self.before, self.keep, self._context)

    def _drop_oldest(self) -> None:
        oldest = self._oldest
        self._forget(0)
        del self._ids[oldest]
        self.dropped += oldest.stop - oldest.start

    def _cut(self, length: int) -> None:
        self._forget(length)
        del self._ids[length:]

    def _forget(self, length: int) -> None:
        """Discard the results of tokens from ``length`` on, before the tokens change, in case of an interrupt."""
        self._logits = None

    @abstractmethod
    def _catch_up(self) -> None:
        """Run all tokens that have not run, except the last."""

    def _choose(self, count: int, sampler: Sampler) -> list[int]:
        """Choose and append 1 to ``count`` tokens; the session holds tokens and has room for ``count`` more."""
        return self._append([self._sampled(self._logits_to_choose(), sampler)])

    def _choose_allowed(self, allowed: Callable[[], Words], sampler: Sampler) -> int:
        """:meth:`choose_allowed` from a whole row of logits, without appending the token."""
        return self._sampled(self._logits_to_choose(), sampler, allowed())

    def _logits_to_choose(self) -> Floats:
        """The logits of the next token; held logits save all draws of a token."""
        if self._logits is None:
            return self._compute_logits()
        self.draws_saved += self._token_draws
        return self._logits

    def _sampled(
        self, logits: Floats, sampler: Sampler, words: Words | None = None, ids: Sequence[int] | None = None
    ) -> int:
        """The sampler's choice from the logits after ``ids`` (default: those held), among what ``words`` allow."""
        if self.nan_guard is not None:
            logits = self.nan_guard.usable(logits)
        row = logits if words is None else only_allowed(logits, words)
        return sampler.sample(row, without_images(self._ids if ids is None else ids))

    def _accept(self, draft: list[int], sampler: Sampler) -> list[int]:
        """:meth:`accept` of a draft that fits the context."""
        return self._choose(1, sampler)

    def _append(self, chosen: list[int]) -> list[int]:
        self._logits = None
        self._ids += chosen
        return chosen

    @abstractmethod
    def _release(self) -> None:
        """Release what the session owns."""

    @abstractmethod
    def _compute_logits(self) -> Floats:
        """Run what is needed for the logits of the next token, and :meth:`_keep` them."""

    @abstractmethod
    def _copy(self) -> Self:
        """Copy the session and its caches, without the tokens."""


def only_allowed(logits: npt.NDArray[Any], words: Words) -> npt.NDArray[Any]:
    """Logits [vocab] with -inf for each token whose bit in ``words`` is 0."""
    return np.where(allowed_tokens(words, logits.size), logits, logits.dtype.type(-np.inf))


class RecomputeSession(DecodeSession):
    """A sequence that recomputes all tokens for each logits, as the reference plan does."""

    def __init__(
        self,
        config: ModelConfig,
        logits: Forward,
        probs: Forward | None = None,
        *,
        count_draws: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start without tokens; see :data:`Forward`.

        ``probs`` is called with the same ids right after ``logits``; by default the softmax of the logits is taken.
        ``count_draws`` returns the draw calls so far, including other sessions'.
        """
        super().__init__(config)
        self._forward, self._read_probs, self._count_draws, self._issued = logits, probs, count_draws, 0

    @property
    def draws_issued(self) -> int:
        """See :class:`DecodeSession`."""
        return self._issued

    def _catch_up(self) -> None:
        """Do nothing: the whole sequence runs for each token."""

    def _release(self) -> None:
        """Do nothing: the session owns no GL objects."""

    def _compute_logits(self) -> Floats:
        before = self._count_draws()
        logits = self._forward(self.ids)
        self._token_draws = self._count_draws() - before
        self._issued += self._token_draws
        if self._read_probs is not None:  # read now: other sessions draw into the same textures
            self._probs = self._read_probs(self.ids)
        return self._keep(logits)

    def _copy(self) -> RecomputeSession:
        return RecomputeSession(self._config, self._forward, self._read_probs, count_draws=self._count_draws)


def common_prefix(held: list[int], wanted: list[int]) -> int:
    """The number of equal tokens at the start."""
    if held == wanted[: len(held)]:  # the usual case, and fast
        return len(held)
    pairs = zip(held, wanted, strict=False)
    return next((position for position, (one, other) in enumerate(pairs) if one != other), len(wanted))
