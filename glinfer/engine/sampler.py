"""Choose the next token from a row of logits in NumPy: penalties, filters in float64, one draw in float32.

Where :func:`gpu_chooses`, the passes of :mod:`glinfer.kernels.fused.sample` and :mod:`glinfer.kernels.fused.choice`
choose the same tokens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from glinfer.engine.ids import index_of, real_number
from glinfer.engine.logits import top_bounds
from glinfer.errors import InputError
from glinfer.formats.files import words_of
from glinfer.kernels.noise import Drawn, fold_seed, gumbel_of_keys, noise_keys
from glinfer.notebook import table

FloatArray = npt.NDArray[np.float64]
History = Sequence[int] | npt.NDArray[Any]

# A lower temperature means greedy. Here logits 0.002 apart are e**20 apart in probability. At lower temperatures the
# scaled logits are so large that float32 has no digits left for the noise.
MIN_TEMPERATURE = 1e-4
# Below this 1 / temperature, even logits of -3.4e38 have a weight, but the passes never list them.
_MIN_INVERSE = 1e-20
_MAX_TOP_K = 1 << 24  # no vocabulary is larger
_BELOW_ONE = 1.0 - 2.0**-24  # the largest float32 below 1
# Upper bounds: of the difference in noise of two tokens, and of the relative rounding error of scores and weights.
_NOISE_SPAN, _ROUNDING = 20.0, 1e-5
_BINS = 64


_REALS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda number: 0.0 <= number < math.inf, "a finite number, 0 (greedy) or more"),
    "repetition_penalty": (lambda number: 0.0 < number < math.inf, "a finite number above 0 (1 is off)"),
    "top_p": (lambda number: 0.0 <= number <= 1.0, "a number from 0 to 1 (1 is off)"),
    "min_p": (lambda number: 0.0 <= number <= 1.0, "a number from 0 to 1 (0 is off)"),
}


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling options; immutable, checked at construction.

    Attributes:
        temperature: divides the logits; 1 leaves them unchanged. 0, or less than MIN_TEMPERATURE (0.0001), is greedy
            decoding.
        top_k: keep only the ``top_k`` most probable tokens; 0 or -1 keeps all, and is stored as 0.
        top_p: keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all.
        min_p: keep tokens at least this fraction as probable as the most probable one; 0 keeps all.
        repetition_penalty: above 1 makes tokens already in the context less likely; 1 changes nothing.
        seed: integer that makes the draws repeatable; None draws a new seed.

    Raises:
        InputError: a field has the wrong type, is NaN, or is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check every field, and convert NumPy numbers to Python's."""
        for name, (allowed, expected) in _REALS.items():
            value = getattr(self, name)
            number = real_number(value)
            if not allowed(number):  # nor is NaN
                raise _bad(name, value, expected)
            object.__setattr__(self, name, number)
        off = isinstance(self.top_k, (int, np.integer)) and self.top_k == -1  # as in vLLM and llama.cpp
        top_k = 0 if off else _integer("top_k", self.top_k, "an integer of at least 1, or 0 or -1 for off")
        object.__setattr__(self, "top_k", top_k)
        if self.seed is not None:
            object.__setattr__(self, "seed", _integer("seed", self.seed, "an integer of at least 0"))

    def _repr_html_(self) -> str:
        values = [(name, "fresh" if value is None else value) for name, value in asdict(self).items()]
        return table(("option", "value"), values, "greedy" if self.greedy else "")

    @cached_property
    def greedy(self) -> bool:
        """Whether the most probable token is always chosen."""
        return self.temperature < MIN_TEMPERATURE

    @cached_property
    def filters(self) -> bool:
        """Whether filters may remove tokens from a draw; the likeliest token always stays."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @cached_property
    def penalises(self) -> bool:
        """Whether a penalty changes the logits of tokens in the context."""
        return self.repetition_penalty != 1.0

    @cached_property
    def filter_words(self) -> npt.NDArray[np.uint32]:
        """The filters for the passes of :mod:`glinfer.kernels.fused.choice`, uint32 [3]."""
        top_k, top_p, min_p = (self.top_k, self.top_p, self.min_p) if self.filters else (0, 1.0, 0.0)
        reals = np.array([top_p if top_p == 1.0 else min(top_p, _BELOW_ONE), min_p], np.float32)
        return np.array([top_k if top_k < _MAX_TOP_K else 0, *reals.view(np.uint32)], np.uint32)

    @cached_property
    def penalty_factors(self) -> tuple[float, float]:
        """The factors of negative and positive logits of tokens in the context, float32 numbers."""
        factors = np.minimum([self.repetition_penalty, 1 / self.repetition_penalty], np.finfo(np.float32).max)
        negative, positive = factors.astype(np.float32).tolist()
        return negative, positive

    @cached_property
    def inverse_temperature(self) -> float:
        """The factor of the logits in a draw, a float32 number from 0 to 10,000; 1 when greedy."""
        return 1.0 if self.greedy else float(np.float32(1.0 / self.temperature))


class Sampler:
    """Draws tokens one by one with ``options``, and counts the draws.

    The steps are those of Hugging Face's ``generate``, in the same order:

    1. repetition penalty (CTRL, Keskar et al. 2019): once for each distinct token of the history,
       negative logits are multiplied by the penalty, positive ones by 1 / penalty, both as float32 numbers;
    2. temperature;
    3. top-k: exactly ``top_k`` tokens stay; in ties, lower ids first;
    4. top-p (nucleus, Holtzman et al. 2020): the smallest set whose mass reaches ``top_p``, most probable
       first and lower ids first in ties; at least one token;
    5. min-p (Nguyen et al. 2024): tokens with p >= ``min_p`` times the largest p.

    Greedy decoding takes the token with the largest logit after step 1, in ties the lowest id. Otherwise each
    remaining token gets the score ``float32(logit) × float32(1 / temperature) + noise``, from the logit after
    step 1 and the Gumbel noise of :mod:`glinfer.kernels.noise`, all in float32. The largest score wins, in ties the
    lowest id. That draws from the softmax, and shaders do the same. The noise depends only on seed, step and id.
    So equal seeds and logits give equal tokens, and filters change a choice only if they remove its token.

    The scores are as exact as float32: probabilities are right to about 1e-7 × (largest logit) / temperature.

    ``seed`` is the seed in ``options``, or for None a new one of 64 bits. ``step`` is the number of tokens chosen.
    """

    def __init__(self, options: SamplingOptions | None = None) -> None:
        """Start at step 0 of the seed in ``options`` (default: temperature 1 without filters)."""
        self.options = SamplingOptions() if options is None else options
        self.seed = int.from_bytes(os.urandom(8), "little") if self.options.seed is None else self.options.seed
        self.folded_seed = fold_seed(self.seed)
        self.step = 0

    @property
    def draw(self) -> Drawn:
        """(noise key, 1 / temperature) of this step's draw; None when greedy."""
        return self.draws(1)[0]

    def draws(self, count: int) -> list[Drawn]:
        """:attr:`draw` of the next ``count`` steps, starting with this one."""
        if self.options.greedy:
            return [None] * count
        keys = noise_keys([self.folded_seed] * count, range(self.step, self.step + count))
        return [(int(key), self.options.inverse_temperature) for key in keys]

    def noise_key(self) -> int:
        """The key of this step's noise for shaders, from 0 to 2**32 - 1."""
        return int(noise_keys([self.folded_seed], [self.step])[0])

    def advance(self) -> None:
        """Count a token that the GPU chose; :meth:`sample` counts its own."""
        self.step += 1

    def sample(self, logits: npt.ArrayLike, history: History = ()) -> int:
        """The id of the next token; advances one step, unless it raises an error.

        Args:
            logits: float [vocab]; -inf means "never". Not changed.
            history: ids of the tokens already in the context, for the repetition penalty; may be empty.

        Raises:
            InputError: the logits have NaN or +inf, are all -inf, or are not one non-empty row of floats; or the
                history has a value that is not a token id.
        """
        return sample_rows([self], _row(logits), [history])[0]

    def distribution(self, logits: npt.ArrayLike, history: History = ()) -> FloatArray:
        """The exact probabilities that :meth:`sample` draws from, float64 [vocab]; does not advance.

        Arguments and errors are those of :meth:`sample`.
        """
        scores = _penalised([self], _row(logits), [history])
        kept = _kept(scores, [self.options], whole=True)
        found = np.zeros(scores.shape[1])
        found[kept.ids] = kept.weights / kept.weights.sum()
        return found

    def scores(self, logits: npt.ArrayLike, history: History = ()) -> FloatArray:
        """The scores that :meth:`sample` maximises, float64 [vocab], -inf for removed tokens; does not advance.

        Arguments and errors are those of :meth:`sample`.
        """
        scores = _penalised([self], _row(logits), [history])
        if self.options.greedy:
            return np.asarray(scores[0], dtype=np.float64)
        kept = _kept(scores, [self.options], whole=True)
        found = np.full(scores.shape[1], -np.inf)
        found[kept.ids] = _perturbed([self], kept)
        return found


