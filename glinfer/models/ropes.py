"""The tables of angles of a model's rotary positions: one for each kind of angles that its layers have."""

from __future__ import annotations

import numpy as np

from glinfer.config import ModelConfig
from glinfer.families.layer import Rope
from glinfer.ops.fused.dense import ANGLES
from glinfer.ops.rotary import cosines_and_sines, rope_frequencies
from glinfer.ops.spec import Array, RunValue

ROPE = "rope"
"""The name of the first table; further ones have a number behind it."""


def angle_values(config: ModelConfig, rows: int) -> list[RunValue]:
    """The run value ANGLES, where a model has two sets of angles; for plans over ``rows`` tokens of one text a run.

    It is the row of the first of them, of the last one where ``rows`` is 1.
    """
    positions, limit = config.max_position_embeddings, config.long_after

    def row(tokens: int) -> int:
        return (tokens - 1 if rows == 1 else 0) + (positions if tokens > limit else 0)

    return [RunValue(ANGLES, 0, 2 * positions - 1, row)] if limit else []


def rope_names(config: ModelConfig) -> dict[Rope, str]:
    """The name of the table of each kind of angles, in the order of the layers that have them first."""
    layers = map(config.layer, range(config.num_hidden_layers))
    kinds = dict.fromkeys(layer.rope for layer in layers if layer.rope is not None)
    return {rope: f"{ROPE}.{number}" if number else ROPE for number, rope in enumerate(kinds)}


def rope_of(config: ModelConfig, rope: Rope) -> Array:
    """Cosines and sines [positions, rope.dim] of a kind of angles.

    With ``config.long_after`` they are those of texts of at most so many tokens, and behind them those of longer ones.

    Raises:
        InputError: the scaling is of no known type, or lacks a number.
    """
    scaling = {key: list(value) if isinstance(value, tuple) else value for key, value in rope.scaling}
    positions, limit = config.max_position_embeddings, config.long_after
    lengths = (limit, positions) if limit else (positions,)
    found = [rope_frequencies(length, rope.dim, rope.theta, scaling or None) for length in lengths]
    return np.concatenate([cosines_and_sines(positions, *angles) for angles in found])
