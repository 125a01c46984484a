"""Sampling from a shortlist: the token that the whole row of logits would give, if the shortlist determines it.

The pass ``shortlist`` leaves the four largest logits of each piece of the vocabulary
(:mod:`glinfer.ops.fused.shortlist`). No other token of a piece is above the fourth, so tokens above the largest fourth
have their true ranks. The others are out of the question as soon as these fill what top-k, top-p or min-p let through.
Where they do not, two more facts are known of each piece, the weight of its other tokens and the largest score drawn in
it. They nearly always suffice to say that the best score on the list is the best of all, and that no filter drops it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glinfer.engine.sampler import BoolArray, FloatArray, History, Sampler, checked_history
from glinfer.models.fast.shortlist import (
    BEST,
    FACTS,
    MASK,
    PICKS,
    TABLE,
    allowed_plan,
    fill_table,
    logits_of,
    shortlist_plan,
)
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops.fused.allowed import Words
from glinfer.ops.fused.rows import row_table
from glinfer.ops.fused.shortlist import TOKENS_PER_PIECE, Shortlist
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn

# Relative error of the weights that a GPU adds up, an upper bound.
_MASS_ERROR = 1e-4
# By how much the scores of one token differ between renderers at most: the noise itself, and rounding for each unit.
_NOISE_ERROR, _ROUNDING = 1e-5, 1e-6
# At temperatures with a smaller inverse even logits of -3.4e38 have a weight, and those are never listed.
_MIN_INVERSE = 1e-20
# Weights below this may vanish when they are divided by the sum of all, and the token is dropped then.
_VANISHING = 1e-290
# Pieces that are searched for a higher score at most; the whole row takes no longer than more of them.
_MAX_PIECES = 16


class _OverLogits:
    """A plan of one draw over the logits of another session; release its session when that one is released."""

    def __init__(self, bound: Session, plan: Plan) -> None:
        """Bind the plan.

        Raises:
            PlanError: it does not fit the renderer.
            ShaderError: its shader does not compile.
        """
        logits = logits_of(bound.plan)
        self.session = bound.companion(plan, (), names=[tensor.name for tensor in logits])
        self._vocab, self._table = logits[0].shape[1], row_table(plan.table[TABLE].shape[0])
        self._texture = self.session.texture(TABLE)
        self._mask = self.session.texture(MASK) if MASK in plan.table else None

    def _draw(self, rows: Sequence[int], draws: Sequence[Drawn], masks: Words | None) -> int:
        """Draw for some rows of the logits; returns how many."""
        count = len(rows)
        fill_table(self._table, rows, draws)
        self.session.require_alive()
        self._texture.upload(self._table)
        if self._mask is not None and masks is not None:
            self._mask.upload(masks)
        self.session.run({"rows": count})
        return count


class Shortlists(_OverLogits):
    """The plan ``shortlist`` over the logits of another session; with ``masked`` each row has its allowed tokens."""

    def __init__(self, bound: Session, kernels: KernelOptions, *, masked: bool = False) -> None:
        """Bind the plan.

        Raises:
            PlanError: it does not fit the renderer.
            ShaderError: its shader does not compile.
        """
        edge = bound.device.limits.max_texture_size
        super().__init__(bound, shortlist_plan(bound.plan, kernels=kernels, max_texture_size=edge, masked=masked))
        self._found = [self.session.texture(name) for name in (BEST, FACTS)]

    def run(self, rows: Sequence[int], draws: Sequence[Drawn], masks: Words | None = None) -> list[Shortlist]:
        """Make the shortlists of some rows of the logits, by one draw and two small readbacks for all of them.

        Args:
            rows: the numbers of the rows.
            draws: how the token of each row is drawn.
            masks: the allowed tokens of each row, see :mod:`glinfer.ops.fused.allowed`.
        """
        count = self._draw(rows, draws, masks)
        best, facts = (texture.read(count).reshape(count, -1, TOKENS_PER_PIECE) for texture in self._found)
        return [Shortlist(self._vocab, best[row], facts[row]) for row in range(count)]


class AllowedPicks(_OverLogits):
    """The plan ``allowed`` over the logits of another session: the choice among the tokens that bits allow."""

    def __init__(self, bound: Session, kernels: KernelOptions) -> None:
        """Bind the plan.

        Raises:
            PlanError: it does not fit the renderer.
            ShaderError: its shader does not compile.
        """
        edge = bound.device.limits.max_texture_size
        super().__init__(bound, allowed_plan(bound.plan, kernels=kernels, max_texture_size=edge))
        self._picks = self.session.texture(PICKS)

    def run(self, rows: Sequence[int], draws: Sequence[Drawn], masks: Words) -> npt.NDArray[np.float32]:
        """The candidates [rows, 64] of some rows of the logits; arguments as in :meth:`Shortlists.run`."""
        count = self._draw(rows, draws, masks)
        return np.asarray(self._picks.read(count), dtype=np.float32)


def sample_shortlist(sampler: Sampler, found: Shortlist, history: History = ()) -> int | None:
    """The token that ``sampler.sample`` would choose from the whole row of logits, if its shortlist determines it.

    Args:
        sampler: goes on to the next step if the token can be told, and stays otherwise.
        found: the shortlist, made with ``sampler.draw``.
        history: as for :meth:`Sampler.sample`.

    Returns:
        The token's id, or None where the whole row has to be read.

    Raises:
        InputError: the history holds something that is not a token id.
    """
    if not found.sound or sampler.options.inverse_temperature < _MIN_INVERSE:
        return None
    with np.errstate(over="ignore"):  # a weight of exp(-inf) is 0, as it should be
        token = _Listed(sampler, found, history).choice()
    if token is not None:
        sampler.advance()
    return token


class _Listed:
    """The tokens of a shortlist after penalties, and bounds for all others."""

    def __init__(self, sampler: Sampler, found: Shortlist, history: History) -> None:
        self.sampler, self.found = sampler, found
        self.ids, logits = found.tokens()
        self.scores = logits.astype(np.float64)
        self.plain = found.bounds.astype(np.float64)
        self.bounds = self.plain
        # Tokens of the context that are not on the list.
        self.seen = np.zeros(0, dtype=np.int64)
        penalty = sampler.options.repetition_penalty
        if penalty != 1.0:
            seen = np.zeros(found.vocab, dtype=bool)
            seen[checked_history(history, found.vocab)] = True
            listed = seen[self.ids]
            self.scores[listed] = sampler.penalised(self.scores[listed])
            seen[self.ids] = False
            self.seen = np.flatnonzero(seen)
            # A penalty below 1 raises logits; those of tokens that are not on the list no further than to this.
            self.bounds = np.maximum(self.plain, sampler.penalised(self.plain))

    def choice(self) -> int | None:
        bound, options = float(self.bounds.max()), self.sampler.options
        above = self.scores > bound
        if not above.any():
            return None
        if options.greedy:
            return int(self.ids[self.scores == self.scores.max()].min())
        if options.ranks(self.found.vocab):
            known = np.flatnonzero(above)
            known = known[np.argsort(self.ids[known])]
        else:  # whether a token is kept does not depend on those before it
            above[:], known = True, np.arange(above.size)
        ids, scores = self.ids[known], self.scores[known]
        kept = self.sampler.filtered(scores, self.found.vocab, bound, lambda largest: self.mass(~above, largest))
        possible = np.flatnonzero(kept.possible)
        drawn = self.sampler.perturbed(scores[possible], ids[possible])
        best = float(drawn.max())
        equal = possible[drawn == best]
        winner = equal[ids[equal].argmin()]
        if not kept.certain[winner] or kept.weights[winner] < _VANISHING or not np.isfinite(best):
            return None
        if kept.others and not self.beats_others(best, ~above):
            return None
        return int(ids[winner])

    def mass(self, below: BoolArray, largest: float) -> tuple[float, float]:
        """Bounds for the weight of all tokens that are not above the bounds, given the largest score.

        ``below`` are the tokens of the list that are counted here.
        """
        temperature, pieces = self.sampler.options.temperature, self.found.pieces
        edges = np.exp((self.plain - largest) / temperature)
        rest = self.found.rest.astype(np.float64)
        low = high = float((rest * edges).sum())
        low, high = low * (1.0 - _MASS_ERROR), high * (1.0 + _MASS_ERROR) + pieces * float(np.finfo(np.float32).tiny)
        if self.seen.size:
            # Each may have any weight up to its piece's bound, before the penalty and after it.
            count = np.bincount(self.seen % pieces, minlength=pieces)
            low -= float((np.minimum(count, rest * (1.0 + _MASS_ERROR)) * edges).sum())
            if self.sampler.options.repetition_penalty < 1.0:
                high += float((count * np.exp((self.bounds - largest) / temperature)).sum())
        known = float(np.exp((self.scores[below] - largest) / temperature).sum())
        return max(0.0, low) + known, high + known

    def beats_others(self, best: float, below: BoolArray) -> bool:
        """Whether a drawn score beats those of all tokens that are not above the bounds."""
        found, pieces = self.found, self.found.pieces
        if below.any() and self.perturbed_max(self.scores[below], self.ids[below]) >= best:
            return False
        margin = _NOISE_ERROR + _ROUNDING * (abs(best) + 20.0)
        near = np.flatnonzero(found.drawn >= best - margin)
        if near.size > _MAX_PIECES:
            return False
        # The largest score of such a piece may be one of the list's, before its penalty, or that of a token which was
        # dropped. So each of its other tokens is tried, with the largest logit that it may have.
        whole = (near[:, None] + np.arange(0, found.vocab, pieces)).reshape(-1)
        others = np.setdiff1d(whole[whole < found.vocab], self.ids)
        if self.sampler.options.repetition_penalty < 1.0:
            others = np.union1d(others, self.seen)
        return others.size == 0 or self.perturbed_max(self.bounds[others % pieces], others) < best

    def perturbed_max(self, scores: FloatArray, ids: np.ndarray) -> float:
        return float(self.sampler.perturbed(scores, ids).max())
