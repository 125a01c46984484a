"""Coordinate descent over kernel options: candidates are bound, checked and timed interleaved with the best."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import truediv
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from glinfer.errors import GlinferError
from glinfer.inspect.timing import Work, interleaved
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.program.oracle import relative_error

Change = Mapping[str, Any]
NO_CHANGE: Change = MappingProxyType({})

_TOLERANCE = 1e-4  # relative to the largest logit: above rounding of another order, below a wrong sum
_MARGIN = 0.98  # largest share of the best time with which a candidate wins; more is noise
_HOPELESS = 1.25  # ratio at which measuring a candidate ends early
_BLOCK_MS = 20.0  # duration of one side of a round


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


class Candidate(ABC):
    """Kernel options bound to a device, whose logits are checked, and which is timed by units: tokens or prompts."""

    rounds = 5
    patience = 2  # rounds after which a hopeless candidate is given up
    counts = (2, 32)  # fewest and most units in one side of a round
    kernels: KernelOptions

    @abstractmethod
    def logits(self) -> Array:
        """Return logits [positions, vocab] that all candidates must reproduce."""

    @abstractmethod
    def milliseconds(self, count: int, change: Change = NO_CHANGE) -> float:
        """Return the mean time of ``count`` units; ``change`` is the one to measure."""

    @abstractmethod
    def release(self) -> None:
        """Release all OpenGL objects."""


C = TypeVar("C", bound=Candidate)


def difference(found: Array, expected: Array) -> str:
    """Describe why two sets of logits [positions, vocab] differ; empty if they agree."""
    error = relative_error(found, expected)
    if error > _TOLERANCE:
        return f"different logits: {error:.1e} relative"
    if not np.array_equal(found.argmax(axis=1), expected.argmax(axis=1)):
        return "different likeliest token"
    return ""


class Search(Generic[C]):
    """State of one descent: the best candidate so far, bound to the device, and the logits that all must reproduce."""

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

    def descend(
        self, moves: Iterable[Iterable[Change]], before_trial: Callable[[], object]
    ) -> tuple[list[Trial], bool]:
        """Try changes of the best options, until a round of all has no win; returns whether the time sufficed, too."""
        trials, seen, improved = list[Trial](), {self.start}, True
        while improved:
            improved = False
            for change in itertools.chain.from_iterable(moves):
                kernels = dataclasses.replace(self.best.kernels, **change)
                if kernels in seen:
                    continue
                before_trial()
                if time.perf_counter() + self.slowest_trial >= self.deadline:
                    return trials, False
                seen.add(kernels)
                trials.append(self.try_out(kernels, change))
                improved |= trials[-1].won
        return trials, True

    def checked(self, kernels: KernelOptions) -> tuple[C | None, str]:
        """Bind options and check their logits; returns the candidate, or None and the problem."""
        candidate = None
        try:
            candidate = self.bind(kernels)
            problem = difference(candidate.logits(), self.expected)
        except GlinferError as error:
            problem = f"cannot run: {error}"
        if problem and candidate is not None:
            candidate.release()
        return (None, problem) if problem else (candidate, "")

    def try_out(self, kernels: KernelOptions, change: Change) -> Trial:
        """Measure a candidate, which replaces the best if it wins."""
        started = time.perf_counter()
        candidate, problem = self.checked(kernels)
        if candidate is None:
            return Trial(dict(change), None, problem)
        found = self.ratios(candidate, change)
        if statistics.median(found) <= _MARGIN:  # among many trials one may win by luck, so measure again
            found += self.ratios(candidate, change)
        ratio = statistics.median(found)
        won = ratio <= _MARGIN
        loser, self.best = (self.best, candidate) if won else (candidate, self.best)
        loser.release()
        self.slowest_trial = max(self.slowest_trial, time.perf_counter() - started)
        return Trial(dict(change), ratio, "faster" if won else "not faster")

    def ratios(self, candidate: C, change: Change) -> list[float]:
        """Time a candidate relative to the best, interleaved; a hopeless one is given up."""

        def hopeless(times: Sequence[Sequence[float]]) -> bool:
            return len(times[0]) >= candidate.patience and min(map(truediv, times[1], times[0])) > _HOPELESS

        before, after = self.times([self.best, candidate], change, hopeless)
        return list(map(truediv, after, before))

    def times(
        self,
        candidates: Sequence[C],
        change: Change = NO_CHANGE,
        ended: Callable[[Sequence[Sequence[float]]], bool] = lambda _: False,
    ) -> list[list[float]]:
        """Time candidates, interleaved; returns the mean milliseconds of each in each round."""
        least, most = self.best.counts
        count = max(least, min(most, round(_BLOCK_MS / self.best.milliseconds(least, change))))
        works = [Work(partial(each.milliseconds, count, change), timed=True) for each in candidates]
        return interleaved(works, self.best.rounds, warm_ups=0, ended=ended)

    def confirm(self) -> tuple[float, float]:
        """Measure the best against the start again; returns milliseconds of (the better one, the start).

        A win by luck is not kept.
        """
        if self.best.kernels == self.start:
            alone = statistics.median(self.times([self.best])[0])
            return alone, alone
        loser = self.bind(self.start)
        try:
            loser.logits()  # some drivers compile at the first draw
            found, before = map(statistics.median, self.times([self.best, loser]))
            if found >= before:
                loser, self.best = self.best, loser
        finally:
            loser.release()
        return min(found, before), before

    def release(self) -> None:
        """Release the best candidate."""
        self.best.release()
