"""Logits read back: softmax in float64, penalties and biases of requests, and log-probabilities for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.engine.ids import real_number, whole_number
from glinfer.errors import InputError

Floats = npt.NDArray[np.float32]
MIN_LOGPROB = -9999.0
"""The log-probability of tokens that are never chosen, as in OpenAI's API; JSON has no infinities."""


def log_softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return log-probabilities along the last axis, in nats; NaN where a logit is NaN or the largest is infinite."""
    with np.errstate(invalid="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return probabilities along the last axis; NaN where a logit is NaN or the largest is infinite."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class TokenLogprob(NamedTuple):
    """The log-probability of one chosen token, before penalties, bias, temperature and filters.

    Attributes:
        token: the id.
        logprob: natural logarithm of its probability.
        top: (id, log-probability) of the likeliest tokens, likeliest first; lower ids first in ties.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def token_logprobs(logits: Floats, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """The log-probabilities, in float64, of the token and likeliest tokens of each row of logits [rows, vocab]."""
    found, logprobs = [], np.maximum(log_softmax(logits), MIN_LOGPROB)
    for row, token, count in zip(logprobs, tokens, counts, strict=True):
        # In ties the lowest ids win, also at the end of the list.
        least = np.partition(row, max(0, row.size - count))[max(0, row.size - count)] if count else np.inf
        best = np.flatnonzero(row >= least)
        best = best[np.argsort(-row[best], kind="stable")][:count]
        found.append(TokenLogprob(token, float(row[token]), [(int(each), float(row[each])) for each in best]))
    return found


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

    @classmethod
    def checked(cls, presence: object, frequency: object, bias: object, vocab: int) -> LogitChanges | None:
        """The changes of a request; None if they change nothing.

        Raises:
            InputError: not a finite number, or an id outside the vocabulary.
        """
        named, bias = {}, {} if bias is None else bias
        if not isinstance(bias, Mapping):
            raise InputError(f"logit_bias is {type(bias).__name__}; expected a mapping of token ids to numbers")
        for token, value in bias.items():
            number = whole_number("for a token of logit_bias", token)
            if number >= vocab:
                raise InputError(f"token {number} of logit_bias is outside the vocabulary; expected 0 to {vocab - 1}")
            named[number] = _finite(f"the logit_bias of token {number}", value)
        made = cls(_finite("presence_penalty", presence), _finite("frequency_penalty", frequency), named)
        return made if made.presence_penalty or made.frequency_penalty or made.bias else None


def change_logits(logits: Floats, asked: Mapping[int, tuple[LogitChanges, Sequence[int]]]) -> None:
    """Change logits [rows, vocab], float32, in place; ``asked`` maps rows to (changes, tokens generated so far).

    Computes ``logit + (bias - (presence_penalty + frequency_penalty · count))`` in float32.
    """
    if not asked:
        return
    added = np.zeros((len(asked), logits.shape[1]), np.float32)
    for row, (changes, _) in zip(added, asked.values(), strict=True):
        row[list(changes.bias)] = list(changes.bias.values())
    places = [number * logits.shape[1] + np.asarray(ids, np.int64) for number, (_, ids) in enumerate(asked.values())]
    tokens, counts = np.unique(np.concatenate(places), return_counts=True)
    penalties = np.array([(each.presence_penalty, each.frequency_penalty) for each, _ in asked.values()], np.float32)
    presence, frequency = penalties[tokens // logits.shape[1]].T
    added.reshape(-1)[tokens] -= presence + frequency * counts.astype(np.float32)
    logits[list(asked)] += added


def _finite(name: str, value: object) -> float:
    if not math.isfinite(number := real_number(value)):
        raise InputError(f"{name} is {value!r}; expected a finite number")
    return number