class _Kept(NamedTuple):
    """Tokens that pass the filters, by row, most probable first; weights are relative to the largest in the row."""

    rows: npt.NDArray[np.intp]
    ids: npt.NDArray[np.intp]
    scores: FloatArray
    weights: FloatArray


def sample_rows(samplers: Sequence[Sampler], logits: npt.NDArray[Any], histories: Sequence[History]) -> list[int]:
    """The next token of each row of logits [rows, vocab], by one sampler each; see :meth:`Sampler.sample`."""
    scores = _penalised(samplers, logits, histories)
    kept = _kept(scores, [each.options for each in samplers])
    starts = np.searchsorted(kept.rows, np.arange(len(samplers)))
    drawn = _perturbed(samplers, kept)
    best = np.maximum.reduceat(drawn, starts)
    tokens = np.minimum.reduceat(np.where(drawn == best[kept.rows], kept.ids, scores.shape[1]), starts)
    for each in samplers:
        each.advance()
    return [int(token) for token in tokens]


def _penalised(samplers: Sequence[Sampler], logits: npt.NDArray[Any], histories: Sequence[History]) -> npt.NDArray[Any]:
    """Check logits and histories, then apply step 1 to a copy for samplers with a penalty."""
    _check_logits(logits)
    seen = [checked_history(each, logits.shape[1]) for each in histories]
    rows = [row for row, each in enumerate(samplers) if each.options.penalises and seen[row].size]
    if not rows:
        return logits
    logits = logits.copy()
    # A token seen twice is written twice with the same value, so it is penalised once.
    indices = np.repeat(rows, [seen[row].size for row in rows]), np.concatenate([seen[row] for row in rows])
    factors = np.array([samplers[row].options.penalty_factors for row in rows], np.float32)
    negative, positive = np.repeat(factors, [seen[row].size for row in rows], axis=0).T
    old = logits[indices]
    with np.errstate(over="ignore"):
        new = old * np.where(old > 0.0, positive, negative)
    # An extreme penalty may overflow; finite logits stay finite, so that the softmax exists.
    limit = float(np.finfo(logits.dtype).max)
    logits[indices] = np.where(np.isfinite(old), np.clip(new, -limit, limit), old)
    return logits


