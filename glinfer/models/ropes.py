"""The tables of angles of a model's rotary positions: one for each kind of angles that its layers have."""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.families.layer import Rope
from glinfer.ops.rotary import rope_table
from glinfer.ops.spec import Array

ROPE = "rope"
"""The name of the first table; further ones have a number behind it."""


def rope_names(config: ModelConfig) -> dict[Rope, str]:
    """The name of the table of each kind of angles, in the order of the layers that have them first."""
    layers = map(config.layer, range(config.num_hidden_layers))
    kinds = dict.fromkeys(layer.rope for layer in layers if layer.rope is not None)
    return {rope: f"{ROPE}.{number}" if number else ROPE for number, rope in enumerate(kinds)}


def rope_of(config: ModelConfig, rope: Rope) -> Array:
    """Cosines and sines [positions, rope.dim] of a kind of angles.

    Raises:
        InputError: the scaling is of no known type, or lacks a number.
    """
    scaling = {key: list(value) if isinstance(value, tuple) else value for key, value in rope.scaling}
    return rope_table(config.max_position_embeddings, rope.dim, rope.theta, scaling or None)[0]
