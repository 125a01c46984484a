"""What :mod:`glinfer.inspect.diff.compare` finds: plain values, and the questions that are asked of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.inspect.diff.weights import WeightsDiff
from glinfer.quant.formats import DEFAULT_CACHE


@dataclass(frozen=True)
class SideFacts:
    """What ran on one side; ``kept`` is how its weights lie in textures, every format that there is."""

    model: str
    plan: str
    weights: str
    kept: tuple[str, ...]
    renderer: str
    max_texture_size: int
    draws: int
    config: ModelConfig
    cache: str = DEFAULT_CACHE

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**dataclasses.asdict(self), "kept": list(self.kept), "config": self.config.to_dict()}


@dataclass(frozen=True)
class Place:
    """An element of a named array: position of its token, its head where there are heads, and its place in the row.

    ``column`` is a feature, of scores and probabilities of the attention the position of the key, of logits a token.
    """

    token: int
    head: int | None
    column: int


@dataclass(frozen=True)
class PassDiff:
    """One thing with a name on both sides.

    Attributes:
        name: see :mod:`glinfer.models.capture.names`; ends in ``.centred`` where the mean was taken away on either
        side.
        error: largest difference, relative to the largest unmasked value of A; None where the shapes differ.
        identical: whether all bits are the same.
        place: where the largest difference is; None where there is none.
        draw: the draw that completes it, where both plans have the same draws.
        shapes: of both arrays.
    """

    name: str
    error: float | None
    identical: bool
    place: Place | None
    draw: str | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def beyond(self, tolerance: float) -> bool:
        """Whether it differs by more."""
        return self.error is None or not self.error <= tolerance


@dataclass(frozen=True)
class NextToken:
    """What both sides say of the token that follows a position.

    ``token`` is the one at the position, ``following`` the next one of the text (None behind its end), ``kl`` the
    Kullback–Leibler divergence KL(A‖B) in nats, ``top_a`` and ``top_b`` the likeliest tokens, ``logprob_a`` and
    ``logprob_b`` the natural logarithms of the probability of ``following``.
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
class Along:
    """Next tokens along the text, at ``positions``; ``error`` and ``identical`` are of all logits together."""

    positions: tuple[NextToken, ...]
    error: float
    identical: bool

    @property
    def worst_first(self) -> list[NextToken]:
        """The positions by their divergence, the largest first; what is no number before all."""
        return sorted(self.positions, key=lambda at: (not math.isnan(at.kl), -at.kl))

    @property
    def kl(self) -> tuple[float, float, float]:
        """The divergence at all positions: mean, median and largest, in nats."""
        found = np.array([at.kl for at in self.positions])
        return float(found.mean()), float(np.median(found)), self.worst_first[0].kl

    @property
    def agreement(self) -> float:
        """At how many of the positions the likeliest token is the same, 0 to 1."""
        return sum(at.top_a == at.top_b for at in self.positions) / len(self.positions)

    def perplexities(self) -> tuple[float, float] | None:
        """Of both on the tokens that follow the positions; None where no token follows one."""
        pairs = [(at.logprob_a, at.logprob_b) for at in self.positions if at.logprob_a is not None]
        if not pairs:
            return None
        with np.errstate(over="ignore"):
            a, b = np.exp(-np.asarray(pairs, dtype=np.float64).mean(axis=0))
        return float(a), float(b)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        mean, median, largest = self.kl
        perplexities = self.perplexities() or (None, None)
        return {
            "count": len(self.positions),
            "error": self.error,
            "identical": self.identical,
            "kl": {"mean": mean, "median": median, "max": largest, "max_at": self.worst_first[0].position},
            "agreement": self.agreement,
            "perplexity": {"a": perplexities[0], "b": perplexities[1]},
            "positions": [dataclasses.asdict(at) for at in self.positions],
        }


@dataclass(frozen=True)
class DiffReport:
    """Everything that was compared.

    Attributes:
        a: what ran on one side, and ``b`` on the other.
        ids: the tokens that both ran.
        words: the text of each token that the report names, where there is a tokenizer.
        tolerance: relative error up to which things count as the same.
        config: fields of the configurations that differ, with both values.
        weights: the files' tensors; None where both sides have the same file.
        passes: what has a name in both plans, over the first ``traced`` tokens, in the order of computation.
        only_a: names that only A's plan has, and ``only_b`` B's.
        along: next tokens along the whole text.
    """

    a: SideFacts
    b: SideFacts
    ids: tuple[int, ...]
    words: Mapping[int, str]
    tolerance: float
    config: Mapping[str, tuple[Any, Any]]
    weights: WeightsDiff | None
    passes: tuple[PassDiff, ...]
    traced: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    along: Along

    @property
    def identical(self) -> bool:
        """Whether everything that was computed is the same bit for bit."""
        return self.along.identical and all(each.identical for each in self.passes)

    @property
    def first_different(self) -> PassDiff | None:
        """The first thing that is not the same bit for bit."""
        return next((each for each in self.passes if not each.identical), None)

    @property
    def first_beyond(self) -> PassDiff | None:
        """The first thing that differs beyond the tolerance."""
        return next((each for each in self.passes if each.beyond(self.tolerance)), None)

    @property
    def passed(self) -> bool:
        """Whether nothing, the logits along the text among it, differs beyond the tolerance."""
        return self.first_beyond is None and self.along.error <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are not finite stay so."""
        different, beyond = self.first_different, self.first_beyond
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "ids": list(self.ids),
            "words": {str(token): word for token, word in self.words.items()},
            "tolerance": self.tolerance,
            "passed": self.passed,
            "identical": self.identical,
            "first_different": None if different is None else different.name,
            "first_beyond": None if beyond is None else beyond.name,
            "config": {name: list(values) for name, values in self.config.items()},
            "weights": None if self.weights is None else self.weights.to_json(),
            "traced": self.traced,
            "passes": [dataclasses.asdict(each) for each in self.passes],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "along": self.along.to_json(),
        }
