"""The layers of small models of each family, where those of a record would all be of one kind in so few."""

from __future__ import annotations

from typing import Any

from glinfer.config import ModelConfig
from glinfer.families import FAMILIES


def layers_of(family: str) -> dict[str, Any]:
    """Fields of a configuration: a convolution and attention in turn, in families that have both; bounds of gates."""
    if FAMILIES[family].convolves:
        return {"layer_types": ("conv", "full_attention"), "conv_L_cache": 3}
    limit = FAMILIES[family].usual.get("swiglu_limit", 0.0)
    return {"swiglu_limit": limit / 10, "swiglu_alpha": 1.5} if limit else {}


def convolutions_in(config: ModelConfig) -> int:
    """How many layers of a model convolve."""
    return sum(config.layer(layer).convolves for layer in range(config.num_hidden_layers))
