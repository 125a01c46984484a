"""The models that come with the package, each with a tokenizer and a card; nothing is downloaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from glinfer.errors import FormatError
from glinfer.formats.files import AnyPath

_MAX_NAME_CHARACTERS = 64
FOLDER = Path(__file__).resolve().parent.parent / "bundled"


@dataclass(frozen=True)
class BundledModel:
    """One bundled model: the facts on its card (``<name>.json``), and its size on disk.

    ``bits_per_byte`` is measured on held-out text with ``glinfer eval``; ``examples`` are prompts that suit the model.
    docs/models.md has the whole card.
    """

    name: str
    description: str
    licence: str
    parameters: int
    bits_per_byte: float
    examples: tuple[str, ...]
    path: Path
    tokenizer: Path
    bytes: int


@lru_cache(maxsize=1)
def bundled_models() -> tuple[BundledModel, ...]:
    """Every bundled model, by name."""
    models = []
    for card in sorted(FOLDER.glob("*.json")):
        facts = json.loads(card.read_text(encoding="utf-8"))
        path, tokenizer = card.with_suffix(".safetensors"), card.with_suffix(".bpe")
        models.append(
            BundledModel(
                name=card.stem,
                description=facts["description"],
                licence=facts["licence"],
                parameters=facts["parameters"],
                bits_per_byte=facts["bits_per_byte"],
                examples=tuple(facts["examples"]),
                path=path,
                tokenizer=tokenizer,
                bytes=path.stat().st_size + tokenizer.stat().st_size,
            )
        )
    return tuple(models)


def find_model(path_or_name: AnyPath) -> AnyPath:
    """The path of a bundled model if there is no file of that name; other paths are returned as given.

    Raises:
        FormatError: a name without folder and ending is neither a file nor a bundled model.
    """
    name = os.fspath(path_or_name)
    could_be_one = isinstance(name, str) and name.isidentifier() and len(name) <= _MAX_NAME_CHARACTERS
    if not could_be_one or os.path.lexists(name):
        return path_or_name
    models = {model.name: model.path for model in bundled_models()}
    if name not in models:
        known = ", ".join(models)
        raise FormatError(f"{name}: there is no such file, and no bundled model of that name; bundled: {known}")
    return models[name]
