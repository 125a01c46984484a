"""The logit lens (nostalgebraist 2020) predicts the next token from each layer's residual stream.

The final norm and the vocabulary matrix are applied in float64 NumPy, in pieces of the vocabulary, so that neither its
matrix in float64 nor all logits are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.engine.logits import softmax
from glinfer.formats import Checkpoint
from glinfer.formats.tensors import head_weight
from glinfer.inspect.pieces import WeightRows
from glinfer.kernels.published.linear import soft_cap
from glinfer.limits import PIECE_ELEMENTS

Floats = npt.NDArray[np.float64]

_MIN_ROWS = 64  # rows of the vocabulary matrix in a piece


@dataclass(frozen=True)
class Lens:
    """Predictions of L streams at S positions: the likeliest token and its probability, −1 and NaN if not finite.

    ``ids`` and ``probs`` are [L, S]; ``last`` [L, vocab] has all probabilities at the last position.
    """

    ids: npt.NDArray[np.int64]
    probs: Floats
    last: Floats


def likeliest(probs: Floats, count: int) -> list[tuple[int, float]]:
    """Return (token, probability) of the largest probabilities [vocab]; empty if one is not finite."""
    if not np.isfinite(probs).all():
        return []
    return [(int(token), float(probs[token])) for token in np.argsort(-probs, kind="stable")[:count]]


def logit_lens(checkpoint: Checkpoint, streams: Sequence[npt.NDArray[np.floating]]) -> Lens:
    """Apply the lens to streams [S, D], each taken after the embedding or a block."""
    length, rows = len(streams[0]), np.concatenate(streams).astype(np.float64)
    best, total = np.full(len(rows), -np.inf), np.zeros(len(rows))
    ids = np.zeros(len(rows), dtype=np.int64)
    last = np.empty((len(streams), checkpoint.config.vocab_size))
    with np.errstate(invalid="ignore", over="ignore"):
        for first, logits in head_pieces(checkpoint, rows):
            at_end = logits[length - 1 :: length]
            last[:, first : first + logits.shape[1]] = at_end
            largest = np.maximum(best, logits.max(axis=1))
            ids = np.where(largest > best, first + logits.argmax(axis=1), ids)
            # The sum of exponents so far is relative to the largest logit so far (Milakov and Gimelshein 2018).
            total = total * np.exp(best - largest) + np.exp(logits - largest[:, None]).sum(axis=1)
            best = largest
        probs = 1.0 / total
    known = np.isfinite(best) & np.isfinite(probs)
    ids, probs = np.where(known, ids, -1), np.where(known, probs, np.nan)
    return Lens(ids.reshape(-1, length), probs.reshape(-1, length), softmax(last))


def head_pieces(checkpoint: Checkpoint, rows: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield the logits of rows [R, D] in pieces of the vocabulary: (first token, [R, tokens])."""
    config, name = checkpoint.config, head_weight(checkpoint.config)
    normed, matrix = final_norm(checkpoint, rows), WeightRows(checkpoint, name)
    bias = checkpoint.tensors.get(f"{config.family.names.head}.bias")
    step = max(_MIN_ROWS, PIECE_ELEMENTS // len(rows))
    for first in range(0, config.vocab_size, step):
        end = min(first + step, config.vocab_size)
        logits = normed @ matrix[first:end].T.astype(np.float64)
        if bias is not None:
            logits += bias[first:end]
        logits /= config.logits_scaling
        cap = config.final_logit_softcapping
        yield first, soft_cap(logits, cap) if cap else logits


def final_norm(checkpoint: Checkpoint, rows: Floats) -> Floats:
    """Normalise rows [R, D] of a stream by the family's final norm: LayerNorm, or RMSNorm without mean and bias."""
    config, family = checkpoint.config, checkpoint.config.family
    gain, bias = (checkpoint.tensors.get(f"{family.names.final_norm}.{part}") for part in ("weight", "bias"))
    if family.norm == "layer":
        rows = rows - rows.mean(axis=1, keepdims=True)
    rows = rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + config.layer_norm_eps)
    rows = rows * (np.asarray(gain, dtype=np.float64) + family.norm_offset)
    return rows if bias is None else rows + bias
