"""Benchmark of the reference plan's forward pass: medians over interleaved runs after a warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from glinfer.engine.ids import check_within
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report
from glinfer.errors import InputError
from glinfer.inspect.draws import example_ids
from glinfer.inspect.timing import Spread, Work, interleaved
from glinfer.lower.plain.gab import LOGITS


@dataclass(frozen=True)
class BenchRow(Report):
    """One sequence length: milliseconds until the next token's logits are in Python, over ``runs`` runs."""

    derived = ("tokens_per_second",)

    tokens: int
    runs: int
    median_ms: float
    fastest_ms: float
    slowest_ms: float
    draws: int

    @property
    def tokens_per_second(self) -> float:
        """Generation speed at this length."""
        return 1000.0 / self.median_ms


@dataclass(frozen=True)
class BenchReport(Report):
    """A model on a renderer: loading time and the times of each length."""

    plan: str
    renderer: str
    load_seconds: float
    programs: int
    texture_bytes: int
    rows: tuple[BenchRow, ...]


def bench(
    model: Model,
    lengths: Sequence[int],
    runs: int,
    *,
    load_seconds: float,
    on_progress: Progress = no_progress,
) -> BenchReport:
    """Time the reference plan at several sequence lengths, interleaved.

    InputError if a length is outside the context, or there is none.
    """
    if not lengths:
        raise InputError("found no sequence length; expected at least one")
    context = model.config.max_position_embeddings
    for length in lengths:
        check_within("a sequence length", length, context, ", the context of this model")

    def run(ids: Sequence[int]) -> None:
        model.forward(ids)
        model.bound.read(LOGITS)

    works = [Work(partial(run, example_ids(model.config, length).tolist())) for length in lengths]
    spreads = map(Spread.of, interleaved(works, runs, on_progress=on_progress))
    rows = [
        BenchRow(length, runs, found.median, found.fastest, found.slowest, model.draws(length).total)
        for length, found in zip(lengths, spreads, strict=True)
    ]
    return BenchReport(
        plan=model.plan.name,
        renderer=model.device.description,
        load_seconds=load_seconds,
        programs=model.bound.program_count,
        texture_bytes=model.plan.texture_bytes(model.device.limits.max_texture_size),
        rows=tuple(rows),
    )
