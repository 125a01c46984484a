"""Gab's chat form, kept as token ids so that no message can forge a control token.

One turn is ``<|user|>MESSAGE<|end|><|assistant|>REPLY<|end|>``; the model is prompted up to ``<|assistant|>``
and generates until ``<|end|>``. To let it think first, ``<|think|>`` stands in place of ``<|assistant|>``:
the model writes its thoughts, then ``<|assistant|>`` by itself, then the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from glinfer.errors import InputError

ReplyKind = Literal["thinking", "answer"]


class ChatTokenizer(Protocol):
    """What chat needs of a tokenizer."""

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """The id of every control token by its text."""
        ...

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Token ids of ``text``; without ``allow_special`` no control token, whatever it spells."""
        ...


@dataclass(frozen=True)
class Turn:
    """One finished exchange, without its control tokens: what the user said and what was answered."""

    user_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]


@dataclass(frozen=True)
class ChatPrompt:
    """Token ids to run, and how many of the oldest turns had to be left out to make them fit."""

    ids: tuple[int, ...]
    dropped_turns: int


class ChatTemplate:
    """The ids of the control tokens, and how a turn is put together from them.

    Attributes:
        user, end, assistant: ids of ``<|user|>``, ``<|end|>``, ``<|assistant|>``.
        think: id of ``<|think|>``, or None where the vocabulary has none.
        stop_ids: tokens that end a reply: ``<|end|>``, and ``<|user|>`` because a model which goes on to
            speak for the user has finished its own part.
        control_ids: every control token of the vocabulary.

    Raises:
        InputError: the vocabulary lacks one of the three tokens that chat needs.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        """Look the control tokens up in ``tokenizer``."""
        self._tokenizer = tokenizer
        self.user = self._required("<|user|>")
        self.end = self._required("<|end|>")
        self.assistant = self._required("<|assistant|>")
        self.think = tokenizer.control_tokens.get("<|think|>")
        self.stop_ids = (self.end, self.user)
        self.control_ids = frozenset(tokenizer.control_tokens.values())

    def _required(self, text: str) -> int:
        found = self._tokenizer.control_tokens.get(text)
        if found is None:
            raise InputError(f"this tokenizer cannot chat: it has no {text} token; use a chat model's tokenizer")
        return found

    def encode_message(self, message: str) -> tuple[int, ...]:
        """Token ids of a user's message, by itself and with no control token among them.

        Raises:
            InputError: the message is empty, is not text, or has no UTF-8 form.
        """
        if not isinstance(message, str):
            raise InputError(f"the message is a {type(message).__name__}; expected text")
        if not message:
            raise InputError("the message is empty; expected at least one character")
        try:
            message.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"the message has half a surrogate pair at character {error.start}; expected valid Unicode"
            ) from None
        ids = tuple(self._tokenizer.encode(message, allow_special=False))
        if not self.control_ids.isdisjoint(ids):
            raise InputError("the tokenizer made a control token from the message's text; chat needs one that can not")
        return ids

    def opening(self, user_ids: Iterable[int], *, think: bool = False) -> tuple[int, ...]:
        """Everything up to where the model writes: ``<|user|>…<|end|><|assistant|>`` (or ``<|think|>``).

        Raises:
            InputError: thinking is asked of a vocabulary without ``<|think|>``.
        """
        if think and self.think is None:
            raise InputError("this tokenizer has no <|think|> token; chat without thinking")
        answer = self.think if think and self.think is not None else self.assistant
        return (self.user, *user_ids, self.end, answer)

    def finished(self, turn: Turn) -> tuple[int, ...]:
        """A whole past turn, always in the plain form: ``<|user|>…<|end|><|assistant|>…<|end|>``."""
        return (*self.opening(turn.user_ids), *turn.reply_ids, self.end)


class ReplySplitter:
    """Says of each generated token, as it comes, whether it is thinking, answer or neither.

    ``<|think|>`` switches to thinking and ``<|assistant|>`` to the answer, wherever the model writes them;
    a token of ``stop_ids`` ends the reply. Control tokens and all that follows the end are neither.
    """

    def __init__(self, template: ChatTemplate, *, think: bool = False) -> None:
        """Start a reply; ``think`` as in the prompt that it answers."""
        self._template = template
        self._kind: ReplyKind = "thinking" if think else "answer"
        self._done = False

    @property
    def done(self) -> bool:
        """Whether the reply has ended by itself."""
        return self._done

    def push(self, token: int) -> ReplyKind | None:
        """What the next generated token belongs to; None for a token not to be shown."""
        self._done = self._done or token in self._template.stop_ids
        if token == self._template.think:
            self._kind = "thinking"
        elif token == self._template.assistant:
            self._kind = "answer"
        return None if self._done or token in self._template.control_ids else self._kind


def split_reply(
    template: ChatTemplate, ids: Iterable[int], *, think: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split a whole reply into (thinking ids, answer ids) by the rules of :class:`ReplySplitter`."""
    splitter = ReplySplitter(template, think=think)
    kinds = [(splitter.push(token), token) for token in ids]
    thinking = tuple(token for kind, token in kinds if kind == "thinking")
    return thinking, tuple(token for kind, token in kinds if kind == "answer")


