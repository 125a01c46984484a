"""The table of changes to logits for the passes of :mod:`glinfer.kernels.fused.choice`, read by
shaders/common/changes.glsl.

Row r of the table, float32 [rows, columns], belongs to row r of the logits. Columns 0 to 3 are the repetition penalty,
its reciprocal, the presence penalty and the frequency penalty. Columns 4 + 2t and 5 + 2t are the bias and the code of
token t: 2 · (times it was generated), plus 1 if the text contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES, FlatLayout
from glinfer.kernels.spec import Array, DrawSpec, Params, Shapes, TensorSpec, op

AHEAD = 8
"""Limit for a row's tokens that the GPU has chosen and that are not in a table yet."""
PENALTIES = slice(4)
"""The columns of the penalties."""
WRITTEN = 1024
"""Texels of the table that one draw may write."""
WRITE_WORDS = 2 * LANES
"""Words of a row of the table of texels to write: the texel's number, three unused ones, and the bits of its floats."""
_LARGEST = float(np.finfo(np.float32).max)


def bias_columns(vocab: int) -> slice:
    """The columns of the biases of all tokens."""
    return slice(4, 4 + 2 * vocab, 2)


def code_columns(vocab: int) -> slice:
    """The columns of the codes of all tokens."""
    return slice(5, 5 + 2 * vocab, 2)


def changes_layout(rows: int, vocab: int, max_texture_size: int) -> FlatLayout:
    """The layout of a table.

    Raises:
        PlanError: it does not fit a texture.
    """
    return FlatLayout.of((rows, LANES * (1 + -(-vocab // 2))), "rgba32f", max_texture_size)


def changes_fit(rows: int, vocab: int, max_texture_size: int) -> bool:
    """Whether a table fits a texture."""
    try:
        changes_layout(rows, vocab, max_texture_size)
    except PlanError:
        return False
    return True


def changes_defines(changes: TensorSpec) -> list[tuple[str, int]]:
    """The defines of a draw that reads the table."""
    assert isinstance(changes.layout, FlatLayout)
    return [("CHANGED", AHEAD), *changes.layout.defines("CHANGES")]


def write_changes(texels: TensorSpec, changes: TensorSpec) -> DrawSpec:
    """Write texels of ``changes``, a table seen as [texels, 4], that the first rows of ``texels`` name.

    texels: uint32 [:data:`WRITTEN`, :data:`WRITE_WORDS`]. Run value: ``written``, the number of rows.
    """
    assert isinstance(changes.layout, FlatLayout)
    how: dict[str, Any] = {"cover": "scatter", "vertex": "common/write_texels.vert", "points": "written"}
    pairs, size, defines = (("texels", texels.name),), ("written", LANES), tuple(changes.layout.defines("OUT"))
    return DrawSpec("choice.change", "choice", "write_texels", pairs, (changes.name,), size, defines, **how)


def _check(shapes: Shapes, params: Params) -> None:
    shapes.expect("texels", None, WRITE_WORDS)
    shapes.expect("output", None, LANES)


def _rows_written(inputs: Mapping[str, Array], params: Params, rows: int) -> Array:
    return np.asarray(inputs["texels"][:rows, 0], np.intp)


@op("write_texels", ("texels",), (), _check, ("texels",), rows_written=_rows_written)
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    words = np.ascontiguousarray(inputs["texels"][: size[0], LANES:], dtype=np.uint32)
    return words.view(np.float32).astype(np.float64)


def change_word(ahead: int = 0, back: int = 0) -> int:
    """The word of a row, in the table of choices, whose logits change; the word is 0 if they do not.

    ``ahead`` tokens of the row are not in a table yet; their picks begin ``back`` slots before the row's own.
    """
    return 1 + 2 * ahead + (back << 16)


def changed_logits(logits: Array, table: Array, chosen: Array) -> Array:
    """For an oracle: the logits [vocab] changed by a row of the table, and by the tokens ``chosen`` since.

    Listed logits are compared exactly, so they are changed in float32 here too.
    """
    table = table.astype(np.float32)
    repetition, reciprocal, presence, frequency = table[PENALTIES]
    codes = table[code_columns(logits.size)]
    times = np.bincount(chosen, minlength=logits.size).astype(np.float32)
    counts, seen = np.floor(codes / 2) + times, codes % 2 + times > 0
    added = table[bias_columns(logits.size)] - np.where(counts > 0, presence + frequency * counts, np.float32(0))
    changed = logits.astype(np.float32) + added
    with np.errstate(over="ignore", invalid="ignore"):
        penalised = np.clip(changed * np.where(changed > 0, reciprocal, repetition), -_LARGEST, _LARGEST)
    return np.asarray(np.where(seen & np.isfinite(changed), penalised, changed), dtype=np.float64)
