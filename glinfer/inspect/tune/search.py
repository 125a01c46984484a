"""Coordinate descent over kernel options: candidates are bound, checked and timed interleaved with the best."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import truediv
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from glinfer.errors import GlinferError
from glinfer.inspect.timing import Work, in_turns
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array

Change = Mapping[str, Any]

_TOLERANCE = 1e-4  # relative to the largest logit: above rounding of another order, below a wrong sum
_MARGIN = 0.98  # largest share of the best time with which a candidate wins; more is noise
_HOPELESS = 1.25  # ratio at which measuring a candidate ends early
ROUNDS = 5
BLOCK_MS = 20.0  # duration of one side of a round


@dataclass(frozen=True)
class Trial:
    """One candidate: the change, its time relative to the best's, and the verdict."""

    change: dict[str, Any]
    ratio: float | None
    verdict: str

    @property
    def won(self) -> bool:
        """Whether it became the best."""
        return self.verdict == "faster"


class Candidate(Protocol):
    """Kernel options bound to a device."""

    @property
    def kernels(self) -> KernelOptions:
        """The bound options."""

    def logits(self) -> Array:
        """Return logits [positions, vocab] that all candidates must reproduce."""

    def milliseconds(self, count: int) -> float:
        """Return the mean time of ``count`` of the timed units."""

    def release(self) -> None:
        """Release all OpenGL objects."""


C = TypeVar("C", bound=Candidate)


def difference(found: Array, expected: Array) -> str:
    """Describe why two sets of logits [positions, vocab] differ; empty if they agree."""
    scale = float(np.abs(expected).max())
    error = float(np.abs(found - expected).max())
    if not error <= _TOLERANCE * scale:  # NaN fails too
        return f"different logits: {error / scale:.1e} relative"
    if not np.array_equal(found.argmax(axis=1), expected.argmax(axis=1)):
        return "different likeliest token"
    return ""


def ratios(
    best: Callable[[], float], candidate: Callable[[], float], rounds: int = ROUNDS, patience: int = 2
) -> list[float]:
    """Time a candidate relative to the best, interleaved; a hopeless one is given up after ``patience`` rounds."""

    def hopeless(times: Sequence[Sequence[float]]) -> bool:
        return len(times[0]) >= patience and min(map(truediv, times[1], times[0])) > _HOPELESS

    works = (Work(best, timed=True), Work(candidate, timed=True))
    before, after = in_turns(works, rounds, warm_ups=0, ended=hopeless)
    return list(map(truediv, after, before))


def descend(
    start: KernelOptions,
    moves: Sequence[Sequence[Change]],
    try_out: Callable[[KernelOptions, Change], Trial],
    may_go_on: Callable[[], bool],
) -> tuple[KernelOptions, list[Trial], bool]:
    """Run coordinate descent; returns (best options, trials, whether it ended within the time).

    ``try_out`` measures a candidate: the best options so far with one change.
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


class Search(Generic[C]):
    """State of one descent: the best candidate so far, bound to the device, and the logits that all must reproduce."""

    rounds = ROUNDS
    patience = 2
    counts = (2, 32)  # fewest and most units in one side of a round

    def __init__(
        self, bind: Callable[[KernelOptions], C], start: KernelOptions, plainest: KernelOptions, deadline: float
    ) -> None:
        """Compute the expected logits by the plainest options, and bind those to start from.

        Where their logits differ, the search starts from the plainest; PlanError if even these do not fit.
        """
        self.bind, self.deadline = bind, deadline
        self.slowest_trial = 0.0
        self.best = bind(plainest)
        try:
            self.expected = self.best.logits()
            wanted, _ = self.checked(start)
        except BaseException:
            self.best.release()
            raise
        if wanted is not None:
            self.best.release()
            self.best = wanted
        self.start = self.best.kernels

    def checked(self, kernels: KernelOptions) -> tuple[C | None, str]:
        """Bind options and check their logits; returns the candidate, or None and the problem."""
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

    def measure(self, candidate: C, count: int) -> float:
        """Return the mean milliseconds of ``count`` units."""
        return candidate.milliseconds(count)

    def count(self) -> int:
        """Choose the units in one side of a round."""
        least, most = self.counts
        return max(least, min(most, round(BLOCK_MS / self.measure(self.best, least))))

    def compare(self, candidate: C) -> list[float]:
        """See :func:`ratios`."""
        count = self.count()
        return ratios(
            lambda: self.measure(self.best, count),
            lambda: self.measure(candidate, count),
            self.rounds,
            self.patience,
        )

    def try_out(self, kernels: KernelOptions, change: Change) -> Trial:
        """Measure a candidate, which replaces the best if it wins."""
        started = time.perf_counter()
        candidate, problem = self.checked(kernels)
        if candidate is None:
            return Trial(dict(change), None, problem)
        found = self.compare(candidate)
        if statistics.median(found) <= _MARGIN:  # among many trials one may win by luck, so measure again
            found += self.compare(candidate)
        ratio = statistics.median(found)
        won = ratio <= _MARGIN
        loser, self.best = (self.best, candidate) if won else (candidate, self.best)
        loser.release()
        self.slowest_trial = max(self.slowest_trial, time.perf_counter() - started)
        return Trial(dict(change), ratio, "faster" if won else "not faster")

    def may_go_on(self) -> bool:
        """Check that there is time for another trial."""
        return time.perf_counter() + self.slowest_trial < self.deadline

    def confirm(self) -> tuple[float, float]:
        """Measure the best against the start again; returns milliseconds of (the better one, the start).

        A win by luck is not kept.
        """
        count = self.count()
        if self.best.kernels == self.start:
            alone = statistics.median(self.measure(self.best, count) for _ in range(self.rounds))
            return alone, alone
        loser = self.bind(self.start)
        try:
            loser.logits()  # some drivers compile at the first draw
            works = [Work(partial(self.measure, each, count), timed=True) for each in (self.best, loser)]
            found, before = map(statistics.median, in_turns(works, self.rounds, warm_ups=0))
            if found >= before:
                loser, self.best = self.best, loser
        finally:
            loser.release()
        return min(found, before), before

    def release(self) -> None:
        """Release the best candidate."""
        self.best.release()
