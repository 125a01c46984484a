"""Passes over many rows at once: the interleaved layout of rows, and the table that describes each row of a run.

A pass with T render targets computes T rows in every fragment, so each weight it fetches serves T rows. That makes a
matrix product fast. Row ``T · slot + n`` of a matrix is in slot ``slot`` of its tensor n.

The table ``rows``, uint32 [rows, 8], describes each row:

===== ==========================================================================
word  holds
===== ==========================================================================
0     the token, or :data:`CHOSEN` for the token that the previous run chose for this row
1     its position in its sequence
2     the cache slot at which its sequence begins
3     the token to score; in a batch the number of the row's LoRA adapter, 0 for none
4     the key of the noise for choosing the next token
5     1 / temperature, the bits of a float32
6     bits: 1 to sample the token, 0 for greedy; :data:`LONG` for a row that uses the second set of angles; from
      :data:`BACK` on by how much the position of its angles is below its own
7     in the table of :mod:`glinfer.kernels.fused.choice` the row of logits to choose from; for consecutive rows of a
      sequence its last held position, after which rows are padding
===== ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout, blocks_for
from glinfer.kernels.noise import Drawn
from glinfer.kernels.spec import Array, Params, Shapes, TensorSpec

ROW_WORDS = 8
CHOSEN = 2**32 - 1
TARGETS = (1, 2, 4, 8)
"""Numbers of rows that shaders/common/each_row.glsl computes at once."""
TOKEN, POSITION, BASE, WANTED, NOISE_KEY, INVERSE_TEMPERATURE, NOISE, SOURCE = range(8)
CHOICE_WORDS = slice(NOISE_KEY, SOURCE)
"""The words that control the choice of a token."""
DRAWN, LONG, BACK = 1, 2, 4
"""Bits of the word NOISE."""
LEARNED, LAST = WANTED, SOURCE
"""For consecutive rows of a text, the word SOURCE holds the text's last position; in embedding models the word WANTED
holds the row of the table of positions and token types."""

Table = npt.NDArray[np.uint32]


def row_table(rows: int) -> Table:
    """An empty table of ``rows`` rows."""
    return np.zeros((rows, ROW_WORDS), dtype=np.uint32)


def fill_choices(table: Table, draws: Sequence[Drawn]) -> None:
    """Write into the first rows of a table how to choose each row's token."""
    for row, drawn in zip(table, draws, strict=False):
        key, inverse_temperature = (0, 1.0) if drawn is None else drawn
        row[NOISE], row[NOISE_KEY] = drawn is not None, key
        row[INVERSE_TEMPERATURE] = np.float32(inverse_temperature).view(np.uint32)


def input_names(count: int, letter: str = "x") -> tuple[str, ...]:
    """The samplers of a matrix interleaved over ``count`` tensors: x0, x1, …"""
    return tuple(f"{letter}{number}" for number in range(count))


X_ROWS, R_ROWS = input_names(TARGETS[-1]), input_names(TARGETS[-1], "r")
"""Every sampler of a matrix x, and of a second matrix r, that an op over rows may bind."""


@dataclass(frozen=True)
class RowInterleaved:
    """A matrix [slots · T, cols] in T tensors [slots, cols] in blocks: row T·s + n is row s of tensor n."""

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        """Refuse a number of tensors, or layouts, that the shaders cannot read."""
        if len(self.tensors) not in TARGETS:
            raise PlanError(f"found {len(self.tensors)} tensors for one matrix; expected one of {TARGETS}")
        if len({tensor.layout for tensor in self.tensors}) != 1 or not isinstance(self.tensors[0].layout, BlockLayout):
            raise PlanError(f"{self.tensors[0].name} and its sibling tensors are not in blocks of one layout")

    @property
    def layout(self) -> BlockLayout:
        """The layout of every tensor."""
        layout = self.tensors[0].layout
        assert isinstance(layout, BlockLayout)
        return layout

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def slots(self) -> int:
        """Rows of each tensor."""
        return self.tensors[0].shape[0]

    @property
    def cols(self) -> int:
        """Columns of the matrix."""
        return self.tensors[0].shape[1]

    def inputs(self, letter: str = "x") -> tuple[tuple[str, str], ...]:
        """(sampler, tensor) pairs."""
        return tuple(zip(input_names(len(self.tensors), letter), self.names, strict=True))


