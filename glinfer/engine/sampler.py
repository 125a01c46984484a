"""Choose the next token from a row of logits: penalties, filters, one draw. NumPy only.

Penalties and filters are float64. The draw is float32, in the arithmetic of the shader that draws on the GPU.
The GPU can choose tokens by itself where :func:`gpu_chooses`; :mod:`glinfer.engine.shortlist` takes the same steps
where only the likeliest tokens of a row are known.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.notebook import table
from glinfer.ops.noise import Drawn, fold_seed, gumbel_at, noise_keys

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
History = Sequence[int] | npt.NDArray[Any]

# Below this a temperature means greedy. Logits only 0.002 apart are e**20 apart in probability here; and further
# down, logits divided by the temperature are so large that float32 has no digits left for the noise.
MIN_TEMPERATURE = 1e-4
# Sums of a vocabulary's weights in float64 are more exact than this, in whichever order they are added up.
_SUM_ERROR = 1e-9


@dataclass(frozen=True)
class SamplingOptions:
    """The options for choosing a token; immutable, and checked when they are made.

    Attributes:
        temperature: divides the logits; 1 leaves them, 0 means greedy (always the most probable token), and
            so does anything below MIN_TEMPERATURE, 0.0001.
        top_k: keep only this many of the most probable tokens; 0 or -1 keeps all, and is stored as 0.
        top_p: keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all.
        min_p: keep tokens at least this fraction as probable as the most probable one; 0 keeps all.
        repetition_penalty: above 1 makes tokens already in the context less likely; 1 changes nothing.
        seed: whole number that makes the draws repeatable; None takes fresh randomness.

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
        """Check every field, and store NumPy numbers as Python's own."""
        temperature = _real("temperature", self.temperature, "a finite number, 0 (greedy) or more")
        if not 0.0 <= temperature < math.inf:
            raise _bad("temperature", self.temperature, "a finite number, 0 (greedy) or more")
        penalty = _real("repetition_penalty", self.repetition_penalty, "a finite number above 0 (1 is off)")
        if not 0.0 < penalty < math.inf:
            raise _bad("repetition_penalty", self.repetition_penalty, "a finite number above 0 (1 is off)")
        object.__setattr__(self, "temperature", temperature)
        object.__setattr__(self, "repetition_penalty", penalty)
        for name, off in (("top_p", 1), ("min_p", 0)):
            expected = f"a number from 0 to 1 ({off} is off)"
            fraction = _real(name, getattr(self, name), expected)
            if not 0.0 <= fraction <= 1.0:
                raise _bad(name, getattr(self, name), expected)
            object.__setattr__(self, name, fraction)
        off = isinstance(self.top_k, (int, np.integer)) and self.top_k == -1  # as vLLM and llama.cpp write it
        top_k = 0 if off else _whole("top_k", self.top_k, "a whole number, 0 or -1 (off) or more")
        object.__setattr__(self, "top_k", top_k)
        if self.seed is not None:
            object.__setattr__(self, "seed", _whole("seed", self.seed, "a whole number, 0 or more, or None"))

    def _repr_html_(self) -> str:
        values = [(name, "fresh" if value is None else value) for name, value in asdict(self).items()]
        return table(("option", "value"), values, "greedy" if self.greedy else "")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < MIN_TEMPERATURE

    def ranks(self, vocab: int) -> bool:
        """Whether a filter asks for the order of the tokens: top-k or top-p."""
        return 0 < self.top_k < vocab or self.top_p < 1.0

    @property
    def inverse_temperature(self) -> float:
        """The factor of the logits in a draw, a float32 number from 0 to 10,000; 1 when greedy."""
        return 1.0 if self.greedy else float(np.float32(1.0 / self.temperature))


@dataclass(frozen=True)
class Kept:
    """The tokens that pass the filters, if the scores of some are known and those of others only bounded.

    Attributes:
        weights: of each token, relative to the largest.
        certain: the tokens that pass whatever the scores of the others are.
        possible: the tokens that may pass.
        others: whether any other token may pass.
    """

    weights: FloatArray
    certain: BoolArray
    possible: BoolArray
    others: bool


