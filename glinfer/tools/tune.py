"""Finding the kernels that are fastest here: a short measured search around the default.

Coordinate descent: one choice of :class:`Kernels` after the other is changed, each change is measured against the
best so far, token by token in turns, and kept where it wins; over again until a whole round brings nothing, or the
time is up. Nothing wins that does not compute the same: every candidate's logits are compared with those of the
plainest kernels, which share nothing between fragments, so that a driver with inexact derivatives is found out.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import GlinferError, InputError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.models.fast import LOGITS, PICKS, fast_plan
from glinfer.models.fold import fold
from glinfer.models.session import Session
from glinfer.models.tuning import Tuned, TuningKey, default_for, runs_on
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import Array

PLAINEST = Kernels(quad=False)
"""What the results of all others are compared with."""

Change = Mapping[str, Any]
MOVES: Mapping[str, Sequence[Change]] = {
    "placement": [{"cover": cover, "tiles": tiles} for cover in ("points", "quads") for tiles in (1, 4, 8, 16)],
    "unroll": [{"unroll": steps} for steps in (1, 2, 4, 8)],
    "quad": [{"quad": True}, {"quad": False}],
    "part_steps": [{"part_steps": steps} for steps in (0, 4, 8, 16)],
    "split_values": [{"split_values": True}, {"split_values": False}],
    "flush_every": [{"flush_every": draws} for draws in (0, 3, 6, 12)],
    "lookup_texture": [{"lookup_texture": True}, {"lookup_texture": False}],
    "mantissa": [{"mantissa": True}, {"mantissa": False}],
    "pitch": [{"pitch": texels} for texels in (64, 16, 32)],
}
"""The choices in the order in which they are tried, and the values of each."""

_TOLERANCE = 1e-4  # of the largest logit: rounding in another order stays far below, a wrong sum does not
_MARGIN = 0.98  # a candidate wins with at most this share of the best time: less is noise
_HOPELESS = 1.25  # one this much slower is not measured to the end
_ROUNDS = 5
_BLOCK_MS = 20.0  # of one side of a round
_CONTEXT = 128


@dataclass(frozen=True)
class Trial:
    """One candidate: what was changed, its time as a share of the best one's then, and what came of it."""

    change: dict[str, Any]
    ratio: float | None
    verdict: str

    @property
    def won(self) -> bool:
        """Whether it was the best from then on."""
        return self.verdict == "faster"


@dataclass(frozen=True)
class TuneReport:
    """The result of a search; ``finished`` is False where the time ran out before it ended by itself."""

    key: TuningKey
    weights: str
    tuned: Tuned
    trials: tuple[Trial, ...]
    seconds: float
    finished: bool
    renderer: str

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
        kernels: Kernels,
        shader_root: Path | None = None,
    ) -> None:
        """Bind it.

        Raises:
            PlanError: the kernels do not fit this model or device.
            ShaderError: the driver does not compile them.
        """
        self.kernels = kernels
        edge = device.limits.max_texture_size
        plan = fast_plan(config, weights=weights, kernels=kernels, max_texture_size=edge)
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


def difference(found: Array, expected: Array) -> str:
    """Why two sets of logits [probes, vocab] are not the same result; empty where they are."""
    scale = float(np.abs(expected).max())
    error = float(np.abs(found - expected).max())
    if not error <= _TOLERANCE * scale:  # NaN is no result either
        return f"other logits: {error / scale:.1e} relative"
    if not np.array_equal(found.argmax(axis=1), expected.argmax(axis=1)):
        return "another token is the likeliest"
    return ""


def ratios(best: Callable[[], float], candidate: Callable[[], float], rounds: int = _ROUNDS) -> list[float]:
    """Times of a candidate as shares of the best one's, measured in turns; fewer where it is hopeless."""
    found: list[float] = []
    for _ in range(rounds):
        before = best()
        found.append(candidate() / before)
        if len(found) >= 2 and min(found) > _HOPELESS:
            break
    return found


def moves_for(device: Device, weights: str) -> list[Sequence[Change]]:
    """The choices that mean something on a device, for weights in a format."""
    whole_numbers = weights.startswith("q")
    return [
        [change for change in changes if runs_on(device, dataclasses.replace(PLAINEST, **change))]
        for name, changes in MOVES.items()
        if whole_numbers or name != "mantissa"
    ]


def descend(
    start: Kernels,
    moves: Sequence[Sequence[Change]],
    try_out: Callable[[Kernels, Change], Trial],
    may_go_on: Callable[[], bool],
) -> tuple[Kernels, list[Trial], bool]:
    """Coordinate descent: (the best kernels, what was tried, whether it ended by itself).

    ``try_out`` measures a candidate, the best so far with one change, and remembers it as the best where it won.
    """
    best, trials, seen = start, list[Trial](), {start}
    improved = True
    while improved:
        improved = False
        for changes in moves:
            for change in changes:
                candidate = dataclasses.replace(best, **change)
                if candidate in seen:
                    continue
                if not may_go_on():
                    return best, trials, False
                seen.add(candidate)
                trials.append(try_out(candidate, change))
                if trials[-1].won:
                    best, improved = candidate, True
    return best, trials, True


