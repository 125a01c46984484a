"""Whether the samples of a long run stay as they were.

A warm-up, which does not count, makes what is made once and kept: programs, scratch textures, plans for many rows. Then
the medians of the first and of the last quarter of the samples are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from glinfer.engine.report import Report
from qa.soak.watch import Sample

MEMORY_GROWTH = 0.01
"""Largest growth of memory from the first quarter to the last, as a fraction."""
PYTHON_GROWTH = 0.05
"""Largest growth of Python's objects, as a fraction: caches by prompt length fill slowly. One object leaked by each
sequence would be more."""
WARM_UP = 0.1
"""Share of the run in the warm-up."""
DEFAULT_SAMPLES = 40
MIN_SAMPLES = 4
MIN_TOKENS = 100
_MEMORY, _BYTES = "memory of the process", "bytes"
_PER_SECOND = "tok/s"


@dataclass(frozen=True)
class SoakCheck:
    """A number of the first quarter compared with that of the last.

    Attributes:
        name: the number.
        first: the median of the first quarter of the samples (for memory perhaps the least), or the first value.
        last: the median of the last quarter, or the last value.
        change: last / first - 1; None if ``first`` is 0 or unknown.
        limit: the largest allowed change, as a fraction; 0 asks for one value in all samples.
        passed: whether the number stayed; None if this system does not report it, or if another one is judged.
        unit: the unit of ``first`` and ``last``.
        detail: the samples that differ, if any; for memory, whether ``first`` is a median or the least value; for the
            speed beside a new one, how far the turns lie apart.
    """

    name: str
    first: float | None
    last: float | None
    change: float | None
    limit: float
    passed: bool | None
    unit: str = ""
    detail: str = ""


@dataclass
class SoakReport(Report):
    """A long run, filled while it goes on: the tokens, the samples, and the checks.

    Attributes:
        renderer: version and renderer of the device.
        plan: name of the plan.
        weights, cache: formats of the weights, and of keys and values.
        seed: seed of the random uses.
        tokens: tokens read or chosen.
        sequences: sequences begun.
        uses: count of each kind of use.
        seconds: duration, samples included.
        warm_up_tokens: tokens before the first sample.
        samples: the samples in order.
        checks: the judged numbers.
        stopped: the error that ended the run early; empty if there was none.
    """

    derived = ("passed",)

    renderer: str
    plan: str
    weights: str
    cache: str
    seed: int
    tokens: int = 0
    sequences: int = 0
    uses: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    warm_up_tokens: int = 0
    samples: list[Sample] = field(default_factory=list)
    checks: Sequence[SoakCheck] = ()
    stopped: str = ""

    @property
    def failed(self) -> tuple[SoakCheck, ...]:
        """The numbers that did not stay."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def passed(self) -> bool:
        """Whether all numbers stayed and no error ended the run early."""
        return not self.failed and not self.stopped


class Rates(NamedTuple):
    """Tokens a second of two servers that had the same work in turns."""

    aged: float
    new: float


def judge_beside(rates: Sequence[Rates], limit: float) -> SoakCheck:
    """Whether a server is as fast as a new one, by the median ratio of their rates over all turns."""
    ratios = sorted(each.aged / each.new - 1 for each in rates)
    change, quarter = statistics.median(ratios), len(ratios) // 4
    return SoakCheck(
        "speed beside a new server",
        statistics.median(each.new for each in rates),
        statistics.median(each.aged for each in rates),
        change,
        limit,
        abs(change) <= limit,
        _PER_SECOND,
        f"a new server first, then this one; the middle half of {len(ratios)} pairs of turns {ratios[quarter]:+.1%} to "
        f"{ratios[-1 - quarter]:+.1%}",
    )


def judge(samples: Sequence[Sample]) -> list[SoakCheck]:
    """Judge samples, if any. Speed by the clock is not judged."""
    if not samples:
        return []
    checks = [
        _memory([sample.memory for sample in samples]),
        _flat("texture bytes", [sample.texture_bytes for sample in samples], MEMORY_GROWTH, _BYTES),
    ]
    kinds = sorted({kind for sample in samples for kind in sample.objects})
    checks += [_same(kind, [sample.objects.get(kind, 0) for sample in samples]) for kind in kinds]
    checks += [
        _flat("Python's memory blocks", [sample.blocks for sample in samples], PYTHON_GROWTH),
        _flat("Python's objects", [sample.python_objects for sample in samples], PYTHON_GROWTH),
        _same("open files", [sample.files for sample in samples]),
        _same("threads", [sample.threads for sample in samples]),
        _same("child processes", [sample.children for sample in samples]),
    ]
    first, last = _quarters([sample.tokens_per_second for sample in samples])
    checks.append(SoakCheck("speed by the clock", first, last, last / first - 1, 0.0, None, _PER_SECOND))
    odd = [sample for sample in samples if sample.differs]
    detail = f"first after {odd[0].tokens} tokens: {', '.join(odd[0].differs)}" if odd else ""
    equal = len(samples) - len(odd)
    checks.append(SoakCheck("answers as at first", len(samples), equal, None, 0.0, not odd, "samples", detail))
    return checks


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and of the last quarter."""
    count = max(1, len(values) // 4)
    return statistics.median(values[:count]), statistics.median(values[-count:])


def _known(values: Sequence[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _flat(name: str, values: Sequence[int | None], limit: float, unit: str = "") -> SoakCheck:
    """Compare the quarters of a number, which may fall."""
    known = _known(values)
    if len(known) < len(values):
        return SoakCheck(name, None, None, None, limit, None, unit)
    first, last = _quarters(known)
    change = last / first - 1 if first else 0.0
    return SoakCheck(name, first, last, change, limit, change <= limit if first else not last, unit)


def _memory(values: Sequence[int | None]) -> SoakCheck:
    """Compare the medians of the quarters, or the least values, whichever grew less."""
    medians = _flat(_MEMORY, values, MEMORY_GROWTH, _BYTES)
    known, count = _known(values), max(1, len(values) // 4)
    if medians.passed is None or medians.change is None:
        return medians
    first, last = min(known[:count]), min(known[-count:])
    change = last / first - 1
    if change >= medians.change:
        return replace(medians, detail=f"medians; the least of each {change:+.2%}")
    detail = f"the least of each; medians {medians.change:+.2%}"
    return SoakCheck(_MEMORY, first, last, change, MEMORY_GROWTH, change <= MEMORY_GROWTH, _BYTES, detail)


def _same(name: str, values: Sequence[int | None]) -> SoakCheck:
    """Check that a number is the same in all samples."""
    known = _known(values)
    if len(known) < len(values):
        return SoakCheck(name, None, None, None, 0.0, None)
    other = [place for place, value in enumerate(known) if value != known[0]]
    detail = f"{len(other)} of {len(known)} samples differ: {min(known)} to {max(known)}" if other else ""
    change = known[-1] / known[0] - 1 if known[0] else None
    return SoakCheck(name, known[0], known[-1], change, 0.0, not other, detail=detail)
