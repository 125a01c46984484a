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
    text turns by the second set. In plans over a ``whole`` text it is the row for the first token.
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
    """Cosine and sine of each angle of pairs [rows, pairs], times a factor: float32 [rows, ``floats`` or 2 · pairs].

    The rest of ``floats`` is turned by nothing.
    """
    turns = np.zeros((len(angles), max(floats, 2 * angles.shape[1])), np.float32)
    turns[:, 0::2] = 1.0
    turns[:, : 2 * angles.shape[1]] = np.stack([np.cos(angles), np.sin(angles)], -1).reshape(len(angles), -1) * factor
    return turns


def image_angles(config: ModelConfig, sections: Sequence[int], places: Array, floats: int = 0) -> Array:
    """Cosines and sines of tokens at places [rows, 3] by time, row and column, as :func:`padded_angles` gives them.

    Pairs turn by time, row and column in turn; row and column have ``sections[1]`` and ``sections[2]`` pairs.
    """
    (rope,) = rope_names(config)
    scaling = {key: list(value) if isinstance(value, tuple) else value for key, value in rope.scaling}
    frequencies, factor = rope_frequencies(config.max_position_embeddings, rope.dim, rope.theta, scaling or None)
    axes = np.zeros(len(frequencies), np.intp)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return padded_angles(places.astype(np.float64)[:, axes] * frequencies, floats, factor)


def grid_angles(config: ModelConfig, rows: Array, cols: Array, floats: int) -> Array:
    """Cosines and sines of the patches at rows and columns of an image: half of the pairs turn by each."""
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
    scaling = {key: list(value) if isinstance(value, tuple) else value for key, value in rope.scaling}
    positions, limit = config.max_position_embeddings, config.long_after
    lengths = (limit, positions) if limit else (positions,)
    found = [rope_frequencies(length, rope.dim, rope.theta, scaling or None) for length in lengths]
    scales: Array | float = query_scales(positions, scaling)[:, None] if queries and rope.scales_queries else 1.0
    return np.concatenate([cosines_and_sines(positions, angles, factor * scales) for angles, factor in found])
