"""Finding the kernels that are fastest here: a short measured search around the default.

Coordinate descent: one choice of :class:`KernelOptions` after the other is changed, each change is measured against the
best so far, in turns, and kept where it wins; over again until a whole round brings nothing, or the time is up. First
the fields that shape a single token's passes, by the time of a token; then those of passes over many rows, by the time
of a prompt (:mod:`glinfer.inspect.tune.rows`). Nothing wins that does not compute the same: every candidate's logits
are compared with those of the plainest kernels, which share nothing between fragments, so that a driver with inexact
derivatives is found out.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.tune.rows import ROW_FIELDS, RowsSearch, can_search
from glinfer.inspect.tune.search import Change, Search, Trial, descend
from glinfer.models.fast.token import LOGITS, PICKS, fast_plan
from glinfer.models.options import PlanOptions
from glinfer.models.session import Session
from glinfer.models.transforms.fold import FoldedWeights
from glinfer.models.transforms.recipe import Formats
from glinfer.models.tuning import Tuned, TuningKey, default_for, runs_on
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array

PLAINEST = KernelOptions(quad=False)
"""What the results of all others are compared with."""

MOVES: Mapping[str, Sequence[Change]] = {
    "placement": [{"cover": cover, "tiles": tiles} for cover in ("points", "quads") for tiles in (1, 4, 8, 16)],
    "unroll": [{"unroll": steps} for steps in (1, 2, 4, 8)],
    "quad": [{"quad": True}, {"quad": False}],
    "part_steps": [{"part_steps": steps} for steps in (0, 4, 8, 16)],
    "split_values": [{"split_values": True}, {"split_values": False}],
    "flush_every": [{"flush_every": draws} for draws in (0, 3, 6, 12)],
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
"""The choices in the order in which they are tried, and the values of each."""

_CONTEXT = 128
_DECODE_SHARE = 2 / 3  # of the time there is; passes over many rows get the rest, and what is left over


@dataclass(frozen=True)
class PromptTimes:
    """Milliseconds from a prompt of so many tokens to the next one's logits: as tuned, and as by default.

    Both with what was tuned for single tokens.
    """

    tokens: int
    milliseconds: float
    default_milliseconds: float


@dataclass(frozen=True)
class TuneReport:
    """The result of a search; ``finished`` is False where the time ran out before it ended by itself.

    ``prompt`` is None where the passes over many rows were not searched.
    """

    key: TuningKey
    weights: str
    tuned: Tuned
    trials: tuple[Trial, ...]
    seconds: float
    finished: bool
    renderer: str
    prompt: PromptTimes | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self)


class Candidate:
    """A model bound with certain kernels, ready to be checked and timed."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        weights: str,
        folded: Mapping[str, Array],
        kernels: KernelOptions,
        shader_root: Path | None = None,
        formats: Formats | None = None,
    ) -> None:
        """Bind it.

        Raises:
            PlanError: the kernels do not fit this model or device.
            ShaderError: the driver does not compile them.
        """
        self.kernels = kernels
        edge = device.limits.max_texture_size
        plan = fast_plan(PlanOptions(config, weights=weights, formats=formats, kernels=kernels, max_texture_size=edge))
        self.session = Session(plan, folded, device, shader_root=shader_root)
        self.last = min(config.max_position_embeddings, _CONTEXT) - 1
        self.vocab = config.vocab_size

    def values(self, position: int) -> dict[str, int | float]:
        """The run values of some token at a position."""
        return {**self.session.plan.values_for(position + 1), "token": (7919 * position + 1) % self.vocab}

    def logits(self) -> Array:
        """Logits [probes, vocab] at a few positions: on both sides of a slot of scores, and the last one."""
        found = []
        # What is never written stays zero in every cache, so a few tokens do.
        for position in sorted({0, 1, 2, 62, 63, 64, 65, self.last - 1, self.last}):
            if 0 <= position <= self.last:
                self.session.run(self.values(position), flush_every=self.kernels.flush_every)
                found.append(self.session.read(LOGITS)[0])
        return np.stack(found)

    def milliseconds(self, tokens: int) -> float:
        """Of one token with the choice of the next one read back, the mean of so many."""
        values = self.values(self.last)
        started = time.perf_counter()
        for _ in range(tokens):
            self.session.run(values, flush_every=self.kernels.flush_every)
            self.session.read_rows(PICKS, self.last)
        return 1000.0 * (time.perf_counter() - started) / tokens

    def release(self) -> None:
        """Give everything back to the driver."""
        self.session.release()


