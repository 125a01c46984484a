"""A shortlist of each row of logits: its likeliest tokens, and bounds on all others, in a few kilobytes.

The vocabulary is cut into pieces with a stride, because neighbours such as the digits are often alike. The shader
writes the four largest logits of each piece. A token that is not on the list has at most the fourth logit of its piece,
so every token above the largest fourth logit has its true rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.fused.allowed import allowed_tokens, check_mask, mask_defines
from glinfer.ops.fused.rows import (
    DRAWN,
    INVERSE_TEMPERATURE,
    NOISE,
    NOISE_KEY,
    SOURCE,
    RowInterleaved,
    check_same,
    gathered,
    optional_names,
    table_layout,
)
from glinfer.ops.fused.sample import NO_SCORE
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import gumbel_at
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, register

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

TOKENS_PER_PIECE = 4
"""Listed tokens of one piece: the channels of a texel."""
_PIECES, _MIN_PIECES = 512, 64
# Two steps share a float32, which holds whole numbers up to 2**24.
_STEPS = 4096


def pieces_for(vocab: int) -> int:
    """Pieces of a vocabulary, a power of two: 512 unless it is very small or very large."""
    pieces = _MIN_PIECES
    while (pieces < _PIECES and pieces < vocab) or pieces * _STEPS < vocab:
        pieces *= 2
    return pieces


def shortlist(
    name: str,
    logits: RowInterleaved,
    rows: TensorSpec,
    best: TensorSpec,
    facts: TensorSpec,
    *,
    vocab: int,
    count: Extent,
    kernels: KernelOptions,
    mask: TensorSpec | None = None,
) -> DrawSpec:
    """The shortlists of ``count`` rows of logits [rows, vocab], which the table ``rows`` names.

    With ``mask``, the table of :mod:`glinfer.ops.fused.allowed`, the logits of tokens that a row of it leaves out are
    -inf.

    Both outputs are [rows of the table, 4 · pieces] in flat texels, one for each piece; :class:`Shortlist` reads them.
    """
    if not isinstance(best.layout, FlatLayout) or not isinstance(facts.layout, FlatLayout):
        raise PlanError(f"draw {name}: expected outputs with four elements a texel")
    return DrawSpec(
        name=name,
        kind="shortlist",
        op="shortlist",
        inputs=(*logits.inputs(), ("rows", rows.name), *(() if mask is None else (("mask", mask.name),))),
        outputs=(best.name, facts.name),
        size=(count, best.shape[1]),
        defines=(
            *logits.layout.defines("X"),
            *table_layout(rows).defines("ROWS"),
            *(() if mask is None else mask_defines(mask)),
            *best.layout.defines("OUT"),
            ("ROWS", len(logits.tensors)),
            ("TABLE_ROWS", rows.shape[0]),
            ("VOCAB", vocab),
            ("PIECES", pieces_for(vocab)),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ),
    )


@dataclass(frozen=True)
class Shortlist:
    """The shortlist of one row: the likeliest tokens of each piece, and bounds on all others.

    Attributes:
        vocab: tokens of the whole row.
        best: float32 [pieces, 4], the largest logits of each piece, largest first; NO_SCORE where there is none.
        facts: float32 [pieces, 4], as shaders/shortlist.frag describes them.
    """

    vocab: int
    best: Floats
    facts: Floats

    @property
    def pieces(self) -> int:
        """Pieces of the vocabulary; token t is in piece t mod pieces."""
        return len(self.best)

    @property
    def sound(self) -> bool:
        """Whether no logit is NaN or +inf, and at least one can be compared."""
        return bool(self.facts[:, 2].min() >= 0.0 and NO_SCORE < self.best[:, 0].max() < np.inf)

    def tokens(self) -> tuple[Ids, Floats]:
        """The ids on the list, in no order, and their logits."""
        packed = self.facts[:, :2].astype(np.int64)
        steps = np.stack([packed % _STEPS, packed // _STEPS], axis=2).reshape(self.pieces, TOKENS_PER_PIECE)
        ids = steps * self.pieces + np.arange(self.pieces)[:, None]
        listed = self.best > NO_SCORE
        return ids[listed], self.best[listed]

    @property
    def bounds(self) -> Floats:
        """The largest logit that an unlisted token of each piece may have, [pieces]."""
        if self.vocab <= TOKENS_PER_PIECE * self.pieces:  # all that can be compared are on it
            return np.full(self.pieces, NO_SCORE)
        return self.best[:, TOKENS_PER_PIECE - 1]

    @property
    def rest(self) -> Floats:
        """The weight of each piece's unlisted tokens at the row's temperature, relative to its bound's, [pieces]."""
        return self.facts[:, 2]

    @property
    def drawn(self) -> Floats:
        """The largest noisy score of all tokens of each piece, [pieces]."""
        return self.facts[:, 3]


