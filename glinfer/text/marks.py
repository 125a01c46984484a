"""Thoughts between marks such as ``<think>`` and ``</think>``, which a template names.

A mark is text: one token, or several, of which the first may begin and the last end with other text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from glinfer.text.tokenizer import Tokenizer

ReplyKind = Literal["thinking", "answer", "call"]
_THOUGHTS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<thought>", "</thought>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
# The marks around an answer, by what names them in a template: Granite's instructions; or control tokens of Hunyuan.
_RESPONSE, _ANSWER = ("<response>", "</response>"), ("<answer>", "</answer>")
_ANSWERS = {"<response></response>": _RESPONSE, "</answer>": _ANSWER, "<|extra_0|>": _ANSWER, "hy_Assistant": _ANSWER}


@dataclass(frozen=True)
class Marks:
    """The marks of a template.

    Attributes:
        opening, closing: the texts around thoughts.
        answer: the texts around an answer, which not every answer has; empty for none.
        control: the id of every control token by its text.
        bytes_of: the bytes of a token.
        ids_of: the tokens of a text within a reply.
    """

    opening: str
    closing: str
    answer: tuple[str, str]
    control: Mapping[str, int]
    bytes_of: Callable[[int], bytes]
    ids_of: Callable[[str], Iterable[int]]

    @property
    def are_text(self) -> bool:
        """Whether no mark is a control token."""
        return self.control.keys().isdisjoint((self.opening, self.closing))

    def space_after(self, prompt: Sequence[int]) -> bytes | None:
        """The white space after an opening mark that ends a prompt; None if none does."""
        end, mark = b"", self.opening.encode()
        for token in reversed(prompt):
            end = self.bytes_of(token) + end
            if len(end.strip()) >= len(mark):
                break
        text = end.rstrip()
        return end[len(text) :] if text.endswith(mark) else None

    def closed(self, prompt: Sequence[int]) -> list[int]:
        """The ids of a prompt; if they begin thoughts, these are empty, so that the answer begins at once."""
        ids = list(prompt)
        if self.space_after(ids) is None:
            return ids
        while self.bytes_of(ids[-1]).isspace():
            ids.pop()
        gap = "\n\n".removeprefix((self.space_after(ids) or b"").decode())
        mark = self.control.get(self.closing)
        if mark is None:
            return [*ids, *self.ids_of(f"{gap}{self.closing}\n\n")]
        return [*ids, *self.ids_of(gap), mark, *self.ids_of("\n\n")]


def marks_of(source: str, tokenizer: Tokenizer) -> Marks | None:
    """The marks that a template names: the first pair of which it has one text."""
    for opening, closing in _THOUGHTS:
        if opening in source or closing in source:
            answer = next((pair for named, pair in _ANSWERS.items() if named in source), ("", ""))
            control = tokenizer.control_tokens
            return Marks(opening, closing, answer, control, tokenizer.token_bytes, tokenizer.encode_plain)
    return None


class MarkedReply:
    """Sorts the tokens of a reply by its marks; those that may begin a mark are held back.

    An opening mark counts only where thoughts or an answer begin. White space after a mark is left out, and a token
    that a mark cuts is replaced by the tokens of its rest.
    """

    def __init__(self, marks: Marks, hidden: Collection[int], *, think: bool) -> None:
        """Start a reply; ``think`` is whether the prompt begins thoughts, and ``hidden`` tokens are not shown."""
        self._bytes_of, self._ids_of, self._hidden = marks.bytes_of, marks.ids_of, hidden
        opening, closing, first, last = (each.encode() for each in (marks.opening, marks.closing, *marks.answer))
        self._openings = tuple(mark for mark in (opening, first) if mark)
        # What follows a mark, and the marks that end it.
        ends: tuple[ReplyKind, tuple[bytes, ...]] = ("answer", ())
        self._after: Mapping[bytes, tuple[ReplyKind, tuple[bytes, ...]]] = {
            first: ("answer", (b"\n" + last, last)), closing: ends, last: ends, b"\n" + last: ends,
            opening: ("thinking", (closing,)),
        }  # fmt: skip
        self._kind, self._closings = self._after[opening if think else closing]
        # Whether thoughts or an answer have no text yet; whether a mark has come before.
        self._begins, self._marked = True, think
        self._held: list[tuple[bytes, int | None]] = []

    def push(self, token: int) -> list[tuple[ReplyKind, int]]:
        """Add a token, and return those that are now certain."""
        data = self._bytes_of(token)
        if not (self._begins or self._held or any(mark[:1] in data for mark in self._closings)):
            return [] if token in self._hidden else [(self._kind, token)]
        self._held += [(data, token)] if data else []
        shown: list[tuple[ReplyKind, int]] = []
        while True:
            size, mark = self._next()
            shown += self._taken(size)
            if not mark:
                return shown
            self._cut(len(mark))
            self._kind, self._closings = self._after[mark]
            self._begins = self._marked = True

    def finish(self) -> list[tuple[ReplyKind, int]]:
        """End the reply, and return the tokens that were held back."""
        return self._taken(sum(len(data) for data, _ in self._held))

    def _next(self) -> tuple[int, bytes]:
        """The number of held bytes before a mark, and the mark; empty if it is not complete, or there is none."""
        data = b"".join(data for data, _ in self._held)
        start = len(data) - len(data.lstrip()) if self._begins else None
        for at in range(len(data)):
            for mark in (*self._closings, *(self._openings if at == start else ())):
                if data.startswith(mark, at):
                    return at, mark
                if mark.startswith(data[at:]):
                    return at, b""
        return len(data), b""

    def _taken(self, size: int) -> list[tuple[ReplyKind, int]]:
        """Take bytes, and return the tokens to show."""
        shown: list[tuple[ReplyKind, int]] = []
        for data, token in self._cut(size):
            if token is None and self._begins and self._marked:
                data = data.lstrip()
            self._begins = self._begins and not data.strip()
            if not (self._begins and self._marked):
                ids = self._ids_of(data.decode(errors="replace")) if token is None else (token,)
                shown += ((self._kind, each) for each in ids if each not in self._hidden)
        return shown

    def _cut(self, size: int) -> list[tuple[bytes, int | None]]:
        """Take bytes off the held tokens; a token that they cut has no id any more."""
        found: list[tuple[bytes, int | None]] = []
        while size:
            data, token = self._held.pop(0)
            if len(data) > size:
                self._held.insert(0, (data[size:], None))
                data, token = data[:size], None
            found.append((data, token))
            size -= len(data)
        return found
