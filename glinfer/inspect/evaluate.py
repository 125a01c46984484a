"""Evaluation of a model on a text: bits per byte and perplexity, over sliding windows."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field

import numpy as np

from glinfer.config import ModelConfig
from glinfer.engine.ids import check_ids
from glinfer.engine.loading import prepare
from glinfer.engine.logits import log_softmax
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report
from glinfer.engine.score import TextScore, check_stride, windows
from glinfer.errors import InputError, counted
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.lower.plain.gab import LOGITS, TOKENS, reference_plan
from glinfer.lower.plans import DEFAULT_WEIGHTS, check_choice, is_published, weights_named
from glinfer.program.session import Session
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class EvalReport(Report):
    """Quality on one text; ``tokens`` and ``bytes`` count predictions: all but the first token.

    Each window of ``context`` tokens scores the ``stride`` tokens that the previous one did not reach. ``weight_bytes``
    and ``cache_bytes`` are texture memory, of the keys and values of one context. ``milliseconds`` are a token's, and
    ``agreement`` is the share of likeliest tokens that equal those of the report it was compared with.
    """

    hidden = ("likeliest",)

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
    cache: str
    weight_bytes: int
    cache_bytes: int
    renderer: str
    likeliest: tuple[int, ...] = field(repr=False)
    agreement: float | None = None

    def compared_with(self, other: EvalReport) -> EvalReport:
        """Return this report with its agreement with ``other``, over the same text."""
        same = np.count_nonzero(np.array(self.likeliest) == np.array(other.likeliest))
        return dataclasses.replace(self, agreement=float(same / len(self.likeliest)))


def _score_whole(
    session: Session, config: ModelConfig, ids: list[int], stride: int, on_progress: Progress
) -> TextScore:
    """Score windows with the reference plan, which computes the logits of all rows."""
    found = TextScore.unknown(ids)
    spans = list(windows(len(ids), config.max_position_embeddings, stride))
    for done, (start, stop, scored) in enumerate(spans, start=1):
        session.write(TOKENS, np.asarray(ids[start:stop], dtype=np.int32)[:, None])
        session.run({"rows": stop - start})
        logits = session.read(LOGITS, rows=stop - start)[scored - 1 - start :]
        rows = slice(scored - 1, stop)
        logprobs = log_softmax(logits)
        found.logprobs[rows] = logprobs[np.arange(len(logprobs)), ids[scored : stop + 1]]
        found.likeliest[rows], found.best[rows] = logits.argmax(axis=1), logprobs.max(axis=1)
        on_progress(done, len(spans))
    return found


def evaluate(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    device: Device,
    text: str,
    *,
    plan: str,
    weights: str = DEFAULT_WEIGHTS,
    cache: str = DEFAULT_CACHE,
    stride: int | None = None,
    on_progress: Progress = no_progress,
) -> EvalReport:
    """Score ``text`` in windows of the model's whole context.

    ``weights`` and ``cache`` are of the fast plan. ``stride`` is the tokens between windows, 1 to the context (default:
    half of it). ``on_progress`` receives (finished windows, windows). InputError if the text is too short, the stride
    is outside the context, or the plan or format is unknown.
    """
    check_choice(plan, weights, cache)
    weights = weights_named(weights, checkpoint.formats(), plan)
    context = checkpoint.config.max_position_embeddings
    stride = check_stride(stride, context)
    ids = tokenizer.encode(text)
    if len(ids) < 2:
        raise InputError(f"the text has {counted(len(ids), 'token')}; expected at least 2, one to predict from another")
    check_ids(ids[:context], checkpoint.config)
    if plan == "reference":
        if not is_published(checkpoint.config, checkpoint.formats()):
            raise InputError(f"the reference plan scores no texts of this {checkpoint.config.model_type}; leave it out")
        session = Session(reference_plan(checkpoint.config, all_rows=True), checkpoint.tensors, device)
        engine = None
    else:
        engine = prepare(checkpoint, device, plan, weights, cache=cache).bind(device)
        session = engine.bound
    try:
        edge = device.limits.max_texture_size
        weight_bytes, cache_bytes = (session.plan.texture_bytes(edge, kind) for kind in ("weight", "cache"))
        started = time.perf_counter()
        if engine is None:
            score = _score_whole(session, checkpoint.config, ids, stride, on_progress)
        else:
            score = engine.score([ids], stride=stride, on_progress=on_progress)[0]
        seconds = time.perf_counter() - started
    finally:
        session.release()
    spans = list(windows(len(ids), context, stride))
    size = sum(len(tokenizer.token_bytes(token)) for token in ids[1:])
    return EvalReport(
        tokens=len(ids) - 1,
        bytes=size,
        bits_per_byte=-score.total / math.log(2) / size,
        perplexity=score.perplexity,
        context=context,
        stride=stride,
        windows=len(spans),
        seconds=seconds,
        milliseconds=1000.0 * seconds / sum(stop - start for start, stop, _ in spans),
        plan=plan,
        weights=weights,
        cache=cache,
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        renderer=device.description,
        likeliest=tuple(score.likeliest.tolist()),
    )
