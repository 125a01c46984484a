"""How well a model predicts a text: bits per byte and perplexity, over sliding windows."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.generation.model import check_ids, plan_for
from glinfer.generation.tokenizer import Tokenizer
from glinfer.gl.context import Device
from glinfer.models.gab import LOGITS, TOKENS
from glinfer.models.session import Session
from glinfer.ops.spec import Array


@dataclass(frozen=True)
class EvalReport:
    """Quality on one text.

    ``tokens`` and ``bytes`` count what was predicted: everything but the first token, which nothing comes
    before. ``context`` and ``stride`` are in tokens: each window of ``context`` scores the tokens that the
    window before did not reach, ``stride`` of them, so that each has at least ``context - stride`` before it.
    """

    tokens: int
    bytes: int
    bits_per_byte: float
    perplexity: float
    context: int
    stride: int
    windows: int
    seconds: float
    plan: str
    renderer: str

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self)


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


def evaluate(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    device: Device,
    text: str,
    *,
    plan: str,
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
        stride: tokens between windows, 1 to the context (default: half of it).
        on_window: told (windows done, windows in all).

    Raises:
        InputError: the text is too short, or the stride is outside the context.
    """
    context = checkpoint.config.max_position_embeddings
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise InputError(f"the stride is {stride}; expected 1 to {context}, the context of this model")
    ids = tokenizer.encode(text)
    if len(ids) < 2:
        raise InputError(f"the text has {len(ids)} tokens; expected at least 2, one to predict from another")
    check_ids(ids[:context], checkpoint.config)
    spans = list(windows(len(ids), context, stride))
    started = time.perf_counter()
    session = Session(plan_for(checkpoint.config, plan, all_rows=True), checkpoint.tensors, device)
    nats = 0.0
    try:
        for done, (start, stop, scored) in enumerate(spans, start=1):
            session.write(TOKENS, np.asarray(ids[start:stop], dtype=np.int32)[:, None])
            session.run({"rows": stop - start})
            logits = session.read(LOGITS, rows=stop - start)[scored - 1 - start :]
            nats += negative_log_likelihood(logits, ids[scored : stop + 1])
            on_window(done, len(spans))
    finally:
        session.release()
    size = sum(len(tokenizer.token_bytes(token)) for token in ids[1:])
    return EvalReport(
        tokens=len(ids) - 1,
        bytes=size,
        bits_per_byte=nats / math.log(2) / size,
        perplexity=math.exp(nats / (len(ids) - 1)),
        context=context,
        stride=stride,
        windows=len(spans),
        seconds=time.perf_counter() - started,
        plan=plan,
        renderer=device.description,
    )


def negative_log_likelihood(logits: Array, targets: Sequence[int]) -> float:
    """The sum over rows of −log softmax(logits)[target], in nats, computed in float64."""
    wide = np.asarray(logits, dtype=np.float64)
    largest = wide.max(axis=1)
    log_sum = largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1))
    return float(np.sum(log_sum - wide[np.arange(len(targets)), list(targets)]))
