"""Text from generated tokens: split into thoughts, answer and calls, without control tokens, cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glinfer.text.assembler import TextAssembler
from glinfer.text.chat import ReplySplitter
from glinfer.text.marks import ReplyKind
from glinfer.text.tokenizer import Tokenizer


class ChatPart(NamedTuple):
    """A piece of a reply: text of the thoughts, of the answer, or of a call's arguments.

    A call begins with a piece of empty text whose ``name`` is the tool's.
    """

    kind: ReplyKind
    text: str
    name: str = ""


class ReplyAssembler:
    """Collects generated tokens and hands out text as soon as it is certain; see :class:`TextAssembler`.

    Stop strings end the answer; thoughts and calls may contain them. White space at the end of thoughts is left out.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: str | Sequence[str] = (), splitter: ReplySplitter | None = None
    ) -> None:
        """Start with no text; without ``splitter`` every token belongs to the answer."""
        self._tokenizer, self._stop, self._splitter = tokenizer, stop, splitter
        self._kind: ReplyKind = "answer"
        self._space = ""  # white space that may end the thoughts
        self._assembler = TextAssembler(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; everything after it is ignored."""
        return self._assembler.stopped

    @property
    def decides(self) -> bool:
        """Whether a token can end the text or begin a call, so that no token may wait."""
        return bool(self._stop) or self._splitter is not None

    def push(self, *tokens: int) -> list[ChatPart]:
        """Add tokens and return the text that is now certain, often none."""
        if self._splitter is None:
            return self._add("answer", *tokens)
        parts = list[ChatPart]()
        for token in tokens:
            before = len(self._splitter.calls)
            parts += [part for shown in self._splitter.push(token) for part in self._add(*shown)]
            if len(self._splitter.calls) > before:
                parts += [*self._begin("call"), ChatPart("call", "", self._splitter.calls[-1])]
        return parts

    def finish(self) -> list[ChatPart]:
        """End the text and return the rest that was held back."""
        held = () if self._splitter is None else self._splitter.finish()
        return [*(part for shown in held for part in self._add(*shown)), *self._part(self._assembler.finish())]

    def _add(self, kind: ReplyKind, *tokens: int) -> list[ChatPart]:
        parts = [] if kind == self._kind else self._begin(kind)
        return [*parts, *self._part(self._assembler.push(b"".join(map(self._tokenizer.token_bytes, tokens))))]

    def _begin(self, kind: ReplyKind) -> list[ChatPart]:
        """Begin text of another kind, and return the held rest of the last one."""
        parts = self._part(self._assembler.finish())
        self._space = ""
        self._kind, self._assembler = kind, TextAssembler(self._stop if kind == "answer" else ())
        return parts

    def _part(self, text: str) -> list[ChatPart]:
        if self._kind == "thinking":
            whole = self._space + text
            text = whole.rstrip()
            self._space = whole[len(text) :]
        return [ChatPart(self._kind, text)] if text else []
