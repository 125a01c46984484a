"""Run a model for long, and check that memory, OpenGL's objects, files, speed and answers stay as they were.

Thousands of sequences of all kinds are run (:mod:`qa.soak.workload`). From time to time everything but the model is
closed and a sample is taken (:mod:`qa.soak.watch`). A warm-up, which does not count, makes what is made once and kept:
programs, scratch textures, plans for many rows. Then the medians of the first and of the last quarter of the samples
are compared. Whether the model has become slower is seen beside a new one, in turns with it: a shared machine is not
equally fast all the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from glinfer.engine.model import Model
from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.errors import GlinferError, InputError
from glinfer.inspect.timing import Work, in_turns
from qa.soak.watch import FixedTask, Grown, Sample, Tracer, counts
from qa.soak.workload import Workload

MEMORY_GROWTH = 0.01
"""Largest growth of memory from the first quarter to the last, as a fraction."""
PYTHON_GROWTH = 0.05
"""Largest growth of Python's objects, as a fraction: caches by prompt length fill slowly. One object leaked by each
sequence would be more."""
SPEED_DRIFT = 0.1
"""Largest difference of speed from a new model, as a fraction."""
_TURNS = 20
"""Turns of both models, after two that do not count."""
WARM_UP = 0.1
"""Share of the tokens in the warm-up, which runs each use at least once; half of the tokens always follow it."""
DEFAULT_SAMPLES = 40
MIN_SAMPLES = 4
MIN_TOKENS = 100
_TOKENS_A_SEQUENCE = 25
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
class SoakReport:
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
        grown: the lines of Python whose memory grew most, if it was traced.
    """

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
    grown: tuple[Grown, ...] = ()

    @property
    def failed(self) -> tuple[SoakCheck, ...]:
        """The numbers that did not stay."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def passed(self) -> bool:
        """Whether all numbers stayed and no error ended the run early."""
        return not self.failed and not self.stopped

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {**asdict(self), "passed": self.passed}


def soak(
    model: Model,
    tokens: int,
    *,
    fresh: Callable[[], AbstractContextManager[Model]],
    sequences: int | None = None,
    seed: int = 0,
    samples: int = DEFAULT_SAMPLES,
    trace: bool = False,
    on_progress: StagedProgress = no_staged_progress,
) -> SoakReport:
    """Run a number of tokens, and take samples on the way.

    Args:
        model: the model; nothing else should use it, its device or this process meanwhile.
        tokens: tokens to run; those of the probe are not counted.
        fresh: loads the same model anew, whose speed is compared at the end.
        sequences: about how many sequences to begin; by default one for 25 tokens.
        seed: seed of the random uses.
        samples: samples to take, evenly from the end of the warm-up to the end.
        trace: find the lines of Python whose memory grows, which slows everything down.
        on_progress: receives (stage, tokens run in it, its tokens); of the warm-up nobody knows how many follow.

    Raises:
        InputError: a number is too small or no whole number.
    """
    sequences = max(1, tokens // _TOKENS_A_SEQUENCE) if sequences is None else sequences
    for name, found, least in (
        ("tokens", tokens, MIN_TOKENS),
        ("sessions", sequences, 1),
        ("samples", samples, MIN_SAMPLES),
        ("seed", seed, 0),
    ):
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise InputError(f"{name} is {found!r}; expected a whole number of at least {least}")
    run = SoakReport(model.device.description, model.plan.name, model.weights, model.cache, seed)
    began, name = time.perf_counter(), "everything once"
    workload, tracer, grown = Workload(model, seed, tokens / sequences), Tracer(), tuple[Grown, ...]()
    probe, beside = FixedTask(model), list[SoakCheck]()

    def sample() -> None:
        before = run.samples[-1] if run.samples else None
        differs, seconds = probe.differing(), time.perf_counter() - began
        ran, taken = workload.tokens - (before.tokens if before else 0), seconds - (before.seconds if before else 0.0)
        held = counts(model.device)
        run.samples.append(Sample(workload.tokens, workload.sequences, seconds, **held,
                                  tokens_per_second=ran / taken, differs=differs))  # fmt: skip

    try:
        on_progress("warming up", 0, 0)
        workload.everything()
        while workload.tokens < WARM_UP * tokens:
            name = workload.step()
        if trace:
            tracer.start()
        warm_up = run.warm_up_tokens = workload.tokens
        sample()
        rest = max(tokens - warm_up, tokens // 2)
        apart = rest / (samples - 1)
        on_progress("soaking", 0, rest)
        while len(run.samples) < samples:
            while workload.tokens < warm_up + len(run.samples) * apart:
                name = workload.step()
                on_progress("soaking", min(workload.tokens - warm_up, rest), rest)
            sample()
        grown = tracer.stop()
        on_progress("beside a new model", 0, 0)
        with fresh() as new:
            works = [Work(probe.run), Work(FixedTask(new).run)]
            times = in_turns(works, _TURNS, warm_ups=2)
        rates = [Rates(*(1000.0 / each for each in pair)) for pair in zip(*times, strict=True)]
        beside.append(judge_beside(rates, SPEED_DRIFT, "model"))
    except GlinferError as error:
        run.stopped = f"after {workload.tokens} tokens, behind {name!r}: {type(error).__name__}: {error}"
    finally:
        grown = grown or tracer.stop()
    run.tokens, run.sequences, run.uses = workload.tokens, workload.sequences, dict(sorted(workload.counts.items()))
    run.checks = [*judge(run.samples, workload.accepted), *beside]
    run.seconds, run.grown = time.perf_counter() - began, grown
    return run


class Rates(NamedTuple):
    """Tokens a second of two models or servers that had the same work in turns."""

    aged: float
    new: float


def judge_beside(told: Sequence[Rates], limit: float, what: str) -> SoakCheck:
    """Whether a model or a server is as fast as a new one, by the median ratio of their rates over all turns."""
    ratios = sorted(each.aged / each.new - 1 for each in told)
    change, quarter = statistics.median(ratios), len(ratios) // 4
    return SoakCheck(
        f"speed beside a new {what}",
        statistics.median(each.new for each in told),
        statistics.median(each.aged for each in told),
        change,
        limit,
        abs(change) <= limit,
        _PER_SECOND,
        f"a new {what} first, then this one; the middle half of {len(ratios)} pairs of turns {ratios[quarter]:+.1%} to "
        f"{ratios[-1 - quarter]:+.1%}",
    )


def judge(samples: Sequence[Sample], accepted: Sequence[str] = ()) -> list[SoakCheck]:
    """Judge samples, if any; ``accepted`` names mistakes that were not refused. Speed by the clock is not judged."""
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
    if accepted:
        detail = f"not refused: {', '.join(sorted(set(accepted)))}"
        checks.append(SoakCheck("mistakes refused", None, None, None, 0.0, False, detail=detail))
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
