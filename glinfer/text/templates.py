"""Chat templates: the Jinja programs that come with a model and put the messages of a conversation into its form.

They are rendered as Hugging Face's transformers renders them: in jinja2's immutable sandbox, without a loader, so that
a template can reach no file, no network and no inside of Python. The sandbox does not keep a template from running
for ever or from making endless text; so each is rendered in a process of its own that may have :data:`SECONDS` of a
processor, twice that by the clock, and :data:`MEMORY` bytes. What remains: a tenth of a second for starting the
process each time, and on systems without ``setrlimit`` the clock alone (there, memory is not limited).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glinfer.errors import FormatError, InputError
from glinfer.formats.files import AnyPath, inside, opened, shown, words_of
from glinfer.formats.gguf.file import read_gguf_file
from glinfer.formats.huggingface.files import is_directory
from glinfer.formats.huggingface.json_files import quoted, read_json
from glinfer.text import template_worker
from glinfer.text.tokenizers.gguf import gguf_ids, is_gguf
from glinfer.text.tokenizers.huggingface import CONFIG_FILE

LONGEST_TEMPLATE = 1 << 18
"""Characters that a template may have; the longest real ones have some 20 000."""
LONGEST_TEXT = 1 << 22
"""Characters that a rendered conversation may have."""
SECONDS = 10
"""Seconds of a processor that rendering may take; real templates take milliseconds."""
MEMORY = 1 << 30
"""Bytes of memory that rendering may take."""
_LARGEST_CONFIG = 1 << 24  # bytes; it may list thousands of added tokens
_JINJA_FILE, _JSON_FILE = "chat_template.jinja", "chat_template.json"
_GGUF_KEY = "tokenizer.chat_template"

Message = Mapping[str, str]
"""One message of a conversation: ``role`` (``system``, ``user`` or ``assistant``) and ``content``."""


@dataclass(frozen=True)
class JinjaTemplate:
    """A chat template.

    Attributes:
        source: the program.
        tokens: texts of special tokens by the names that the program has for them, such as ``bos_token``.
        label: where it is from, for messages.

    Raises:
        InputError: the program is no text, or is too long.
    """

    source: str
    tokens: Mapping[str, str]
    label: str

    def __post_init__(self) -> None:
        """Check the program's kind and length; whether it is one shows when it is rendered."""
        if not isinstance(self.source, str):
            raise InputError(f"{self.label}: the chat template is {quoted(self.source)}; expected the text of one")
        if len(self.source) > LONGEST_TEMPLATE:
            raise InputError(
                f"{self.label}: the chat template has {len(self.source)} characters; "
                f"expected at most {LONGEST_TEMPLATE}"
            )

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation, as transformers' ``apply_chat_template`` gives it.

        Args:
            messages: the conversation, oldest message first.
            add_generation_prompt: whether what opens the assistant's next message comes at the end.

        Raises:
            InputError: the program is none, refuses these messages, or takes too much time, memory or text.
        """
        variables: dict[str, Any] = {
            **self.tokens,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        answer = self._answer({"source": self.source, "variables": variables, "most": LONGEST_TEXT})
        if "text" not in answer:
            raise self._error(f"cannot be used: {words_of(answer.get('error'))}")
        return str(answer["text"])

    def _error(self, words: str) -> InputError:
        return InputError(f"{self.label}: the model's chat template {words}")

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the process that renders the template says."""
        limits = {"seconds": SECONDS, "memory": MEMORY, "path": sys.path}
        try:
            done = subprocess.run(
                [sys.executable or "python3", "-I", template_worker.__file__],
                input=json.dumps({**request, **limits}).encode(),
                capture_output=True,
                timeout=2 * SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._error(f"was not done after {2 * SECONDS} seconds; it may run for ever") from None
        except OSError as error:
            raise self._error(f"cannot be run: no process for it could be started ({error.strerror})") from None
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise self._error(
                f"was stopped (status {done.returncode}); it may have {SECONDS} seconds and {MEMORY >> 20} MiB"
            ) from None
        return answer if isinstance(answer, dict) else {}


def find_template(path: AnyPath) -> JinjaTemplate | None:
    """The chat template of the model in a Hugging Face directory or a GGUF file; None where it has none.

    In a directory it is ``chat_template.jinja``, else ``chat_template.json``, else ``chat_template`` in
    ``tokenizer_config.json``: a text, or a list of several with names, of which it is the one called ``default``.

    Args:
        path: the directory, a file in it, or the GGUF file.

    Raises:
        FormatError: a file cannot be read or is damaged; there are several templates and none is the default.
        InputError: the template is no text, or is too long; the package gguf, for a GGUF file, is not installed.
    """
    if is_gguf(path):
        return _in_gguf(path)
    folder = Path(path) if is_directory(path) else Path(path).parent
    config_file = folder / CONFIG_FILE
    config = read_json(inside(config_file), _LARGEST_CONFIG) if os.path.lexists(config_file) else {}
    named = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items()}
    tokens = {name: value for name, value in named.items() if name.endswith("_token") and isinstance(value, str)}
    if os.path.lexists(file := folder / _JINJA_FILE):
        return JinjaTemplate(_text_of(inside(file)), tokens, shown(file))
    found, file = config.get("chat_template"), config_file
    if os.path.lexists(folder / _JSON_FILE):
        file = folder / _JSON_FILE
        found = read_json(inside(file), _LARGEST_CONFIG).get("chat_template")
    found = _default_of(found, shown(file)) if isinstance(found, list) else found
    return None if found is None else JinjaTemplate(found, tokens, shown(file))


def _in_gguf(path: AnyPath) -> JinjaTemplate | None:
    file = read_gguf_file(path)
    source = file.metadata.get(_GGUF_KEY)
    if source is None:
        return None
    names = file.metadata.get("tokenizer.ggml.tokens")
    ids = gguf_ids(file.metadata, file.source)
    tokens = {f"{name}_token": names[ids[name]] for name in ("bos", "eos") if names and name in ids}
    return JinjaTemplate(source, tokens, file.source)


def _text_of(file: Path) -> str:
    with opened(file) as (stream, size):
        data = stream.read(min(size, 4 * LONGEST_TEMPLATE) + 1)  # a character has at most four bytes
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
