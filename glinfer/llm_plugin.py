"""The plug-in of ``llm`` (llm.datasette.io): ``llm -m glinfer/smollm2 "Hello"``. llm finds it by its entry point.

Each model runs on its own thread, so any thread or event loop may use it. It stays loaded until the command ends, or
until :func:`close`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import llm
from llm.parts import StreamEvent, TextPart
from pydantic import Field, field_validator

from glinfer.errors import GlinferError, InputError
from glinfer.formats import bundled_models
from glinfer.formats.files import AnyPath
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.files import CONFIG
from glinfer.formats.huggingface.sentence import MODULES
from glinfer.formats.installed import SHORT_NAMES, installed_models
from glinfer.formats.zipped import is_zip
from glinfer.hub.cache import cached_models
from glinfer.hub.choice import RemoteFile, gguf_choices, tag

if TYPE_CHECKING:  # the engine is imported with the first model, since llm imports this module for every command
    from glinfer.engine.model import Model
    from glinfer.engine.stream import PartStream
    from glinfer.engine.threaded import ThreadedModel

NAME = "glinfer"
"""The model whose option ``model`` names any file, directory or model; the names of others begin with it."""
_KNOWN = f"{__name__}.known"  # the key of the models in click's data of a command
_LOADING = {"model", "context"}
_HEADER_BYTES = 1 << 16  # the start of a GGUF file, with its settings before the vocabulary
_TOGETHER = 256  # texts to embed at once


class PluginError(llm.ModelError, click.ClickException):
    """An error of glinfer. Commands of llm print it in one line, since it is a ClickException."""


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except GlinferError as error:
        raise PluginError(str(error)) from None


_opened: dict[tuple[AnyPath, int | None], ThreadedModel] = {}
_opening = threading.Lock()


def _open(path: AnyPath, context: int | None = None) -> ThreadedModel:
    from glinfer.engine.threaded import ThreadedModel

    with _opening:
        if (path, context) not in _opened:
            _opened[path, context] = ThreadedModel(path, context=context)
        return _opened[path, context]


def close() -> None:
    """Close all models. The next prompt loads its model again."""
    with _opening:
        while _opened:
            _opened.popitem()[1].close()


def _close_with_command() -> None:
    if (command := click.get_current_context(silent=True)) is not None:
        command.find_root().call_on_close(close)


class Options(llm.Options):
    """The options of a prompt, as ``-o NAME VALUE``; those that are left out are the model's own."""

    temperature: float | None = Field(None, description="0 is greedy decoding")
    top_k: int | None = Field(None, description="Sample from the N likeliest tokens; 0 for all")
    top_p: float | None = Field(None, description="Sample from the likeliest tokens up to this probability")
    min_p: float | None = Field(None, description="Minimum probability relative to the likeliest token")
    repetition_penalty: float | None = Field(None, description="Above 1: earlier tokens become less likely")
    seed: int | None = Field(None, description="The same seed gives the same text")
    max_tokens: int | None = Field(None, description="Limit of tokens; default: the context, or 128 without chat")
    stop: str | list[str] | None = Field(None, description="Text that ends the answer, which does not include it")
    incomplete: Literal["error", "partial"] | None = Field(None, description="For a schema that max_tokens cuts short")
    think: bool | None = Field(None, description="Think before the answer, if the model has a token for it")
    template_kwargs: dict[str, Any] | None = Field(
        None, description='Arguments of the chat template, such as {"enable_thinking": false}'
    )
    context: int | None = Field(None, description="Limit of the tokens of a conversation")

    @field_validator("template_kwargs", mode="before")
    @classmethod
    def _parsed(cls, value: object) -> object:
        with suppress(ValueError, RecursionError):
            return json.loads(value) if isinstance(value, str) else value
        return value


class AnyOptions(Options):
    """The same, and which model to use."""

    model: str | None = Field(None, description="File, directory or name of a model, such as org/name:Q8_0")


class _Generates:
    """What :class:`GlinferModel` and :class:`AsyncGlinferModel` share."""

    can_stream = supports_schema = True

    def __init__(self, model_id: str, path: AnyPath | None = None) -> None:
        """Name a model, and its path; without one it is an option."""
        self.model_id, self._path = model_id, path
        self.Options = AnyOptions if path is None else Options

    def _where(self, prompt: llm.Prompt) -> tuple[AnyPath, int | None]:
        """The model's path, and the context."""
        _close_with_command()
        path = prompt.options.model if self._path is None else self._path
        if path is None:
            raise PluginError(f"{NAME} needs a model: -o model FILE, or a name from 'llm models -q {NAME}/'")
        return path, prompt.options.context


class GlinferModel(_Generates, llm.Model):
    """A model for threads and commands."""

    def execute(self, prompt: llm.Prompt, stream: bool, response: Any, conversation: Any) -> Generator[StreamEvent]:
        """Yield the pieces of an answer, thoughts as ``reasoning``."""
        with _one_line():
            opened = _open(*self._where(prompt))
            pieces = opened.call(_begun, prompt)
            try:
                while (event := opened.call(_next, pieces)) is not None:
                    yield event
            finally:
                opened.call(_ended, pieces, response)