class Sampler:
    """Draws tokens one by one as ``options`` say; keeps count of the draws.

    The steps and their order are those of Hugging Face's ``generate``:

    1. repetition penalty (CTRL, Keskar et al. 2019): for each distinct token of the history once,
       positive logits are divided by the penalty and negative ones multiplied;
    2. temperature;
    3. top-k: exactly ``top_k`` tokens stay; where logits are equal, lower ids go first;
    4. top-p (nucleus, Holtzman et al. 2020): the smallest set, most probable first and lower ids first
       where equal, whose mass reaches ``top_p``; at least one token;
    5. min-p (Nguyen et al. 2024): tokens with p >= ``min_p`` times the largest p.

    When greedy, the token with the largest logit after step 1 is taken, the lowest id where equal. Otherwise
    each token that is left gets the score ``float32(logit) × float32(1 / temperature) + noise``, with the logit
    as step 1 left it and the Gumbel noise of :mod:`glinfer.ops.noise`, all in float32; the largest score wins,
    the lowest id where equal. That draws from the softmax, and a shader can do the same. A token's noise depends
    on the seed, the step and its id alone: equal seeds and logits give equal tokens, and filters change a choice
    only where they remove the token that would have been drawn without them.

    The scores are as exact as float32: probabilities are right to about 1e-7 × (largest logit) / temperature.

    Attributes:
        options: what was asked for.
        seed: the seed in ``options``, or the fresh one of 64 bits that was drawn for None.
        step: how many tokens have been chosen; each step has noise of its own.
    """

    def __init__(self, options: SamplingOptions | None = None) -> None:
        """Start at step 0 of the seed in ``options`` (plain sampling when left out)."""
        self.options = SamplingOptions() if options is None else options
        self.seed = secrets.randbits(64) if self.options.seed is None else self.options.seed
        self.folded_seed = fold_seed(self.seed)
        self.step = 0

    @property
    def draw(self) -> Drawn:
        """(noise key, 1 / temperature) of this step's draw; None when greedy."""
        return self.draws(1)[0]

    def draws(self, count: int) -> list[Drawn]:
        """:attr:`draw` of this step and the next ones, ``count`` in all."""
        if self.options.greedy:
            return [None] * count
        keys = noise_keys([self.folded_seed] * count, range(self.step, self.step + count))
        return [(int(key), self.options.inverse_temperature) for key in keys]

    def noise_key(self) -> int:
        """The key of this step's noise, from 0 to 2**32 - 1: what a shader that draws is given."""
        return int(noise_keys([self.folded_seed], [self.step])[0])

    def advance(self) -> None:
        """Count a token that was chosen elsewhere, on the GPU; :meth:`sample` does this by itself."""
        self.step += 1

    def sample(self, logits: npt.ArrayLike, history: History = ()) -> int:
        """The next token's id; goes on to the next step, greedy or not, unless an error is raised.

        Args:
            logits: float [vocab], one value per token; -inf means "never". Not changed.
            history: ids of the tokens already in the context (any length, may be empty); only the
                repetition penalty looks at them.

        Raises:
            InputError: the logits hold NaN or +inf, are all -inf, or are not one non-empty row of floats;
                or the history holds something that is not a token id.
        """
        scores = self._penalised(logits, history)
        token = int(np.argmax(scores)) if self.options.greedy else self._drawn(scores)
        self.advance()
        return token

    def distribution(self, logits: npt.ArrayLike, history: History = ()) -> FloatArray:
        """The exact probabilities that :meth:`sample` draws from, float64 [vocab]; the step stays.

        Takes the same arguments and raises the same errors as :meth:`sample`.
        """
        scores = self._penalised(logits, history)
        if self.options.greedy:
            certain = np.zeros(scores.size)
            certain[np.argmax(scores)] = 1.0
            return certain
        return self._filtered(scores)

    def scores(self, logits: npt.ArrayLike, history: History = ()) -> FloatArray:
        """The scores whose largest :meth:`sample` takes, float64 [vocab], -inf for tokens left out; the step stays.

        Takes the same arguments and raises the same errors as :meth:`sample`.
        """
        scores = self._penalised(logits, history)
        if self.options.greedy:
            return scores
        kept, perturbed = self._perturbed(scores)
        found = np.full(scores.size, -np.inf)
        found[kept] = perturbed
        return found

    def _penalised(self, logits: npt.ArrayLike, history: History) -> FloatArray:
        """Check both inputs, then apply step 1 to a float64 copy of the logits."""
        scores = _checked_logits(logits)
        seen = checked_history(history, scores.size)
        penalty = self.options.repetition_penalty
        if penalty == 1.0 or seen.size == 0:
            return scores
        # A token seen twice is written twice with the same value, so it is penalised once.
        scores[seen] = self.penalised(scores[seen])
        return scores

    def penalised(self, old: FloatArray) -> FloatArray:
        """Step 1 for logits of tokens that are in the context; larger ones stay larger, or become equal."""
        penalty = self.options.repetition_penalty
        with np.errstate(over="ignore"):
            new = np.where(old > 0.0, old / penalty, old * penalty)
        # An extreme penalty may overflow; a finite logit stays finite so that a softmax still exists.
        limit = np.finfo(np.float64).max
        return np.where(np.isfinite(old), np.clip(new, -limit, limit), old)

    def _filtered(self, scores: FloatArray) -> FloatArray:
        """Steps 2 to 5; ``scores`` are finite or -inf with at least one finite. Returns probabilities."""
        kept = self.filtered(scores, scores.size)
        kept.weights[~kept.certain] = 0.0
        probabilities: FloatArray = kept.weights / kept.weights.sum()
        return probabilities

    def filtered(
        self,
        scores: FloatArray,
        vocab: int,
        bound: float = -np.inf,
        mass: Callable[[float], tuple[float, float]] = lambda largest: (0.0, math.inf),
    ) -> Kept:
        """Steps 2 to 5, told of some tokens of a row, by rising id, and of all others no more than bounds.

        Args:
            scores: of the tokens that are known, finite or -inf with at least one finite.
            vocab: how many tokens there are.
            bound: the largest score that another one may have; with top-k or top-p below all of ``scores``.
            mass: the least and the greatest weight of all others together, given the largest score of all.
        """
        options, largest = self.options, scores.max()
        # Subtracting the maximum first cannot overflow however small the temperature is.
        with np.errstate(over="ignore"):
            weights = np.exp((scores - largest) / options.temperature)
            edge = float(np.exp((bound - largest) / options.temperature))
        certain = possible = np.ones(scores.size, dtype=bool)
        others = scores.size < vocab
        top_k = options.top_k if 0 < options.top_k < vocab else vocab
        if options.ranks(vocab):
            # Ranked by score: rounding and underflow make weights equal where the scores still differ.
            ranked = np.argsort(-scores, kind="stable")[:top_k]
            least = most = ranked.size
            others = ranked.size < top_k
            if options.top_p < 1.0:
                sums = np.cumsum(weights[ranked])
                low = high = sums[-1]
                if others:
                    below, above = mass(float(largest))
                    low = (low + (below if top_k == vocab else 0.0)) * (1.0 - _SUM_ERROR)
                    high = (high + min(above, (top_k - ranked.size) * edge)) * (1.0 + _SUM_ERROR)
                least, most = (
                    int(np.searchsorted(sums, options.top_p * total, side="left")) + 1 for total in (low, high)
                )
                others = others and most > ranked.size
            certain, possible = np.zeros(scores.size, dtype=bool), np.zeros(scores.size, dtype=bool)
            certain[ranked[:least]] = possible[ranked[:most]] = True
        # The largest weight is exactly 1, so its fraction is the weight itself.
        enough = weights >= options.min_p
        return Kept(weights, certain & enough, possible & enough, others and edge >= options.min_p * (1.0 - _SUM_ERROR))

    def _drawn(self, scores: FloatArray) -> int:
        """The draw among the tokens that steps 2 to 5 leave; ``scores`` as for :meth:`_filtered`."""
        kept, perturbed = self._perturbed(scores)
        return int(kept[np.argmax(perturbed)])

    def _perturbed(self, scores: FloatArray) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
        """The tokens that are left, and their logits over the temperature with the noise of this step."""
        kept = np.flatnonzero(self._filtered(scores))
        return kept, self.perturbed(scores[kept], kept)

    def perturbed(self, scores: FloatArray, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Scores over the temperature, with the noise of this step for these ids, in float32."""
        limit = float(np.finfo(np.float32).max)
        logits = np.clip(scores, -limit, limit).astype(np.float32)
        # A product may overflow to an infinity. It wins or loses then, as it would have; it cannot become NaN.
        with np.errstate(over="ignore"):
            return logits * np.float32(self.options.inverse_temperature) + gumbel_at(self.noise_key(), ids)


def _checked_logits(logits: npt.ArrayLike) -> FloatArray:
    """A fresh float64 copy of ``logits``, or an InputError."""
    try:
        given = np.asarray(logits)
    except (TypeError, ValueError):
        raise InputError("the logits are not an array of numbers; expected one row of floats") from None
    if given.ndim != 1 or given.size == 0 or given.dtype.kind != "f":
        raise InputError(
            f"the logits are {given.dtype} of shape {given.shape}; expected one non-empty row of floats [vocab]"
        )
    scores = given.astype(np.float64, copy=True)
    for name, wrong in (("NaN", np.isnan(scores)), ("+inf", np.isposinf(scores))):
        if wrong.any():
            raise InputError(
                f"{int(wrong.sum())} of {scores.size} logits are {name}, first at token "
                f"{int(wrong.argmax())}; expected finite numbers or -inf: the model's output is broken"
            )
    if np.isneginf(scores).all():
        raise InputError(f"all {scores.size} logits are -inf; expected at least one token that can be chosen")
    return scores


def checked_history(history: History, vocab: int) -> npt.NDArray[np.int64]:
    """The history as int64 ids, each from 0 to ``vocab`` - 1, or an InputError."""
    try:
        ids = np.asarray(history)
    except (TypeError, ValueError):
        raise InputError("the history is not a list of token ids; expected whole numbers") from None
    if ids.ndim == 1 and ids.size == 0:
        return np.zeros(0, dtype=np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"the history is {ids.dtype} of shape {ids.shape}; expected one row of whole-number token ids")
    outside = (ids < 0) | (ids >= vocab)
    if outside.any():
        found = int(ids[outside.argmax()])
        raise InputError(f"token {found} in the history; expected ids from 0 to {vocab - 1}, as the logits have")
    return ids.astype(np.int64)


def _real(name: str, value: object, expected: str) -> float:
    """``value`` as a float if it is a number that is not NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise _bad(name, value, expected)
    try:
        number = float(value)
    except OverflowError:
        raise _bad(name, value, expected) from None
    if math.isnan(number):
        raise _bad(name, value, expected)
    return number


def _whole(name: str, value: object, expected: str) -> int:
    """``value`` as an int if it is a whole number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise _bad(name, value, expected)
    return int(value)


def _bad(name: str, value: object, expected: str) -> InputError:
    """The error for one bad option, on one line however ``value`` prints itself."""
    try:
        shown = " ".join(repr(value).split())
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        shown = f"a very large {type(value).__name__}"
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return InputError(f"{name} is {shown}; expected {expected}")


def gpu_chooses(options: SamplingOptions, config: ModelConfig) -> bool:
    """Whether the last pass of a plan can choose the token: from all tokens, by their logits alone.

    No filter removes the likeliest token, so filters change nothing when greedy.
    """
    filtered = options.ranks(config.vocab_size) or options.min_p > 0.0
    return options.repetition_penalty == 1.0 and (options.greedy or not filtered)


NEUTRAL = SamplingOptions()
"""Temperature 1 and every filter off: tokens as the model predicts them."""