class Tuner:
    """One search: it holds the best candidate so far, bound to the device, and the logits that all must have."""

    def __init__(
        self, device: Device, checkpoint: Checkpoint, weights: str, seconds: float, shader_root: Path | None
    ) -> None:
        """Fold the weights, compute the logits to compare with, and bind the default.

        Raises:
            PlanError: not even the plainest kernels fit.
        """
        self.device, self.config, self.weights = device, checkpoint.config, weights
        self.shader_root = shader_root
        self.deadline = time.perf_counter() + seconds
        self.slowest_trial = 0.0
        self.folded = fold(checkpoint.config, checkpoint.tensors, weights)
        self.best = self.bind(PLAINEST)
        try:
            self.expected = self.best.logits()
            default, _ = self.checked(default_for(device))
        except BaseException:
            self.best.release()
            raise
        if default is not None:
            self.best.release()
            self.best = default
        self.start = self.best.kernels

    def bind(self, kernels: Kernels) -> Candidate:
        """A candidate on the device."""
        return Candidate(self.device, self.config, self.weights, self.folded, kernels, self.shader_root)

    def checked(self, kernels: Kernels) -> tuple[Candidate | None, str]:
        """A candidate that computes what it must, or None and why there is none."""
        try:
            candidate = self.bind(kernels)
        except GlinferError as error:
            return None, f"cannot run: {error}"
        try:
            problem = difference(candidate.logits(), self.expected)
        except GlinferError as error:
            problem = f"cannot run: {error}"
        if problem:
            candidate.release()
            return None, problem
        return candidate, ""

    def compare(self, candidate: Candidate, rounds: int = _ROUNDS) -> list[float]:
        """See :func:`ratios`."""
        tokens = max(2, min(32, round(_BLOCK_MS / self.best.milliseconds(2))))
        return ratios(lambda: self.best.milliseconds(tokens), lambda: candidate.milliseconds(tokens), rounds)

    def try_out(self, kernels: Kernels, change: Change) -> Trial:
        """Measure a candidate; it takes the place of the best where it wins."""
        started = time.perf_counter()
        candidate, problem = self.checked(kernels)
        if candidate is None:
            return Trial(dict(change), None, problem)
        found = self.compare(candidate)
        if statistics.median(found) <= _MARGIN:  # one of many trials wins by luck: measured again, it does not
            found += self.compare(candidate)
        ratio = statistics.median(found)
        won = ratio <= _MARGIN
        loser, self.best = (self.best, candidate) if won else (candidate, self.best)
        loser.release()
        self.slowest_trial = max(self.slowest_trial, time.perf_counter() - started)
        return Trial(dict(change), ratio, "faster" if won else "not faster")

    def may_go_on(self) -> bool:
        """Whether there is time for another trial."""
        return time.perf_counter() + self.slowest_trial < self.deadline

    def result(self) -> Tuned:
        """The best against the start once more, from a fresh measurement; what was only luck is not kept."""
        if self.best.kernels == self.start:
            alone = statistics.median(self.best.milliseconds(4) for _ in range(_ROUNDS))
            return Tuned(self.start, alone, alone)
        default = self.bind(self.start)
        try:
            default.logits()  # compiles, in the drivers that do so at the first draw
            tokens = max(2, min(32, round(_BLOCK_MS / self.best.milliseconds(2))))
            pairs = [(self.best.milliseconds(tokens), default.milliseconds(tokens)) for _ in range(_ROUNDS)]
        finally:
            default.release()
        best, before = (statistics.median(times) for times in zip(*pairs, strict=True))
        return Tuned(self.best.kernels if best < before else self.start, min(best, before), before)

    def release(self) -> None:
        """Release the best candidate."""
        self.best.release()


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
        weights: a key of :data:`glinfer.models.fold.WEIGHT_FORMATS`.
        seconds: when to stop, about: a trial that was begun is ended.
        shader_root: another folder of shader files, for trying out changed shaders.
        on_progress: told (milliseconds gone, milliseconds there are).

    Raises:
        InputError: no time at all.
        PlanError: the model does not run here.
    """
    if not 0 < seconds < 86400:
        raise InputError(f"found {seconds} seconds to tune in; expected more than 0, and less than a day")
    started = time.perf_counter()
    tuner = Tuner(device, checkpoint, weights, seconds, shader_root)
    try:

        def may_go_on() -> bool:
            on_progress(
                min(round(1000 * (time.perf_counter() - started)), round(1000 * seconds)), round(1000 * seconds)
            )
            return tuner.may_go_on()

        moves = moves_for(device, weights)
        _, trials, finished = descend(tuner.start, moves, tuner.try_out, may_go_on)
        tuned = tuner.result()
    finally:
        tuner.release()
    return TuneReport(
        key=TuningKey.of(device, checkpoint.config, weights),
        weights=weights,
        tuned=tuned,
        trials=tuple(trials),
        seconds=time.perf_counter() - started,
        finished=finished,
        renderer=device.description,
    )