def moves_for(device: Device, weights: str) -> list[Sequence[Change]]:
    """The choices for a single token that mean something on a device, for weights in a format."""
    whole_numbers = weights.startswith("q")
    return [
        _runnable(device, changes)
        for name, changes in MOVES.items()
        if name not in ROW_FIELDS and (whole_numbers or name != "mantissa")
    ]


def row_moves_for(device: Device, config: ModelConfig) -> list[Sequence[Change]]:
    """The choices for many rows that mean something on a device, for a model of this shape."""
    if not can_search(config):
        return []
    found = [_runnable(device, changes) for name, changes in MOVES.items() if name in ROW_FIELDS]
    context = config.max_position_embeddings
    return [[change for change in changes if change.get("chunk", 0) <= context] for changes in found]


def _runnable(device: Device, changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if runs_on(device, dataclasses.replace(PLAINEST, **change))]


def tune(
    device: Device,
    checkpoint: Checkpoint,
    weights: str,
    *,
    seconds: float,
    shader_root: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TuneReport:
    """Search for the fastest kernels of a model on a device.

    Args:
        device: where the model will run.
        checkpoint: the model; speed does not depend on its numbers, the check of the results does.
        weights: a key of :data:`glinfer.quant.formats.WEIGHT_FORMATS`.
        seconds: when to stop, about: a trial that was begun is ended. Two thirds are for single tokens.
        shader_root: another folder of shader files, for trying out changed shaders.
        on_progress: told (milliseconds gone, milliseconds there are).

    Raises:
        InputError: no time at all.
        PlanError: the model does not run here.
    """
    if not 0 < seconds < 86400:
        raise InputError(f"found {seconds} seconds to tune in; expected more than 0, and less than a day")
    started = time.perf_counter()

    def told(may_go_on: Callable[[], bool]) -> Callable[[], bool]:
        def ask() -> bool:
            gone, there_are = round(1000 * (time.perf_counter() - started)), round(1000 * seconds)
            on_progress(min(gone, there_are), there_are)
            return may_go_on()

        return ask

    # Every candidate uploads the same arrays, which are then made once.
    folded, formats = dict(FoldedWeights(checkpoint, weights)), checkpoint.formats()

    def bind(kernels: KernelOptions) -> Candidate:
        return Candidate(device, checkpoint.config, weights, folded, kernels, shader_root, formats)

    search = Search(bind, default_for(device, weights), PLAINEST, started + _DECODE_SHARE * seconds)
    try:
        _, trials, finished = descend(search.start, moves_for(device, weights), search.try_out, told(search.may_go_on))
        milliseconds, before = search.confirm()
        kernels, prompt = search.best.kernels, None
        moves, deadline = row_moves_for(device, checkpoint.config), started + seconds
        if any(moves) and time.perf_counter() < deadline:
            root = search.best.session
            rows = RowsSearch(checkpoint.config, root, weights, kernels, PLAINEST, deadline, formats)
            try:
                _, more, ended = descend(rows.start, moves, rows.try_out, told(rows.may_go_on))
                prompt = PromptTimes(rows.prompt, *rows.confirm())
            finally:
                rows.release()
            kernels, trials, finished = rows.best.kernels, trials + more, finished and ended
    finally:
        search.release()
    return TuneReport(
        key=TuningKey.of(device, checkpoint.config, weights),
        weights=weights,
        tuned=Tuned(kernels, milliseconds, before),
        trials=tuple(trials),
        seconds=time.perf_counter() - started,
        finished=finished,
        renderer=device.description,
        prompt=prompt,
    )
