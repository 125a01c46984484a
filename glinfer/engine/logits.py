"""Logits read back: softmax in float64, penalties and biases of requests, and log-probabilities for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.engine.ids import integer, real_number
from glinfer.errors import InputError

Floats = npt.NDArray[np.float32]
_PARTS = 64  # parts of a vocabulary, whose maxima bound the top k
MIN_LOGPROB = -9999.0
"""The log-probability of tokens that are never chosen, as in OpenAI's API; JSON has no infinities."""


def log_softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return log-probabilities along the last axis, in nats; NaN where a logit is NaN or the largest is infinite."""
    with np.errstate(invalid="ignore"):
        logprobs = logits.astype(np.float64)  # in place: new arrays of many rows take longer than their arithmetic
        logprobs -= logits.max(axis=-1, keepdims=True)
        logprobs -= np.log(np.exp(logprobs).sum(axis=-1, keepdims=True))
        return logprobs


def softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return probabilities along the last axis; NaN where a logit is NaN or the largest is infinite."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class TokenLogprob(NamedTuple):
    """The natural logarithm of a chosen token's probability, before penalties, bias, temperature and filters.

    ``top`` has (id, log-probability) of the likeliest tokens, likeliest first; lower ids first in ties.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def token_logprobs(logits: Floats, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """The log-probabilities, in float64, of the token and likeliest tokens of each row of logits [rows, vocab]."""
    logprobs, top = log_softmax(logits), np.array(counts)
    np.maximum(logprobs, MIN_LOGPROB, out=logprobs)
    least = np.where(top, top_bounds(logprobs, top), np.inf)
    rows, ids = np.divmod(np.flatnonzero(logprobs >= least[:, None]), logits.shape[1])
    values = logprobs[rows, ids]
    # In ties the lowest ids win, also at the end of the list.
    order = np.lexsort((-values, rows))
    pairs = list(zip(ids[order].tolist(), values[order].tolist(), strict=True))
    starts, own = np.searchsorted(rows, np.arange(len(top) + 1)).tolist(), logprobs[np.arange(len(top)), tokens]
    return [
        TokenLogprob(token, logprob, pairs[start:end][:count])
        for token, logprob, start, end, count in zip(tokens, own.tolist(), starts[:-1], starts[1:], counts, strict=True)
    ]


def top_bounds(scores: npt.NDArray[Any], top_k: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """A lower bound of the k-th largest score of each row [rows, vocab]; -inf if k is 0 or covers the row."""
    vocab, least = scores.shape[1], np.full(len(scores), -np.inf)
    few, many = (np.flatnonzero((low < top_k) & (top_k <= high)) for low, high in ((0, _PARTS), (_PARTS, vocab - 1)))
    if few.size and vocab >= 2 * _PARTS:
        # At least k scores reach the k-th largest maximum of the parts.
        maxima = np.sort(scores[few, : vocab // _PARTS * _PARTS].reshape(few.size, _PARTS, -1).max(axis=2), axis=1)
        least[few] = maxima[np.arange(few.size), _PARTS - top_k[few]]
    for row in many:
        least[row] = np.partition(scores[row], vocab - top_k[row])[vocab - top_k[row]]
    return least


@dataclass(frozen=True)
class LogitChanges:
    """Numbers added to logits before anything else, as OpenAI's API defines them.

    Attributes:
        presence_penalty: subtracted once from each token generated so far.
        frequency_penalty: subtracted each time a token was generated.
        bias: added to the logits of these ids.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def penalises(self) -> bool:
        """Whether a penalty changes the logits of generated tokens."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @classmethod
    def checked(cls, presence: object, frequency: object, bias: object, vocab: int) -> LogitChanges | None:
        """The changes of a request, None for none; InputError for non-finite numbers and ids outside the vocabulary."""
        named, bias = {}, {} if bias is None else bias
        if not isinstance(bias, Mapping):
            raise InputError(f"logit_bias is {type(bias).__name__}; expected a mapping of token ids to numbers")
        for token, value in bias.items():
            number = integer("for a token of logit_bias", token)
            if number >= vocab:
                raise InputError(f"token {number} of logit_bias is outside the vocabulary; expected 0 to {vocab - 1}")
            named[number] = _finite(f"the logit_bias of token {number}", value)
        made = cls(_finite("presence_penalty", presence), _finite("frequency_penalty", frequency), named)
        return made if made.penalises or made.bias else None


def change_logits(logits: Floats, asked: Mapping[int, tuple[LogitChanges, Sequence[int]]]) -> None:
    """Change logits [rows, vocab], float32, in place; ``asked`` maps rows to (changes, tokens generated so far).

    Computes ``logit + (bias - (presence_penalty + frequency_penalty · count))`` in float32.
    """
    if not asked:
        return
    added = np.zeros((len(asked), logits.shape[1]), np.float32)
    for row, (changes, _) in zip(added, asked.values(), strict=True):
        row[list(changes.bias)] = list(changes.bias.values())
    indices = [number * logits.shape[1] + np.asarray(ids, np.int64) for number, (_, ids) in enumerate(asked.values())]
    tokens, counts = np.unique(np.concatenate(indices), return_counts=True)
    penalties = np.array([(each.presence_penalty, each.frequency_penalty) for each, _ in asked.values()], np.float32)
    presence, frequency = penalties[tokens // logits.shape[1]].T
    added.reshape(-1)[tokens] -= presence + frequency * counts.astype(np.float32)
    logits[list(asked)] += added


def _finite(name: str, value: object) -> float:
    if not math.isfinite(number := real_number(value)):
        raise InputError(f"{name} is {value!r}; expected a finite number")
    return number
