"""Conversations as token ids, in which no message can forge a control token: Gab's own form, and Jinja templates.

docs/formats.md describes Gab's form. OpenAI's harmony template has messages in channels:
``<|channel|>analysis<|message|>``, thoughts, ``<|end|>``, ``<|start|>assistant<|channel|>final<|message|>``, answer.
The header of a message, from ``<|start|>`` or ``<|channel|>`` to ``<|message|>``, is not shown. A message in the
channel ``final``, or without a channel, is the answer; in any other channel it is thoughts. A recipient in the header,
``to=functions.NAME`` before or after the channel, makes the message a call. The prompt ends inside a header,
``<|start|>assistant``, which the reply may continue. Gemma 4 writes thoughts from ``<|channel>thought`` and a line
break to ``<channel|>``, and the answer outside. Many models begin a reply, or their template ends the prompt, with
``<think>``; thoughts then end at ``</think>``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import InputError, OptionError
from glinfer.families.settings import quoted
from glinfer.formats import find_model
from glinfer.formats.files import AnyPath
from glinfer.text.marks import MarkedReply, Marks, ReplyKind, marks_of
from glinfer.text.stops import default_stops
from glinfer.text.templates import NO_KWARGS, OPEN, Check, JinjaTemplate, Message, Rendering, Tools, find_template
from glinfer.text.tokenizer import Tokenizer, encodable

_END_OF_TEXT = "<|endoftext|>"
_NO_SYSTEM = "this model's chat form does not support a system prompt; leave it out"
_NO_TOOLS = "this model's chat form does not support tools; leave them out"
_NO_KWARGS = "this model's chat form has no template; leave its arguments out"
_NOT_LAST = "the last message is not a text of the assistant's; to continue a message, put the assistant's last"
_TOOL_FIELDS = frozenset({"tool_calls", "tool_call_id", "name", "thinking", "reasoning_content"})
_CHANNEL_TOKENS = ("<|start|>", "<|channel|>", "<|message|>")
_CHANNEL_ENDS = ("<|channel>", "<channel|>")
_CALL_TOKENS = ("<|tool_call>", "<tool_call|>", '<|"|>')
_AFTER_CALLS = "<|tool_response>"
_FINAL = "final"
_RECIPIENT = "to="
_CALLED = re.compile(r"(?:^|\s)to=functions\.([\w.-]+)", re.ASCII)
_CHAT_TOKENS = ("<|user|>", "<|end|>", "<|assistant|>")


@dataclass(frozen=True)
class Turn:
    """A user's message and the reply, without control tokens.

    ``message`` is the text of the user's message, for Jinja templates; ``reply`` is the text of a reply that was given
    rather than generated.
    """

    user_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    message: str = field(default="", compare=False)
    reply: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Channels:
    """The control tokens of messages in channels.

    Attributes:
        start, channel, message: ids of ``<|start|>``, ``<|channel|>`` and ``<|message|>``.
        opens: whether the prompt ends inside a header, which a reply may continue.
    """

    start: int
    channel: int
    message: int
    decode: Callable[[Iterable[int]], str]
    opens: bool = True

    def read(self, header: Sequence[int]) -> tuple[ReplyKind, str]:
        """The kind of a message by the ids of its header, and the name of the tool that it calls, or ""."""
        at = max((index for index, token in enumerate(header) if token == self.channel), default=len(header))
        before, behind = self.decode(header[:at]), self.decode(header[at + 1 :])
        called = _CALLED.search(before) or _CALLED.search(behind)
        named = re.match(r"\s*(\w*)", behind) if at < len(header) else None
        kind: ReplyKind = "answer" if named is None or named[1] == _FINAL else "thinking"
        return kind, "" if called is None else called[1]


@dataclass(frozen=True)
class CallTokens:
    """The control tokens of calls within a reply: ids of ``<|tool_call>``, ``<tool_call|>`` and ``<|"|>``."""

    opening: int
    closing: int
    quote: int
    decode: Callable[[Iterable[int]], str]


