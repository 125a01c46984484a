"""The part of a model for the event loop and its threads: names, text and counts, without OpenGL."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glinfer.engine.batch import SchedulerOptions
from glinfer.engine.engine import EMBEDS
from glinfer.engine.loading import DEFAULT_ADAPTER
from glinfer.engine.model import Model
from glinfer.errors import InputError, OptionError
from glinfer.export.card import examples_for, licence_of
from glinfer.formats import weight_shapes
from glinfer.formats.sampling import NAMES
from glinfer.server.errors import ApiError, again_soon, log, refused
from glinfer.text.chat import ChatForm
from glinfer.text.templates import OPEN, Message, Rendering, Tools
from glinfer.text.tokenizer import Tokenizer

_LONG_TEXTS = 1 << 16
"""Characters beyond which the tokens of texts are estimated before all are encoded."""


@dataclass(frozen=True)
class ModelSource:
    """The name of a model, and the arguments to load it.

    Attributes:
        name: the model's name in requests.
        path: the file, the directory, or the name of a bundled model.
        options: further options of :func:`glinfer.engine.loading.load_model`, without ``device``.
    """

    name: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The named LoRA adapters, which requests may give as the model's name; without the default adapter."""
        given = self.options.get("lora")
        return tuple(name for name in given if name != DEFAULT_ADAPTER) if isinstance(given, Mapping) else ()


@dataclass
class Served:
    """A model of the server.

    ``model`` belongs to the OpenGL thread, except its tokenizer and its ``checked``; it is None while it is loading.

    Attributes:
        created: the time when the server was made, in seconds since 1970.
        no_chat: why ``form`` is None.
        facts: its description for /v1/models, after loading.
        slots: sequences that run at once.
        clients: live sequences of each client; counted on the event loop.
    """

    source: ModelSource
    created: int = field(default_factory=lambda: int(time.time()))
    model: Model | None = None
    form: ChatForm | None = None
    no_chat: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    slots: int = 0
    clients: Counter[Hashable] = field(default_factory=Counter)
    _longest: int | None = None

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self.source.name

    @property
    def live(self) -> int:
        """The number of live sequences of all requests."""
        return self.clients.total()

    def count(self, client: Hashable, more: int) -> None:
        """Add to a client's live sequences, or subtract ended ones."""
        self.clients[client] += more
        if not self.clients[client]:
            del self.clients[client]

    def take(self, model: Model, slots: int) -> None:
        """Become ready with a loaded model."""
        try:
            self.form = model.chat_form()
        except InputError as error:
            self.form, self.no_chat = None, str(refused(error, self.name))
            if error.public != str(error):
                log(f"{self.name}: {error}")
        chats, exemplary = self.form is not None, model.tokenizer is not None and not model.config.embeds
        self.facts = {
            "max_model_len": model.config.max_position_embeddings,
            "chat": chats,
            "system": self.form is not None and _takes_system(self.form),
            "embeds": model.config.embeds,
            "parameters": sum(math.prod(shape) for shape in weight_shapes(model.config).values()),
            "licence": licence_of(self.source.path),
            "blocks": model.config.num_hidden_layers,
            "weights": model.weights,
            "renderer": model.device.description,
            "sampling": {name: getattr(model.sampling, name) for name in NAMES},
            "examples": examples_for(self.source.path, chats=chats) if exemplary else [],
        }
        self.slots, self.model = slots, model

    @property
    def loaded(self) -> Model:
        """The model; ApiError if it is loading."""
        if self.model is None:
            raise again_soon(f"the model {self.name} is being loaded; try again")
        return self.model

    @property
    def context(self) -> int:
        """The context length in tokens."""
        return self.loaded.config.max_position_embeddings

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; InputError if the model has none."""
        return self.loaded.require_tokenizer()

    def chat_form(self) -> ChatForm:
        """The model's chat form; ApiError if the model cannot chat."""
        self.loaded  # noqa: B018  # which refuses a model that is being loaded
        if self.form is None:
            raise ApiError(self.no_chat, code="no_chat_template", param="model")
        return self.form

    def chat_ids(self, messages: Sequence[Message], tools: Tools | None = None, how: Rendering = OPEN) -> list[int]:
        """Token ids of a conversation, up to where the model replies; runs its template, which may be slow.

        ``tools`` and ``how`` are those of :meth:`glinfer.text.chat.ChatForm.encode_messages`.

        Raises:
            ApiError: the model cannot chat.
            InputError: its template refuses the messages.
        """
        form = self.chat_form()
        messages = self.loaded.read_messages(messages)
        self.refuse_long([message["content"] for message in messages], by_bytes=True)
        try:
            return list(form.encode_messages(messages, tools, self.refuse_long, how))
        except OptionError as error:
            raise refused(error, self.name, param="chat_template_kwargs", code="unsupported_parameter") from None

    def refuse_long(self, texts: Sequence[str], most: int | None = None, *, by_bytes: bool = False) -> None:
        """Refuse long texts of more than ``most`` tokens (default: the context) without encoding all of them.

        ``by_bytes`` compares only the number of bytes, which is fast.

        Raises:
            ApiError: the texts have more bytes than ``most`` of the longest token, or their beginning has more tokens.
        """
        limit, size = self.context if most is None else most, sum(map(len, texts))
        if size <= _LONG_TEXTS and not by_bytes:
            return
        if self._longest is None:
            self._longest = max(map(len, map(self.tokenizer.token_bytes, range(self.loaded.config.vocab_size))))
        self._refuse(-(-sum(len(text.encode("utf-8", "replace")) for text in texts) // max(1, self._longest)), limit)
        if not by_bytes:
            least = 0
            for text in texts:
                least += self.tokenizer.beginning(text, limit - least)[1]
                self._refuse(least, limit)

    def _refuse(self, least: int, most: int) -> None:
        if least > most:
            ours = most == self.context
            limit = f"the context of {self.name} holds {most}" if ours else f"expected at most {most}"
            message = f"the prompt has at least {least} tokens; {limit}"
            raise ApiError(message, param="prompt", code="context_length_exceeded")

    def room(self, prompt: Sequence[int], *, least: int = 1) -> int:
        """The number of tokens that can follow a prompt.

        Raises:
            ApiError: it is less than ``least``, or the model embeds texts.
        """
        if self.loaded.config.embeds:
            raise ApiError(EMBEDS, param="model", code="no_completions")
        room = self.context - len(prompt)
        if room < least:
            more = f", and {least} more for the answer" if least else ""
            raise ApiError(
                f"the prompt has {len(prompt)} tokens{more}; the context of {self.name} holds {self.context}",
                param="prompt",
                code="context_length_exceeded",
            )
        return room


def _takes_system(form: ChatForm) -> bool:
    """Whether a chat form uses a system prompt, which then changes the tokens."""
    system: Message = {"role": "system", "content": "Be kind."}
    message: Message = {"role": "user", "content": "Hello"}
    try:
        return form.encode_messages([system, message]) != form.encode_messages([message])
    except InputError:
        return False
