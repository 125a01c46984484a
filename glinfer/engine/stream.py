"""Streams of generated token ids and of their text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from glinfer.closing import Closing
from glinfer.engine.ids import check_callback, check_count
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.run.drafts import Speculation
from glinfer.engine.run.stats import GenerationStats, require_complete
from glinfer.engine.sampler import OwnSampler, SamplingOptions
from glinfer.errors import ContextError
from glinfer.structured.constraint import Constraint, DeadEnd
from glinfer.text.reply import ChatPart, ReplyAssembler
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = 8
"""Tokens that the GPU may choose between two readbacks when a stream is read as a whole."""


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
        sampler: OwnSampler | None = None,
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
        self._row = Running(
            BatchRequest(prompt),
            list(prompt),
            options,
            check_count("max_tokens", max_tokens),
            frozenset(stop_ids),
            constraint=constraint,
            adapter=adapter,
            keep=keep,
            own_sampler=sampler,
        )
        self.ids, self.stats, self.chunk = self._row.ids, self._row.stats, 1
        self._session, self._on_end, self._speculation, self._whole = session, on_end, speculation, whole
        # Computed tokens that were not yielded yet: the last ones that the session holds.
        self._waiting = deque[int]()
        # Whether the last tokens were forced; ``draws`` then includes the draws that their run saves.
        self._after_forced = self._over = False
        self._by_gpu = sampler is None and session.chooses(options)

    @property
    def chunk(self) -> int:
        """Tokens computed between two readbacks."""
        return self._chunk

    @chunk.setter
    def chunk(self, count: SupportsIndex) -> None:
        self._chunk = check_count("chunk", count)

    def __next__(self) -> int:
        """The next generated id."""
        if not self._waiting and self.stats.finish_reason is None:
            try:
                self._compute()
            except BlockingIOError:
                raise
            except BaseException as error:
                self.close("closed" if isinstance(error, KeyboardInterrupt) else "error")
                raise
        if self._waiting and self._take(self._waiting.popleft()):
            return self.ids[-1]
        self.close()
        if self._whole:
            require_complete(self.stats)
        raise StopIteration

    def _take(self, token: int) -> bool:
        """Append a computed token; returns whether to yield it."""
        row = self._row
        row.stats.surplus -= 1
        row.take(token, more=len(self._waiting))
        if row.ended:
            self._forget_waiting()
        return token not in row.stop_ids

    def _forget_waiting(self) -> None:
        session, waiting = self._session, list(self._waiting)
        if waiting and not session.closed and session.ids == [*self._row.held, *waiting]:
            session.rewind(len(waiting))
        self._waiting.clear()

    def _compute(self) -> None:
        """Choose the next tokens, at most a chunk or a draft, without exceeding the context."""
        session, row, stats = self._session, self._row, self.stats
        started, draws, dropped = time.perf_counter(), self._draws, session.dropped
        before, forced = (session.draws_saved, session.drafted, session.accepted), stats.forced
        session.use_adapter(row.adapter)
        session.keep = row.keep
        session.hold(row.held)
        read, read_draws = time.perf_counter(), self._draws
        chunk, most = self.chunk if self._by_gpu else 1, min(row.max_tokens - stats.tokens, session.room)
        stats.prompt_seconds += read - started
        stats.prompt_draws += read_draws - draws
        ready = read_draws == draws  # otherwise the prompt is still running
        try:
            self._waiting.extend(self._chosen(session, most, chunk, ready=ready))
        finally:  # issued draws count even if they chose no token
            stats.seconds += time.perf_counter() - read
            stats.draws += self._draws - read_draws
            stats.draws_saved += 0 if ready and self._after_forced else session.draws_saved - before[0]
            self._after_forced = stats.forced > forced
            stats.drafted += session.drafted - before[1]
            stats.accepted += session.accepted - before[2]
        stats.surplus += len(self._waiting)
        if session.dropped != dropped:
            stats.dropped += session.dropped - dropped
            row.held = session.ids[: len(session) - len(self._waiting)]

    def _chosen(self, session: DecodeSession, most: int, chunk: int, *, ready: bool) -> list[int]:
        """Choose 1 to ``most`` tokens, or end the sequence."""
        row, constraint = self._row, self._row.constraint
        if constraint is None:
            if self._speculation is None:
                return session.generate_ids(min(chunk, most), row.sampler)
            return self._speculation.choose(session, session.ids, row.sampler, most=most, chunk=chunk, ready=ready)
        forced = constraint.forced(min(most, session.room - 1))  # leaves room for a chosen token
        if forced:
            session.prefill(forced)
            row.sampler.step += len(forced)  # each token has noise of its own, chosen or not
            row.stats.forced += len(forced)
            return forced
        try:
            token = session.choose_allowed(constraint.mask, row.sampler)
        except DeadEnd:
            row.end("length")
            return []
        constraint.push(token)
        return [token]

    @property
    def _draws(self) -> int:
        """Draw calls of the session and of drafts so far."""
        return self._session.draws_issued + (0 if self._speculation is None else self._speculation.draws_issued)

    def close(self, reason: str = "closed") -> None:
        """End the stream; calling it again does nothing."""
        if not self._over:
            self._over = True
            if self.stats.finish_reason is None or self._waiting or reason == "stop":
                self._stop(reason)
            if self._on_end is not None:
                self._on_end()

    def _stop(self, reason: str) -> None:
        self._row.end(reason)
        self._forget_waiting()


class PartStream(OneStream, Iterator[str]):
    """The base class of streams of text and of chats: pieces of whole characters, without stop strings."""

    def _read(self, tokens: TokenStream, reply: ReplyAssembler, *, whole: bool) -> None:
        """Read ``tokens``; ``whole`` as in :class:`TokenStream`."""
        self.text = self.thinking = ""
        self._tokens, self._reply, self._whole = tokens, reply, whole
        self._parts, self._done = deque[ChatPart](), False

    @property
    def stats(self) -> GenerationStats:  # type: ignore[override]
        """Counts and times so far; ``finish_reason`` of a chat is ``context`` if the context was full."""
        return self._tokens.stats

    @property
    def ids(self) -> list[int]:
        """The ids generated so far, including those of thoughts and control tokens."""
        return self._tokens.ids

    def __next__(self) -> str:
        """The next piece of the text or answer, never empty."""
        while (part := self._next_part()) is not None:
            if part.kind == "answer":
                return part.text
        raise StopIteration

    def _next_part(self) -> ChatPart | None:
        while not self._parts and not self._done:
            token = next(self._tokens, None)
            if token is None:
                self._end()
                continue
            self._parts += self._reply.push(token)
            if self._reply.stopped:
                self._done = True
                self._tokens.close("stop")
        if not self._parts:
            if self._whole:
                require_complete(self.stats, self.text)
            return None
        part = self._parts.popleft()
        if part.kind == "answer":
            self.text += part.text
        else:
            self.thinking += part.text
        return part

    def _end(self) -> None:
        self._done = True
        self._parts += self._reply.finish()
        if self._reply.stopped and self.stats.finish_reason != "error":
            # The start of a longer stop string was a shorter stop string.
            self.stats.finish_reason = "stop"


class TextStream(PartStream):
    """An iterator over pieces of text, which consist of whole characters and exclude stop strings.

    ``stats`` and ``ids`` are those of its token stream; ``close()`` ends it early.
    """

    def __init__(
        self, tokens: TokenStream, tokenizer: Tokenizer, stop: str | Sequence[str] = (), *, whole: bool = False
    ) -> None:
        """Read ``tokens`` until the first ``stop`` string; ``whole`` as in :class:`TokenStream`."""
        self._read(tokens, ReplyAssembler(tokenizer, stop), whole=whole)

    @property
    def chunk(self) -> int:
        """Tokens computed between two readbacks."""
        return self._tokens.chunk

    @chunk.setter
    def chunk(self, count: int) -> None:
        self._tokens.chunk = count

    def close(self) -> None:
        """End the stream; calling it again does nothing."""
        self._done = True
        self._tokens.close()
