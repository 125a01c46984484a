"""Automatic choice of the weight format: the fastest that hardly changes the model's predictions.

The model writes a short text in float32; each format then predicts every token of it. What its predictions cost
more than the model's own, in bits, is the mean Kullback–Leibler divergence, and over the entropy that is the
change in bits per byte on text of the model's own kind. No text has to be given, and because whole distributions
are compared and not single tokens, a few hundred of them are enough.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.engine.cached import CachedSession
from glinfer.engine.prefill import Prefill
from glinfer.engine.probabilities import log_softmax
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import GlinferError, PlanError
from glinfer.formats import Checkpoint
from glinfer.formats.files import memory_folder, opened, replacing
from glinfer.gl.context import Device
from glinfer.models.choice import fast_session
from glinfer.models.options import PlanOptions
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.formats import WEIGHT_FORMATS

FASTEST_FIRST = ("q8", "q8l", "q16", "f16")
"""The formats beside float32, fastest first on every renderer measured so far (docs/performance.md)."""
MAX_EXTRA_BITS = 1e-3
"""Limit for the share of extra bits that predictions in a format may cost over float32."""
TOKENS = 192
"""Tokens of the text that the formats are compared on."""
_MAX_BYTES = 1 << 12
_VERSION = 1

Rows = npt.NDArray[np.float64]


def choose_weights(checkpoint: Checkpoint, device: Device, kernels: KernelOptions) -> str:
    """The fastest format within :data:`MAX_EXTRA_BITS` of float32; remembered for this checkpoint.

    Raises:
        PlanError: the model does not fit the renderer.
    """
    known = _remembered(checkpoint)
    if known is not None:
        return known
    with _Predictions(checkpoint, device, kernels, "f32") as exact:
        ids, expected = exact.write(min(TOKENS, checkpoint.config.max_position_embeddings))
    chosen = "f32"
    for name in FASTEST_FIRST:
        try:
            with _Predictions(checkpoint, device, kernels, name) as candidate:
                found = candidate.of(ids)
        except PlanError:  # a weight beyond the range of half floats
            continue
        if extra_bits(expected, found) <= MAX_EXTRA_BITS:
            chosen = name
            break
    _remember(checkpoint, chosen)
    return chosen


def extra_bits(expected: Rows, found: Rows) -> float:
    """Mean divergence over mean entropy of rows of log-probabilities [n, vocab]: the share of extra bits."""
    probabilities = np.exp(expected)
    divergence = float((probabilities * (expected - found)).sum())
    entropy = float(-(probabilities * expected).sum())
    return divergence / max(entropy, 1e-9 * len(expected))


class _Predictions(Closing):
    """Predictions of a model in one weight format, run from position 0."""

    def __init__(self, checkpoint: Checkpoint, device: Device, kernels: KernelOptions, weights: str) -> None:
        bound = fast_session(checkpoint, device, weights, kernels)
        options = PlanOptions(checkpoint.config, weights, kernels, device.limits.max_texture_size, checkpoint.formats())
        self.session = CachedSession(Prefill(options), bound)

    def close(self) -> None:
        self.session.close()

    def _after(self, token: int) -> Rows:
        self.session.step(token)
        return log_softmax(self.session.logits())

    def write(self, count: int) -> tuple[list[int], Rows]:
        """``count`` tokens that the model writes, and the log-probabilities [count, vocab] after each."""
        sampler = Sampler(SamplingOptions(seed=0))
        rows, token = [], 0
        for _ in range(count):
            rows.append(self._after(token))
            token = sampler.sample(rows[-1])
        return self.session.ids, np.array(rows)

    def of(self, ids: Sequence[int]) -> Rows:
        """The log-probabilities [n, vocab] after each of the tokens."""
        return np.array([self._after(token) for token in ids])


def _digest(checkpoint: Checkpoint) -> str:
    """Identify a checkpoint by its shape and a sample of every tensor."""
    digest = hashlib.sha256(f"{_VERSION} {MAX_EXTRA_BITS} {checkpoint.config.to_json()}".encode())
    for name in sorted([*checkpoint.tensors, *checkpoint.packed]):
        array = checkpoint.packed[name].blocks if name in checkpoint.packed else checkpoint.tensors[name]
        flat = np.ascontiguousarray(array).reshape(-1)
        digest.update(name.encode() + flat[:: max(1, flat.size // 1024)].tobytes())
    return digest.hexdigest()[:24]


def _remembered(checkpoint: Checkpoint) -> str | None:
    folder = memory_folder("weights")
    if folder is None:
        return None
    try:
        with opened(folder / f"{_digest(checkpoint)}.json") as (file, size):
            found = json.loads(file.read(_MAX_BYTES)) if size <= _MAX_BYTES else None
    except (GlinferError, ValueError, RecursionError):
        return None
    name = found.get("weights") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name in WEIGHT_FORMATS else None


def _remember(checkpoint: Checkpoint, name: str) -> None:
    folder = memory_folder("weights")
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{_digest(checkpoint)}.json") as temporary:
            temporary.write_text(json.dumps({"weights": name}) + "\n", encoding="utf-8")
    except (GlinferError, OSError):
        return  # it is measured again next time
