"""Tuning: a short measured search for the fastest kernel options of a model on a renderer.

Options of single-token passes come first, by the time of a token; then options of passes over many rows, by the time
of a prompt, with the same weights and caches. A candidate wins only if its logits equal those of the plainest options,
which share nothing between fragments; this detects drivers with inexact derivatives.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glinfer.config import ModelConfig
from glinfer.engine.engine import EMBEDS
from glinfer.engine.prefill import MAX_SINGLE_TOKENS, Companions, Prefill
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.run.cached import CachedSession
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.draws import example_ids
from glinfer.inspect.timing import milliseconds
from glinfer.inspect.tune.search import NO_CHANGE, Candidate, Change, Search, Trial
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.lower.fused.token import LOGITS, PICKS, fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.program.session import Session
from glinfer.program.tuning import Tuned, default_for, runs_on

PLAINEST = KernelOptions(quad=False)
"""Options whose results all others must reproduce."""

MOVES: Mapping[str, Sequence[Change]] = {
    "placement": [{"cover": cover, "tiles": tiles} for cover in ("points", "quads") for tiles in (1, 4, 8, 16)],
    "unroll": [{"unroll": steps} for steps in (1, 2, 4, 8)],
    "quad": [{"quad": True}, {"quad": False}],
    "part_steps": [{"part_steps": steps} for steps in (0, 4, 8, 16)],
    "split_norms": [{"split_norms": True}, {"split_norms": False}],
    "split_inner": [{"split_inner": True}, {"split_inner": False}],
    "split_values": [{"split_values": True}, {"split_values": False}],
    "flush_every": [{"flush_every": draws} for draws in (0, 3, 6, 12)],
    "one_state": [{"one_state": True}, {"one_state": False}],
    "lookup_texture": [{"lookup_texture": True}, {"lookup_texture": False}],
    "mantissa": [{"mantissa": True}, {"mantissa": False}],
    "fused": [{"fused": True}, {"fused": False}],
    "pitch": [{"pitch": texels} for texels in (64, 16, 32)],
    "rows_per_draw": [{"rows_per_draw": rows} for rows in (8, 4, 2)],
    "row_tiles": [{"row_tiles": tiles} for tiles in (1, 2, 4, 8)],
    "largest_cell": [{"largest_cell": blocks} for blocks in (4, 2, 1)],
    "blends": [{"blends": True}, {"blends": False}],
    "chunk": [{"chunk": tokens} for tokens in (512, 256, 1024, 128)],
}
"""Options in the order in which they are tried, with their values."""

_CONTEXT = 128  # position of the timed token
_DECODE_SHARE = 2 / 3  # share of the time for a single token's passes
ROW_FIELDS = ("rows_per_draw", "row_tiles", "largest_cell", "blends", "chunk")
"""Options of passes over many rows, see :class:`glinfer.kernels.options.KernelOptions`."""
PROMPT, LONG_PROMPT = 512, 1024
"""Tokens of the timed prompt, within the context; ``chunk`` needs the long prompt."""


@dataclass(frozen=True)
class PromptTimes:
    """Milliseconds from a prompt to the next token's logits: tuned, and with the default options for many rows."""

    tokens: int
    milliseconds: float
    default_milliseconds: float


@dataclass(frozen=True)
class TuneReport:
    """Result of a search; ``finished`` is False if the time ran out.

    ``prompt`` is None if the passes over many rows were not searched.
    """

    tuned: Tuned
    trials: tuple[Trial, ...]
    seconds: float
    finished: bool
    prompt: PromptTimes | None = None


def tune(
    device: Device,
    checkpoint: Checkpoint,
    weights: str,
    *,
    seconds: float,
    on_progress: Progress = no_progress,
) -> TuneReport:
    """Search for the fastest kernel options of a model on a device.

    ``weights`` is a key of :data:`glinfer.quant.formats.WEIGHT_FORMATS`. Of about ``seconds``, two thirds are for
    single tokens; a trial that has begun is finished. ``on_progress`` receives (elapsed milliseconds, time limit in
    milliseconds). InputError if the model embeds texts, and PlanError if it does not fit the renderer.
    """
    if checkpoint.config.embeds:
        raise InputError(EMBEDS)
    started, limit = time.perf_counter(), round(1000 * seconds)

    def tell() -> None:
        on_progress(min(round(1000 * (time.perf_counter() - started)), limit), limit)

    folded = dict(FoldedWeights(checkpoint, weights))  # all candidates upload the same arrays
    edge, start = device.limits.max_texture_size, default_for(device, weights)
    options = PlanOptions(checkpoint.config, weights, start, edge, checkpoint.formats())

    def bind(kernels: KernelOptions) -> TokenCandidate:
        return TokenCandidate(device, dataclasses.replace(options, kernels=kernels), folded)

    search = Search(bind, start, PLAINEST, started + _DECODE_SHARE * seconds)
    try:
        trials, finished = search.descend(moves_for(device, weights), tell)
        milliseconds, before = search.confirm()
        kernels, prompt = search.best.kernels, None
        moves, deadline = row_moves_for(device, checkpoint.config), started + seconds
        if any(moves) and time.perf_counter() < deadline:
            plain = dataclasses.replace(kernels, **{name: getattr(PLAINEST, name) for name in ROW_FIELDS})
            rows = Search(partial(PromptCandidate, options, search.best.session), kernels, plain, deadline)
            try:
                more, ended = rows.descend(moves, tell)
                prompt = PromptTimes(min(PROMPT, checkpoint.config.max_position_embeddings), *rows.confirm())
            finally:
                rows.release()
            kernels, trials, finished = rows.best.kernels, trials + more, finished and ended
    finally:
        search.release()
    return TuneReport(
        tuned=Tuned(kernels, milliseconds, before),
        trials=tuple(trials),
        seconds=time.perf_counter() - started,
        finished=finished,
        prompt=prompt,
    )