class AsyncGlinferModel(_Generates, llm.AsyncModel):
    """A model for event loops."""

    async def execute(
        self, prompt: llm.Prompt, stream: bool, response: Any, conversation: Any
    ) -> AsyncGenerator[StreamEvent]:
        """Yield the pieces of an answer, thoughts as ``reasoning``."""
        with _one_line():
            opened = await asyncio.to_thread(_open, *self._where(prompt))
            pieces = await asyncio.to_thread(opened.call, _begun, prompt)
            try:
                while (event := await asyncio.to_thread(opened.call, _next, pieces)) is not None:
                    yield event
            finally:
                await asyncio.to_thread(opened.call, _ended, pieces, response)


def _begun(model: Model, prompt: llm.Prompt) -> PartStream:
    """Begin the answer: a reply, or a continuation of the texts if the model cannot chat; or a GlinferError."""
    given = prompt.options.model_dump(exclude_none=True, exclude=_LOADING)
    if prompt.schema:
        given["json_schema"] = prompt.schema
    messages = [{"role": each.role, "content": _text(each)} for each in prompt.messages]
    if _chats(model):
        return model.stream_chat(messages, **{"max_tokens": model.config.max_position_embeddings, **given})
    if any(each["role"] == "system" for each in messages):
        raise InputError("this model continues texts, and does not support a system prompt; leave it out")
    return model.stream("\n".join(each["content"] for each in messages), **given)


def _text(message: llm.Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _chats(model: Model) -> bool:
    from glinfer.text.chat import template_of

    try:
        model.chat_form()
    except InputError:
        if model._path is not None and template_of(model._path, model.require_tokenizer(), model.config) is not None:
            raise
        return False
    return True


def _next(_: Model, pieces: PartStream) -> StreamEvent | None:
    """The next piece; None at the end."""
    from glinfer.engine.chat import ChatStream

    if isinstance(pieces, ChatStream):
        part = pieces.next_part()
        kinds = {"thinking": "reasoning"}
        return None if part is None else StreamEvent(kinds.get(part.kind, "text"), part.text)
    text = next(pieces, None)
    return None if text is None else StreamEvent("text", text)


def _ended(model: Model, pieces: PartStream, response: Any) -> None:
    """Close the stream, and note its costs for ``llm logs``."""
    pieces.close()
    stats = pieces.stats
    response.set_usage(input=stats.prompt_tokens, output=stats.tokens)
    response.response_json = {
        "finish_reason": stats.finish_reason,
        "draws": stats.draws,
        "seconds": round(stats.prompt_seconds + stats.seconds, 3),
        "renderer": model.device.description,
    }


class GlinferEmbedding(llm.EmbeddingModel):
    """A model for ``llm embed`` and its relatives."""

    batch_size = _TOGETHER

    def __init__(self, model_id: str, path: AnyPath) -> None:
        """Name a model, and its path."""
        self.model_id, self._path = model_id, path

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        """Embed texts, as ``model.embed`` does."""
        _close_with_command()
        with _one_line():
            vectors = _open(self._path).call(lambda model: model.embed([str(text) for text in items]))
        yield from vectors.tolist()


class Known(NamedTuple):
    """A model on this machine: its name in llm, its path, and whether it embeds texts."""

    name: str
    path: Path
    embeds: bool


def known_models() -> Iterator[Known]:
    """Bundled models, those in installed packages, and those that ``glinfer pull`` has fetched."""
    for bundled in bundled_models():
        yield Known(f"{NAME}/{bundled.name}", bundled.path, False)
    short = {project: name for name, project in SHORT_NAMES.items()}
    found = installed_models()
    projects = [model.project for model in found]
    for model in found:
        name = short.get(model.project) or model.project.removeprefix("llm-")
        several = f"/{model.path.name}" if projects.count(model.project) > 1 else ""
        yield Known(f"{NAME}/{name}{several}", model.path, _embeds(model.path))
    if find_spec("huggingface_hub") is None:
        return
    for hub_name, revision, weights in cached_models():
        ggufs = gguf_choices(RemoteFile(path, 0) for path in weights)
        for opened, quant in [(each.opened, tag(each, ggufs)) for each in ggufs] or [("", "")]:
            path = Path(revision.snapshot_path) / opened
            given = dataclasses.replace(hub_name, quant=quant if len(ggufs) > 1 else "")
            yield Known(f"{NAME}/{given}", path, _embeds(path))


def _of_command() -> Iterable[Known]:
    """:func:`known_models`, searched once for each command: llm asks for models several times."""
    context = click.get_current_context(silent=True)
    found = {} if context is None else context.meta
    if _KNOWN not in found:
        found[_KNOWN] = tuple(known_models())
    return found[_KNOWN]


def _embeds(path: Path) -> bool:
    """Whether a model embeds texts, by what can be seen at once; opening it tells for certain."""
    try:
        if path.is_dir():
            return (path / MODULES).exists() or read_config(path / CONFIG).embeds
        with path.open("rb") as file:
            return is_zip(path) or b".pooling_type" in file.read(_HEADER_BYTES)
    except (OSError, GlinferError):
        return False


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the models that generate texts."""
    register(GlinferModel(NAME), AsyncGlinferModel(NAME))
    for name, path, embeds in _of_command():
        if not embeds:
            register(GlinferModel(name, path), AsyncGlinferModel(name, path))


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register the models that embed texts."""
    for name, path, embeds in _of_command():
        if embeds:
            register(GlinferEmbedding(name, path))
