"""Softmax of logits in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def log_softmax(logits: npt.NDArray[np.floating]) -> Floats:
    """Return log-probabilities along the last axis, in nats; NaN where a logit is NaN or the largest is infinite."""
    with np.errstate(invalid="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def softmax(logits: npt.NDArray[np.floating]) -> Floats:
    """Return probabilities along the last axis; NaN where a logit is NaN or the largest is infinite."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