class TokenCandidate(Candidate):
    """A model bound with some kernel options, checked and timed by a token."""

    def __init__(self, device: Device, options: PlanOptions, folded: Mapping[str, Array]) -> None:
        """Bind it; PlanError if the kernels do not fit, ShaderError if the driver does not compile them."""
        self.kernels, config = options.kernels, options.config
        self.session = Session(fast_plan(options), folded, device, one_state=self.kernels.one_state)
        self.last = min(config.max_position_embeddings, _CONTEXT) - 1
        self.vocab = config.vocab_size

    def values(self, position: int) -> dict[str, int | float]:
        """Return the run values of a token at a position."""
        return {**self.session.plan.values_for(position + 1), "token": (7919 * position + 1) % self.vocab}

    def logits(self) -> Array:
        """Return logits [positions, vocab] on both sides of a score slot's edge, and at the end."""
        found = []
        # Unwritten cache entries are zero for every candidate, so a few tokens suffice.
        for position in sorted({0, 1, 2, 62, 63, 64, 65, self.last - 1, self.last}):
            if 0 <= position <= self.last:
                self.session.run(self.values(position), flush_every=self.kernels.flush_every)
                found.append(self.session.read(LOGITS)[0])
        return np.stack(found)

    def milliseconds(self, count: int, change: Change = NO_CHANGE) -> float:
        """Return the mean time of ``count`` tokens, with each choice read back."""
        values = self.values(self.last)

        def run() -> None:
            for _ in range(count):
                self.session.run(values, flush_every=self.kernels.flush_every)
                self.session.read_rows(PICKS, self.last)

        return milliseconds(run) / count

    def release(self) -> None:
        """Release all OpenGL objects."""
        self.session.release()


class PromptCandidate(Candidate):
    """A chunk plan bound over a session of the fast plan, checked and timed by a prompt."""

    rounds, patience, counts = 3, 1, (1, 8)  # prompts are slow

    def __init__(self, options: PlanOptions, root: Session, kernels: KernelOptions) -> None:
        """Bind it; errors as of :class:`TokenCandidate`."""
        self.kernels, config, prefill = kernels, options.config, Prefill(dataclasses.replace(options, kernels=kernels))
        self._ids = example_ids(config, min(LONG_PROMPT, config.max_position_embeddings)).tolist()
        # Compiles; further sessions share its textures.
        self._scratch = Companions(prefill, root).chunk(prefill.rows).session
        self._session = CachedSession(prefill, root, owns=False)

    def prefill(self, tokens: int) -> Array:
        """Run the first tokens of the prompt into an empty cache; returns the logits [vocab] after them."""
        self._session.rewind(len(self._session))
        self._session.prefill(self._ids[:tokens])
        return self._session.logits()

    def logits(self) -> Array:
        """Return the logits [1, vocab] after the timed prompt."""
        return self.prefill(PROMPT)[None]

    def milliseconds(self, count: int, change: Change = NO_CHANGE) -> float:
        """Return the mean time of ``count`` prompts, which are long if the change is of ``chunk``."""
        tokens = LONG_PROMPT if "chunk" in change else PROMPT
        return milliseconds(lambda: [self.prefill(tokens) for _ in range(count)]) / count

    def release(self) -> None:
        """Release its own OpenGL objects; weights and caches belong to the root."""
        self._session.close()
        self._scratch.release()


def moves_for(device: Device, weights: str) -> list[Sequence[Change]]:
    """List the options of single-token passes that apply to a device and a weight format."""
    integers = weights.startswith("q")
    return [
        _runnable(device, changes)
        for name, changes in MOVES.items()
        if name not in ROW_FIELDS and (integers or name != "mantissa")
    ]


def row_moves_for(device: Device, config: ModelConfig) -> list[Sequence[Change]]:
    """List the options of passes over many rows that apply to a device and a model's shape."""
    context = config.max_position_embeddings
    if context <= MAX_SINGLE_TOKENS:  # too short for a chunk
        return []
    found = [_runnable(device, changes) for name, changes in MOVES.items() if name in ROW_FIELDS]
    return [[change for change in changes if change.get("chunk", 0) <= context] for changes in found]


def _runnable(device: Device, changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if runs_on(device, dataclasses.replace(PLAINEST, **change))]