def _kept(scores: npt.NDArray[Any], options: Sequence[SamplingOptions], *, whole: bool = False) -> _Kept:
    """Steps 2 to 5 for rows of scores [rows, vocab], finite or -inf, with at least one finite score a row.

    Without ``whole``, tokens that certainly lose the draw may be missing.
    """
    vocab = scores.shape[1]
    # Greedy decoding keeps the first token alone.
    asked = [
        (1.0, 1, 1.0, 0.0) if each.greedy else (each.temperature, each.top_k, each.top_p, each.min_p)
        for each in options
    ]
    heat, top_k, top_p, min_p = (np.array(each) for each in zip(*asked, strict=True))
    largest = scores.max(axis=1).astype(np.float64)
    least = np.full(len(options), -np.inf)
    if not whole:
        least = top_bounds(scores, top_k)
        summed = (top_p < 1.0) & (top_k > 0)  # the mass is that of all top k
        with np.errstate(divide="ignore", over="ignore"):
            room = np.minimum(_NOISE_SPAN + _ROUNDING * np.abs(largest) / heat, _ROUNDING - np.log(min_p))
            least = np.where(summed, least, np.maximum(least, largest - heat * room))
    nucleus = np.flatnonzero((top_p < 1.0) & (top_k == 0))
    totals, depth = _masses(scores[nucleus], largest[nucleus], heat[nucleus], top_p[nucleus])
    if not whole:
        with np.errstate(over="ignore"):
            least[nucleus] = np.maximum(least[nucleus], largest[nucleus] - heat[nucleus] * depth)
    rows, ids = np.divmod(np.flatnonzero(scores >= least[:, None]), vocab)  # faster than nonzero
    values = scores[rows, ids].astype(np.float64)
    # By score, lowest ids first; rounding and underflow can make weights of different scores equal.
    order = np.lexsort((-values, rows))
    rows, ids, values = rows[order], ids[order], values[order]
    with np.errstate(over="ignore"):
        # Subtracting the maximum first avoids overflow at any temperature.
        weights = np.exp((values - largest[rows]) / heat[rows])
    starts = np.searchsorted(rows, np.arange(len(options) + 1))
    rank = np.arange(rows.size) - starts[rows]
    stays = (top_k[rows] == 0) | (rank < top_k[rows])
    if (top_p < 1.0).any():
        sums = np.concatenate([[0.0], np.cumsum(np.where(stays, weights, 0.0))])
        total = sums[starts[1:]] - sums[starts[:-1]]
        total[nucleus] = np.where(np.diff(starts)[nucleus] < vocab, totals, total[nucleus])
        before = sums[:-1] - sums[starts[rows]]
        stays &= (rank == 0) | (top_p[rows] == 1.0) | (before < top_p[rows] * total[rows])
    stays &= (weights >= min_p[rows]) & (weights > 0.0)
    return _Kept(rows[stays], ids[stays], values[stays], weights[stays])


