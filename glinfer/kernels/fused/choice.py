"""Three passes that choose a token for each row of logits, among the tokens that pass top-k, top-p and min-p.

``choice_list`` cuts the vocabulary into pieces with a stride, because neighbours such as the digits are often alike.
It lists the four largest logits of each piece and the best score among its other tokens. ``choice_rank`` computes the
number and the weight of the tokens before each of these five candidates. ``choice_pick`` picks the best score among
those that pass the filters. No unlisted token has a larger logit than the fifth of its piece, so the pick is nearly
always sure. Otherwise it is marked as unsure, and the sampler reads the whole row
(:class:`glinfer.engine.sampler.Sampler`).

The filters' settings are in the table of rows (:mod:`glinfer.kernels.fused.rows`), in words that these passes need for
nothing else: :data:`TOP_K` (0 for all), the bits of the float32 :data:`TOP_P` and :data:`MIN_P`, and :data:`CHANGES`,
the word of :func:`glinfer.kernels.fused.changes.change_word`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BLOCK_TEXELS
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.kernels.fused.allowed import allowed_tokens, check_mask, mask_defines
from glinfer.kernels.fused.changes import changed_logits, changes_defines
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw, bound
from glinfer.kernels.fused.rows import (
    DRAWN,
    INVERSE_TEMPERATURE,
    NOISE,
    NOISE_KEY,
    SOURCE,
    X_ROWS,
    RowInterleaved,
    gathered,
)
from glinfer.kernels.fused.sample import NO_SCORE, best_candidates
from glinfer.kernels.noise import gumbel_at
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, op

TOP_K, TOP_P, MIN_P, CHANGES = range(4)
FILTER_WORDS = slice(3)
"""The words of a row that hold its filters."""
LISTED = 4
"""Listed tokens of one piece: the channels of a texel."""
_FEW_PIECES, _PIECES = 64, 128
_FEW_TOKENS = 8192
# A float32, which holds integers up to 2**24, packs two steps.
_STEPS = 4096
_DROPPED, _MARGIN = 3e38, 1e-4


def pieces_for(vocab: int) -> int:
    """Pieces of a vocabulary, a power of two: more pieces take more time, fewer make the pick unsure more often."""
    pieces = _FEW_PIECES if vocab <= _FEW_TOKENS else _PIECES
    while pieces * _STEPS < vocab:
        pieces *= 2
    return pieces


class Lists(NamedTuple):
    """The outputs of ``choice_list``, each [rows, 4 · pieces] in flat texels of one layout."""

    best: TensorSpec
    drawn: TensorSpec
    facts: TensorSpec
    other: TensorSpec


class Ranks(NamedTuple):
    """The outputs of ``choice_rank``, in the layout of the lists."""

    low: TensorSpec
    high: TensorSpec
    further: TensorSpec


def choice_draws(
    logits: RowInterleaved,
    rows: TensorSpec,
    lists: Lists,
    ranks: Ranks,
    picks: TensorSpec,
    *,
    kernels: KernelOptions,
    mask: TensorSpec | None = None,
    changes: TensorSpec | None = None,
) -> tuple[DrawSpec, DrawSpec, DrawSpec]:
    """The three passes, for the rows of logits [rows, vocab] in the table ``rows``.

    With ``mask``, the table of :mod:`glinfer.kernels.fused.allowed`, the logits of tokens that it does not allow are
    -inf. With ``changes``, the table of :mod:`glinfer.kernels.fused.changes`, logits change first. Run values:
    ``rows``, the number of rows to choose for; ``row``, the first of them; and ``slot``, the slot of picks [slots, 64]
    for that row.
    """
    layout, size, vocab = lists.best.layout, ("rows", lists.best.shape[1]), logits.cols
    assert isinstance(layout, FlatLayout)
    table = [("PIECES", pieces_for(vocab)), ("TABLE_ROWS", rows.shape[0])]
    common = [*table, ("VOCAB", vocab), ("LOOKUP_TEXTURE", int(kernels.lookup_texture)), *layout.defines("OUT")]
    row, slot = ("first_row", "row"), ("first_slot", "slot")

    def flat(op: str, inputs: Inputs, outputs: Lists | Ranks, defines: Defines, *per_run: tuple[str, str]) -> DrawSpec:
        name = op.replace("_", ".")
        pairs, layouts = bound(name, inputs)
        names, defined = tuple(each.name for each in outputs), (*layouts, *common, *defines)
        return DrawSpec(name, "choice", op, tuple(pairs), names, size, defined, per_run=(row, *per_run))

    to_list: Inputs = {"x": logits, "rows": rows, "mask": mask}
    for_list: Defines = [] if mask is None else mask_defines(mask)
    if changes is not None:
        to_list |= {"changes": changes.name, "picks": picks}
        for_list += changes_defines(changes)
    of_lists: Defines = [*layout.defines("LIST")]
    to_rank: Inputs = {**_named(lists, "best", "facts", "other"), "rows": rows}
    to_pick: Inputs = {**_named(lists, "drawn", "facts", "other"), **_named(ranks, *ranks._fields), "rows": rows}
    how: dict[str, Any] = {"per_run": (row, slot), "first": "slot"}
    pick = Pass("choice.pick", kernels, "choice", "rows")
    return (
        flat("choice_list", to_list, lists, for_list, *([] if changes is None else [slot])),
        flat("choice_rank", to_rank, ranks, of_lists),
        block_draw(pick, "choice_pick", to_pick, picks, [*of_lists, *table], **how),
    )


def _named(tensors: Lists | Ranks, *names: str) -> dict[str, str]:
    return {name: getattr(tensors, name).name for name in names}


def _rows_of(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> tuple[Array, Array]:
    """The rows of the table to choose for, and their float32 words, both [rows, 8]."""
    first = int(params["first_row"])
    table = np.ascontiguousarray(inputs["rows"][first : first + size[0]], dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # words that are no floats may be signalling NaN
        return table, table.view(np.float32).astype(np.float64)


def _check_list(shapes: Shapes, params: Params) -> None:
    shapes.expect(X_ROWS, None, params["VOCAB"])
    shapes.expect(("best", "facts", "other", "output"), None, LISTED * params["PIECES"])
    if "MASK" in params:
        check_mask(shapes, params)


@op("choice_list", ("rows",), (*X_ROWS, "mask", "changes", "picks"), _check_list, ("rows", "mask"), regions=X_ROWS)
def _list_oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    logits, pieces, first = gathered(inputs, params), int(params["PIECES"]), int(params["first_row"])
    found = []
    table, reals = _rows_of(inputs, params, size)
    for number, row in enumerate(table):
        scores = logits[row[SOURCE]]
        if row[CHANGES]:
            slot = int(params["first_slot"]) + number - int(row[CHANGES] >> 16)
            picks = np.asarray(inputs["picks"])[slot : slot + (int(row[CHANGES] & 0xFFFF) >> 1)]
            chosen = best_candidates(picks)[0] if len(picks) else np.zeros(0)
            scores = changed_logits(scores, np.asarray(inputs["changes"][row[SOURCE]]), chosen.astype(np.int64))
        if "mask" in inputs:
            # Keep a NaN, so that a broken model is noticed.
            allowed = allowed_tokens(inputs["mask"][first + number], scores.size) | np.isnan(scores)
            scores = np.where(allowed, scores, -np.inf)
        inverse = reals[number, INVERSE_TEMPERATURE] if row[NOISE] & DRAWN else 0.0
        found.append(_lists_of(scores, pieces, inverse, reals[number, INVERSE_TEMPERATURE], int(row[NOISE_KEY])))
    return np.stack(found, axis=1)


def _lists_of(logits: Array, pieces: int, drawn_by: float, inverse: float, noise_key: int) -> Array:
    """The lists of a row of logits [vocab], float64 [4, 4 · pieces]; ``drawn_by`` is 0 without noise."""
    steps = -(-logits.size // pieces)
    whole = np.full(max(steps, LISTED) * pieces, -np.inf)
    whole[: logits.size] = logits
    lost = np.isnan(whole).reshape(-1, pieces).any(axis=0)
    values = np.nan_to_num(whole, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    scores = values.astype(np.float32)
    if drawn_by:  # in float32, like the shader
        with np.errstate(over="ignore"):
            scores = scores * np.float32(drawn_by) + gumbel_at(noise_key, np.arange(scores.size))
    values, scores = values.reshape(-1, pieces), scores.reshape(-1, pieces).astype(np.float64)
    order = np.argsort(-values, axis=0, kind="stable")
    values, scores = np.take_along_axis(values, order, axis=0), np.take_along_axis(scores, order, axis=0)
    listed = values[:LISTED] > NO_SCORE
    best, drawn = (np.where(listed, each[:LISTED], NO_SCORE) for each in (values, scores))
    step_of = np.where(listed, order[:LISTED], 0)
    with np.errstate(over="ignore"):
        rest = np.exp((values[LISTED:] - best[-1]) * inverse).sum(axis=0)
    last = np.concatenate([np.full((1, pieces), NO_SCORE), scores[LISTED:]])
    winner = last.argmax(axis=0)
    there = (winner > 0) & (last.max(axis=0) > NO_SCORE)
    index, columns = np.maximum(winner - 1, 0) + LISTED, np.arange(pieces)
    rows = np.minimum(index, len(values) - 1)
    fifth = np.where(values[LISTED] > NO_SCORE, values[LISTED], NO_SCORE) if len(values) > LISTED else NO_SCORE
    other = [
        np.where(there, last.max(axis=0), NO_SCORE),
        np.where(there, order[rows, columns], 0),
        np.where(there, values[rows, columns], NO_SCORE),
        np.zeros(pieces),
    ]
    facts = [
        step_of[0] + _STEPS * step_of[1],
        step_of[2] + _STEPS * step_of[3],
        np.where(lost, -1.0, rest),
        np.broadcast_to(fifth, pieces),
    ]
    return np.stack([each.T.reshape(-1) for each in (best, drawn, np.stack(facts), np.stack(other))])


def _steps_of(facts: Array) -> Array:
    """The steps [pieces, 4] of the listed tokens."""
    packed = facts[:, :2].astype(np.int64)
    return np.stack([packed % _STEPS, packed // _STEPS], axis=2).reshape(-1, LISTED)


@op("choice_rank", ("best", "facts", "other", "rows"), (), _check_list, ("rows",))
def _rank_oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    pieces, vocab, found = int(params["PIECES"]), int(params["VOCAB"]), []
    table, reals = _rows_of(inputs, params, size)
    for number, row in enumerate(table):
        best, facts, other = (
            np.asarray(inputs[name][number], np.float64).reshape(pieces, LISTED) for name in ("best", "facts", "other")
        )
        found.append(_ranks_of(best, facts, other, vocab, int(row[TOP_K]), reals[number]))
    return np.stack(found, axis=1)


def _ranks_of(best: Array, facts: Array, other: Array, vocab: int, top_k: int, reals: Array) -> Array:
    """low, high and further of the lists of one row, float64 [3, 4 · pieces]."""
    pieces, inverse, min_p = len(best), reals[INVERSE_TEMPERATURE], reals[MIN_P]
    # The five candidates of each piece, the last one unlisted, and the fifth.
    logits = np.concatenate([best, other[:, 2:3], facts[:, 3:]], axis=1)
    candidate, fifth, column = LISTED, LISTED + 1, np.array([*range(LISTED + 1), LISTED])
    with np.errstate(over="ignore", invalid="ignore"):  # infinite logits show in the scores
        weights = np.exp((logits - best.max()) * inverse)
    hidden = np.maximum(0, -(-(vocab - np.arange(pieces)) // pieces) - LISTED)
    rest = np.maximum(facts[:, 2], 0.0) * weights[:, LISTED - 1]
    kept, apart = weights[:, :LISTED], ~np.eye(pieces, dtype=bool)[:, None, :, None]
    larger = (best > logits[..., None, None]) & apart  # of [candidate, listed token of another piece]
    level = (best == logits[..., None, None]) & apart
    own_sums = np.concatenate([np.zeros((pieces, 1)), np.cumsum(kept, axis=1)], axis=1)
    count, mass = larger.sum(axis=(2, 3)) + column, (larger * kept).sum(axis=(2, 3)) + own_sums[:, column]
    more, more_mass = level.sum(axis=(2, 3)), (level * kept).sum(axis=(2, 3))
    ahead = (facts[:, 3] >= logits[..., None]) & apart[..., 0]
    more, more_mass = more + (ahead * hidden).sum(axis=2), more_mass + (ahead * rest).sum(axis=2)
    more[:, candidate] += np.maximum(hidden - 1, 0)
    more_mass[:, candidate] += rest
    most = top_k or vocab
    there = np.ones_like(logits, dtype=bool)
    there[:, candidate], there[:, fifth] = other[:, 0] > NO_SCORE, facts[:, 3] > NO_SCORE
    may, must = count < most, count + more < most
    low = np.where(may & there & (weights >= min_p * (1.0 - _MARGIN)), mass, _DROPPED)
    high = np.where(must & there & (weights >= min_p * (1.0 + _MARGIN)), mass + more_mass, _DROPPED)
    first = (count + more == 0)[:, :LISTED]
    low[:, :LISTED][first] = high[:, :LISTED][first] = -1.0
    least = (must[:, :LISTED] * kept).sum(axis=1) + (rest if not top_k else 0.0)
    greatest = (may[:, :LISTED] * kept).sum(axis=1) + (may & there)[:, fifth] * rest
    further = np.stack([low[:, fifth], high[:, candidate], least, greatest], axis=1)
    return np.stack([each.reshape(-1) for each in (low[:, :LISTED], high[:, :LISTED], further)])


def _check_pick(shapes: Shapes, params: Params) -> None:
    shapes.expect(("drawn", "facts", "other", "low", "high", "further"), None, LISTED * params["PIECES"])
    shapes.expect("output", None, BLOCK_FLOATS)


@op(
    "choice_pick",
    ("drawn", "facts", "other", "low", "high", "further", "rows"),
    (),
    _check_pick,
    ("rows",),
    regions=("output",),
)
def _pick_oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    pieces, found = int(params["PIECES"]), []
    _, reals = _rows_of(inputs, params, size)
    for number in range(size[0]):
        drawn, facts, other, low, high, further = (
            np.asarray(inputs[name][number], np.float64).reshape(pieces, LISTED)
            for name in ("drawn", "facts", "other", "low", "high", "further")
        )
        top_p, (least, greatest) = reals[number, TOP_P], further[:, 2:].sum(axis=0)
        sure = top_p * least * (1.0 - _MARGIN) if top_p < 1.0 else _DROPPED
        perhaps = top_p * greatest * (1.0 + _MARGIN) if top_p < 1.0 else _DROPPED
        ids = np.concatenate([_steps_of(facts), other[:, 1:2]], axis=1) * pieces + np.arange(pieces)[:, None]
        scores = np.concatenate([drawn, other[:, :1]], axis=1)
        may = np.concatenate([low, further[:, :1]], axis=1) < perhaps
        unsure = np.concatenate([high, further[:, 1:2]], axis=1) >= sure
        block = np.zeros((BLOCK_TEXELS, 4))
        for lane in range(BLOCK_TEXELS):
            mine = np.s_[lane::BLOCK_TEXELS]
            score = np.where(may[mine], scores[mine], NO_SCORE)
            best = score.max()
            if (facts[mine, 2] < 0.0).any():
                block[lane] = -NO_SCORE, 0.0, 1.0, 0.0
            elif best > NO_SCORE:
                token = ids[mine][score == best].min()
                wins = (score == best) & (ids[mine] == token)
                block[lane] = best, token, best >= _DROPPED or unsure[mine][wins].any(), 0.0
            else:
                block[lane] = NO_SCORE, 0.0, 1.0, 0.0
        found.append(block.reshape(-1))
    return np.stack(found)
