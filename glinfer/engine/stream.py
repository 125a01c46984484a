"""Text out of a token stream, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glinfer.engine.loop import GenerationStats, TokenStream
from glinfer.text.assembler import TextAssembler
from glinfer.text.tokenizer import Tokenizer


class TextStream:
    """An iterator over pieces of text: whole characters, each as soon as it is certain, no stop string.

    ``stats`` and ``ids`` are those of the token stream below; ``close()`` ends it early.
    """

    def __init__(self, tokens: TokenStream, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """Read ``tokens``; end at the first of the ``stop`` strings."""
        self._tokens, self._tokenizer = tokens, tokenizer
        self._assembler = TextAssembler(stop)
        self._done = False

    @property
    def stats(self) -> GenerationStats:
        """Counts and times so far."""
        return self._tokens.stats

    @property
    def chunk(self) -> int:
        """How many tokens are computed at once; see the token stream."""
        return self._tokens.chunk

    @chunk.setter
    def chunk(self, count: int) -> None:
        self._tokens.chunk = count

    @property
    def ids(self) -> list[int]:
        """The ids generated so far."""
        return self._tokens.ids

    def __iter__(self) -> Iterator[str]:
        """Iterate over what is still to come."""
        return self

    def __next__(self) -> str:
        """The next piece, never empty."""
        while not self._done:
            token = next(self._tokens, None)
            if token is None:
                self._done = True
                piece = self._assembler.finish()
                if self._assembler.stopped and self.stats.finish_reason != "error":
                    # What was held back as the start of a longer stop string turned out to be a shorter one.
                    self.stats.finish_reason = "stop"
            else:
                piece = self._assembler.push(self._tokenizer.token_bytes(token))
                if self._assembler.stopped:
                    self._done = True
                    self._tokens.close("stop")
            if piece:
                return piece
        raise StopIteration

    def close(self) -> None:
        """End the stream; harmless when repeated."""
        self._done = True
        self._tokens.close()

    def __enter__(self) -> TextStream:
        """Use as a context manager: closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
