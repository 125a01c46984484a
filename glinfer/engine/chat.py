"""Chat: whole or streamed replies to messages, with the chat template of the model."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex, TypedDict

from glinfer.closing import Closing
from glinfer.config import ModelConfig
from glinfer.engine.ids import check_callback, check_count
from glinfer.engine.option_names import named_options
from glinfer.engine.run.stats import GenerationStats
from glinfer.engine.sampler import SamplerFunction
from glinfer.engine.stream import CHUNK, GeneratedText, PartStream, TokenStream
from glinfer.errors import InputError, check_flag, counted
from glinfer.families.settings import quoted
from glinfer.structured.structure import ERROR, PARTIAL, requires_complete, structure_of
from glinfer.text.assembler import TextAssembler
from glinfer.text.chat import ChatForm, ReplySplitter, check_last, check_messages
from glinfer.text.conversation import Conversation
from glinfer.text.images import ImageReader, content_of, conversation_of
from glinfer.text.reply import ChatPart, ReplyAssembler
from glinfer.text.templates import NO_KWARGS, Message
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

MAX_TOKENS = 512
"""Default limit for the tokens of a reply."""


class ChatOptions(TypedDict, total=False):
    """The options of a reply, as in :meth:`glinfer.engine.model.Model.stream`; ``max_tokens`` defaults to 512."""

    max_tokens: SupportsIndex
    temperature: SupportsFloat | None
    top_k: SupportsIndex | None
    top_p: SupportsFloat | None
    min_p: SupportsFloat | None
    repetition_penalty: SupportsFloat | None
    seed: SupportsIndex | None
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
    sampler: SamplerFunction | None


class TalkOptions(ChatOptions, total=False):
    """The options of a reply to a whole conversation."""

    template_kwargs: Mapping[str, Any]
    continue_final_message: bool


class ChatReply(GeneratedText):
    """The answer of a model; ``thinking`` has the thoughts before it."""

    thinking: str

    def __new__(cls, text: str, stats: GenerationStats, thinking: str = "") -> Self:
        """Make the string."""
        made = super().__new__(cls, text, stats)
        made.thinking = thinking
        return made


class ChatStream(PartStream):
    """An iterator over pieces of an answer, which consist of whole characters.

    Iterating skips the thoughts before the answer; :meth:`next_part` returns them too.

    Attributes:
        text: the answer so far.
        thinking: the thoughts so far.
        dropped_turns: the number of old turns left out to make the prompt fit.
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
        """Read ``tokens``, ``whole`` as a TokenStream; the context, not max_tokens, limits ``clipped`` ones."""
        self.dropped_turns, self._clipped = dropped_turns, clipped
        self._read(tokens, ReplyAssembler(tokenizer, stop, splitter), whole=whole)

    def next_part(self) -> ChatPart | None:
        """The next piece of thoughts or answer, never empty; None at the end."""
        return self._next_part()

    def reply(self) -> ChatReply:
        """Read the rest, and return the whole reply."""
        self._tokens.chunk = CHUNK
        while self.next_part() is not None:
            pass
        return ChatReply(self.text, self.stats, self.thinking)

    def close(self) -> None:
        """End the reply here and keep its text; calling it again does nothing."""
        if not self._done:
            self._tokens.close()
            self._end()

    def _end(self) -> None:
        super()._end()
        if self._clipped and self.stats.finish_reason == "length":
            self.stats.finish_reason = "context"