class ChatForm(ABC):
    """The chat form of a model: it makes prompts from conversations, and names the control tokens of replies.

    Attributes:
        control_ids: every control token of the vocabulary.
        stop_ids: tokens that end a reply.
        think: the token that begins the model's thoughts, or None.
        answer: the token between the model's thoughts and its answer, or None.
        no_think: the reason why ``think`` is None.
        marks: the texts around thoughts at the beginning of a reply, or None.
        channels: the tokens of messages in channels, or None.
        call_tokens: the tokens of calls within a reply, or None.
        template_source: the source of the form's Jinja template if it uses tools, else "".
    """

    stop_ids: tuple[int, ...]
    think: int | None = None
    answer: int | None = None
    no_think: str
    marks: Marks | None = None
    channels: Channels | None = None
    call_tokens: CallTokens | None = None
    template_source = ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Look the control tokens up in ``tokenizer``."""
        self._tokenizer = tokenizer
        self.control_ids = frozenset(tokenizer.control_tokens.values())

    def encode_message(self, message: str) -> tuple[int, ...]:
        """Token ids of a user's message alone, without control tokens.

        Raises:
            InputError: the message is empty, is not text, or has no UTF-8 form.
        """
        if message == "":
            raise InputError("the message is empty; expected at least one character")
        return tuple(self._tokenizer.encode(encodable(message, "the message"), allow_special=False))

    def begins_thoughts(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the mark that begins thoughts, and perhaps white space."""
        return self.marks is not None and self.marks.space_after(prompt) is not None

    def without_thoughts(self, prompt: Sequence[int]) -> list[int]:
        """The ids of a prompt; if they begin thoughts, these are empty, so that the answer begins at once."""
        return list(prompt) if self.marks is None else self.marks.closed(prompt)

    @abstractmethod
    def prompt(self, turns: Sequence[Turn], newest: Turn, *, think: bool = False) -> tuple[int, ...]:
        """Token ids up to where the model continues: the turns, and the newest with its reply if it has one.

        Raises:
            InputError: ``think`` is set and the form has no thinking token; a template refuses the messages.
        """

    @abstractmethod
    def encode_messages(
        self, messages: Sequence[Message], tools: Tools | None = None, check: Check | None = None, how: Rendering = OPEN
    ) -> tuple[int, ...]:
        """Token ids of a conversation, oldest message first, up to where the model begins its reply.

        ``check`` raises an error to refuse the texts before they are encoded.

        Raises:
            InputError: a message is malformed, or the form does not accept it; tools or arguments were given that the
                form does not use; the message to continue is not the assistant's.
        """

    def messages_of(self, turns: Iterable[Turn]) -> list[Message]:
        """The messages of turns: a user's and its reply, in turn."""
        found: list[Message] = []
        for turn in turns:
            reply = self._tokenizer.decode(turn.reply_ids) if turn.reply is None else turn.reply
            found += ({"role": "user", "content": turn.message}, {"role": "assistant", "content": reply})
        return found


