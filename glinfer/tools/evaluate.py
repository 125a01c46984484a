"""How well a model predicts a text: bits per byte and perplexity, over sliding windows."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.generation.decode import CachedSession
from glinfer.generation.model import check_ids
from glinfer.generation.tokenizer import Tokenizer
from glinfer.gl.context import Device
from glinfer.models import fast
from glinfer.models.choice import check_choice
from glinfer.models.fold import fold
from glinfer.models.gab import LOGITS, TOKENS, reference_plan
from glinfer.models.session import Session
from glinfer.models.tuning import kernels_for
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import Array


@dataclass(frozen=True)
class EvalReport:
    """Quality on one text.

    ``tokens`` and ``bytes`` count what was predicted: everything but the first token, which nothing comes
    before. ``context`` and ``stride`` are in tokens: each window of ``context`` scores the tokens that the
    window before did not reach, ``stride`` of them, so that each has at least ``context - stride`` before it.
    ``weight_bytes`` is the texture memory of the weights, ``milliseconds`` the time of one token that ran, and
    ``agreement`` how often the likeliest token was the same as with the weights that it was compared with.
    """

    tokens: int
    bytes: int
    bits_per_byte: float
    perplexity: float
    context: int
    stride: int
    windows: int
    seconds: float
    milliseconds: float
    plan: str
    weights: str
    weight_bytes: int
    renderer: str
    likeliest: tuple[int, ...] = field(repr=False)
    agreement: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values, without the likeliest tokens themselves."""
        values = dataclasses.asdict(self)
        del values["likeliest"]
        return values

    def compared_with(self, other: EvalReport) -> EvalReport:
        """The same report with its agreement with ``other``, over the same text."""
        same = np.count_nonzero(np.array(self.likeliest) == np.array(other.likeliest))
        return dataclasses.replace(self, agreement=float(same / len(self.likeliest)))


def windows(count: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Sliding windows over ``count`` tokens: (start, stop, scored), stepping by ``stride``.

    The model reads tokens [start, stop); the window scores its predictions of tokens [scored, stop]. Over all
    windows every token but the first is scored exactly once.
    """
    start, scored = 0, 1
    while scored < count:
        stop = min(start + context, count - 1)
        yield start, stop, scored
        scored, start = stop + 1, start + stride


class _Whole:
    """Logits after every position of a window from one run of the reference plan."""

    def __init__(self, checkpoint: Checkpoint, device: Device) -> None:
        plan = reference_plan(checkpoint.config, all_rows=True)
        self.session = Session(plan, checkpoint.tensors, device)

    def logits(self, ids: Sequence[int], first: int) -> Array:
        self.session.write(TOKENS, np.asarray(ids, dtype=np.int32)[:, None])
        self.session.run({"rows": len(ids)})
        return self.session.read(LOGITS, rows=len(ids))[first:]


class _TokenByToken:
    """The same from the fast plan, a token a run."""

    def __init__(self, checkpoint: Checkpoint, device: Device, weights: str, kernels: Kernels) -> None:
        edge = device.limits.max_texture_size
        plan = fast.fast_plan(checkpoint.config, weights=weights, kernels=kernels, max_texture_size=edge)
        self.session = Session(plan, fold(checkpoint.config, checkpoint.tensors, weights), device)
        self.decoding = CachedSession(checkpoint.config, self.session, flush_every=kernels.flush_every)

    def logits(self, ids: Sequence[int], first: int) -> Array:
        self.decoding.rewind(len(self.decoding))
        self.decoding.prefill(ids[:first])
        rows = []
        for token in ids[first:]:
            self.decoding.step(token)
            rows.append(self.decoding.logits())
        return np.array(rows)


def evaluate(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    device: Device,
    text: str,
    *,
    plan: str,
    weights: str = "f32",
    kernels: Kernels | None = None,
    stride: int | None = None,
    on_window: Callable[[int, int], None] = lambda done, total: None,
) -> EvalReport:
    """Score ``text`` in windows of the model's whole context.

    Args:
        checkpoint: the model.
        tokenizer: its tokenizer.
        device: where to run.
        text: at least two tokens of it.
        plan: the name of the plan that computes the logits.
        weights: the fast plan's weight format, a key of :data:`glinfer.models.fold.WEIGHT_FORMATS`.
        kernels: how its passes are shaped; left out, the tuned ones or the default of the device.
        stride: tokens between windows, 1 to the context (default: half of it).
        on_window: told (windows done, windows in all).

    Raises:
        InputError: the text is too short, the stride is outside the context, or there is no such plan or format.
    """
    check_choice(plan, weights)
    context = checkpoint.config.max_position_embeddings
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise InputError(f"the stride is {stride}; expected 1 to {context}, the context of this model")
    ids = tokenizer.encode(text)
    if len(ids) < 2:
        raise InputError(f"the text has {len(ids)} tokens; expected at least 2, one to predict from another")
    check_ids(ids[:context], checkpoint.config)
    spans = list(windows(len(ids), context, stride))
    kernels = kernels or kernels_for(device, checkpoint.config, weights)
    runner = _Whole(checkpoint, device) if plan == "reference" else _TokenByToken(checkpoint, device, weights, kernels)
    started = time.perf_counter()
    nats, likeliest = 0.0, []
    try:
        for done, (start, stop, scored) in enumerate(spans, start=1):
            logits = runner.logits(ids[start:stop], scored - 1 - start)
            nats += negative_log_likelihood(logits, ids[scored : stop + 1])
            likeliest += logits.argmax(axis=1).tolist()
            on_window(done, len(spans))
    finally:
        runner.session.release()
    seconds = time.perf_counter() - started
    size = sum(len(tokenizer.token_bytes(token)) for token in ids[1:])
    return EvalReport(
        tokens=len(ids) - 1,
        bytes=size,
        bits_per_byte=nats / math.log(2) / size,
        perplexity=math.exp(nats / (len(ids) - 1)),
        context=context,
        stride=stride,
        windows=len(spans),
        seconds=seconds,
        milliseconds=1000.0 * seconds / sum(stop - start for start, stop, _ in spans),
        plan=plan,
        weights=weights,
        weight_bytes=runner.session.plan.texture_bytes(device.limits.max_texture_size, "weight"),
        renderer=device.description,
        likeliest=tuple(likeliest),
    )


def negative_log_likelihood(logits: Array, targets: Sequence[int]) -> float:
    """The sum over rows of −log softmax(logits)[target], in nats, computed in float64."""
    wide = np.asarray(logits, dtype=np.float64)
    largest = wide.max(axis=1)
    log_sum = largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1))
    return float(np.sum(log_sum - wide[np.arange(len(targets)), list(targets)]))