def _check(shapes: Shapes, params: Params) -> None:
    check_same(shapes, params, None, params["VOCAB"])
    shapes.expect("output", shapes.rows("rows"), TOKENS_PER_PIECE * params["PIECES"])
    if "MASK" in params:
        check_mask(shapes, params)


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    logits, table = gathered(inputs, int(params["ROWS"])), np.ascontiguousarray(inputs["rows"])
    inverse = table[:, INVERSE_TEMPERATURE].copy().view(np.float32)
    found = []
    for number, row in enumerate(table[: size[0]]):
        scores = logits[row[SOURCE]]
        if "mask" in inputs:
            # A NaN stays, so that a broken model is noticed.
            allowed = allowed_tokens(inputs["mask"][number], scores.size) | np.isnan(scores)
            scores = np.where(allowed, scores, -np.inf)
        found.append(
            _pieces(scores, int(params["PIECES"]), bool(row[NOISE] & DRAWN), inverse[number], int(row[NOISE_KEY]))
        )
    return np.stack(found, axis=1)


def _pieces(logits: Array, pieces: int, noise: bool, inverse_temperature: float, noise_key: int) -> Array:
    """(best, facts) of one row of logits [vocab], float64 [2, 4 · pieces]."""
    steps = -(-logits.size // pieces)
    tokens = np.arange(steps * pieces).reshape(steps, pieces)
    there = tokens < logits.size
    whole = np.full(steps * pieces, -np.inf)
    whole[: logits.size] = logits
    lost = np.isnan(whole).reshape(steps, pieces).any(axis=0)
    values = np.nan_to_num(whole, nan=-np.inf, posinf=np.inf, neginf=-np.inf).reshape(steps, pieces)
    order = np.argsort(-values, axis=0, kind="stable")[:TOKENS_PER_PIECE]
    order = np.pad(order, [(0, TOKENS_PER_PIECE - len(order)), (0, 0)], constant_values=-1)
    best = np.where(order >= 0, np.take_along_axis(values, np.maximum(order, 0), axis=0), -np.inf)
    listed = best > NO_SCORE
    best, order = np.where(listed, best, NO_SCORE), np.where(listed, order, 0)
    others = there.copy()
    for place, at in zip(listed, order, strict=True):
        others[at[place], np.flatnonzero(place)] = False
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.exp((values - best[-1]) * np.float64(inverse_temperature))
    rest = np.where(others, weights, 0.0).sum(axis=0)
    drawn = np.full(pieces, NO_SCORE)
    if noise:
        # In float32 as the shader computes, like the candidates of glinfer.ops.fused.sample.
        with np.errstate(over="ignore"):
            plain = values.astype(np.float32) * np.float32(inverse_temperature)
        scores = plain + gumbel_at(noise_key, tokens.reshape(-1)).reshape(steps, pieces)
        drawn = np.maximum(drawn, np.where(there, scores, NO_SCORE).max(axis=0))
    facts = np.stack(
        [order[0] + _STEPS * order[1], order[2] + _STEPS * order[3], np.where(lost, -1.0, rest), drawn], axis=1
    )
    return np.stack([best.T.reshape(-1), facts.reshape(-1)])


register(
    Op(
        "shortlist",
        ("rows",),
        (*optional_names(), "mask"),
        _check,
        _oracle,
        ("rows", "mask"),
        regions=optional_names(),
    )
)