class ChatTemplate(ChatForm):
    """Gab's chat form: the ids of its control tokens, and the layout of a turn.

    A reply ends with ``<|end|>``, ``<|endoftext|>`` if the vocabulary has one, or ``<|user|>``, with which a model
    would begin the user's next message.

    Attributes:
        user, end, assistant: ids of ``<|user|>``, ``<|end|>``, ``<|assistant|>``.

    Raises:
        InputError: the vocabulary lacks one of these three tokens.
    """

    no_think = "this tokenizer has no <|think|> token; chat without thinking"

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Look the control tokens up in ``tokenizer``."""
        super().__init__(tokenizer)
        known = tokenizer.control_tokens
        if missing := [text for text in _CHAT_TOKENS if text not in known]:
            raise InputError(
                "this model cannot chat: it has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json or in a GGUF file's metadata), and its tokenizer no "
                f"{missing[0]} token; use generate, or /v1/completions over HTTP"
            )
        self.user, self.end, self.assistant = (known[text] for text in _CHAT_TOKENS)
        self.think, self.answer = known.get("<|think|>"), self.assistant
        self._thinking: tuple[int, ...] = () if self.think is None else (self.think,)
        if self.think is None and {"<think>", "</think>"} <= known.keys():
            self.think, self.answer = known["<think>"], known["</think>"]
            self._thinking = (self.assistant, self.think)
        self.stop_ids = (self.end, self.user, *([known[_END_OF_TEXT]] if _END_OF_TEXT in known else []))

    def encode_message(self, message: str) -> tuple[int, ...]:
        """As :meth:`ChatForm.encode_message`, and checked again, since a prompt has these ids themselves."""
        ids = super().encode_message(message)
        if not self.control_ids.isdisjoint(ids):
            found = "the tokenizer encodes the message's text as a control token"
            raise InputError(f"{found}; use another tokenizer to chat")
        return ids

    def opening(self, user_ids: Iterable[int], *, think: bool = False) -> tuple[int, ...]:
        """The newest turn up to where the model writes: ``<|user|>…<|end|><|assistant|>``, or with a thinking token."""
        if think and self.think is None:
            raise InputError(self.no_think)
        return (self.user, *user_ids, self.end, *(self._thinking if think else (self.assistant,)))

    def prompt(self, turns: Sequence[Turn], newest: Turn, *, think: bool = False) -> tuple[int, ...]:
        """The finished turns, oldest first and without thoughts, then the newest up to where the model continues."""
        past = (token for turn in turns for token in (*self.opening(turn.user_ids), *turn.reply_ids, self.end))
        return (*past, *self.opening(newest.user_ids, think=think), *newest.reply_ids)

    def encode_messages(
        self, messages: Sequence[Message], tools: Tools | None = None, check: Check | None = None, how: Rendering = OPEN
    ) -> tuple[int, ...]:
        """As :meth:`ChatForm.encode_messages`; see :func:`check_messages` and :func:`check_last`."""
        if tools:
            raise InputError(_NO_TOOLS)
        if how.kwargs:
            raise OptionError(_NO_KWARGS)
        system, texts = check_messages(messages)
        if system:
            raise InputError(_NO_SYSTEM)
        open_ended = how.add_generation_prompt or how.continue_final_message
        if open_ended:
            check_last(texts, continued=how.continue_final_message)
        if check is not None:
            check(texts)
        turns = [given_turn(self, *each) for each in zip_longest(texts[::2], texts[1::2], fillvalue="")]
        ids = self.prompt(turns[:-1], turns[-1])
        return ids if open_ended else ids[:-1] if len(texts) % 2 else (*ids, self.end)


class TemplateChat(ChatForm):
    """The chat form of a Jinja template.

    Text of a message never becomes a control token; see :mod:`glinfer.text.templates`. Otherwise the ids are those
    of transformers' ``apply_chat_template``: ``<s>`` comes first only if the template writes it.

    Args:
        template: the model's.
        tokenizer: the model's.
        ends: the model's end-of-text ids; the control token that the template puts after a reply is added to them.
        system: the system prompt that begins every conversation; empty for none.
        kwargs: arguments for the template, in every conversation.

    Raises:
        InputError: the template cannot be used, refuses the system prompt, or does not use an argument.
    """

    no_think = "this model's chat template decides whether it thinks; chat without asking for it"

    def __init__(
        self,
        template: JinjaTemplate,
        tokenizer: Tokenizer,
        ends: Iterable[int] = (),
        *,
        system: str = "",
        kwargs: Mapping[str, Any] = NO_KWARGS,
    ) -> None:
        """Render a short conversation, to find an unusable template at once."""
        super().__init__(tokenizer)
        self._template, self._kwargs = template, kwargs
        self._first: tuple[Message, ...] = ({"role": "system", "content": system},) if system else ()
        self.template_source = template.with_tools if template.takes_tools else ""
        known = tokenizer.control_tokens

        def written(names: Sequence[str]) -> list[int]:
            """The ids of control tokens; none if the template does not write all of them."""
            return [known[name] for name in names] if all(n in known and n in template.source for n in names) else []

        if found := written(_CHANNEL_TOKENS):
            start, channel, message = found
            self.channels = Channels(start, channel, message, tokenizer.decode)
        if found := written(_CHANNEL_ENDS):
            channel, self.answer = found
            line_break = tokenizer.encode("\n", allow_special=False)[-1]
            self.channels = Channels(channel, channel, line_break, tokenizer.decode, opens=False)
        if self.channels is None:
            self.marks = marks_of(template.source, tokenizer)
        ends = tuple(ends)
        if found := written(_CALL_TOKENS):
            opening, closing, quote = found
            self.call_tokens = CallTokens(opening, closing, quote, tokenizer.decode)
            ends += (known[_AFTER_CALLS],) if _AFTER_CALLS in known else ()
        beginning = [*self._first, {"role": "user", "content": "Hello"}]
        try:
            end = template.end_of_reply(tokenizer, beginning, kwargs)
        except InputError:  # it may refuse only this reply
            template.ids(tokenizer, beginning, Rendering(kwargs=kwargs))
            end = None
        if self.channels is not None and self.channels.opens and ends:
            end = None  # the token after a message may end each of a reply's messages
        self.stop_ids = tuple(dict.fromkeys((*ends, *(() if end is None else (end,)))))

    def prompt(self, turns: Sequence[Turn], newest: Turn, *, think: bool = False) -> tuple[int, ...]:
        """As :meth:`ChatForm.prompt`, with the system prompt first."""
        if think:
            raise InputError(self.no_think)
        messages = [*self._first, *self.messages_of((*turns, newest))]
        if newest.reply_ids:
            return self.encode_messages(messages, how=Rendering(continue_final_message=True))
        return self.encode_messages(messages[:-1])

    def encode_messages(
        self, messages: Sequence[Message], tools: Tools | None = None, check: Check | None = None, how: Rendering = OPEN
    ) -> tuple[int, ...]:
        """As :meth:`ChatForm.encode_messages`; the template checks roles and their order."""
        with_tools = self._template.takes_tools
        if tools and not with_tools:
            raise InputError(_NO_TOOLS)
        _require_list(messages)
        for index, message in enumerate(messages):
            _role_and_content(index, message, _TOOL_FIELDS if with_tools else frozenset())
        last = messages[-1] if messages else {}
        if how.continue_final_message and (last.get("role") != "assistant" or last.get("tool_calls")):
            raise InputError(_NOT_LAST)
        how = replace(how, kwargs={**self._kwargs, **how.kwargs})
        return tuple(self._template.ids(self._tokenizer, messages, how, tools=tools, check=check))


def template_of(path: AnyPath, tokenizer: Tokenizer, config: ModelConfig) -> JinjaTemplate | None:
    """The Jinja template of a model's chats: that of a tokenizer from another path, else its own; None without one.

    Also None for families that always use Gab's form, or use it if the tokenizer has its tokens.
    """
    chat = config.family.own_chat
    if chat == "always" or (chat == "with tokens" and tokenizer.control_tokens.keys() >= set(_CHAT_TOKENS)):
        return None
    beside = tokenizer.path
    found = None if beside is None or beside.suffix == ".bpe" else find_template(beside)
    return find_template(path) if found is None else found


def find_chat(
    path: AnyPath,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    system: str = "",
    kwargs: Mapping[str, Any] = NO_KWARGS,
    images: bool = False,
) -> ChatForm:
    """Find the chat form of a model: its Jinja template, see :func:`template_of`, else Gab's form.

    Raises:
        FormatError: a file of the template is damaged.
        InputError: the model has neither form or embeds texts, its template cannot be used, or has no system prompt.
    """
    if config.embeds:
        raise InputError("this model cannot chat: it embeds texts; use embed or rerank")
    path = find_model(path)
    template = template_of(path, tokenizer, config)
    if template is not None:
        template = replace(template, pictured=images)
        return TemplateChat(template, tokenizer, default_stops(path, tokenizer, config), system=system, kwargs=kwargs)
    form = ChatTemplate(tokenizer)
    if system:
        raise InputError(_NO_SYSTEM)
    if kwargs:
        raise OptionError(_NO_KWARGS)
    return form


def check_messages(messages: str | Sequence[Message]) -> tuple[str, list[str]]:
    """The system prompt of a conversation, and the texts of its turns, alternating between user and assistant.

    Args:
        messages: the text of one user's message, or messages in the form of OpenAI's API, oldest first: mappings with
            ``role`` and ``content``. A ``system`` message may come first; then ``user`` and ``assistant`` alternate.

    Raises:
        InputError: there is no message, or a message is malformed or out of turn; the error gives its index.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    _require_list(messages)
    system, texts = "", list[str]()
    for index, message in enumerate(messages):
        role, content = _role_and_content(index, message)
        expected = "assistant" if len(texts) % 2 else "user"
        if role == "system" and index == 0:
            system = content
        elif role != expected:
            first = "system or user" if index == 0 else expected
            raise InputError(f"message {index} has the role {quoted(role)}; expected {first} there")
        else:
            texts.append(content)
    if not texts:
        raise InputError("there is no user message; expected at least one")
    return system, texts


