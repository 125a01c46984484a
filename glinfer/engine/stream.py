"""Streams of generated token ids and of their text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

from glinfer.closing import Closing
from glinfer.engine.ids import check_callback, check_count
from glinfer.engine.requests import Running
from glinfer.engine.run.alone import Alone
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.run.drafts import Speculation
from glinfer.engine.run.stats import GenerationStats, require_complete
from glinfer.engine.scheduler import Scheduler
from glinfer.errors import ContextError, counted
from glinfer.text.reply import ChatPart, ReplyAssembler
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = 8
"""Tokens that the GPU may choose between two readbacks when a stream is read as a whole."""


class GeneratedText(str):
    """A generated text: a string with its counts and times in ``stats``, see :class:`GenerationStats`."""

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


def read_whole(stream: TextStream | TokenStream) -> GeneratedText | list[int]:
    """Read a stream to its end with few readbacks: its text, or its ids."""
    stream.chunk = CHUNK
    if isinstance(stream, TextStream):
        return GeneratedText("".join(stream), stream.stats)
    return list(stream)


class OneStream(Closing):
    """The base class of streams of ids, of text and of chats."""

    stats: GenerationStats

    def __repr__(self) -> str:
        """The number of tokens so far, and the finish reason."""
        stats = self.stats
        return f"<{type(self).__name__}: {counted(stats.tokens, 'token')}, {stats.finish_reason or 'unfinished'}>"

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
        row: Running,
        *,
        on_end: Callable[[], None] | None = None,
        speculation: Speculation | None = None,
        whole: bool = False,
    ) -> None:
        """Prepare to run ``session``, which other streams may use between two tokens, from the first ``next()`` on.

        Args:
            row: the checked request, without a ``reply``; its stop ids are not yielded.
            on_end: called once when the stream ends, for any reason.
            speculation: drafts tokens, to compute several at once; not together with a constraint.
            whole: whether to raise StructureError if the text ends before it matches its structure.
        """
        self._alone, self._seconds = Alone(session, speculation), 0.0
        self._follow(row, row.stats, on_end, whole=whole)

    def _follow(self, row: Running, stats: GenerationStats, on_end: Callable[[], None] | None, *, whole: bool) -> None:
        check_callback("on_end", on_end)
        self.ids, self.stats, self._row, self._on_end, self._whole = list[int](), stats, row, on_end, whole
        # New ids that were not yielded yet.
        self._waiting, self._over = deque[int](), False

    @cached_property
    def _scheduler(self) -> Scheduler:
        row = self._row
        made = Scheduler(self._alone, lambda _: row, lambda: None)
        made.add(row)
        return made

    @property
    def chunk(self) -> int:
        """Tokens computed between two readbacks."""
        return self._row.chunk

    @chunk.setter
    def chunk(self, count: SupportsIndex) -> None:
        self._row.chunk = check_count("chunk", count)

    def __next__(self) -> int:
        """The next generated id."""
        while not self._waiting and self.stats.finish_reason is None:
            try:
                self._compute()
            except BlockingIOError:
                raise
            except BaseException as error:
                self.close("closed" if isinstance(error, KeyboardInterrupt) else "error")
                raise
        if self._waiting:
            self.ids.append(self._waiting.popleft())
            return self.ids[-1]
        self.close()
        if self._whole:
            require_complete(self.stats)
        raise StopIteration

    def _compute(self) -> None:
        """Run one step of the sequence."""
        started = time.perf_counter()
        try:
            for event in self._scheduler.next():
                self._waiting.extend(event.ids)
        finally:
            self._seconds += time.perf_counter() - started
            self.stats.seconds = self._seconds - self.stats.prompt_seconds
        if self._row.error is not None:
            raise self._row.error

    def close(self, reason: str = "closed") -> None:
        """End the stream; calling it again does nothing."""
        if not self._over:
            self._over = True
            if self.stats.finish_reason in (None, "closed") or self._waiting or reason != "closed":
                self._stop(reason)
            if self._on_end is not None:
                self._on_end()

    def _stop(self, reason: str) -> None:
        self.stats.tokens -= len(self._waiting)
        self._waiting.clear()
        self._row.end(reason)
        self._alone.leave(self._row)


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
                self._cut()
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
            self._cut()

    def _cut(self) -> None:
        """Note that a stop string has shortened the text, which no longer matches its structure."""
        if self.stats.complete:
            self.stats.complete = False


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
