"""The tables of angles of a model's rotary positions: one for each kind of angles that its layers have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.families.layer import Rope
from glinfer.gl.values import Value
from glinfer.kernels.fused.dense import ANGLES
from glinfer.kernels.rotary import cosines_and_sines, query_scales, rope_frequencies
from glinfer.kernels.spec import Array, RunValue

ROPE = "rope"
"""The name of the first table; further ones end in a number."""
QUERIES = ".queries"
"""The end of the name of a table for queries alone, where a reference plan needs one."""


def angle_values(config: ModelConfig, *, whole: bool = False, back: bool = False) -> list[RunValue]:
    """The run values for the angles of a model with two sets of them, or with images; none for other models.

    With ``back``, ANGLES is the row for the run value ``position`` less the input ``back``, since images have fewer
    positions than tokens.

    ANGLES is the row of the angles of the token at the run value ``position``, and the input ``long`` is 1 where the
    text has the second set. In plans over a ``whole`` text it is the row for the first token.
    """
    positions, limit = config.max_position_embeddings, config.long_after
    if back:
        less: Value = ("add", "position", ("multiply", "back", -1))
        return [RunValue("back", 0, positions - 1, usual=0), RunValue(ANGLES, 0, positions - 1, less)]
    if not limit:
        return []
    second: Value = ("multiply", ("ceildiv", ("add", "rows", -limit), positions), positions)
    if whole:
        return [RunValue(ANGLES, 0, 2 * positions - 1, second)]
    return [
        RunValue("long", 0, 1, usual=("ceildiv", ("add", "tokens", -limit), positions)),
        RunValue(ANGLES, 0, 2 * positions - 1, ("add", "position", ("multiply", "long", positions))),
    ]


def padded_angles(angles: Array, floats: int = 0, factor: float = 1.0) -> Array:
    """Cosine and sine of each angle of pairs [rows, pairs], times a factor, as :func:`padded_rotations` gives them."""
    return padded_rotations(np.stack([np.cos(angles), np.sin(angles)], -1).reshape(len(angles), -1) * factor, floats)


def padded_rotations(rotations: Array, floats: int = 0) -> Array:
    """Cosines and sines [rows, n] as float32 [rows, ``floats`` or n], of which the rest is not rotated."""
    rows, cols = rotations.shape
    found = np.zeros((rows, max(floats, cols)), np.float32)
    found[:, 0::2] = 1.0
    found[:, :cols] = rotations
    return found


def frequencies_of(rope: Rope, length: int) -> tuple[Array, float]:
    """See :func:`glinfer.kernels.rotary.rope_frequencies`, of a kind of angles in texts of ``length`` tokens."""
    return rope_frequencies(length, rope.dim, rope.theta, dict(rope.scaling) or None)


def image_angles(config: ModelConfig, sections: Sequence[int], positions: Array, floats: int = 0) -> Array:
    """Cosines and sines of tokens at positions [rows, 3] by time, row and column, as :func:`padded_angles` gives them.

    Time, row and column rotate pairs in turn; row and column have ``sections[1]`` and ``sections[2]`` pairs.
    """
    (rope,) = rope_names(config)
    frequencies, factor = frequencies_of(rope, config.max_position_embeddings)
    axes = np.zeros(len(frequencies), np.intp)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return padded_angles(positions.astype(np.float64)[:, axes] * frequencies, floats, factor)


def grid_angles(config: ModelConfig, rows: Array, cols: Array, floats: int) -> Array:
    """Cosines and sines of the patches at rows and columns of an image: each rotates half of the pairs."""
    frequencies, _ = rope_frequencies(1, config.head_dim // 2, config.rope_theta, None)
    angles = np.concatenate([each.astype(np.float64)[:, None] * frequencies for each in (rows, cols)], axis=1)
    return padded_angles(angles, floats)


def rope_names(config: ModelConfig) -> dict[Rope, str]:
    """The name of the table of each kind of angles, in the order of the layers that have them first."""
    layers = map(config.layer, range(config.num_hidden_layers))
    kinds = dict.fromkeys(layer.rope for layer in layers if layer.rope is not None)
    return {rope: f"{ROPE}.{number}" if number else ROPE for number, rope in enumerate(kinds)}


def rope_of(config: ModelConfig, rope: Rope, *, queries: bool = False) -> Array:
    """Cosines and sines [positions, rope.dim] of a kind of angles; those of ``queries`` include their scale.

    With ``config.long_after``, rows for texts up to that length come first, then those for longer texts.

    Raises:
        InputError: the scaling is of no known type, or lacks a number; or it scales queries, and heads rotate in part.
    """
    if rope.scales_queries and rope.dim != config.head_dim:
        raise InputError(
            f"{rope.dim} of {config.head_dim} elements of a head rotate; expected all, as queries are scaled"
        )
    positions, limit = config.max_position_embeddings, config.long_after
    found = [frequencies_of(rope, length) for length in ((limit, positions) if limit else (positions,))]
    scaled = queries and rope.scales_queries
    scales: Array | float = query_scales(positions, dict(rope.scaling))[:, None] if scaled else 1.0
    return np.concatenate([cosines_and_sines(positions, angles, factor * scales) for angles, factor in found])
