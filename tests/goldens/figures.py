"""The figures of one model over a text: enough of the logits after each token to notice what is wrong anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WHOLE = (6, 199)
"""The places of which all logits are recorded, where a text has them."""


def logsumexp(logits: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(logits - top).sum(-1)))


def spots(ids: Sequence[int], place: int, vocab: int) -> list[int]:
    """The tokens whose logits are recorded at every place: the next one of the text, and two others each time."""
    return [[*ids, 0][place + 1], (37 * place + 11) % vocab, (101 * place + 53) % vocab]


@dataclass(frozen=True)
class Figures:
    """What a peer computed; the place of a token is its position, and its logits are those of the token after it.

    Attributes:
        ids: the text.
        range: of the logits of one place, the smallest of all places.
        likeliest: the likeliest next token at each place.
        logsumexp: of all logits at each place.
        spots: the logits of the tokens that :func:`spots` names, at each place.
        rows: all logits, at the places of WHOLE.
    """

    ids: list[int]
    range: float
    likeliest: list[int]
    logsumexp: list[float]
    spots: list[list[float]]
    rows: dict[int, list[float]]

    @classmethod
    def of(cls, ids: Sequence[int], logits: Array) -> Figures:
        """Of logits [tokens, vocab]."""
        vocab, places = logits.shape[1], range(len(ids))
        return cls(
            list(ids),
            float(np.ptp(logits, axis=1).min()),
            logits.argmax(1).tolist(),
            logsumexp(logits).tolist(),
            [logits[place, spots(ids, place, vocab)].tolist() for place in places],
            {place: logits[place].tolist() for place in WHOLE if place in places},
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Figures:
        rows = {int(place): row for place, row in values["rows"].items()}
        return cls(**{**{name: values[name] for name in cls.__dataclass_fields__}, "rows": rows})

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def logprobs(self) -> Array:
        """The logarithm of the probability of each token but the first."""
        return np.asarray(np.array(self.spots)[:-1, 0] - np.array(self.logsumexp)[:-1])

    def error(self, place: int, logits: Array) -> float:
        """How far logits [vocab] are from what is recorded of this place, as a part of the range."""
        found = np.asarray(logits, np.float64)
        pairs = [
            (logsumexp(found), self.logsumexp[place]),
            (found[spots(self.ids, place, len(found))], self.spots[place]),
            (found, self.rows.get(place, found)),
        ]
        return max(float(np.abs(ours - np.array(theirs)).max()) for ours, theirs in pairs) / self.range
