"""Streams of generated token ids and of their text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from glinfer.closing import Closing
from glinfer.engine.decode import DecodeSession
from glinfer.engine.drafts import Speculation
from glinfer.engine.ids import check_callback, check_count
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import ContextError, StructureError
from glinfer.structured.constraint import Constraint, DeadEnd
from glinfer.text.assembler import TextAssembler
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = 8
"""Tokens that the GPU may choose between two readbacks when a stream is read as a whole."""


@dataclass
class GenerationStats:
    """Counts and times of a stream.

    ``finish_reason`` is None while the stream runs, then ``stop`` (a stop id or stop string), ``length``
    (max_tokens reached), ``context`` (the context of a chat was full earlier), ``closed`` (also by an
    interrupt), ``cancelled``, or ``error`` (an exception).

    ``tokens`` includes a stop id, which was computed; ``surplus`` counts tokens computed past the end. ``draws`` and
    ``seconds`` are those of decoding, ``prompt_draws`` and ``prompt_seconds`` those of prefill. Seconds do not include
    the caller's time between tokens. ``draws_saved`` counts draws skipped because prefill, ``logits`` or ``probs``
    already computed them. ``dropped`` counts the oldest tokens dropped by a full context, and ``reused_tokens`` the
    prompt tokens that a scheduler had in a cache. ``drafted`` and ``accepted`` count the guesses of speculative
    decoding and the right ones; ``draws`` includes those of a draft model.

    For a text with a structure, ``forced`` counts the tokens that the structure forced, and ``complete`` is whether
    the text so far matches the structure (None without one). ``finish_reason`` is ``stop`` for a complete text, and
    ``length`` if it could not be completed (``max_tokens``, or no allowed token).
    """

    prompt_tokens: int
    tokens: int = 0
    draws: int = 0
    seconds: float = 0.0
    finish_reason: str | None = None
    prompt_draws: int = 0
    prompt_seconds: float = 0.0
    surplus: int = 0
    dropped: int = 0
    draws_saved: int = 0
    reused_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    complete: bool | None = None

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that were right; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of decoding; 0 before the first."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def draws_per_token(self) -> float:
        """Draw calls for each computed token, including ``draws_saved``."""
        computed = self.tokens + self.surplus
        return (self.draws + self.draws_saved) / computed if computed else 0.0


class GeneratedText(str):
    """A generated text: a string with its counts and times.

    Attributes:
        stats: counts and times, see :class:`GenerationStats`.
    """

    stats: GenerationStats

    def __new__(cls, text: str, stats: GenerationStats) -> Self:
        """Make the string."""
        made = super().__new__(cls, text)
        made.stats = stats
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        """The arguments to make a copy, before its attributes are set."""
        return str(self), self.stats

    @property
    def finish_reason(self) -> str | None:
        """Why the text ended: ``stop`` (end token or stop string), ``length`` (max_tokens), or ``context`` (full)."""
        return self.stats.finish_reason

    @property
    def prompt_tokens(self) -> int:
        """The number of prompt tokens; in a chat those of all messages, with control tokens."""
        return self.stats.prompt_tokens

    @property
    def tokens(self) -> int:
        """The number of generated tokens, including thoughts and the end token."""
        return self.stats.tokens


class OneStream(Closing):
    """The base class of streams of ids, of text and of chats."""

    stats: GenerationStats

    def __repr__(self) -> str:
        """The number of tokens so far, and the finish reason."""
        stats = self.stats
        return f"<{type(self).__name__}: {stats.tokens} tokens, {stats.finish_reason or 'unfinished'}>"

    def _require_open(self) -> None:
        if self.stats.finish_reason == "closed":
            raise ContextError("this stream was closed; start another one")


class TokenStream(OneStream, Iterator[int]):
    """An iterator over generated ids.

    Attributes:
        stats: counts and times so far.
        ids: the ids generated so far.
        chunk: tokens computed between two readbacks if the GPU can choose them (default 1). Larger chunks wait for the
            GPU less often, but deliver tokens later.
    """

    def __init__(
        self,
        session: DecodeSession,
        prompt: Sequence[int],
        options: SamplingOptions,
        *,
        max_tokens: SupportsIndex,
        stop_ids: Sequence[int] = (),
        on_end: Callable[[], None] | None = None,
        speculation: Speculation | None = None,
        constraint: Constraint | None = None,
        whole: bool = False,
        adapter: int = 0,
        keep: int = 0,
        sampler: Sampler | None = None,
    ) -> None:
        """Prepare; nothing runs before the first ``next()``.

        Args:
            session: runs the model; other streams may use it between two tokens.
            prompt: checked ids.
            options: how to sample.
            max_tokens: at least 1.
            stop_ids: ids that end the stream; they are not yielded.
            on_end: called once when the stream ends, for any reason.
            speculation: drafts tokens, to compute several at once; does not change the tokens.
            constraint: the allowed tokens; not together with ``speculation``.
            whole: whether to raise StructureError if the text ends before it matches its structure.
            adapter: the number of the LoRA adapter; 0 for none.
            keep: the number of first tokens to keep when the context is full.
            sampler: chooses the tokens instead of a Sampler with ``options``.

        Raises:
            InputError: ``max_tokens`` is not a whole number of at least 1, or ``on_end`` not a function.
        """
        check_callback("on_end", on_end)
        self.ids: list[int] = []
        self.stats = GenerationStats(prompt_tokens=len(prompt))
        self._session, self._on_end, self._speculation = session, on_end, speculation
        self._constraint, self._whole, self._adapter, self._keep = constraint, whole, adapter, keep
        # The tokens that the session holds, and those at their end that were not yielded yet.
        self._held = list(prompt)
        self._waiting: deque[int] = deque()
        # Whether the last tokens were forced; ``draws`` then includes the draws that their run saves.
        self._after_forced = False
        self._sampler = Sampler(options) if sampler is None else sampler
        self._by_gpu = sampler is None and session.chooses(options)
        self._max_tokens = check_count("max_tokens", max_tokens)
        self.chunk = 1
        self._stop_ids = frozenset(stop_ids)

    @property
    def chunk(self) -> int:
        """Tokens computed between two readbacks."""
        return self._chunk

    @chunk.setter
    def chunk(self, count: SupportsIndex) -> None:
        self._chunk = check_count("chunk", count)

    def __next__(self) -> int:
        """The next generated id."""
        constraint = self._constraint
        if constraint is not None and constraint.done and not self._waiting:
            self.close("stop" if constraint.complete else "length")
        if self.stats.finish_reason is None and self.stats.tokens >= self._max_tokens:
            self.close("length")
        if self.stats.finish_reason is not None:
            self._end()
        if not self._waiting:
            try:
                self._compute()
            except DeadEnd:
                self.close("length")
                self._end()
            except BaseException as error:
                self.close("closed" if isinstance(error, KeyboardInterrupt) else "error")
                raise
        token = self._waiting.popleft()
        self.stats.tokens += 1
        self.stats.surplus -= 1
        if token in self._stop_ids:
            self.close("stop")
            raise StopIteration
        self.ids.append(token)
        return token

    def _end(self) -> NoReturn:
        if self._whole:
            require_complete(self.stats)
        raise StopIteration

    def _compute(self) -> None:
        """Choose the next tokens, at most a chunk or a draft, without exceeding the context."""
        session, stats = self._session, self.stats
        started, draws, dropped = time.perf_counter(), self._draws, session.dropped
        before, forced = (session.draws_saved, session.drafted, session.accepted), stats.forced
        session.use_adapter(self._adapter)
        session.keep = self._keep
        session.hold(self._held)
        read, read_draws = time.perf_counter(), self._draws
        chunk, most = self.chunk if self._by_gpu else 1, min(self._max_tokens - stats.tokens, session.room)
        stats.prompt_seconds += read - started
        stats.prompt_draws += read_draws - draws
        ready = read_draws == draws  # otherwise the prompt is still running
        try:
            chosen = self._chosen(session, most, chunk, ready=ready)
        finally:  # issued draws count even if they chose no token
            stats.seconds += time.perf_counter() - read
            stats.draws += self._draws - read_draws
            stats.draws_saved += 0 if ready and self._after_forced else session.draws_saved - before[0]
            self._after_forced = stats.forced > forced
            stats.drafted += session.drafted - before[1]
            stats.accepted += session.accepted - before[2]
        if session.dropped != dropped:
            stats.dropped += session.dropped - dropped
            self._held = session.ids
        else:
            self._held += chosen
        self._waiting.extend(chosen)
        stats.surplus += len(chosen)

    def _chosen(self, session: DecodeSession, most: int, chunk: int, *, ready: bool) -> list[int]:
        """Choose 1 to ``most`` tokens."""
        if self._constraint is not None:
            return self._choose_allowed(self._constraint, most)
        if self._speculation is None:
            return session.generate_ids(min(chunk, most), self._sampler)
        return self._speculation.choose(session, session.ids, self._sampler, most=most, chunk=chunk, ready=ready)

    def _choose_allowed(self, constraint: Constraint, most: int) -> list[int]:
        """The tokens that the constraint forces, or else one chosen token that it allows."""
        forced = constraint.forced(min(most, self._session.room - 1))  # leaves room for a chosen token
        if forced:
            self._session.prefill(forced)
            self._sampler.step += len(forced)  # each token has noise of its own, chosen or not
            self.stats.forced += len(forced)
            return forced
        token = self._session.choose_allowed(constraint.mask, self._sampler)
        constraint.push(token)
        return [token]

    @property
    def _draws(self) -> int:
        """Draw calls of the session and of drafts so far."""
        return self._session.draws_issued + (0 if self._speculation is None else self._speculation.draws_issued)

    def close(self, reason: str = "closed") -> None:
        """End the stream; calling it again does nothing."""
        if self.stats.finish_reason is None:
            self.stats.finish_reason = reason
            self.stats.complete = None if self._constraint is None else self._constraint.complete
            if self._waiting and not self._session.closed and self._session.ids == self._held:
                self._session.rewind(len(self._waiting))
            self._waiting.clear()
            if self._on_end is not None:
                self._on_end()


def require_complete(stats: GenerationStats, text: str | None = None) -> None:
    """Refuse a text that ended before it matched its structure.

    Raises:
        StructureError: has the ``text``.
    """
    if stats.complete is False and stats.finish_reason in ("length", "context"):
        raise StructureError(
            f"the text ends after {stats.tokens} tokens and does not match the requested structure; allow more "
            "max_tokens, or accept incomplete text with incomplete='partial'",
            text,
        )


class TextStream(OneStream, Iterator[str]):
    """An iterator over pieces of text, which consist of whole characters and exclude stop strings.

    ``stats`` and ``ids`` are those of its token stream; ``close()`` ends it early.
    """

    def __init__(
        self, tokens: TokenStream, tokenizer: Tokenizer, stop: str | Sequence[str] = (), *, whole: bool = False
    ) -> None:
        """Read ``tokens`` until the first ``stop`` string; ``whole`` as in :class:`TokenStream`."""
        self._whole, self._pieces = whole, list[str]()
        self._tokens, self._tokenizer = tokens, tokenizer
        self._assembler = TextAssembler(stop)
        self._done = False

    @property
    def stats(self) -> GenerationStats:  # type: ignore[override]
        """Counts and times so far."""
        return self._tokens.stats

    @property
    def chunk(self) -> int:
        """Tokens computed between two readbacks."""
        return self._tokens.chunk

    @chunk.setter
    def chunk(self, count: int) -> None:
        self._tokens.chunk = count

    @property
    def ids(self) -> list[int]:
        """The ids generated so far."""
        return self._tokens.ids

    def __next__(self) -> str:
        """The next piece, never empty."""
        while not self._done:
            token = next(self._tokens, None)
            if token is None:
                self._done = True
                piece = self._assembler.finish()
                if self._assembler.stopped and self.stats.finish_reason != "error":
                    # The start of a longer stop string was a shorter stop string.
                    self.stats.finish_reason = "stop"
            else:
                piece = self._assembler.push(self._tokenizer.token_bytes(token))
                if self._assembler.stopped:
                    self._done = True
                    self._tokens.close("stop")
            if piece:
                if self._whole:
                    self._pieces.append(piece)
                return piece
        if self._whole:
            require_complete(self.stats, "".join(self._pieces))
        raise StopIteration

    def close(self) -> None:
        """End the stream; calling it again does nothing."""
        self._done = True
        self._tokens.close()