def _require_list(messages: object) -> None:
    if not isinstance(messages, (list, tuple)):
        raise InputError(f"messages is {type(messages).__name__}; expected text, or a list of role and content")


def check_last(texts: Sequence[str], *, continued: bool = False) -> None:
    """Refuse a conversation from :func:`check_messages` that ends with the wrong role."""
    if continued and len(texts) % 2:
        raise InputError(_NOT_LAST)
    if not continued and not len(texts) % 2:
        raise InputError("the last message is the assistant's; expected the user's, to reply to")


def given_turn(form: ChatForm, message: str, reply: str) -> Turn:
    """A turn from texts; an empty reply means that there is none yet."""
    return Turn(form.encode_message(message), form.encode_message(reply) if reply else (), message, reply)


def _role_and_content(index: int, message: Message, further: frozenset[str] = frozenset()) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise InputError(f"message {index} is {type(message).__name__}; expected a mapping of role and content")
    given = {name for name, value in message.items() if value is not None}
    for name in ("role", "content"):
        if name not in given:
            raise InputError(f"message {index} has no {name}; expected role and content")
        if not isinstance(message[name], str):
            raise InputError(f"the {name} of message {index} is {type(message[name]).__name__}; expected text")
    if others := given - {"role", "content"} - further:
        raise InputError(f"message {index} has {quoted(min(map(str, others)))}; expected only role and content")
    return message["role"], message["content"]


