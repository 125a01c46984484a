"""A model's shape given as options, ``blocks=6,heads=8,dim=512``."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from glinfer.errors import ConfigError, nearest
from glinfer.families import DEFAULT_SHAPE, FAMILIES, SHAPES

_OPTIONS = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "heads": "num_attention_heads",
    "blocks": "num_hidden_layers",
    "context": "max_position_embeddings",
    "inner": "intermediate_size",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "window": "sliding_window",
    "tied": "tie_word_embeddings",
    "experts": "num_experts",
    "experts_used": "num_experts_per_tok",
}


def option_fields(text: str) -> dict[str, Any]:
    """The fields of :class:`glinfer.config.ModelConfig` that options name, see its ``from_options``."""
    values: dict[str, Any] = _fields(DEFAULT_SHAPE)
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, number = part.partition("=")
        if part in SHAPES:
            values = {**FAMILIES[part].options, "model_type": part, **_fields(SHAPES[part])}
            continue
        if name == "family":
            if number not in FAMILIES:
                near = nearest(number, FAMILIES)
                advice = f"did you mean {near}?" if near else "docs/models.md lists the families"
                raise ConfigError(f"family={shown(number)} in --config; {advice}")
            values = {**values, **FAMILIES[number].options, "model_type": number}
            continue
        if name not in _OPTIONS:
            raise ConfigError(
                f"unknown name {shown(name)} in --config; known: {', '.join(_OPTIONS)}, family, "
                f"or a whole shape: {', '.join(SHAPES)}; or give the path of a config.json"
            )
        try:
            values[_OPTIONS[name]] = int(number)
        except ValueError:
            raise ConfigError(f"{name}={shown(number)} in --config; expected an integer") from None
    if values.get("tie_word_embeddings") in (0, 1):
        values["tie_word_embeddings"] = bool(values["tie_word_embeddings"])
    return values


def _fields(shape: Mapping[str, int]) -> dict[str, Any]:
    return {_OPTIONS[name]: number for name, number in shape.items()}
