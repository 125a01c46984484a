"""The logit lens: what a model would say if a layer's stream were already the last one.

The stream of each layer goes through the final norm and the vocabulary's matrix of the model (nostalgebraist 2020,
"interpreting GPT: the logit lens"). Everything is float64 NumPy over the checkpoint, with the oracles of the ops that a
plan would draw; nothing here needs OpenGL. The vocabulary is taken piece by piece, so that neither the whole matrix in
float64 nor all logits of all layers are ever in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.formats.tensors import head_weight
from glinfer.models.choice import USUAL_TEXTURE_SIZE
from glinfer.models.oracle import final_tensors
from glinfer.models.plan import PlanBuilder
from glinfer.ops import OPS
from glinfer.ops.flat.normalize import Norm, normalized
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.published.linear import ACTIVATIONS
from glinfer.ops.spec import TensorSpec

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]

_PIECE = 1 << 22  # logits that are in memory together, 32 MB
_LEAST_ROWS = 64  # of the vocabulary's matrix


@dataclass(frozen=True)
class Lens:
    """What each of L streams says at each of S positions.

    Attributes:
        ids: [L, S], the likeliest token; -1 where the stream is not finite.
        probs: [L, S], its probability; NaN where the stream is not finite.
        last: [L, vocab], all probabilities at the last position.
    """

    ids: npt.NDArray[np.int64]
    probs: Floats
    last: Floats

    def top(self, layer: int, count: int) -> list[tuple[int, float]]:
        """The likeliest tokens at the last position with their probabilities, see :func:`likeliest`."""
        return likeliest(self.last[layer], count)


def likeliest(probs: Floats, count: int) -> list[tuple[int, float]]:
    """The likeliest of some probabilities [vocab], of equal ones the first; none where one is not finite."""
    if not np.isfinite(probs).all():
        return []
    return [(int(token), float(probs[token])) for token in np.argsort(-probs, kind="stable")[:count]]


def softmax(logits: npt.NDArray[np.floating]) -> Floats:
    """Probabilities [vocab] of one row of logits, in float64."""
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum())


def logit_lens(checkpoint: Checkpoint, streams: Sequence[npt.NDArray[np.floating]]) -> Lens:
    """The lens over streams [S, D], each behind the embedding or behind a block.

    Raises:
        InputError: a stream has another width than the model, or another length than the first one.
    """
    width = checkpoint.config.hidden_size
    length = len(streams[0]) if streams else 0
    for stream in streams:
        if stream.shape != (length, width) or not length:
            raise InputError(f"found a stream {list(stream.shape)}; expected [{max(1, length)}, {width}]")
    if not streams:
        raise InputError("found no stream to look through; expected at least one")
    rows = np.concatenate(streams).astype(np.float64)
    best, total = np.full(len(rows), -np.inf), np.zeros(len(rows))
    ids = np.zeros(len(rows), dtype=np.int64)
    last = np.empty((len(streams), checkpoint.config.vocab_size))
    with np.errstate(invalid="ignore", over="ignore"):
        for first, logits in _head(checkpoint, rows):
            at_end = logits[length - 1 :: length]
            last[:, first : first + logits.shape[1]] = at_end
            largest = np.maximum(best, logits.max(axis=1))
            ids = np.where(largest > best, first + logits.argmax(axis=1), ids)
            # The sum of exponents so far is relative to the largest logit so far (Milakov and Gimelshein 2018).
            total = total * np.exp(best - largest) + np.exp(logits - largest[:, None]).sum(axis=1)
            best = largest
        probs = 1.0 / total
        powers = np.exp(last - last.max(axis=1, keepdims=True))
    known = np.isfinite(best) & np.isfinite(probs)
    shape = (len(streams), length)
    return Lens(
        np.where(known, ids, -1).reshape(shape),
        np.where(known, probs, np.nan).reshape(shape),
        powers / powers.sum(axis=1, keepdims=True),
    )


def lens_logits(checkpoint: Checkpoint, stream: npt.NDArray[np.floating]) -> Floats:
    """All logits [rows, vocab] of the rows of one stream [rows, D]."""
    return np.concatenate([logits for _, logits in _head(checkpoint, stream.astype(np.float64))], axis=1)


def _head(checkpoint: Checkpoint, rows: Floats) -> Iterator[tuple[int, Floats]]:
    """The logits of rows [R, D] piece by piece: the first token of a piece, and [R, tokens of the piece]."""
    config, name = checkpoint.config, head_weight(checkpoint.config)
    normed, bias = final_norm(checkpoint, rows), checkpoint.tensors.get(f"{config.family.names.head}.bias")
    step = max(_LEAST_ROWS, _PIECE // len(rows))
    for first in range(0, config.vocab_size, step):
        end = min(first + step, config.vocab_size)
        inputs: dict[str, npt.NDArray[Any]] = {"x": normed, "weight": weight_rows(checkpoint, name, first, end)}
        if bias is not None:
            inputs["bias"] = bias[first:end]
        params = {"ACTIVATION": ACTIVATIONS["none"]}
        yield first, np.asarray(OPS["linear"].oracle(inputs, params, (len(rows), end - first)))


def final_norm(checkpoint: Checkpoint, rows: Floats) -> Floats:
    """Rows [R, D] of a stream, normalised as the family does before the vocabulary's matrix."""
    config = checkpoint.config
    family = config.family
    plan, used, shape = PlanBuilder("lens", len(rows), ()), dict[str, Array](), (len(rows), config.hidden_size)

    def declare(name: str, count: int, cols: int, kind: str = "activation") -> TensorSpec:
        return plan.flat(name, kind, count, cols, "rgba32f", USUAL_TEXTURE_SIZE)

    def vector(part: str) -> TensorSpec:
        name = f"{family.names.final_norm}.{part}"
        used[name] = checkpoint.tensors[name]
        return declare(name, 1, config.hidden_size, "weight")

    norm = Norm(
        family.norm,
        vector("weight"),
        vector("bias") if family.norm == "layer" else None,
        eps=config.layer_norm_eps,
        offset=family.norm_offset,
    )
    x, out = declare("x", *shape, "input"), declare("normed", *shape)
    plan.draw(*normalized("norm", "norm", x, out, norm, scratch=declare, kernels=KernelOptions()))
    return np.asarray(final_tensors(plan.build(), used, {"x": rows}, {})["normed"])


def weight_rows(checkpoint: Checkpoint, name: str, first: int, end: int) -> Array:
    """Rows [first, end) of a weight as float32, of a vector [1, n]; only those are unpacked.

    Raises:
        KeyError: there is no such tensor.
        InputError: the package gguf, which unpacks GGML's formats, is not installed.
    """
    packed = checkpoint.packed.get(name)
    if packed is not None:
        return PackedTensor(packed.format, packed.blocks[first:end]).floats()
    return np.atleast_2d(checkpoint.tensors[name])[first:end]
