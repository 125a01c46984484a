"""Score texts: the log-probability of every token, with many tokens and texts in one run."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.engine.ids import check_within
from glinfer.engine.pace import Pace
from glinfer.engine.prefill import write_images
from glinfer.errors import InputError, NumbersError, counted
from glinfer.kernels.fused.cached import SLOT_TOKENS
from glinfer.kernels.fused.low_rank import ADAPTER
from glinfer.kernels.fused.rows import POSITION, TOKEN, WANTED, row_table
from glinfer.kernels.fused.score import RowScores, log_probabilities
from glinfer.lower.feed import chunk_feed
from glinfer.lower.fused.caches import cache_slots, delta_layers
from glinfer.lower.fused.rows import ROWS, SCORES, fitting_chunk_plan
from glinfer.lower.options import PlanOptions
from glinfer.notebook import table
from glinfer.program.session import Session
from glinfer.text.images import BEYOND, ImageToken

SLOT_ALIGNMENT = 16
"""Alignment of the first cache slot of a text."""

LogProbs = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.intp]


@dataclass(frozen=True, repr=False)
class TextScore:
    """The likelihood of the tokens of one text.

    Attributes:
        ids: the tokens.
        logprobs: natural logarithm of the probability of each token but the first, given those before it, float64; NaN
            for tokens of images, which have none.
        likeliest: the likeliest token at each of these positions.
        best: the log-probability of the likeliest token, float64.
        labels: the text of these tokens by id, for notebooks; empty without a tokenizer.
    """

    ids: list[int]
    logprobs: LogProbs
    likeliest: Tokens
    best: LogProbs
    labels: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def unknown(cls, ids: Sequence[int]) -> TextScore:
        """A score with zeros, to be filled in place."""
        count = len(ids) - 1
        return cls(list(ids), np.zeros(count), np.zeros(count, dtype=np.intp), np.zeros(count))

    def __repr__(self) -> str:
        """The number of tokens, total and perplexity."""
        return f"TextScore({counted(len(self.ids), 'token')}, total {self.total:.2f}, perplexity {self.perplexity:.2f})"

    def _repr_html_(self) -> str:
        numbers = zip(self.logprobs.tolist(), self.likeliest.tolist(), self.best.tolist(), strict=True)
        rows: list[tuple[object, ...]] = [(self.labels.get(self.ids[0], str(self.ids[0])), "", "", "", "")]
        for token, (found, likeliest, best) in zip(self.ids[1:], numbers, strict=True):
            names = [self.labels.get(each, str(each)) for each in (token, likeliest)]
            rows.append((names[0], found, math.exp(found), names[1], math.exp(best)))
        return table(("token", "log-probability", "probability", "likeliest", "its probability"), rows, repr(self))

    @property
    def total(self) -> float:
        """The logarithm of the probability of the whole text after its first token."""
        return float(np.nansum(self.logprobs))

    @property
    def perplexity(self) -> float:
        """exp(mean negative log-probability); NaN if all tokens but the first are of images."""
        count = np.count_nonzero(~np.isnan(self.logprobs))
        return math.exp(-self.total / count) if count else math.nan


@dataclass(frozen=True)
class Window:
    """Tokens [start, stop) of a text, which score its tokens [scored, stop]."""

    text: int
    start: int
    stop: int
    scored: int


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


def check_stride(stride: SupportsIndex | None, context: int) -> int:
    """The distance between the starts of windows (default: half of the context), else an InputError."""
    if stride is None:
        return max(1, context // 2)
    return check_within("the stride", stride, context, ", the context of this model")


def windows_of(texts: Sequence[Sequence[int]], context: int, stride: SupportsIndex | None) -> list[Window]:
    """The windows over all texts; InputError if a text has no two tokens or the stride is outside the context."""
    step = check_stride(stride, context)
    for index, ids in enumerate(texts):
        if len(ids) < 2:
            raise InputError(
                f"text {index} has {counted(len(ids), 'token')}; expected at least 2, one to predict from another"
            )
    return [Window(index, *span) for index, ids in enumerate(texts) for span in windows(len(ids), context, step)]


@dataclass(frozen=True)
class _Piece:
    """Rows [row, row + length) of a run: tokens of a window from ``first`` on; ``row`` is its cache slot too."""

    window: Window
    first: int
    length: int
    row: int


class TextScorer(Closing):
    """Scores texts with the plan ``score``, many tokens of many texts at once; close it."""

    def __init__(self, options: PlanOptions, root: Session) -> None:
        """Bind the plan over the weights of ``root``; PlanError if it does not fit the renderer."""
        config, kernels = options.config, options.kernels
        self._options, self._kernels = options, kernels
        rows = max(min(kernels.chunk, config.max_position_embeddings), kernels.rows_per_draw)
        plan = fitting_chunk_plan(
            options,
            rows=rows,
            cache_slots=max(cache_slots(config), -(-(rows + kernels.rows_per_draw) // SLOT_TOKENS) * SLOT_TOKENS),
            likelihoods=True,
        )
        self.session = root.companion(plan, ("weight",))
        self.rows = plan.max_rows
        self._table = row_table(plan.table[ROWS].shape[0])
        self._pace = Pace(self.session, kernels.rows_per_draw)

    def _require_open(self) -> None:
        self.session.require_alive()

    def steps(
        self, texts: Sequence[Sequence[int]], *, stride: SupportsIndex | None = None, adapter: int | None = None
    ) -> Generator[tuple[int, int], None, list[TextScore]]:
        """Score every token but the first of each text of checked ids.

        A text longer than the context is read in windows of the whole context, which start ``stride`` tokens apart
        (default: half of the context). ``adapter`` is the number of a LoRA adapter, by default the model's. Between
        runs other code may use the model, but not this scorer.

        Yields (finished windows, windows) after each run, and returns the scores. Raises InputError for a text of less
        than two tokens or a stride outside the context, NumbersError for broken output.
        """
        adapter = self._options.adapters.default if adapter is None else adapter
        jobs = windows_of(texts, self._options.config.max_position_embeddings, stride)
        found = [TextScore.unknown(ids) for ids in texts]
        done = 0
        for run in self._runs(jobs):
            scores = self._run(texts, run, adapter)
            for piece in run:
                window, text = piece.window, found[piece.window.text]
                first = max(piece.first, window.scored - 1)  # a token's row predicts the next token
                rows = slice(piece.row + first - piece.first, piece.row + piece.length)
                for mine, theirs in zip((text.logprobs, text.likeliest, text.best), scores, strict=True):
                    mine[first : piece.first + piece.length] = theirs[rows]
                done += piece.first + piece.length == window.stop
            yield done, len(jobs)
        for text in found if self._options.images is not None else ():
            text.logprobs[[isinstance(token, ImageToken) for token in text.ids[1:]]] = np.nan
        return found

    def _runs(self, jobs: Iterable[Window]) -> Iterator[list[_Piece]]:
        """Distribute windows to runs: long ones take several runs, short ones share one."""
        together: list[_Piece] = []
        row = 0
        for window in jobs:
            length = window.stop - window.start
            # Windows of one run share the caches, and states belong to one window.
            if together and (row + length > self._pace.rows(self.rows) or delta_layers(self._options.config)):
                yield together
                together, row = [], 0
            if length > self._pace.rows(self.rows):
                first = window.start
                while first < window.stop:
                    piece = _Piece(window, first, min(self._pace.rows(self.rows), window.stop - first), 0)
                    yield [piece]
                    first += piece.length
                continue
            together.append(_Piece(window, window.start, length, row))
            row = -(-(row + length) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        if together:
            yield together

    def _run(self, texts: Sequence[Sequence[int]], run: Sequence[_Piece], adapter: int) -> RowScores:
        """Run once, and return the scores of every row's next token."""
        table, targets, since = self._table, self._kernels.rows_per_draw, time.perf_counter()
        given: dict[str, int | float] = {ADAPTER: adapter}
        longest: list[float] = []
        for piece in run:
            window, own = piece.window, table[piece.row :]
            ids = texts[window.text][piece.first : piece.first + piece.length + 1]
            long, first = self.session.plan.is_long(window.stop - window.start + 1), piece.first - window.start
            given |= chunk_feed(own, ids[:-1], first, targets, piece.row, long=long)
            own[:, POSITION] = np.arange(first, first + len(own))  # up to the next piece
            own[: piece.length, WANTED] = ids[1:]
            longest.append(given["longest"])
        rows = run[-1].row + run[-1].length
        if self._options.images is not None:
            held = [(texts[each.window.text][each.window.start : each.first + each.length], each) for each in run]
            pieces = [(ids, each.first - each.window.start, each.row) for ids, each in held]
            table[list(write_images(self.session, self._options, pieces)), TOKEN] = BEYOND
            since = time.perf_counter()  # after the plan of images
        self.session.write(ROWS, table)
        first = run[0].first - run[0].window.start
        given |= {"rows": rows, "longest": max(longest), "strip_first": first}
        self.session.run(given, flush_every=self._kernels.flush_every)
        self._pace.measure(rows, self.rows, since)
        found = self.session.read_interleaved([f"{SCORES}.{number}" for number in range(targets)], rows)
        with np.errstate(divide="ignore", invalid="ignore"):  # refused below
            scores = log_probabilities(found)
        for piece in run:
            if not np.isfinite(scores.wanted[piece.row : piece.row + piece.length]).all():
                raise NumbersError(
                    "a likelihood is not a finite number; expected finite logits: the model's output is broken"
                )
        return scores

    def close(self) -> None:
        """Release the plan; calling it again does nothing."""
        self.session.release()
