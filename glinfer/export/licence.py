"""The licence of a model, where its files name one: what model cards of pages show."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from glinfer.errors import FormatError
from glinfer.formats import bundled_models, find_model
from glinfer.formats.files import opened
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file

_CARD, _CONFIG = "README.md", "config.json"
_MAX_CARD_BYTES = 1 << 16
_MAX_CHARACTERS = 200
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^(license|license_name):[ \t]*([^\s#\[{|>][^\n]*?)[ \t]*\r?$", re.MULTILINE)


def licence_of(path: str | PathLike[str]) -> str:
    """Find the name of a model's licence.

    A bundled model's card names it, a GGUF file in ``general.license``, and a directory of Hugging Face in the front
    matter of its ``README.md``, where ``license_name`` tells more than ``license: other``.

    Args:
        path: the model's file or directory, or the name of a bundled model.

    Returns:
        The name on one line, or an empty text where no file names one.
    """
    found = Path(find_model(path))
    for model in bundled_models():
        if model.path == found:
            return model.licence
    named = _in_gguf(found) if is_gguf(found) else _in_card(found if found.is_dir() else found.parent)
    return " ".join(named.split())[:_MAX_CHARACTERS]


def _in_gguf(path: Path) -> str:
    metadata = read_gguf_file(path).metadata
    named = metadata.get("general.license.name") or metadata.get("general.license")
    return named if isinstance(named, str) else ""


def _in_card(folder: Path) -> str:
    if not (folder / _CONFIG).is_file():  # a README of something else
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
