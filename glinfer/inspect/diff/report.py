"""Reports of :mod:`glinfer.inspect.diff.compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.engine.report import Report, plain
from glinfer.inspect.diff.weights import WeightsDiff
from glinfer.quant.formats import DEFAULT_CACHE


@dataclass(frozen=True)
class RunFacts(Report):
    """Facts on one side's run; ``kept`` lists the texture formats of its matrices."""

    model: str
    plan: str
    weights: str
    kept: tuple[str, ...]
    renderer: str
    max_texture_size: int
    draws: int
    config: ModelConfig
    cache: str = DEFAULT_CACHE


@dataclass(frozen=True)
class ElementPosition:
    """Position of an element in a captured tensor: its token, its head (None without heads), and its column.

    A column is a feature; of attention scores and probabilities the position of a key; of logits a token.
    """

    token: int
    head: int | None
    column: int


@dataclass(frozen=True)
class TensorError:
    """Difference of one captured tensor between both sides.

    Attributes:
        name: see :mod:`glinfer.models.capture`; ends in ``.centred`` if either side subtracts the mean.
        error: largest difference, relative to the largest unmasked value of A; None if the shapes differ.
        identical: whether all bits are equal.
        place: position of the largest difference; None without one.
        draw: the draw that completes the tensor, if both plans have the same draws.
        shapes: shapes on both sides.
    """

    name: str
    error: float | None
    identical: bool
    place: ElementPosition | None
    draw: str | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def beyond(self, tolerance: float) -> bool:
        """Whether it differs by more than ``tolerance``."""
        return self.error is None or not self.error <= tolerance


@dataclass(frozen=True)
class NextToken:
    """Predictions of both sides at one position.

    ``token`` is the one at the position, ``following`` the next one of the text (None at its end), ``kl`` the
    Kullback–Leibler divergence KL(A‖B) in nats, ``top_a`` and ``top_b`` the likeliest tokens, ``logprob_a`` and
    ``logprob_b`` the log-probabilities of ``following``.
    """

    position: int
    token: int
    following: int | None
    kl: float
    top_a: int
    top_b: int
    logprob_a: float | None
    logprob_b: float | None


@dataclass(frozen=True)
class Predictions(Report):
    """Predictions along the text at ``positions``; ``error`` and ``identical`` refer to all their logits."""

    hidden = ("positions",)

    positions: tuple[NextToken, ...]
    error: float
    identical: bool

    @property
    def worst_first(self) -> list[NextToken]:
        """Positions by divergence, the largest first, NaN before all."""
        return sorted(self.positions, key=lambda at: (not math.isnan(at.kl), -at.kl))

    @property
    def kl(self) -> tuple[float, float, float]:
        """Mean, median and largest divergence, in nats."""
        found = np.array([at.kl for at in self.positions])
        return float(found.mean()), float(np.median(found)), self.worst_first[0].kl

    @property
    def agreement(self) -> float:
        """Share of positions with the same likeliest token."""
        return sum(at.top_a == at.top_b for at in self.positions) / len(self.positions)

    def perplexities(self) -> tuple[float, float] | None:
        """Return both perplexities on the tokens that follow the positions; None without such tokens."""
        pairs = [(at.logprob_a, at.logprob_b) for at in self.positions if at.logprob_a is not None]
        if not pairs:
            return None
        with np.errstate(over="ignore"):
            a, b = np.exp(-np.asarray(pairs, dtype=np.float64).mean(axis=0))
        return float(a), float(b)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        mean, median, largest = self.kl
        perplexities = self.perplexities() or (None, None)
        found = {
            "count": len(self.positions),
            **super().to_json(),
            "kl": {"mean": mean, "median": median, "max": largest, "max_at": self.worst_first[0].position},
            "agreement": self.agreement,
            "perplexity": dict(zip("ab", perplexities, strict=True)),
            "positions": self.positions,
        }
        return {name: plain(value) for name, value in found.items()}


@dataclass(frozen=True)
class DiffReport(Report):
    """Comparison of two runs over the same tokens.

    Attributes:
        a, b: facts on both runs.
        ids: tokens that both ran.
        words: text of each token in the report, if there is a tokenizer.
        tolerance: relative error up to which tensors count as equal.
        config: fields of the configurations that differ, with both values.
        weights: differences of the files; None if both sides have the same file.
        passes: tensors captured in both plans over the first ``traced`` tokens, in the order of computation.
        only_a, only_b: names that only one plan has.
        along: predictions along the whole text.
    """

    derived = ("passed", "identical")

    a: RunFacts
    b: RunFacts
    ids: tuple[int, ...]
    words: Mapping[int, str]
    tolerance: float
    config: Mapping[str, tuple[Any, Any]]
    weights: WeightsDiff | None
    passes: tuple[TensorError, ...]
    traced: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    along: Predictions

    @property
    def identical(self) -> bool:
        """Whether all tensors and logits are equal bit for bit."""
        return self.along.identical and all(each.identical for each in self.passes)

    @property
    def first_different(self) -> TensorError | None:
        """First tensor that is not equal bit for bit."""
        return next((each for each in self.passes if not each.identical), None)

    @property
    def first_beyond(self) -> TensorError | None:
        """First tensor beyond the tolerance."""
        return next((each for each in self.passes if each.beyond(self.tolerance)), None)

    @property
    def passed(self) -> bool:
        """Whether all tensors, and the logits along the text, are within the tolerance."""
        return self.first_beyond is None and self.along.error <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        firsts = {"first_different": self.first_different, "first_beyond": self.first_beyond}
        return {**super().to_json(), **{name: first and first.name for name, first in firsts.items()}}
