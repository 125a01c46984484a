"""The search that tuning does: coordinate descent over kernels that are bound, checked and measured in turns."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from glinfer.errors import GlinferError
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array

Change = Mapping[str, Any]

_TOLERANCE = 1e-4  # of the largest logit: rounding in another order stays far below, a wrong sum does not
_MARGIN = 0.98  # a candidate wins with at most this share of the best time: less is noise
_HOPELESS = 1.25  # one this much slower is not measured to the end
ROUNDS = 5
BLOCK_MS = 20.0  # of one side of a round


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


class Contender(Protocol):
    """Kernels bound to a device."""

    @property
    def kernels(self) -> KernelOptions:
        """Those that are bound."""

    def logits(self) -> Array:
        """Logits [probes, vocab] that all contenders must have."""

    def milliseconds(self, count: int) -> float:
        """Of what is made fast, the mean of so many."""

    def release(self) -> None:
        """Give everything back to the driver."""


C = TypeVar("C", bound=Contender)


def difference(found: Array, expected: Array) -> str:
    """Why two sets of logits [probes, vocab] are not the same result; empty where they are."""
    scale = float(np.abs(expected).max())
    error = float(np.abs(found - expected).max())
    if not error <= _TOLERANCE * scale:  # NaN is no result either
        return f"other logits: {error / scale:.1e} relative"
    if not np.array_equal(found.argmax(axis=1), expected.argmax(axis=1)):
        return "another token is the likeliest"
    return ""


def ratios(
    best: Callable[[], float], candidate: Callable[[], float], rounds: int = ROUNDS, patience: int = 2
) -> list[float]:
    """Times of a candidate as shares of the best one's, measured in turns; ``patience`` where it is hopeless."""
    found: list[float] = []
    for _ in range(rounds):
        before = best()
        found.append(candidate() / before)
        if len(found) >= patience and min(found) > _HOPELESS:
            break
    return found


def descend(
    start: KernelOptions,
    moves: Sequence[Sequence[Change]],
    try_out: Callable[[KernelOptions, Change], Trial],
    may_go_on: Callable[[], bool],
) -> tuple[KernelOptions, list[Trial], bool]:
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


class Search(Generic[C]):
    """One descent: it holds the best contender so far, bound to the device, and the logits that all must have."""

    rounds = ROUNDS
    patience = 2
    counts = (2, 32)  # least and most that one side of a round measures

    def __init__(
        self, bind: Callable[[KernelOptions], C], start: KernelOptions, plainest: KernelOptions, deadline: float
    ) -> None:
        """Compute the logits to compare with, by the plainest kernels, and bind those to start from.

        Where these do not compute the same, the search starts from the plainest.

        Raises:
            PlanError: not even the plainest kernels fit.
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
        """A contender that computes what it must, or None and why there is none."""
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

    def measure(self, contender: C, count: int) -> float:
        """Milliseconds of one, the mean of so many."""
        return contender.milliseconds(count)

    def count(self) -> int:
        """How many one side of a round measures."""
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

    def confirm(self) -> tuple[float, float]:
        """The best against the start once more: (milliseconds of what is the best now, of the start).

        From a fresh measurement: what was only luck is not kept.
        """
        count = self.count()
        if self.best.kernels == self.start:
            alone = statistics.median(self.measure(self.best, count) for _ in range(self.rounds))
            return alone, alone
        loser = self.bind(self.start)
        try:
            loser.logits()  # compiles, in the drivers that do so at the first draw
            pairs = [(self.measure(self.best, count), self.measure(loser, count)) for _ in range(self.rounds)]
            found, before = (statistics.median(times) for times in zip(*pairs, strict=True))
            if found >= before:
                loser, self.best = self.best, loser
        finally:
            loser.release()
        return min(found, before), before

    def release(self) -> None:
        """Release the best contender."""
        self.best.release()