def _masses(
    scores: npt.NDArray[Any], largest: FloatArray, heat: FloatArray, top_p: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The weight of each row of scores [rows, vocab], and the depth of its nucleus below the maximum, over heat."""
    if not len(scores):
        return np.zeros(0), np.zeros(0)
    with np.errstate(over="ignore"):
        weights = np.exp((scores - largest[:, None]) / heat[:, None])
    # Bins by powers of two: bin b has the weights from 2**-b on; the last one has all smaller weights too.
    bins = np.clip(1 - np.frexp(weights)[1], 0, _BINS - 1) + _BINS * np.arange(len(scores))[:, None]
    masses = np.bincount(bins.reshape(-1), weights.reshape(-1), _BINS * len(scores)).reshape(-1, _BINS)
    totals = weights.sum(axis=1)
    behind = totals[:, None] - np.cumsum(masses, axis=1)
    reached = behind <= (1.0 - top_p[:, None]) * totals[:, None] - _ROUNDING * totals[:, None]
    last = np.where(reached.any(axis=1), reached.argmax(axis=1), np.inf)
    return totals, last * np.log(2.0) + _ROUNDING


def _perturbed(samplers: Sequence[Sampler], kept: _Kept) -> npt.NDArray[np.float32]:
    """Scores over temperature plus the noise of each row's step, in float32; greedy rows have no noise."""
    limit = float(np.finfo(np.float32).max)
    logits = np.clip(kept.scores, -limit, limit).astype(np.float32)
    inverse = np.array([each.options.inverse_temperature for each in samplers], np.float32)
    keys = noise_keys([each.folded_seed for each in samplers], [each.step for each in samplers])
    drawn = np.array([not each.options.greedy for each in samplers])[kept.rows]
    # A product may overflow to an infinity, which wins or loses as the exact number would; it cannot become NaN.
    with np.errstate(over="ignore"):
        scores: npt.NDArray[np.float32] = logits * inverse[kept.rows]
        scores[drawn] += gumbel_of_keys(keys[kept.rows[drawn]], kept.ids[drawn])
    return scores


def _row(logits: npt.ArrayLike) -> npt.NDArray[Any]:
    """Check one row of logits, and return it as [1, vocab]."""
    try:
        given = np.asarray(logits)
    except (TypeError, ValueError):
        raise InputError("the logits are not an array of numbers; expected one row of floats") from None
    if given.ndim != 1 or given.size == 0 or given.dtype.kind != "f":
        raise InputError(
            f"the logits are {given.dtype} of shape {given.shape}; expected one non-empty row of floats [vocab]"
        )
    return given[None]


def _check_logits(logits: npt.NDArray[Any]) -> None:
    """Refuse rows with NaN or +inf, or without a finite logit."""
    if np.isfinite(logits.max(axis=1)).all():
        return
    for scores in logits:
        for name, wrong in (("NaN", np.isnan(scores)), ("+inf", np.isposinf(scores))):
            if wrong.any():
                raise InputError(
                    f"{int(wrong.sum())} of {scores.size} logits are {name}, first at token "
                    f"{int(wrong.argmax())}; expected finite numbers or -inf: the model's output is broken"
                )
        if np.isneginf(scores).all():
            raise InputError(f"all {scores.size} logits are -inf; expected at least one token that can be chosen")


def checked_history(history: History, vocab: int) -> npt.NDArray[np.int64]:
    """Check a history, and return it as int64 ids from 0 to ``vocab`` - 1."""
    try:
        ids = np.asarray(history)
    except (TypeError, ValueError):
        raise InputError("the history is not a list of token ids; expected integers") from None
    if ids.ndim == 1 and ids.size == 0:
        return np.zeros(0, dtype=np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"the history is {ids.dtype} of shape {ids.shape}; expected one row of whole-number token ids")
    outside = (ids < 0) | (ids >= vocab)
    if outside.any():
        found = int(ids[outside.argmax()])
        raise InputError(f"token {found} in the history; expected ids from 0 to {vocab - 1}, like the logits")
    return ids.astype(np.int64)


def _integer(name: str, value: object, expected: str) -> int:
    """``value`` as an int if it is an integer of at least 0."""
    if (number := index_of(value)) < 0:
        raise _bad(name, value, expected)
    return number


def _bad(name: str, value: object, expected: str) -> InputError:
    """The error of a bad option, on one line for any repr of ``value``."""
    try:
        shown = words_of(repr(value), 60)
    except ValueError:  # Python does not print integers of thousands of digits
        shown = f"a very large {type(value).__name__}"
    return InputError(f"{name} is {shown}; expected {expected}")


def gpu_chooses(options: SamplingOptions, *, filters: bool = True, changes: bool = True) -> bool:
    """Whether passes over the logits can choose the token, given whether they support filters and changes."""
    if options.filters and (not filters or options.inverse_temperature < _MIN_INVERSE):
        return False
    return changes or not options.penalises


NEUTRAL = SamplingOptions()
"""Temperature 1 without filters: draws from the model's distribution."""


SamplerFunction = Callable[[npt.NDArray[np.float32], list[int]], SupportsIndex]
"""(logits [vocab], ids of the sequence so far) → the id of the next token. Both are copies."""


class OwnSampler(Sampler):
    """Calls a function for every token; its exceptions propagate."""

    def __init__(self, function: SamplerFunction, options: Mapping[str, Any]) -> None:
        """Use ``function``; InputError if it is not callable, or if one of the sampling ``options`` is not None."""
        if not callable(function):
            raise InputError(f"sampler is {type(function).__name__}; expected a function (logits, ids) -> id")
        for name, value in options.items():
            if value is not None:
                raise InputError(f"found both sampler and {name}; leave out {name}, or apply it in your function")
        super().__init__()
        self._function = function

    def sample(self, logits: npt.ArrayLike, history: History = ()) -> int:
        """The token that the function chooses; InputError if that is not an id, or its logit is -inf."""
        row = np.array(logits, dtype=np.float32)
        chosen = self._function(row.copy(), list(history))
        token = index_of(chosen)
        if not 0 <= token < row.size:
            found = words_of(repr(chosen), 60)
            raise InputError(f"your sampler returned {found}; expected a token id from 0 to {row.size - 1}")
        if np.isneginf(row[token]):
            raise InputError(f"your sampler returned token {token}, whose logit is -inf; expected an allowed token")
        self.advance()
        return token