class ChatSession:
    """A conversation that remembers its turns; made by :meth:`glinfer.engine.model.Model.chat_session`.

    A turn reuses the keys and values of earlier turns. When the context is full, the oldest turns are left out.
    """

    def __init__(
        self, model: Chatting, *, system: str = "", think: bool = False, template_kwargs: Mapping[str, Any] = NO_KWARGS
    ) -> None:
        """Call :meth:`glinfer.engine.model.Model.chat_session` instead."""
        self._model, self._think, self._system = model, False, system
        form, self._template_kwargs = model.chat_form(system, template_kwargs), template_kwargs
        self._conversation = Conversation(form, model.config.max_position_embeddings)
        self.set_think(think)
        self._newest: object = None

    def __repr__(self) -> str:
        """Class and number of messages."""
        return f"<ChatSession: {counted(len(self.messages), 'message')}>"

    @property
    def system(self) -> str:
        """The system prompt; assigning one calls :meth:`set_system`."""
        return self._system

    @system.setter
    def system(self, system: str) -> None:
        self.set_system(system)

    @property
    def think(self) -> bool:
        """Whether the model thinks before it answers; assigning calls :meth:`set_think`."""
        return self._think

    @think.setter
    def think(self, think: bool) -> None:
        self.set_think(think)

    @property
    def messages(self) -> list[Message]:
        """The system prompt and the remembered turns, for :meth:`restore`."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self._conversation.messages]

    def set_system(self, system: str) -> None:
        """Change the system prompt of later replies; an empty one removes it. Errors as :meth:`Chatting.chat_form`."""
        self._conversation.template = self._model.chat_form(system, self._template_kwargs)
        self._system = system

    def set_think(self, think: bool) -> None:
        """Set whether the model thinks before later answers; InputError if it cannot on request."""
        check_flag("think", think)
        form = self._conversation.template
        if think and form.think is None:
            raise InputError(form.no_think)
        self._think = think

    def restore(self, messages: Sequence[Message]) -> None:
        """Replace the conversation by these messages, which end with the assistant's.

        After an InputError, see :func:`glinfer.text.chat.check_messages`, the conversation stays as it is.
        """
        system, texts = check_messages(self._model.read_messages(messages))
        if len(texts) % 2:
            raise InputError("the last message is the user's; expected the assistant's reply to it")
        form = self._model.chat_form(system, self._template_kwargs)
        self._conversation.restore(zip(texts[::2], texts[1::2], strict=True))
        self._conversation.template, self._system = form, system

    def reset(self) -> None:
        """Forget all turns; the system prompt stays."""
        self._conversation.reset()

    @named_options(ChatOptions)
    def stream(self, message: str | Sequence[Message], **options: Unpack[ChatOptions]) -> ChatStream:
        """Send a message, and stream the reply, which is remembered when the stream ends or closes.

        The message is a text, or a list of parts with images, see :meth:`Chatting.stream_chat`, also for errors.
        """
        if message is None:  # would replace the newest reply
            raise InputError("the message is NoneType; expected a str")
        return self._stream(options, content_of(message, "the message", self._model.read_image))

    @named_options(ChatOptions)
    def send(self, message: str | Sequence[Message], **options: Unpack[ChatOptions]) -> ChatReply:
        """Send a message, and return the whole reply. Options and errors are those of :meth:`stream`."""
        return self.stream(message, **options).reply()

    @named_options(ChatOptions)
    def regenerate(self, **options: Unpack[ChatOptions]) -> ChatStream:
        """Discard the newest reply, and stream another one to the same message; InputError if there is none."""
        return self._stream(options)

    @named_options(ChatOptions)
    def continue_reply(self, **options: Unpack[ChatOptions]) -> ChatStream:
        """Stream only the text that continues the newest reply where it ended; InputError if there is none."""
        return self._stream(options, continued=True)

    def _stream(
        self, options: ChatOptions, message: str | None = None, *, drop: bool = True, continued: bool = False
    ) -> ChatStream:
        """Stream a reply to a new message; without a message continue or replace the newest reply."""
        given: dict[str, Any] = dict(options)
        whole = requires_complete(given.pop("incomplete", ERROR))
        think = self.think and not continued
        structured = structure_of(given) is not None
        if think and structured:
            raise InputError("found think and a structure, which thoughts do not match; leave out one of them")
        stop, then = given.pop("stop", ()), given.pop("on_end", None)
        TextAssembler(stop)  # checks ``stop`` before anything changes
        check_callback("on_end", then)
        max_tokens = check_count("max_tokens", given.pop("max_tokens", MAX_TOKENS))
        context = self._model.config.max_position_embeddings
        reserve = min(max_tokens, max(1, context // 2)) if drop else 1
        form = self._conversation.template
        how: dict[str, Any] = {"think": think, "reserve": reserve, "drop": drop, "structured": structured}
        if message is None:
            prompt = self._conversation.prompt_again(continued=continued, **how)
        else:
            prompt = self._conversation.prompt(message, **how)
        room = context - len(prompt.ids)
        newest = self._newest = object()

        def ended() -> None:
            if self._newest is newest and tokens.stats.finish_reason != "error":
                self._conversation.add_reply(tokens.ids)
            if then is not None:
                then()

        tokens = self._model.stream(
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
            ReplySplitter(form, think=prompt.think),
            stop=stop,
            clipped=room < max_tokens,
            dropped_turns=prompt.dropped_turns,
            whole=whole,
        )


class Chatting(Closing):
    """The chat methods of :class:`glinfer.engine.model.Model`."""

    config: ModelConfig
    _find_form: Callable[..., ChatForm] | None
    _images: ImageReader | str
    _form: tuple[Any, ChatForm] | None = None

    @abstractmethod
    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer."""

    @abstractmethod
    def stream(self, *given: Any, **options: Any) -> Any:
        """Continue a prompt, see :meth:`glinfer.engine.model.Model.stream`."""

    def read_image(self, image: object) -> tuple[str | int, ...]:
        """The prompt of an image, see :meth:`glinfer.text.images.ImageReader.prompt`; InputError without an encoder."""
        if isinstance(self._images, str):
            raise InputError(self._images)
        return self._images.prompt(image)

    def read_messages(self, messages: object) -> Any:
        """A conversation with its images read, see :func:`glinfer.text.images.conversation_of`."""
        return conversation_of(messages, self.read_image)

    def chat_ids(self, messages: str | Sequence[Message]) -> list[int]:
        """The ids of a conversation up to its reply, for prompts, :meth:`score` and :meth:`capture`.

        Ids of images are known to this model alone. Errors are those of :meth:`stream_chat`.
        """
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        read = self.read_messages(given)
        return list(self.chat_form().encode_messages(read))

    def chat_form(self, system: str = "", template_kwargs: Mapping[str, Any] = NO_KWARGS) -> ChatForm:
        """The chat form of the model: its Jinja template, or Gab's; see :func:`glinfer.text.chat.find_chat`.

        Raises InputError if the model cannot chat, or its form does not accept a system prompt or these arguments;
        FormatError if a file of the template is damaged.
        """
        self._require_open()
        self.require_tokenizer()
        if not isinstance(system, str):
            raise InputError(f"the system prompt is {type(system).__name__}; expected text")
        if self._find_form is None:
            raise InputError("this model was made without files, and has no chat form; load it from its file")
        try:
            given = system, json.dumps(dict(template_kwargs))
        except (TypeError, ValueError):
            found = quoted(template_kwargs)
            raise InputError(f"template_kwargs is {found}; expected a dict of names and values of JSON") from None
        if self._form is None or self._form[0] != given:  # rendering a template starts a process
            self._form = given, self._find_form(system=system, kwargs=json.loads(given[1]))
        return self._form[1]

    @named_options()
    def chat_session(
        self, *, system: str = "", think: bool = False, template_kwargs: Mapping[str, Any] = NO_KWARGS
    ) -> ChatSession:
        """A conversation that remembers its turns.

        Args:
            system: the system prompt, for models whose chat template accepts one.
            think: whether the model thinks before it answers, if it was trained to.
            template_kwargs: arguments that the model's chat template names, such as ``{"enable_thinking": False}``.

        Errors are those of :meth:`chat_form`, and an InputError if the model cannot think on request.
        """
        return ChatSession(self, system=system, think=think, template_kwargs=template_kwargs)

    @named_options(TalkOptions)
    def stream_chat(
        self, messages: str | Sequence[Message], *, think: bool = False, **options: Unpack[TalkOptions]
    ) -> ChatStream:
        """Reply to a conversation piece by piece.

        Args:
            messages: one user message as text; or the whole conversation in the form of OpenAI's API, the user's newest
                message last: ``[{"role": "user", "content": "Hello"}]``. A ``system`` message may come first, if the
                model's template accepts it. The content of a user's message may be a list of parts, for models that
                take images: ``{"type": "text", "text": "…"}`` and ``{"type": "image", "image": …}``, a path, the bytes
                of a file or an Image of Pillow; or OpenAI's ``image_url`` with a data URL.
            think: whether the model thinks before it answers; iterating skips the thoughts.
            **options: ``max_tokens`` (512) and the others of :class:`ChatOptions`; ``template_kwargs`` as in
                :meth:`chat_session`; ``continue_final_message`` to continue the last message, which is then the
                assistant's (the stream has only the new text).

        The reply ends at an end token of the model. Close the stream if you do not read it to its end.

        Raises:
            InputError: the model cannot chat; messages are empty, out of turn or too long for the context; an image
                cannot be read, or the model takes none; or an option is invalid.
        """
        system, texts = check_messages(self.read_messages(messages))
        kwargs, continued = options.pop("template_kwargs", NO_KWARGS), options.pop("continue_final_message", False)
        check_last(texts, continued=continued)
        session = self.chat_session(system=system, think=think, template_kwargs=kwargs)
        session._conversation.restore(zip(texts[::2], texts[1::2], strict=False))
        return session._stream(options, None if continued else texts[-1], drop=False, continued=continued)

    @named_options(TalkOptions)
    def chat(
        self, messages: str | Sequence[Message], *, think: bool = False, **options: Unpack[TalkOptions]
    ) -> ChatReply:
        """Reply to a conversation with a string that has ``finish_reason``, ``tokens`` and more as attributes.

        Arguments and errors are those of :meth:`stream_chat`; :class:`ChatReply` has the attributes.
        """
        return self.stream_chat(messages, think=think, **options).reply()
