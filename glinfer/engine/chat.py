"""Chat: replies to messages, in the form that the model was trained on, as a whole or piece by piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from glinfer.config import ModelConfig
from glinfer.engine.closing import Closing
from glinfer.engine.ids import check_max_tokens
from glinfer.engine.stream import CHUNK, GenerationStats, TokenStream, require_complete
from glinfer.errors import InputError
from glinfer.structured.structure import ERROR, PARTIAL, structure_of, wants_whole
from glinfer.text.assembler import TextAssembler
from glinfer.text.chat import ChatForm, Conversation, ReplySplitter, check_last, check_messages
from glinfer.text.reply import ChatPart, ReplyAssembler
from glinfer.text.templates import Message
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_TOKENS = 512
"""Default limit for the tokens of a reply."""


class ChatOptions(TypedDict, total=False):
    """The options of a reply; those that :meth:`glinfer.engine.model.Model.stream` has too mean the same.

    ``max_tokens`` is 512 where it is left out.
    """

    max_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | Sequence[str]
    on_end: Callable[[], None] | None
    speculate: str | None
    draft: Chatting | None
    json_schema: Mapping[str, Any] | bool | str | type | None
    regex: str | None
    grammar: str | None
    choices: Sequence[str] | None
    incomplete: Literal["error", "partial"]
    lora: str | None


class ChatReply(str):
    """The answer of a model: a string that knows how it came to be.

    Attributes:
        thinking: the thoughts before the answer; empty where the model was not asked for any.
        stats: counts and times, see :class:`glinfer.engine.stream.GenerationStats`.
    """

    thinking: str
    stats: GenerationStats

    def __new__(cls, text: str, thinking: str, stats: GenerationStats) -> ChatReply:
        """Make the string."""
        made = super().__new__(cls, text)
        made.thinking, made.stats = thinking, stats
        return made

    def __getnewargs__(self) -> tuple[str, str, GenerationStats]:  # type: ignore[override]
        """Copy and pickle with both attributes."""
        return str(self), self.thinking, self.stats

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: ``stop`` (by itself, or at a stop string), ``length`` (max_tokens), or ``context`` (full)."""
        return self.stats.finish_reason

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of all messages, in the model's form."""
        return self.stats.prompt_tokens

    @property
    def tokens(self) -> int:
        """The number of generated tokens, with the thoughts and the token that ended the reply."""
        return self.stats.tokens


class ChatStream(Closing, Iterator[str]):
    """An iterator over pieces of an answer: whole characters, as soon as they are certain.

    :meth:`next_part` gives the thoughts before the answer too; iterating passes over them.

    Attributes:
        text: the answer so far.
        thinking: the thoughts so far.
        dropped_turns: how many of the oldest turns were left out of the prompt to make it fit.
    """

    def __init__(
        self,
        tokens: TokenStream,
        tokenizer: Tokenizer,
        splitter: ReplySplitter,
        *,
        stop: str | Sequence[str] = (),
        clipped: bool = False,
        dropped_turns: int = 0,
        whole: bool = False,
    ) -> None:
        """Read ``tokens``; ``clipped`` says that the context, and not max_tokens, is their limit.

        ``whole`` is as in :class:`glinfer.engine.stream.TokenStream`.
        """
        self.text = self.thinking = ""
        self.dropped_turns = dropped_turns
        self._tokens, self._clipped, self._whole = tokens, clipped, whole
        self._reply = ReplyAssembler(tokenizer, stop, splitter)
        self._waiting: list[ChatPart] = []
        self._done = False

    @property
    def stats(self) -> GenerationStats:
        """Counts and times so far; ``finish_reason`` is ``context`` where the context was full."""
        return self._tokens.stats

    @property
    def ids(self) -> list[int]:
        """The ids generated so far, those of thoughts and control tokens among them."""
        return self._tokens.ids

    def __next__(self) -> str:
        """The next piece of the answer, never empty."""
        while (part := self.next_part()) is not None:
            if part.kind == "answer":
                return part.text
        raise StopIteration

    def next_part(self) -> ChatPart | None:
        """The next piece of thoughts or answer, never empty; None at the end."""
        while not self._waiting and not self._done:
            token = next(self._tokens, None)
            if token is None:
                self._end()
            else:
                self._push(token)
        if not self._waiting:
            if self._whole:
                require_complete(self.stats, self.text)
            return None
        part = self._waiting.pop(0)
        if part.kind == "answer":
            self.text += part.text
        else:
            self.thinking += part.text
        return part

    def reply(self) -> ChatReply:
        """Read all that is left, and return the whole reply."""
        self._tokens.chunk = CHUNK
        while self.next_part() is not None:
            pass
        return ChatReply(self.text, self.thinking, self.stats)

    def close(self) -> None:
        """End the reply here; what was certain of it stays. Harmless when repeated."""
        if not self._done:
            self._tokens.close()
            self._end()

    def _push(self, token: int) -> None:
        self._waiting += self._reply.push(token)
        if self._reply.stopped:
            self._done = True
            self._tokens.close("stop")

    def _end(self) -> None:
        self._done = True
        self._waiting += self._reply.finish()
        if self._reply.stopped and self.stats.finish_reason != "error":
            self.stats.finish_reason = "stop"
        elif self._clipped and self.stats.finish_reason == "length":
            self.stats.finish_reason = "context"


