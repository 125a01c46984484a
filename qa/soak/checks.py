"""Whether the samples of a long run stay as they were: medians of their first and last quarter are compared."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qa.soak.answers import Answers
from qa.soak.served import BLOCKS, MEMORY, OBJECTS, TEXTURES

Sample = Mapping[str, int]
"""Numbers of one moment, with nothing open but the model, by their names."""
GROWTH = {MEMORY: 0.01, TEXTURES: 0.01, BLOCKS: 0.05, OBJECTS: 0.05}
"""Largest growth from the first quarter to the last, as a fraction; all other numbers have to be the same.

Python's caches by prompt length fill slowly; one object leaked by each sequence would be more.
"""
_SHOWN = 3


class SoakCheck(NamedTuple):
    """A number at the start compared with that at the end, and what is wrong with it, if it did not stay."""

    name: str
    first: float
    last: float
    passed: bool
    detail: str = ""

    @property
    def change(self) -> float | None:
        """``last / first - 1``; None if ``first`` is 0."""
        return self.last / self.first - 1 if self.first else None


def judge_beside(rates: Sequence[tuple[float, float]], limit: float) -> SoakCheck:
    """Whether a server is as fast as a new one, by the median ratio of (its rate, that of the new one) in all turns."""
    ratios = sorted(aged / new - 1 for aged, new in rates)
    aged, new = map(statistics.median, zip(*rates, strict=True))
    quarter, change = len(ratios) // 4, statistics.median(ratios)
    detail = f"{change:+.1%} by {len(ratios)} pairs of turns, the middle half {ratios[quarter]:+.1%} to "
    passed = abs(change) <= limit
    return SoakCheck("speed beside a new server, tok/s", new, aged, passed, f"{detail}{ratios[-1 - quarter]:+.1%}")


def judge(samples: Sequence[Sample]) -> list[SoakCheck]:
    """Judge the numbers of samples, if any."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return [_judged(name, [sample.get(name, 0) for sample in samples]) for name in names]


def _judged(name: str, values: Sequence[int]) -> SoakCheck:
    """Compare the medians of the quarters, which may fall, and of memory also the least values: they vary by less."""
    if name not in GROWTH:
        other = sum(value != values[0] for value in values)
        detail = f"{other} of {len(values)} samples differ: {min(values)} to {max(values)}" if other else ""
        return SoakCheck(name, values[0], values[-1], not other, detail)
    count = max(1, len(values) // 4)
    measures = (statistics.median, min) if name == MEMORY else (statistics.median,)
    first, last = min(
        ((measure(values[:count]), measure(values[-count:])) for measure in measures),
        key=lambda pair: pair[1] / max(pair[0], 1),
    )
    return SoakCheck(name, first, last, last <= first * (1 + GROWTH[name]))


def judge_answers(answers: Answers, alone: Answers) -> tuple[SoakCheck, ...]:
    """Whether the answers to each request were those that it has alone, and none failed."""
    compared, odd, failed = sum(map(bool, alone.whole)), answers.differing(alone), answers.failed + alone.failed
    said = "; ".join(json.dumps(dict(answers.asked[place].body))[:200] for place in odd[:_SHOWN])
    listed = "; ".join(f"{count} × {error}" for error, count in failed.most_common(_SHOWN))
    same = SoakCheck("answers as alone", compared, compared - len(odd), not odd, said)
    return same, SoakCheck("requests that failed", 0, failed.total(), not failed, listed)
