"""Benchmark of speculative decoding: texts that copy from their prompts, and open ones, with and without drafts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

from glinfer.engine.chat import ChatStream
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report
from glinfer.engine.run.stats import GenerationStats
from glinfer.engine.stream import CHUNK, TextStream
from glinfer.errors import InputError
from glinfer.inspect.timing import Spread, Work, interleaved

TOKENS = 96
"""Limit for the tokens of each text."""
_PASSAGE = (
    "The lighthouse stood on a cliff above the grey sea. Every evening the keeper climbed one hundred and twelve "
    "steps, lit the lamp, and wrote the weather into a brown book. On clear nights he counted the ships; on foggy "
    "nights he rang the bell every two minutes until dawn. In the winter of 1911 a storm broke the lower windows, and "
    "the keeper slept for nine days on the stairs, beside the stove, with the book under his coat."
)
TASKS = {
    "copy": f"Repeat the following text exactly, word for word:\n\n{_PASSAGE}",
    "edit": f"Replace the word keeper by the word captain in this text, and change nothing else:\n\n{_PASSAGE}",
    "summarise": f"Summarise this text in two sentences, with its own words:\n\n{_PASSAGE}",
    "open": "Write a short story about a painter who moves to a city that she does not know.",
}
"""Timed tasks by name: three that are based on a text, and one that is not."""
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class DraftRow(Report):
    """One task of :data:`TASKS`, ``greedy`` or ``sampled``, in milliseconds a token: plain, and with drafts.

    ``drafted`` and ``accepted`` count the last run's tokens; ``same`` says whether all runs gave the same text.
    """

    derived = ("acceptance", "times_plain")

    task: str
    sampling: str
    tokens: int
    plain: Spread
    with_drafts: Spread
    drafted: int
    accepted: int
    same: bool

    @property
    def acceptance(self) -> float | None:
        """Share of accepted drafts; None without drafts."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def times_plain(self) -> float:
        """Speed relative to decoding without drafts."""
        return self.plain.median / self.with_drafts.median


@dataclass(frozen=True)
class DraftReport(Report):
    """Speculative decoding of one model on one machine; ``drafts`` names the source of drafts."""

    model: str
    weights: str
    drafts: str
    renderer: str
    runs: int
    rows: tuple[DraftRow, ...]


def bench_drafts(
    model: Model,
    drafts: dict[str, Any],
    runs: int,
    on_progress: Progress = no_progress,
) -> DraftReport:
    """Time texts with and without drafts, interleaved; the first of each is a warm-up and not counted.

    ``drafts`` is ``speculate`` or ``draft`` of :meth:`glinfer.engine.model.Model.stream`; a chat model gets the tasks
    as messages. ``on_progress`` receives (finished tasks, tasks). InputError if the model has no tokenizer, its context
    is too short, or the drafts are refused.
    """
    rows, cases = [], list(itertools.product(TASKS, ("greedy", "sampled")))
    for case, (task, sampling) in enumerate(cases, start=1):
        without: list[tuple[list[int], GenerationStats]] = []
        drafted: list[tuple[list[int], GenerationStats]] = []
        options = {"temperature": 0.0} if sampling == "greedy" else {"seed": 1}
        write = partial(_timed_text, model, TASKS[task], **options)
        works = [Work(partial(write, into, **given), timed=True) for into, given in ((without, {}), (drafted, drafts))]
        plain, with_drafts = map(Spread.of, interleaved(works, runs, pause=_PAUSE_SECONDS))
        on_progress(case, len(cases))
        stats, same = drafted[-1][1], all(ids == without[0][0] for ids, _ in without + drafted)
        rows.append(DraftRow(task, sampling, stats.tokens, plain, with_drafts, stats.drafted, stats.accepted, same))
    kind = drafts["speculate"] if drafts.get("draft") is None else f"model of {drafts['draft'].config.model_type}"
    return DraftReport(model.config.model_type, model.weights, kind, model.device.description, runs, tuple(rows))


def _timed_text(model: Model, task: str, results: list[tuple[list[int], GenerationStats]], **options: Any) -> float:
    """Add the ids of the whole answer to a task, a chat reply if the model can chat; returns milliseconds a token."""
    stream: ChatStream | TextStream
    try:
        stream = model.stream_chat(task, max_tokens=TOKENS, **options)
    except InputError:
        stream = model.stream(task, max_tokens=TOKENS, **options)
        stream.chunk = CHUNK
    stats, context = stream.stats, model.config.max_position_embeddings
    if stats.prompt_tokens + TOKENS > context:
        stream.close()
        raise InputError(
            f"found a context of {context} tokens; expected {stats.prompt_tokens} for a task and {TOKENS} for its "
            "answer; use a model with a longer context"
        )
    if isinstance(stream, ChatStream):
        stream.reply()
    else:
        "".join(stream)
    results.append((stream.ids, stats))
    return 1000.0 * stats.seconds / stats.tokens