class ChatSession:
    """A conversation that remembers its turns; made by :meth:`glinfer.engine.model.Model.chat_session`.

    What a turn shares with the one before is not computed again. When the context is full, the oldest turns are left
    out.

    Attributes:
        think: whether the model is to think before it answers; see :meth:`set_think`.
        system: the system prompt; see :meth:`set_system`.
    """

    def __init__(self, model: Chatting, *, system: str = "", think: bool = False) -> None:
        """Use :meth:`glinfer.engine.model.Model.chat_session`."""
        self._model, self.system, self.think = model, "", False
        self._conversation = Conversation(model.chat_form(system), model.config.max_position_embeddings)
        self.system = system
        self.set_think(think)
        self._newest: object = None

    @property
    def messages(self) -> list[Message]:
        """The system prompt and the turns that are remembered, as :meth:`restore` takes them."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self._conversation.messages]

    def set_system(self, system: str) -> None:
        """Change the system prompt for the replies that follow; an empty one takes it out.

        Raises:
            InputError: the model's form has no place for one.
        """
        self._conversation.template, self.system = self._model.chat_form(system), system

    def set_think(self, think: bool) -> None:
        """Let the model think before the answers that follow, or not.

        Raises:
            InputError: it cannot be asked to.
        """
        form = self._conversation.template
        if think and form.think is None:
            raise InputError(form.no_think)
        self.think = think

    def restore(self, messages: Sequence[Message]) -> None:
        """Replace the conversation by these messages, the last of which is the assistant's.

        Raises:
            InputError: see :func:`glinfer.text.chat.check_messages`; the conversation stays as it is.
        """
        system, texts = check_messages(messages)
        if len(texts) % 2:
            raise InputError("the last message is the user's; expected the assistant's reply to it")
        form = self._model.chat_form(system)
        self._conversation.restore(zip(texts[::2], texts[1::2], strict=True))
        self._conversation.template, self.system = form, system

    def reset(self) -> None:
        """Forget all turns; the system prompt stays."""
        self._conversation.reset()

    def stream(self, message: str, **options: Unpack[ChatOptions]) -> ChatStream:
        """Send a message; the stream of the reply, which is remembered when it ends, or is closed.

        Raises:
            InputError: the message is empty, or too long; an option that cannot be.
        """
        return self._stream(options, message)

    def send(self, message: str, **options: Unpack[ChatOptions]) -> ChatReply:
        """Send a message; the whole reply. Options and errors are those of :meth:`stream`."""
        return self.stream(message, **options).reply()

    def regenerate(self, **options: Unpack[ChatOptions]) -> ChatStream:
        """Take the newest reply back, and stream another one to the same message.

        Raises:
            InputError: there is no reply yet.
        """
        return self._stream(options)

    def _stream(self, options: ChatOptions, message: str | None = None, *, drop: bool = True) -> ChatStream:
        """Stream a reply to a new message, or without one another reply to the newest."""
        given: dict[str, Any] = dict(options)
        whole = wants_whole(given.pop("incomplete", ERROR))
        if self.think and structure_of(given) is not None:
            raise InputError("thoughts have no structure; ask for one without think")
        stop, then = given.pop("stop", ()), given.pop("on_end", None)
        TextAssembler(stop)  # which checks it, before anything changes
        max_tokens = check_max_tokens(given.pop("max_tokens", MAX_TOKENS))
        context = self._model.config.max_position_embeddings
        reserve = min(max_tokens, max(1, context // 2)) if drop else 1
        form, think = self._conversation.template, self.think
        if message is None:
            prompt = self._conversation.prompt_again(think=think, reserve=reserve)
        else:
            prompt = self._conversation.prompt(message, think=think, reserve=reserve, drop=drop)
        room = context - len(prompt.ids)
        newest = self._newest = object()

        def ended() -> None:
            if self._newest is newest and tokens.stats.finish_reason != "error":
                self._conversation.add_reply(tokens.ids)
            if then is not None:
                then()

        tokens = self._model._stream_ids(
            prompt.ids,
            max_tokens=min(max_tokens, room),
            stop_ids=form.stop_ids,
            on_end=ended,
            incomplete=PARTIAL,
            **given,
        )
        return ChatStream(
            tokens,
            self._model.require_tokenizer(),
            ReplySplitter(form, think=think),
            stop=stop,
            clipped=room < max_tokens,
            dropped_turns=prompt.dropped_turns,
            whole=whole,
        )


class Chatting(ABC):
    """The chat methods of :class:`glinfer.engine.model.Model`."""

    config: ModelConfig
    _find_form: Callable[[str], ChatForm] | None
    _form: tuple[str, ChatForm] | None = None

    @abstractmethod
    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer."""

    @abstractmethod
    def _stream_ids(self, ids: Sequence[int], **options: Any) -> TokenStream:
        """Continue a prompt of ids, as :meth:`glinfer.engine.model.Model.stream` does."""

    @abstractmethod
    def _require_open(self) -> None: ...

    def chat_form(self, system: str = "") -> ChatForm:
        """The form of the model's chats: its Jinja template, or Gab's; see :func:`glinfer.text.chat.find_chat`.

        Raises:
            FormatError: a file of the template is damaged.
            InputError: the model cannot chat, or its form has no place for a system prompt.
        """
        self._require_open()
        self.require_tokenizer()
        if not isinstance(system, str):
            raise InputError(f"the system prompt is {type(system).__name__}; expected text")
        if self._find_form is None:
            raise InputError("this model was made without files, and has no chat form; load it from its file")
        if self._form is None or self._form[0] != system:  # rendering a template takes a process
            self._form = system, self._find_form(system)
        return self._form[1]

    def chat_session(self, *, system: str = "", think: bool = False) -> ChatSession:
        """A conversation that remembers its turns.

        Args:
            system: what the conversation begins with, for models whose chat template takes it.
            think: whether the model is to think before it answers, where it has learned to.

        Raises:
            InputError: as :meth:`chat_form`, or the model cannot be asked to think.
        """
        return ChatSession(self, system=system, think=think)

    def stream_chat(
        self, messages: str | Sequence[Message], *, think: bool = False, **options: Unpack[ChatOptions]
    ) -> ChatStream:
        """Reply to a conversation piece by piece.

        Args:
            messages: one user's message as text; or the whole conversation as OpenAI's API has it, oldest message
                first and the user's last: ``[{"role": "user", "content": "Hello"}]``. A ``system`` message may come
                first, where the model's template takes it.
            think: whether the model is to think before it answers; iterating gives the answer alone.
            **options: ``max_tokens`` (512) and the others of :class:`ChatOptions`.

        The reply ends at the model's own end tokens. Close the stream where it is not read to its end.

        Raises:
            InputError: the model cannot chat, messages that are empty, out of turn or too long for the context, or an
                option that cannot be.
        """
        system, texts = check_messages(messages)
        check_last(texts)
        session = self.chat_session(system=system, think=think)
        session._conversation.restore(zip(texts[:-1:2], texts[1::2], strict=True))
        return session._stream(options, texts[-1], drop=False)

    def chat(
        self, messages: str | Sequence[Message], *, think: bool = False, **options: Unpack[ChatOptions]
    ) -> ChatReply:
        """Reply to a conversation: a string, with ``finish_reason``, ``tokens`` and more as attributes.

        Arguments and errors are those of :meth:`stream_chat`; :class:`ChatReply` has the attributes.
        """
        return self.stream_chat(messages, think=think, **options).reply()