Vectors = RowInterleaved | TensorSpec
"""Rows dealt to render targets, or all in one tensor."""


def padded(floats: int) -> int:
    """Floats of a part of a row that begins and ends with whole blocks."""
    return BLOCK_FLOATS * blocks_for(floats)


def table_layout(rows: TensorSpec) -> RowLayout:
    """The layout of the table of rows."""
    if not isinstance(rows.layout, RowLayout) or rows.shape[1] != ROW_WORDS:
        raise PlanError(f"{rows.name} is not a table of rows with {ROW_WORDS} words each")
    return rows.layout


def check_listed(shapes: Shapes, params: Params) -> None:
    """Require a row of the table for each row of the output."""
    needed = int(shapes.rows("output") * params["ROWS"])
    shapes.require(shapes.rows("rows") >= needed, f"the table has {shapes.rows('rows')} rows; expected {needed}")


def rotary_rows(inputs: Mapping[str, Array], params: Params, count: int) -> Array:
    """For an oracle: the row that each of ``count`` rows of a run uses in the table of angles.

    Rows after the end of a sequence are padding, and use at most the last row of angles.
    """
    rows = len(inputs["rope"])
    if params.get("ROPE_BY_ROW"):
        return np.arange(count)
    words = inputs["rows"][:count].astype(np.intp)
    moved = int(params.get("ROPE_SET", 0)) * (words[:, NOISE] & LONG != 0)
    moved = moved - words[:, NOISE] // BACK if params.get("ROPE_BACK") else moved
    return np.asarray(np.minimum(words[:, POSITION] + moved, rows - 1))


def positions_in(inputs: Mapping[str, Array], params: Params) -> list[tuple[int, int]]:
    """For an oracle: the position of each row, and the cache slot at which its sequence begins.

    A draw without a table has the one row at the run value position, in a sequence that begins in the first slot.
    """
    if "rows" not in inputs:
        return [(int(params["position"]), 0)]
    return [(int(info[POSITION]), int(info[BASE])) for info in inputs["rows"]]


def stored_rows(inputs: Mapping[str, Array], params: Params, rows: int) -> Array:
    """For an oracle: the cache slots of the tokens of ``rows`` rows of a table, by default the first ones."""
    table = inputs["rows"][int(params.get("first_row", 0)) :][:rows].astype(np.intp)
    if "RING" not in params:
        return np.asarray(table[:, POSITION] + table[:, BASE])
    sequences, offsets = np.divmod(table[:, BASE], int(params["EVERY"]))
    ring = int(params["RING"])
    return np.asarray(sequences * ring + (table[:, POSITION] + offsets) % ring)


def gathered(inputs: Mapping[str, Array], params: Params, slots: int | None = None, letter: str = "x") -> Array:
    """For an oracle: the matrix, float64 [slots · T, cols], of its T tensors' first ``slots`` slots, by default all."""
    names = input_names(int(params["ROWS"]), letter)
    return interleaved([np.asarray(inputs[name][:slots], dtype=np.float64) for name in names])


def interleaved(parts: Sequence[Array]) -> Array:
    """The matrix [slots · len(parts), cols] with rows from each of ``parts`` [slots, cols] in turn."""
    return np.asarray(np.stack(parts, axis=1).reshape(-1, parts[0].shape[1]))


def deinterleaved(matrix: Array, count: int) -> Array:
    """The ``count`` tensors [count, slots, cols] of a matrix, or the matrix itself for one tensor."""
    if count == 1:
        return matrix
    return np.asarray(matrix.reshape(-1, count, matrix.shape[1]).transpose(1, 0, 2))
