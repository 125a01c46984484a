"""Chat templates: a model's Jinja programs, which turn the messages of a conversation into its prompt.

docs/models.md lists their limits, and why no message can forge a control token: a token counts only if the template
wrote all its characters. Starting a process for each template costs a tenth of a second.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from glinfer.errors import FormatError, InputError, OptionError
from glinfer.families.settings import quoted
from glinfer.formats.files import AnyPath, inside, is_directory, read_whole, shown, words_of
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.limits import (
    MAX_RENDER_BYTES,
    MAX_RENDER_SECONDS,
    MAX_RENDERED_CHARACTERS,
    MAX_TEMPLATE_CHARACTERS,
)
from glinfer.text import template_worker
from glinfer.text.images import MARKS, Pictured, template_content
from glinfer.text.own_process import ProcessError, answer_of
from glinfer.text.tokenizer import Tokenizer
from glinfer.text.tokenizers.gguf import named_tokens
from glinfer.text.tokenizers.huggingface import CONFIG_FILE, content_of, sidecar_json

TEMPLATE_FILE, _JSON_FILE = "chat_template.jinja", "chat_template.json"
_TOOL_FILE = Path("additional_chat_templates", "tool_use.jinja")
GGUF_KEY, GGUF_TOOL_KEY = "tokenizer.chat_template", "tokenizer.chat_template.tool_use"
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "  # as in transformers
_TOOLS = re.compile(r"\btools\b")
_REPLY = "Hi"

Message = Mapping[str, Any]
"""A message of a conversation: ``role`` (``system``, ``user``, ``assistant`` or ``tool``) and ``content``, both texts.

The assistant's may have ``tool_calls``, and a tool's ``name`` and ``tool_call_id``, in the form of OpenAI's API.
"""
Tools = Sequence[Mapping[str, Any]]
"""Tools that a model may call, in the form of OpenAI's API."""

Check = Callable[[Sequence[str]], None]
"""Raises an error to refuse texts."""
NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
"""No variables for a chat template."""


@dataclass(frozen=True)
class Rendering:
    """How a conversation becomes a prompt.

    Attributes:
        add_generation_prompt: end with the tokens that open the assistant's next message.
        continue_final_message: end with the text of the last message, which is the assistant's.
        kwargs: further variables for the chat template, as transformers' ``**kwargs``.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)


OPEN = Rendering()
"""The default: end where the model begins its reply."""


@dataclass(frozen=True)
class JinjaTemplate:
    """A chat template.

    Attributes:
        source: the template's source.
        tokens: texts of special tokens by their names in the template, such as ``bos_token``.
        label: the template's file, for error messages.
        tool_source: another source for conversations with tools, or None.
        pictured: whether it gets contents as lists of parts, as those of models that take images do.

    Raises:
        InputError: a source is not a text, or is too long.
    """

    source: str
    tokens: Mapping[str, str]
    label: str
    tool_source: str | None = None
    pictured: bool = False

    def __post_init__(self) -> None:
        """Check types and lengths; rendering finds syntax errors."""
        most = MAX_TEMPLATE_CHARACTERS
        for each in (self.source, self.with_tools):
            if not isinstance(each, str):
                raise self._error(f"the chat template is {quoted(each)}; expected the text of one")
            if len(each) > most:
                raise self._error(f"the chat template has {len(each)} characters; expected at most {most}")

    @property
    def with_tools(self) -> str:
        """The source for conversations with tools."""
        return self.source if self.tool_source is None else self.tool_source

    @property
    def takes_tools(self) -> bool:
        """Whether that source uses tools."""
        return _TOOLS.search(self.with_tools) is not None

    def render(self, messages: Sequence[Message], how: Rendering = OPEN, tools: Tools | None = None) -> str:
        """The text of a conversation; errors as in :meth:`parts`."""
        return "".join(self.parts((), messages, how, tools))

    def parts(
        self, names: Iterable[str], messages: Sequence[Message], how: Rendering = OPEN, tools: Tools | None = None
    ) -> list[str]:
        """The text of a conversation, the same as from transformers' ``apply_chat_template``, in parts.

        Args:
            names: the control tokens; where the template wrote one, the text is cut.
            messages: the conversation, oldest message first.
            how: how it becomes a prompt, except that no message is continued.
            tools: the tools that the model may call.

        Returns:
            Texts at even indices, control tokens at odd ones.

        Raises:
            InputError: the template is invalid, refuses these messages, or exceeds a limit of time, memory or text.
        """
        variables: dict[str, Any] = {
            **how.kwargs,
            "messages": [self._given(message) for message in messages],
            "add_generation_prompt": how.add_generation_prompt,
            "tools": list(tools) if tools else None,
            "documents": None,
        }
        tokens = {name: text for name, text in self.tokens.items() if name not in variables}
        source = self.with_tools if tools else self.source
        request = {"source": source, "variables": variables, "tokens": tokens, "names": list(names)}
        answer = self._answer({**request, "kwargs": list(how.kwargs), "most": MAX_RENDERED_CHARACTERS})
        if "known" in answer:
            wrong, known = sorted(how.kwargs.keys() - {*answer["known"]}), ", ".join(answer["known"]) or "no arguments"
            words = f"the model's chat template has no argument {quoted(wrong[0])}; expected {known}"
            raise OptionError(f"{self.label}: {words}", words)
        if "parts" not in answer:
            raise self._error(f"the model's chat template cannot be used: {words_of(answer.get('error'))}")
        return list(answer["parts"])

    def ids(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        how: Rendering = OPEN,
        *,
        tools: Tools | None = None,
        check: Check | None = None,
    ) -> list[int]:
        """Token ids of a conversation; ``check`` may refuse the rendered text before it is encoded.

        Raises:
            InputError: as :meth:`parts`, or a message has no UTF-8 form.
        """
        known, last = tokenizer.control_tokens, messages[-1] if messages else {}
        if how.continue_final_message:
            how = replace(how, add_generation_prompt=False)
            messages = [*messages[:-1], {**last, "content": last["content"] + _CONTINUED}]
        parts = self.parts(known, messages, how, tools)
        if how.continue_final_message:
            tag = _CONTINUED.strip()
            at = next((index for index in range(len(parts) - 1, -1, -2) if tag in parts[index]), None)
            if at is None or last["content"].strip() not in "".join(parts):
                raise self._error("the model's chat template changes the final message, which cannot be continued")
            text, _, after = parts[at].rpartition(tag)
            parts = [*parts[:at], text if after.startswith(" ") else text.rstrip()]
        if check is not None:
            check(["".join(parts)])
        contents = (message.get("content") for message in messages)
        images = [image for each in contents if isinstance(each, Pictured) for image in each.images]
        mixed: list[str | int] = []
        for index, part in enumerate(parts):
            written = index % 2 and part in MARKS and self.pictured
            if written and not images:
                raise self._error("the model's chat template has more images than the messages")
            mixed += images.pop(0) if written else (known[part] if index % 2 else part,)
        if images:
            raise self._error(f"the model's chat template leaves {len(images)} images out")
        return tokenizer.encode_mixed(mixed)

    def _given(self, message: Message) -> dict[str, Any]:
        """A message in the form that the template gets."""
        content = message.get("content")
        listed = {"content": template_content(content)} if self.pictured and isinstance(content, str) else {}
        return {**message, **listed}

    def end_of_reply(self, tokenizer: Tokenizer, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> int | None:
        """The control token that the template puts right after a reply to ``messages``; errors as in :meth:`parts`."""
        known, replied = tokenizer.control_tokens, [*messages, {"role": "assistant", "content": _REPLY}]
        parts = self.parts(known, replied, Rendering(add_generation_prompt=False, kwargs=kwargs))
        texts, names = parts[::2], parts[1::2]
        ends = [known[name] for text, name in zip(texts, names, strict=False) if text.endswith(_REPLY)]
        return ends[-1] if ends else None

    def _error(self, words: str) -> InputError:
        return InputError(f"{self.label}: {words}", words)

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render in the separate process."""
        try:
            return answer_of(template_worker.__file__, request, seconds=MAX_RENDER_SECONDS, memory=MAX_RENDER_BYTES)
        except ProcessError as problem:
            raise self._error(f"the model's chat template {problem}") from problem


