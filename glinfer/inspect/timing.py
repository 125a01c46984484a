"""The timing loop of all benchmarks: pieces of work take turns, and warm-ups do not count.

A temporary slowdown of the machine then affects all of them equally.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.engine.progress import Progress, no_progress


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and extremes of repeated measurements, in milliseconds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    slowest: float
    samples: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Summarise one measurement or more."""
        lower, median, upper = (float(value) for value in np.quantile(times, (0.25, 0.5, 0.75)))
        return cls(median, lower, upper, min(times), max(times), len(times))

    def __str__(self) -> str:
        """``median (fastest–slowest)``, for tables."""
        digits = digits_of(self.median)
        return f"{self.median:,.{digits}f} ({self.fastest:,.{digits}f}–{self.slowest:,.{digits}f})"


@dataclass(frozen=True)
class Work:
    """A piece of work that is timed again and again; ``prepare`` comes before each run and is not timed.

    If ``run`` returns a number, such as that of tokens, its time is divided by it; if ``timed``, it returns its own
    milliseconds. No further run begins that would probably exceed ``seconds`` for all counted runs, after the
    ``least``.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    seconds: float = math.inf
    least: int = 1
    timed: bool = False


def milliseconds(run: Callable[[], object]) -> float:
    """Return the milliseconds that a call takes."""
    started = time.perf_counter()
    run()
    return 1000.0 * (time.perf_counter() - started)


def interleaved(
    works: Sequence[Work],
    runs: int,
    *,
    warm_ups: int = 1,
    pause: float = 0.0,
    ended: Callable[[Sequence[Sequence[float]]], bool] = lambda _: False,
    on_progress: Progress = no_progress,
) -> list[list[float]]:
    """Time each work ``runs`` times, interleaved; returns the milliseconds of each work, per unit.

    Every second round runs backwards, because a GPU's clock depends on the work before. Each work has ``warm_ups``
    rounds before; some drivers compile at the first draw. ``pause`` seconds precede each run, because threads of other
    engines still spin after theirs. ``ended`` receives the times after each counted round, and ends the measurement
    early if it returns True. ``on_progress`` receives (finished runs, runs).
    """
    found: list[list[float]] = [[] for _ in works]
    spent: list[list[float]] = [[] for _ in works]
    total = (warm_ups + runs) * len(works)
    for turn in range(total):
        lap, number = divmod(turn, len(works))
        index, counts = (len(works) - 1 - number if lap % 2 else number), lap >= warm_ups
        work, taken = works[index], spent[index]
        if len(taken) < work.least or sum(taken) + taken[-1] < 1000.0 * work.seconds:
            time.sleep(pause)
            if work.prepare is not None:
                work.prepare()
            started = time.perf_counter()
            result = work.run()
            units = result if isinstance(result, (int, float)) else 1
            elapsed = units if work.timed else 1000.0 * (time.perf_counter() - started)
            if counts:
                taken.append(elapsed)
                found[index].append(elapsed if work.timed else elapsed / max(1, units))
        on_progress(turn + 1, total)
        if counts and number == len(works) - 1 and ended(found):
            break
    return found


def digits_of(milliseconds: float) -> int:
    """Return the decimals with which a table shows a time."""
    return 3 if milliseconds < 1 else 2 if milliseconds < 100 else 0


def ms_text(milliseconds: float) -> str:
    """Format a time for a table."""
    return f"{milliseconds:,.{digits_of(milliseconds)}f}"
