"""The figures of one model over a text: enough of the logits after each token to notice what is wrong anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WHOLE = (6, 199)
"""The positions at which all logits are recorded, where a text has them."""


def logsumexp(logits: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(logits - top).sum(-1)))


def spots(ids: Sequence[int], position: int, vocab: int) -> list[int]:
    """The tokens whose logits are recorded at every position: the next one of the text, and two others each time."""
    return [[*ids, 0][position + 1], (37 * position + 11) % vocab, (101 * position + 53) % vocab]


@dataclass(frozen=True)
class Figures:
    """What a peer computed; logits at a position are those of the token after it.

    Attributes:
        ids: the text.
        range: of the logits of one position, the smallest of all positions.
        likeliest: the likeliest next token at each position.
        logsumexp: of all logits at each position.
        spots: the logits of the tokens that :func:`spots` names, at each position.
        rows: all logits, at the positions of WHOLE.
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
        vocab, positions = logits.shape[1], range(len(ids))
        return cls(
            list(ids),
            float(np.ptp(logits, axis=1).min()),
            logits.argmax(1).tolist(),
            logsumexp(logits).tolist(),
            [logits[position, spots(ids, position, vocab)].tolist() for position in positions],
            {position: logits[position].tolist() for position in WHOLE if position in positions},
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Figures:
        rows = {int(position): row for position, row in values["rows"].items()}
        return cls(**{**{name: values[name] for name in cls.__dataclass_fields__}, "rows": rows})

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def logprobs(self) -> Array:
        """The logarithm of the probability of each token but the first."""
        return np.asarray(np.array(self.spots)[:-1, 0] - np.array(self.logsumexp)[:-1])

    def error(self, position: int, logits: Array) -> float:
        """How far logits [vocab] are from what is recorded of this position, as a part of the range."""
        found = np.asarray(logits, np.float64)
        pairs = [
            (logsumexp(found), self.logsumexp[position]),
            (found[spots(self.ids, position, len(found))], self.spots[position]),
            (found, self.rows.get(position, found)),
        ]
        return max(float(np.abs(ours - np.array(theirs)).max()) for ours, theirs in pairs) / self.range