def find_template(path: AnyPath) -> JinjaTemplate | None:
    """Find the chat template of the model in a Hugging Face directory or a GGUF file; None if it has none.

    In a directory it is ``chat_template.jinja``, else ``chat_template.json``, else ``chat_template`` in
    ``tokenizer_config.json``: a text, or a list of named templates, of which ``default`` is used.
    The template ``tool_use``, there or in ``additional_chat_templates``, is for conversations with tools.

    Raises:
        FormatError: a file cannot be read or is damaged; none of several templates is the default.
        InputError: the template is not a text, or is too long.
    """
    if is_gguf(path):
        return _in_gguf(path)
    folder = Path(path) if is_directory(path) else Path(path).parent
    config = sidecar_json(folder / TEMPLATE_FILE)
    named = {name: content_of(value) for name, value in config.items() if name.endswith("_token")}
    tokens = {name: text for name, text in named.items() if text is not None}
    tools = _text_of(inside(folder / _TOOL_FILE)) if os.path.lexists(folder / _TOOL_FILE) else None
    if os.path.lexists(file := folder / TEMPLATE_FILE):
        return JinjaTemplate(_text_of(inside(file)), tokens, shown(file), tools)
    found, file = config.get("chat_template"), folder / CONFIG_FILE
    if os.path.lexists(folder / _JSON_FILE):
        file = folder / _JSON_FILE
        found = sidecar_json(file, _JSON_FILE).get("chat_template")
    found, listed = _named_in(found, shown(file)) if isinstance(found, list) else (found, None)
    return None if found is None else JinjaTemplate(found, tokens, shown(file), listed if tools is None else tools)


def _in_gguf(path: AnyPath) -> JinjaTemplate | None:
    file = read_gguf_file(path)
    tools = file.metadata.get(GGUF_TOOL_KEY)
    source = file.metadata.get(GGUF_KEY, tools)
    if source is None:
        return None
    named = named_tokens(file.metadata, file.source)
    tokens = {f"{name}_token": named[name] for name in ("bos", "eos") if name in named}
    return JinjaTemplate(source, tokens, file.source, tools)


def _text_of(file: Path) -> str:
    data = read_whole(file, 4 * MAX_TEMPLATE_CHARACTERS, "a chat template")  # a character has at most four bytes
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{shown(file)}: byte {error.start} of {len(data)} is not UTF-8; expected text") from None


def _named_in(several: list[Any], label: str) -> tuple[Any, Any]:
    """The templates ``default`` (or the only one) and ``tool_use`` in a list of ``{name, template}``."""
    entries = [entry for entry in several if isinstance(entry, dict)]
    wanted = [entry for entry in entries if entry.get("name") == "default"] or (entries if len(entries) == 1 else [])
    if len(wanted) != 1:
        names = ", ".join(quoted(entry.get("name")) for entry in entries[:5])
        raise FormatError(f"{label}: found chat templates {names or quoted(several)}; expected one named 'default'")
    tools = (entry.get("template") for entry in entries if entry.get("name") == "tool_use")
    return wanted[0].get("template"), next(tools, None)
