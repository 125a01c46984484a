"""A sequence of tokens that can grow, be cut back and be copied, over any plan; without OpenGL.

:class:`DecodeSession` is what all plans offer. :class:`RecomputeSession` runs the reference plan: the whole sequence
each time. The fast plan's is in :mod:`glinfer.engine.cached`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.config import ModelConfig
from glinfer.engine.ids import Ids, check_tokens, room_made, whole_number, whole_numbers
from glinfer.engine.own_sampler import OwnSampler, SamplerFunction
from glinfer.engine.probabilities import softmax
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import ContextError, GLError, InputError, NumbersError
from glinfer.notebook import table
from glinfer.ops.fused.allowed import Words, allowed_tokens
from glinfer.text.labels import token_label
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

    from glinfer.engine.nan_guard import NanGuard

Floats = npt.NDArray[np.float32]
T = TypeVar("T")
Forward = Callable[[Sequence[int]], Floats]
"""Token ids of a whole sequence → one float32 number [vocab] for each token that may come next."""


class DecodeSession(Closing):
    """A sequence of tokens and the model's prediction of the next; made by :meth:`glinfer.engine.model.Model.session`.

    Appending is cheap, cutting back is free, and nothing that is still held is computed again. Close a session when
    it is no longer needed, or use it in a ``with`` block.

    A model holds ``context`` tokens. When that is full and one more has to be run, the oldest half is dropped and
    the rest is run again from position 0, so that a sequence may go on for ever. What the tokenizer puts before every
    text (``<s>``, say) stays first, and so do the first ``keep`` tokens. A token that was only chosen needs no place
    yet: a session may hold one token more than the context until then.

    Attributes:
        keep: how many of the first tokens are never dropped.
        before: the ids that the tokenizer puts before every text, which are not dropped either.
        dropped: tokens dropped so far because the context was full.
        draws_saved: draws skipped because prefill, :meth:`logits` or :meth:`probs` already computed them.
        logit_reads: whole rows of logits read back so far; choosing a token seldom needs one.
        drafted: drafted tokens that :meth:`accept` has run so far.
        accepted: those of them that were chosen.
        nan_guard: the watch of the model over what is read back.
        usable: raises ContextError if the model's device was closed, lost, or belongs to another thread.
        require_tokenizer: returns the model's tokenizer, or raises an InputError that says why there is none.
        patches: counts the patches that were put in force or taken away; what was computed at another count is not
            used again.
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
        # The probabilities of those logits, where the plan computes them.
        self._probs: Floats | None = None
        # The draws that a token takes, which a choice from held logits saves.
        self._token_draws = 0
        self._closed = ""
        self._patches = self.adapter = self.keep = 0
        self.dropped = self.draws_saved = self.logit_reads = self.drafted = self.accepted = 0

    @property
    def ids(self) -> list[int]:
        """The tokens that are held, oldest first (a copy)."""
        return list(self._ids)

    def __len__(self) -> int:
        """The number of tokens held."""
        return len(self._ids)

    def __repr__(self) -> str:
        """The number of tokens held, or that it was closed."""
        state = "closed" if self._closed else f"{len(self._ids)} of {self._context} tokens"
        return f"<{type(self).__name__}: {state}>"

    def _repr_html_(self) -> str:
        tokenizer = None
        if self.require_tokenizer is not None:
            with suppress(InputError):  # ids alone
                tokenizer = self.require_tokenizer()
        rows = [(place, token, token_label(token, tokenizer)) for place, token in enumerate(self._ids)]
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
        """Whether the GPU can choose tokens with these options, several without a readback in between."""
        return False

    def prefill(self, ids: str | Ids) -> None:
        """Append tokens, and run all of them but the last, which runs when its logits or a choice are needed.

        Args:
            ids: token ids, or text (needs a tokenizer). What a tokenizer puts before a text, such as ``<s>``, comes in
                an empty session only.

        Raises:
            InputError: an id is not a whole number, or outside the vocabulary; text, and there is no tokenizer.
            ContextError: the session was closed.
        """
        self._require_open()
        if isinstance(ids, str):
            tokenizer = self._tokenizer()
            ids = tokenizer.encode_more(ids) if self._ids else tokenizer.encode(ids)
        self._extend(check_tokens("the tokens", ids, self._config))

    def _tokenizer(self) -> Tokenizer:
        if self.require_tokenizer is None:
            raise InputError("this session has no tokenizer; give token ids, or make it with model.session()")
        return self.require_tokenizer()

    def use_adapter(self, number: int) -> None:
        """Go on with another LoRA adapter, 0 for none; what was computed with the one before is computed again.

        Raises:
            ContextError: the session was closed.
        """
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
        """Forget the last ``count`` tokens; all of them leave an empty session.

        What the context has dropped before does not come back.

        Raises:
            InputError: ``count`` is not a whole number from 0 to the tokens held.
            ContextError: the session was closed.
        """
        self._require_not_closed()
        number = whole_number("to rewind by", count)
        if number > len(self._ids):
            raise InputError(f"cannot rewind by {number} tokens; the session holds {len(self._ids)}")
        if number:
            self._cut(len(self._ids) - number)

    def hold(self, ids: str | Ids) -> None:
        """Hold exactly these tokens, ready to go on: what is the same at the beginning is not run again.

        ``ids`` may be a text, with all that a tokenizer puts around one. Errors as in :meth:`prefill`.
        """
        self._require_open()
        if isinstance(ids, str):
            ids = self._tokenizer().encode(ids)
        wanted = ids if isinstance(ids, list) else whole_numbers("the tokens", ids)
        common = common_prefix(self._ids, wanted)
        new = check_tokens("the tokens", wanted[common:], self._config, first=common)
        if common < len(self._ids):
            self._cut(common)
        self._extend(new)
        if len(self._ids) > self._context:
            self._make_room()
            self._computing(self._catch_up)

    def logits(self) -> Floats:
        """Logits [vocab] of the next token, float32; computed once, a copy each time.

        Raises:
            InputError: no token is held.
            NumbersError: the model's output is broken, see :mod:`glinfer.engine.nan_guard`.
            ContextError: the session was closed.
        """
        self._require_tokens()
        return (self._computing(self._new_logits) if self._logits is None else self._logits).copy()

    def _new_logits(self) -> Floats:
        return self._keep(self._compute_logits())

    def _computing(self, run: Callable[..., T], *arguments: object) -> T:
        """Call what runs the model; after an error nothing that is in the caches is used again."""
        try:
            return run(*arguments)
        except (GLError, NumbersError):
            self._forget(0)
            raise

    def _keep(self, logits: Floats) -> Floats:
        """Check logits that were read back, and keep them until the tokens change."""
        self.logit_reads += 1
        if self.nan_guard is not None:
            self.nan_guard.look(logits, self._ids)
        self._logits = logits
        return logits

    def probs(self) -> Floats:
        """Softmax probabilities [vocab] of the next token, float32; errors as in :meth:`logits`."""
        logits = self.logits()
        return softmax(logits).astype(np.float32) if self._probs is None else self._probs.copy()

    def generate_ids(self, count: SupportsIndex, sampler: Sampler | SamplerFunction | None = None) -> list[int]:
        """Choose and append ``count`` tokens, with one readback where the GPU can choose; greedy without a sampler.

        The choices are those of ``sampler.sample`` on :meth:`logits`, token by token, or those of a function, see
        :meth:`glinfer.engine.model.Model.stream`. No token stops it: read what was chosen, and :meth:`rewind` what is
        too much.

        Raises:
            InputError: no token is held, or the model's output is broken (NaN).
            ContextError: the session was closed.
        """
        wanted = whole_number("of tokens to generate", count)
        sampler = Sampler(SamplingOptions(temperature=0)) if sampler is None else sampler
        sampler = sampler if isinstance(sampler, Sampler) else OwnSampler(sampler, {})
        chosen: list[int] = []
        while len(chosen) < wanted:
            self._require_tokens()
            chosen += self._computing(self._choose, min(wanted - len(chosen), self.room), sampler)
        return chosen

    def accept(self, draft: Ids, sampler: Sampler) -> list[int]:
        """Choose and append tokens as :meth:`generate_ids` does, several in one run where they were guessed.

        The newest token and the drafted ones run together, and each choice of ``sampler`` is made from the logits that
        it has without a draft. So the choices are the same; a wrong draft costs time alone.

        Args:
            draft: guesses of the next tokens. No more of them are run than the context has room for; none are right
                behind a prompt, whose last token is half done already, while the model is watched, and by the
                reference plan.
            sampler: chooses the tokens.

        Returns:
            The tokens of the draft up to the first that was not chosen, and then one that the draft does not have.

        Raises:
            InputError: no token is held, a drafted one is outside the vocabulary, or the model's output is broken.
            ContextError: the session was closed.
        """
        guesses = check_tokens("the draft", draft, self._config)
        self._require_tokens()
        chosen = self._computing(self._accept, guesses[: self.room - 1], sampler)
        self.accepted += len(chosen) - 1
        return chosen

    def choose_allowed(self, allowed: Callable[[], Words], sampler: Sampler) -> int:
        """Choose and append one token among those that are allowed.

        The choice is that of ``sampler.sample`` on :meth:`logits` in which all other tokens have -inf.

        Args:
            allowed: gives the bits of the allowed tokens, a row of the table of :mod:`glinfer.ops.fused.allowed`, with
                at least one bit set; called while the GPU computes the logits. What it raises comes through.
            sampler: chooses the token.

        Raises:
            InputError: no token is held, or the model's output is broken.
            ContextError: the session was closed.
        """
        self._require_tokens()
        token: int = self._computing(self._choose_allowed, allowed, sampler)
        self._append([token])
        return token

    def fork(self) -> Self:
        """An independent session that holds the same tokens; both go on by themselves, and either may close first."""
        self._require_open()
        made = self._copy()
        made._ids, made._logits, made._probs, made.dropped = list(self._ids), self._logits, self._probs, self.dropped
        made._token_draws = self._token_draws
        made.nan_guard, made.usable, made.require_tokenizer = self.nan_guard, self.usable, self.require_tokenizer
        made.patches, made._patches, made.adapter = self.patches, self._patches, self.adapter
        made.before, made.keep = self.before, self.keep
        return made

    def forget(self) -> None:
        """Forget what was computed, but not the tokens: they run again when the session goes on."""
        self._forget(0)

    def close(self, reason: str = "this session was closed; make another one with model.session()") -> None:
        """Release what is the session's own; harmless when repeated. Later uses raise an error with ``reason``."""
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
        """Forget what was computed for tokens from ``length`` on.

        Call this before the tokens change, so that a Ctrl-C in between leaves a consistent state.
        """
        self._logits = None

    @abstractmethod
    def _catch_up(self) -> None:
        """Run the tokens that were not run yet, except the last."""

    def _choose(self, count: int, sampler: Sampler) -> list[int]:
        """Choose and append 1 to ``count`` tokens; the session holds tokens and has room for ``count`` more."""
        return self._append([self._sampled(self._logits_to_choose(), sampler)])

    def _choose_allowed(self, allowed: Callable[[], Words], sampler: Sampler) -> int:
        """:meth:`choose_allowed`, less the appending: from the whole row of logits."""
        return self._sampled(self._logits_to_choose(), sampler, allowed())

    def _logits_to_choose(self) -> Floats:
        """The logits that the next token is chosen from; held ones save all draws of a token."""
        if self._logits is None:
            return self._new_logits()
        self.draws_saved += self._token_draws
        return self._logits

    def _sampled(self, logits: Floats, sampler: Sampler, words: Words | None = None) -> int:
        """The sampler's choice from a whole row of logits, among the tokens that ``words`` allow."""
        if self.nan_guard is not None:
            logits = self.nan_guard.usable(logits)
        return sampler.sample(logits if words is None else only_allowed(logits, words), self._ids)

    def _accept(self, draft: list[int], sampler: Sampler) -> list[int]:
        """:meth:`accept` of a draft that fits the context."""
        return self._choose(1, sampler)

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
        """Copy the session and what it has computed, but for the tokens themselves."""


def only_allowed(logits: npt.NDArray[Any], words: Words) -> npt.NDArray[Any]:
    """Logits [vocab] with -inf for each token whose bit in ``words`` is 0."""
    return np.where(allowed_tokens(words, logits.size), logits, logits.dtype.type(-np.inf))


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
        """Start without tokens.

        Args:
            config: the model's shape.
            logits: ids of the whole sequence → logits of the next token.
            probs: the ids that ``logits`` has just run → probabilities; left out, the softmax of the logits.
            count_draws: the running count of draw calls, those of other sessions too.
        """
        super().__init__(config)
        self._forward, self._read_probs, self._count_draws, self._issued = logits, probs, count_draws, 0

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far."""
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
        if self._read_probs is not None:  # now, since other sessions draw into the same textures
            self._probs = self._read_probs(self.ids)
        return logits

    def _copy(self) -> RecomputeSession:
        return RecomputeSession(self._config, self._forward, self._read_probs, count_draws=self._count_draws)


def common_prefix(held: list[int], wanted: list[int]) -> int:
    """The number of tokens at the beginning that are the same."""
    if held == wanted[: len(held)]:  # mostly so, and fast
        return len(held)
    pairs = zip(held, wanted, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(wanted))
