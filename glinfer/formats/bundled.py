"""The models that come with the package, each with a tokenizer and a card; nothing is downloaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "bundled"


@dataclass(frozen=True)
class BundledModel:
    """One bundled model: the facts from its card (``<name>.json``), and its size on disk.

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
    """All bundled models, sorted by name."""
    models = []
    for card in sorted(FOLDER.glob("*.json")):
        facts = json.loads(card.read_text(encoding="utf-8"))
        path, tokenizer = card.with_suffix(".safetensors"), card.with_suffix(".bpe")
        own = {name: facts[name] for name in ("description", "licence", "parameters", "bits_per_byte")}
        nbytes = path.stat().st_size + tokenizer.stat().st_size
        models.append(
            BundledModel(
                card.stem, **own, examples=tuple(facts["examples"]), path=path, tokenizer=tokenizer, bytes=nbytes
            )
        )
    return tuple(models)
