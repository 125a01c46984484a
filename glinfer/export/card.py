"""What a page says of a model: its licence, from its files, and example prompts."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from glinfer.errors import FormatError
from glinfer.formats import BundledModel, bundled_models, find_model
from glinfer.formats.files import opened
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file

CHAT_EXAMPLES = ("What can you help me with?", "Tell me a short story about a fox.", "Why is the sky blue?")
TEXT_EXAMPLES = ("Once upon a time", "The city was quiet that night, and", "The best way to learn is")
_CARD, _CONFIG = "README.md", "config.json"
_MAX_CARD_BYTES = 1 << 16
_MAX_CHARACTERS = 200
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^(license|license_name):[ \t]*([^\s#\[{|>][^\n]*?)[ \t]*\r?$", re.MULTILINE)


def licence_of(path: str | PathLike[str]) -> str:
    """Find the name of a model's licence.

    It is in a bundled model's card, in ``general.license`` of a GGUF file, or in the front matter of ``README.md`` in
    a Hugging Face directory. There ``license_name`` is preferred to ``license``, which may be ``other``.
    """
    found, bundled = Path(find_model(path)), _bundled(path)
    if bundled is not None:
        return bundled.licence
    named = _in_gguf(found) if is_gguf(found) else _in_card(found if found.is_dir() else found.parent)
    return " ".join(named.split())[:_MAX_CHARACTERS]


def examples_for(path: str | PathLike[str], *, chats: bool) -> list[str]:
    """Example prompts: those of a bundled model's card, or general ones for chats or plain texts."""
    bundled, usual = _bundled(path), CHAT_EXAMPLES if chats else TEXT_EXAMPLES
    return list(usual if bundled is None else bundled.examples)


def _bundled(path: str | PathLike[str]) -> BundledModel | None:
    found = Path(find_model(path))
    return next((model for model in bundled_models() if model.path == found), None)


def _in_gguf(path: Path) -> str:
    metadata = read_gguf_file(path).metadata
    named = metadata.get("general.license.name") or metadata.get("general.license")
    return named if isinstance(named, str) else ""


def _in_card(folder: Path) -> str:
    if not (folder / _CONFIG).is_file():  # the README does not belong to a model
        return ""
    try:
        with opened(folder / _CARD) as (file, _):
            text = file.read(_MAX_CARD_BYTES).decode("utf-8", "replace")
    except FormatError:
        return ""
    front = _FRONT_MATTER.match(text)
    fields: dict[str, str] = {} if front is None else dict(_FIELD.findall(front[1]))
    named = {name: value.strip("\"'") for name, value in fields.items()}
    return named.get("license_name") or named.get("license", "")
