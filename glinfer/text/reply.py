"""Text from generated tokens: thoughts and answer apart, control tokens left out, stop strings found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glinfer.text.assembler import TextAssembler
from glinfer.text.chat import ReplyKind, ReplySplitter
from glinfer.text.tokenizer import Tokenizer


class ChatPart(NamedTuple):
    """A piece of a reply: text that belongs to the thoughts before the answer, or to the answer."""

    kind: ReplyKind
    text: str


class ReplyAssembler:
    """Collects generated tokens, and hands out text as soon as it is certain, see :class:`TextAssembler`.

    Stop strings end the answer; thoughts may have them.

    Raises:
        InputError: ``stop`` is neither a non-empty string nor a sequence of them.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: str | Sequence[str] = (), splitter: ReplySplitter | None = None
    ) -> None:
        """Start with no text; without ``splitter`` every token belongs to the answer."""
        self._tokenizer, self._stop, self._splitter = tokenizer, stop, splitter
        self._kind: ReplyKind = "answer"
        self._assembler = TextAssembler(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been found; everything after it is ignored."""
        return self._assembler.stopped

    def push(self, token: int) -> list[ChatPart]:
        """Add a token; returns the new text that can be shown now, often none."""
        kind = "answer" if self._splitter is None else self._splitter.push(token)
        if kind is None:
            return []
        parts = []
        if kind != self._kind:
            parts = self.finish()
            self._kind = kind
            self._assembler = TextAssembler(self._stop if kind == "answer" else ())
        return [*parts, *self._part(self._assembler.push(self._tokenizer.token_bytes(token)))]

    def finish(self) -> list[ChatPart]:
        """End the text; returns what was still held back."""
        return self._part(self._assembler.finish())

    def _part(self, text: str) -> list[ChatPart]:
        return [ChatPart(self._kind, text)] if text else []