class ReplySplitter:
    """Sorts generated tokens into thinking, answer, tool calls, and tokens that are not shown.

    ``<|think|>`` (``<think>``) switches to thinking and ``<|assistant|>`` (``</think>``) to the answer, wherever the
    model writes them; a token of ``stop_ids`` ends the reply. Control tokens, headers of messages in channels and
    tokens after the end are not shown. A reply that begins without a header is an answer. Of a template's ``marks`` see
    :class:`MarkedReply`.

    Attributes:
        done: whether a stop token has ended the reply.
        calls: the names of the tools called so far; always empty without the argument ``calls``.
    """

    def __init__(self, template: ChatForm, *, think: bool = False, calls: bool | frozenset[int] = False) -> None:
        """Start a reply; ``think`` is whether the prompt begins thoughts.

        Without ``calls``, calls of tools in channels are thoughts, and others belong to the answer. So do the control
        tokens in ``calls``, which are shown.
        """
        self._hidden = template.control_ids - calls if isinstance(calls, frozenset) else template.control_ids
        calls = calls is True
        self._template, self._channels = template, template.channels
        self._kind: ReplyKind = "thinking" if think else "answer"
        # The header of a message so far; the first message may have none.
        self._header: list[int] | None = [] if self._channels is not None and self._channels.opens else None
        self._certain, self._with_calls = False, calls
        self._marked = None if template.marks is None else MarkedReply(template.marks, self._hidden, think=think)
        self._marks = template.call_tokens if calls else None
        # The beginning of a call, up to its arguments; then tokens that are shown with the next one.
        self._opened: list[int] | None = None
        self._waiting: list[int] = []
        self.done = False
        self.calls: list[str] = []

    def push(self, token: int) -> list[tuple[ReplyKind, int]]:
        """Add a generated token and return the tokens to show that are now certain, often this one."""
        self.done = self.done or token in self._template.stop_ids
        if self.done:
            return self.finish()
        if self._marks is not None and (
            self._opened is not None or self._kind == "call" or token == self._marks.opening
        ):
            return self._call(self._marks, token)
        if self._channels is not None:
            if token == self._channels.start or (token == self._channels.channel and self._header is None):
                self._header, self._certain = [], True
            if self._header is not None:
                return self._read(self._channels, self._header, token)
        if self._marked is not None:
            return self._marked.push(token)
        if token == self._template.think:
            self._kind = "thinking"
        elif token == self._template.answer:
            self._kind = "answer"
        return self._shown(token)

    def finish(self) -> list[tuple[ReplyKind, int]]:
        """End the reply and return the tokens that were held back as a possible header or mark."""
        if self._marked is not None:
            return self._marked.finish()
        held, self._header = () if self._certain else self._header or (), None
        waiting, self._waiting = self._waiting, []
        return [*(("call", token) for token in waiting), *(shown for token in held for shown in self._shown(token))]

    def _call(self, marks: CallTokens, token: int) -> list[tuple[ReplyKind, int]]:
        """Add a token of a call: its name once that is certain, then its arguments."""
        if token == marks.opening:
            self._opened = []
        elif self._opened is not None:
            self._opened.append(token)
            name, found, _ = marks.decode(self._opened).partition("{")
            if found:
                self.calls.append(name.strip().removeprefix("call:"))
                self._kind, self._waiting, self._opened = "call", self._opened, None
        else:
            waiting, self._waiting = [*self._waiting, token], []
            if token == marks.closing:
                self._kind = "answer"
            shown = (each for each in waiting if each == marks.quote or each not in self._template.control_ids)
            return [("call", each) for each in shown]
        return []

    def _shown(self, token: int) -> list[tuple[ReplyKind, int]]:
        return [] if token in self._hidden else [(self._kind, token)]

    def _read(self, channels: Channels, header: list[int], token: int) -> list[tuple[ReplyKind, int]]:
        """Add a token to a header, whose end decides the kind of the message; return its tokens if it is not one."""
        if token == channels.message:
            self._kind, called = channels.read(header)
            self._header, self._certain = None, True
            if called and self._with_calls:
                self._kind = "call"
                self.calls.append(called)
            return []
        header.append(token)
        if not self._certain:
            text = channels.decode(header).removeprefix(" ")
            self._certain = token == channels.channel or text.startswith(_RECIPIENT)
            if not self._certain and not _RECIPIENT.startswith(text):
                return self.finish()
        return []


def split_reply(
    template: ChatForm, ids: Iterable[int], *, think: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split a whole reply into (thinking ids, answer ids) by the rules of :class:`ReplySplitter`."""
    splitter = ReplySplitter(template, think=think)
    found = [*(shown for token in ids for shown in splitter.push(token)), *splitter.finish()]
    thinking = tuple(token for kind, token in found if kind == "thinking")
    return thinking, tuple(token for kind, token in found if kind == "answer")
