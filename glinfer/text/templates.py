"""Chat templates: the Jinja programs that come with a model and put the messages of a conversation into its form.

Templates are rendered as Hugging Face's transformers renders them: in jinja2's immutable sandbox, without a loader, so
that a template can reach no file, no network and no inside of Python. The sandbox does not keep a template from running
for ever or from making endless text, so each is rendered in a process of its own, which may use MAX_RENDER_SECONDS of a
processor, twice that by the clock, and MAX_RENDER_BYTES of memory. What remains: a tenth of a second for starting the
process each time, and on systems without ``setrlimit`` the clock alone (there, memory is not limited).

:class:`TemplateEncoder` turns conversations into token ids, so that no message can forge a control token. A template
only knows text, so the ids come from the text that it renders. Before rendering, a mark (a character that nobody uses)
is put around each message, within the spaces that it begins and ends with, and into each control token that it spells.
In the rendered text only what has no mark in it is a control token. Then the marks are taken out again, and what lies
between two control tokens is encoded as one text.

So the ids are those of the whole rendered text, but for two cases. What a message spells is ordinary text, alone and
together with what the template puts beside it. And a template that looks at the first or the last character of a
message sees the mark; one that trims or cuts messages, or looks for something within them, works as ever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from glinfer.errors import FormatError, InputError
from glinfer.formats.files import AnyPath, inside, is_directory, opened, shown, words_of
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.json_files import quoted, read_json
from glinfer.limits import (
    MAX_RENDER_BYTES,
    MAX_RENDER_SECONDS,
    MAX_RENDERED_CHARACTERS,
    MAX_TEMPLATE_CHARACTERS,
    MAX_TOKENIZER_CONFIG_BYTES,
)
from glinfer.text import template_worker
from glinfer.text.own_process import ProcessError, answer_of
from glinfer.text.tokenizer import Tokenizer
from glinfer.text.tokenizers.gguf import named_tokens
from glinfer.text.tokenizers.huggingface import CONFIG_FILE

TEMPLATE_FILE, _JSON_FILE = "chat_template.jinja", "chat_template.json"
_GGUF_KEY = "tokenizer.chat_template"
_MARKS = range(0xF0000, 0xFFFFE)  # of Unicode's private use: no vocabulary has a meaning for them
_SLICE = 1 << 14  # characters
_TOOLS = re.compile(r"\btools\b")
_EXAMPLE = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"})

Message = Mapping[str, Any]
"""A message of a conversation: ``role`` (``system``, ``user``, ``assistant`` or ``tool``) and ``content``, both texts.

Of the assistant's also ``tool_calls``, and of a tool's ``name`` and ``tool_call_id``, as OpenAI's API has them.
"""
Tools = Sequence[Mapping[str, Any]]
"""Tools that a model is told of, as OpenAI's API has them."""

Check = Callable[[Sequence[str]], None]
"""Raises an error of its own, to refuse texts."""