class Conversation:
    """The turns so far, and prompts made from as many of the newest as fit the model's context.

    Args:
        template: the control tokens.
        context: how many tokens the model can hold, prompt and reply together.

    Raises:
        InputError: ``context`` is not a whole number of at least 1.
    """

    def __init__(self, template: ChatTemplate, context: int) -> None:
        """Start with no turns."""
        self._template = template
        self._context = _whole("context", context, least=1)
        self._turns: list[Turn] = []
        self._open: _OpenTurn | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished turns that are still remembered, oldest first."""
        return tuple(self._turns)

    def prompt(self, message: str, *, think: bool = False, reserve: int) -> ChatPrompt:
        """The ids to run for ``message``: past turns, the message, and the token that opens the reply.

        The oldest turns are left out, whole, until the ids and ``reserve`` tokens for the reply fit the
        context. Nothing is forgotten before :meth:`add_reply`: until then another prompt takes this one's
        place, as if this one had not been.

        Raises:
            InputError: the message is empty, or alone it does not fit; thinking is not known to the
                vocabulary; ``reserve`` is not a whole number of at least 0.
        """
        room = self._context - _whole("reserve", reserve, least=0)
        user_ids = self._template.encode_message(message)
        newest = self._template.opening(user_ids, think=think)
        if len(newest) > room:
            raise InputError(
                f"the message takes {len(newest)} tokens and {reserve} are reserved for the reply, but the "
                f"context holds {self._context}; shorten the message or reserve less"
            )
        room -= len(newest)
        past: list[tuple[int, ...]] = []
        for turn in reversed(self._turns):
            ids = self._template.finished(turn)
            room -= len(ids)
            if room < 0:
                break
            past.append(ids)
        dropped = len(self._turns) - len(past)
        self._open = _OpenTurn(user_ids, think, dropped)
        return ChatPrompt((*(token for ids in reversed(past) for token in ids), *newest), dropped)

    def add_reply(self, ids: Iterable[int]) -> Turn:
        """Complete the turn that :meth:`prompt` opened with the tokens that the model generated.

        Only the answer is remembered, so that later prompts have the plain form: a stop token and what
        follows it are cut, control tokens are left out, and of a thinking reply only what follows the
        model's own ``<|assistant|>`` stays. A reply that never came to its answer is remembered as empty.
        Turns that the prompt left out are forgotten now.

        Raises:
            InputError: no prompt is open, or an id is not a whole number of at least 0.
        """
        if self._open is None:
            raise InputError("there is no open turn to reply to; ask for a prompt first")
        checked = [_whole("a token of the reply", token, least=0) for token in ids]
        _, answer = split_reply(self._template, checked, think=self._open.think)
        turn = Turn(self._open.user_ids, answer)
        self._turns = [*self._turns[self._open.dropped :], turn]
        self._open = None
        return turn

    def reset(self) -> None:
        """Forget all turns, the open one too."""
        self._turns = []
        self._open = None


@dataclass(frozen=True)
class _OpenTurn:
    """A prompt that waits for its reply."""

    user_ids: tuple[int, ...]
    think: bool
    dropped: int


def _whole(name: str, value: object, *, least: int) -> int:
    """``value`` as an int if it is a whole number of at least ``least``."""
    expected = f"expected a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{name} is a {type(value).__name__}; {expected}")
    if value < least:
        raise InputError(f"{name} is {value}; {expected}")
    return int(value)
