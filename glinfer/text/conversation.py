"""The turns of a conversation, and prompts from as many of the newest turns as fit the model's context."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from glinfer.errors import InputError
from glinfer.text.chat import ChatForm, Turn, given_turn, split_reply
from glinfer.text.templates import Message


@dataclass(frozen=True)
class ChatPrompt:
    """The token ids of a prompt, the number of oldest turns dropped to make it fit, and whether it begins thoughts."""

    ids: tuple[int, ...]
    dropped_turns: int
    think: bool = False


class Conversation:
    """The turns so far, and prompts from as many of the newest turns as fit the model's context.

    Args:
        template: the model's chat form; assign another one to change it.
        context: the model's context length in tokens, for prompt and reply together.
    """

    def __init__(self, template: ChatForm, context: int) -> None:
        """Start with no turns."""
        self.template = template
        self._context = context
        self._turns: list[Turn] = []
        # A turn without its reply, whether it thinks, and the earlier turns in its prompt.
        self._open: tuple[Turn, bool, Sequence[Turn]] | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished turns that are still remembered, oldest first."""
        return tuple(self._turns)

    @property
    def messages(self) -> list[Message]:
        """The finished turns that are still remembered as messages, oldest first."""
        return self.template.messages_of(self._turns)

    def restore(self, exchanges: Iterable[tuple[str, str]]) -> None:
        """Replace all turns by pairs of a user's message and its reply."""
        self._turns, self._open = [given_turn(self.template, *each) for each in exchanges], None

    def prompt(
        self, message: str, *, think: bool = False, reserve: int, drop: bool = True, structured: bool = False
    ) -> ChatPrompt:
        """The ids to run for ``message``: past turns, the message, and the token that opens the reply.

        The oldest whole turns are left out until the ids and ``reserve`` tokens for the reply fit the context.
        Turns are forgotten only by :meth:`add_reply`; until then, another prompt replaces this one. Without
        ``drop``, turns that do not fit are an error. ``structured`` leaves no thoughts open.

        Raises:
            InputError: the message is empty, or the ids do not fit; the vocabulary has no thinking token; a
                Jinja template refuses the conversation.
        """
        newest = Turn(self.template.encode_message(message), (), message)
        return self._prompt(self._turns, newest, think=think, reserve=reserve, drop=drop, structured=structured)

    def prompt_again(
        self,
        *,
        think: bool = False,
        reserve: int,
        drop: bool = True,
        continued: bool = False,
        structured: bool = False,
    ) -> ChatPrompt:
        """The ids to run for another reply to the newest message; :meth:`add_reply` then replaces the first reply.

        With ``continued`` the ids end with the first reply, and :meth:`add_reply` extends it.
        """
        if not self._turns:
            raise InputError("there is no reply yet; send a message first")
        *past, last = self._turns
        newest = last if continued else dataclasses.replace(last, reply_ids=(), reply=None)
        return self._prompt(past, newest, think=think, reserve=reserve, drop=drop, structured=structured)

    def _prompt(
        self, past: Sequence[Turn], newest: Turn, *, think: bool, reserve: int, drop: bool, structured: bool
    ) -> ChatPrompt:
        room = self._context - reserve
        for dropped in range(len(past) + 1 if drop else 1):
            ids = self.template.prompt(past[dropped:], newest, think=think)
            ids = tuple(self.template.without_thoughts(ids)) if structured else ids
            if len(ids) <= room:
                think = think or self.template.begins_thoughts(ids)
                self._open = newest, think, past[dropped:]
                return ChatPrompt(ids, dropped, think)
        what, mend = "message takes", "shorten the message" + " or ask for a shorter reply" * (reserve > 1)
        if not drop and past:
            what, mend = "messages take", "leave the oldest ones out"
        raise InputError(
            f"the {what} {len(ids)} tokens and the reply at least {reserve}, but the "
            f"context holds {self._context}; {mend}"
        )

    def add_reply(self, ids: Iterable[int]) -> Turn:
        """Complete the turn that :meth:`prompt` opened, with the generated tokens.

        Only the answer is remembered: without the stop token and anything after it, without control tokens, and
        without thoughts. Thoughts end at the model's ``<|assistant|>`` (``</think>``); a reply that ends before it
        is remembered as empty. Turns that the prompt left out are forgotten now.
        """
        if self._open is None:
            raise InputError("there is no open turn to reply to; ask for a prompt first")
        begun, think, past = self._open
        _, answer = split_reply(self.template, ids, think=think)
        turn = dataclasses.replace(begun, reply_ids=(*begun.reply_ids, *answer), reply=None)
        self._turns, self._open = [*past, turn], None
        return turn

    def reset(self) -> None:
        """Forget all turns, including the open one."""
        self._turns, self._open = [], None