@dataclass(frozen=True)
class JinjaTemplate:
    """A chat template.

    Attributes:
        source: the program.
        tokens: texts of special tokens by the names that the program has for them, such as ``bos_token``.
        label: where it is from, for messages.

    Raises:
        InputError: the program is not a text, or is too long.
    """

    source: str
    tokens: Mapping[str, str]
    label: str

    def __post_init__(self) -> None:
        """Check type and length; syntax errors show when it is rendered."""
        if not isinstance(self.source, str):
            raise InputError(f"{self.label}: the chat template is {quoted(self.source)}; expected the text of one")
        if len(self.source) > MAX_TEMPLATE_CHARACTERS:
            raise InputError(
                f"{self.label}: the chat template has {len(self.source)} characters; "
                f"expected at most {MAX_TEMPLATE_CHARACTERS}"
            )

    @property
    def takes_tools(self) -> bool:
        """Whether the program looks at tools."""
        return _TOOLS.search(self.source) is not None

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, tools: Tools | None = None
    ) -> str:
        """The text of a conversation, as transformers' ``apply_chat_template`` gives it.

        Args:
            messages: the conversation, oldest message first.
            add_generation_prompt: whether what opens the assistant's next message comes at the end.
            tools: what the model is told that it may call.

        Raises:
            InputError: the program is none, refuses these messages, or takes too much time, memory or text.
        """
        variables: dict[str, Any] = {
            **self.tokens,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) if tools else None,
            "documents": None,
        }
        answer = self._answer({"source": self.source, "variables": variables, "most": MAX_RENDERED_CHARACTERS})
        if "text" not in answer:
            raise self._error(f"cannot be used: {words_of(answer.get('error'))}")
        return str(answer["text"])

    def _error(self, words: str) -> InputError:
        return InputError(f"{self.label}: the model's chat template {words}")

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer of the process that renders the template."""
        try:
            return answer_of(template_worker.__file__, request, seconds=MAX_RENDER_SECONDS, memory=MAX_RENDER_BYTES)
        except ProcessError as problem:
            raise self._error(str(problem)) from None


def find_template(path: AnyPath) -> JinjaTemplate | None:
    """Find the chat template of the model in a Hugging Face directory or a GGUF file; None if it has none.

    In a directory it is ``chat_template.jinja``, else ``chat_template.json``, else ``chat_template`` in
    ``tokenizer_config.json``: a text, or a list of several with names, of which it is the one called ``default``.

    Args:
        path: the directory, a file in it, or the GGUF file.

    Raises:
        FormatError: a file cannot be read or is damaged; there are several templates and none is the default.
        InputError: the template is not a text, or is too long; the package gguf, for a GGUF file, is not installed.
    """
    if is_gguf(path):
        return _in_gguf(path)
    folder = Path(path) if is_directory(path) else Path(path).parent
    config_file = folder / CONFIG_FILE
    config = read_json(inside(config_file), MAX_TOKENIZER_CONFIG_BYTES) if os.path.lexists(config_file) else {}
    named = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items()}
    tokens = {name: value for name, value in named.items() if name.endswith("_token") and isinstance(value, str)}
    if os.path.lexists(file := folder / TEMPLATE_FILE):
        return JinjaTemplate(_text_of(inside(file)), tokens, shown(file))
    found, file = config.get("chat_template"), config_file
    if os.path.lexists(folder / _JSON_FILE):
        file = folder / _JSON_FILE
        found = read_json(inside(file), MAX_TOKENIZER_CONFIG_BYTES).get("chat_template")
    found = _default_of(found, shown(file)) if isinstance(found, list) else found
    return None if found is None else JinjaTemplate(found, tokens, shown(file))


def _in_gguf(path: AnyPath) -> JinjaTemplate | None:
    file = read_gguf_file(path)
    source = file.metadata.get(_GGUF_KEY)
    if source is None:
        return None
    named = named_tokens(file.metadata, file.source)
    tokens = {f"{name}_token": named[name] for name in ("bos", "eos") if name in named}
    return JinjaTemplate(source, tokens, file.source)


def _text_of(file: Path) -> str:
    with opened(file) as (stream, size):
        data = stream.read(min(size, 4 * MAX_TEMPLATE_CHARACTERS) + 1)  # a character has at most four bytes
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{shown(file)}: found no UTF-8 at byte {error.start} of {size}; expected text") from None


def _default_of(several: list[Any], label: str) -> Any:
    """The template called ``default``, or the only one, in a list of ``{name, template}``."""
    entries = [entry for entry in several if isinstance(entry, dict)]
    wanted = [entry for entry in entries if entry.get("name") == "default"] or (entries if len(entries) == 1 else [])
    if len(wanted) != 1:
        names = ", ".join(quoted(entry.get("name")) for entry in entries[:5])
        raise FormatError(f"{label}: found chat templates {names or quoted(several)}; expected one named 'default'")
    return wanted[0].get("template")


class TemplateEncoder:
    """Encodes conversations by a template and a tokenizer.

    Args:
        template: the model's.
        tokenizer: the model's.
    """

    def __init__(self, template: JinjaTemplate, tokenizer: Tokenizer) -> None:
        """Keep template and tokenizer; nothing is rendered yet."""
        self._template, self._tokenizer = template, tokenizer

    @property
    def takes_tools(self) -> bool:
        """Whether the template looks at tools."""
        return self._template.takes_tools

    @property
    def source(self) -> str:
        """The template's program."""
        return self._template.source

    def ids(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Tools | None = None,
        check: Check | None = None,
    ) -> list[int]:
        """Token ids of a conversation, and of what opens the reply to it; ``tools`` as the template takes them.

        ``check`` may refuse the rendered text, before it is encoded.

        Raises:
            InputError: as :meth:`glinfer.text.templates.JinjaTemplate.render`, or a message has no UTF-8 form.
        """
        mark = self._unused([*_texts_in(list(messages)), *_texts_in(list(tools or ()))])
        marked = _marked_all(messages, mark, self._names)
        named = [_marked_inside(each, mark, self._names) for each in tools or ()]
        rendered = self._template.render(marked, add_generation_prompt=add_generation_prompt, tools=named)
        if check is not None:
            check([rendered.replace(mark, "")])
        parts, end = list[str | int](), 0
        for found in _found(self._names, rendered):
            parts += (rendered[end : found.start()].replace(mark, ""), self._tokenizer.control_tokens[found[0]])
            end = found.end()
        return self._tokenizer.encode_mixed([*parts, rendered[end:].replace(mark, "")])

    def end_of_reply(self) -> int | None:
        """The control token that the template puts right after a reply, or None."""
        mark = self._unused(())
        try:
            rendered = self._template.render(_marked_all(_EXAMPLE, mark, self._names), add_generation_prompt=False)
        except InputError:  # it may want other messages than these, and says so when it gets the real ones
            return None
        found = self._names.match(rendered.rpartition(mark)[2])
        return None if found is None else self._tokenizer.control_tokens[found[1]]

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """A pattern of control tokens, longest first; tokens of one character cannot be told from text."""
        names = sorted((name for name in self._tokenizer.control_tokens if len(name) > 1), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")

    def _unused(self, texts: Iterable[str]) -> str:
        used = set(self._template.source)
        for text in texts:
            used.update(*(text[start : start + _SLICE] for start in range(0, len(text), _SLICE)))
        mark = next((chr(code) for code in _MARKS if chr(code) not in used), None)
        if mark is None:
            raise InputError("the messages have every character from U+F0000 to U+FFFFD; leave one of them out")
        return mark


def _marked_all(messages: Iterable[Message], mark: str, names: re.Pattern[str]) -> list[Message]:
    return [
        {**_marked_inside(message, mark, names), "content": _marked(message["content"], mark, names)}
        for message in messages
    ]


def _texts_in(value: object) -> Iterator[str]:
    """All texts in a value of JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from (str(key), *_texts_in(each))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts_in(each)


def _marked_inside(value: Any, mark: str, names: re.Pattern[str]) -> Any:
    """A value of JSON with a mark in every control token that one of its texts spells."""
    if isinstance(value, str):
        return _split(value, mark, names)
    if isinstance(value, Mapping):
        return {_split(str(key), mark, names): _marked_inside(each, mark, names) for key, each in value.items()}
    return [_marked_inside(each, mark, names) for each in value] if isinstance(value, (list, tuple)) else value


def _split(text: str, mark: str, names: re.Pattern[str]) -> str:
    # Every place where one begins, those too that lie within another.
    starts = [found.start() + 1 for found in _found(re.compile(f"(?={names.pattern}).", re.DOTALL), text)]
    return mark.join(text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True))


def _found(names: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """As ``names.finditer(text)``, but by slices: a search lets no other thread run meanwhile."""
    at, longest = 0, len(names.pattern)
    while at < len(text):
        end = at + _SLICE
        for found in names.finditer(text, at, end + longest):
            if found.start() >= end:
                break
            yield found
            at = found.end()
        at = max(at, end)


def _marked(text: str, mark: str, names: re.Pattern[str]) -> str:
    """A message with a mark at both ends, inside its outer spaces, and in every control token that it spells."""
    inner = text.strip()
    if not inner:
        return text
    start = text.index(inner)
    return f"{text[:start]}{mark}{_split(inner, mark, names)}{mark}{text[start + len(inner) :]}"
