"""Run a model for long, and check that memory, OpenGL's objects, files, speed and answers stay as they were.

Thousands of sequences of all kinds are run (:mod:`qa.soak.workload`). From time to time everything but the model is
closed and a sample is taken (:mod:`qa.soak.watch`). A warm-up, which does not count, makes what is made once and kept:
programs, scratch textures, plans for many rows. Then the medians of the first and of the last quarter of the samples
are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from glinfer.engine.model import Model
from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.errors import GlinferError, InputError
from qa.soak.watch import FixedTask, Grown, Sample, Tracer, look
from qa.soak.workload import Workload

MEMORY_GROWTH = 0.01
"""Largest growth of memory from the first quarter to the last, as a fraction."""
PYTHON_GROWTH = 0.05
"""Largest growth of Python's objects, as a fraction: caches by prompt length fill slowly. One object leaked by each
sequence would be more."""
SPEED_DRIFT = 0.1
"""Largest change of speed from the first quarter to the last, as a fraction."""
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
            speed of a server beside a new one, how far its turns lie apart.
    """

    name: str
    first: float | None
    last: float | None
    change: float | None
    limit: float
    passed: bool | None
    unit: str = ""
    detail: str = ""


@dataclass(frozen=True)
class SoakReport:
    """A long run: the tokens, the samples, and the checks.

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
        raw_speed_drift: change of tokens a second by the clock alone, without the calibration.
        stopped: the error that ended the run early; empty if there was none.
        grown: the lines of Python whose memory grew most, if it was traced.
    """

    renderer: str
    plan: str
    weights: str
    cache: str
    seed: int
    tokens: int
    sequences: int
    uses: dict[str, int]
    seconds: float
    warm_up_tokens: int
    samples: tuple[Sample, ...]
    checks: tuple[SoakCheck, ...]
    raw_speed_drift: float
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
        samples = [sample.to_json() for sample in self.samples]
        return {**asdict(self), "samples": samples, "passed": self.passed}


@dataclass
class Recording:
    """A run that is under way.

    Attributes:
        seed: seed of the random uses.
        began: when it began, by :func:`time.perf_counter`.
        samples: the samples so far.
        warm_up_tokens: tokens before the first sample.
        stopped: the error that ended it early.
    """

    seed: int
    began: float = field(default_factory=time.perf_counter)
    samples: list[Sample] = field(default_factory=list)
    warm_up_tokens: int = 0
    stopped: str = ""

    @property
    def seconds(self) -> float:
        """Time since it began."""
        return time.perf_counter() - self.began

    def report(
        self,
        *,
        renderer: str,
        plan: str,
        weights: str,
        cache: str,
        tokens: int,
        sequences: int,
        uses: Mapping[str, int],
        checks: Sequence[SoakCheck] = (),
        accepted: Sequence[str] = (),
        speed_drift: float | None = SPEED_DRIFT,
        grown: tuple[Grown, ...] = (),
    ) -> SoakReport:
        """What came of it: the samples are judged (see :func:`judge`), and further checks are added."""
        samples = tuple(self.samples)
        judged = judge(samples, accepted, speed_drift=speed_drift) if samples else ()
        return SoakReport(
            renderer=renderer,
            plan=plan,
            weights=weights,
            cache=cache,
            seed=self.seed,
            tokens=tokens,
            sequences=sequences,
            uses=dict(sorted(uses.items())),
            seconds=self.seconds,
            warm_up_tokens=self.warm_up_tokens,
            samples=samples,
            checks=(*judged, *checks),
            raw_speed_drift=drift([sample.tokens_per_second for sample in samples]) if samples else 0.0,
            stopped=self.stopped,
            grown=grown,
        )


def soak(
    model: Model,
    tokens: int,
    *,
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
    run, name = Recording(seed), "everything once"
    workload, tracer = Workload(model, seed, tokens / sequences), Tracer()
    with FixedTask(model) as probe:

        def sample() -> None:
            run.samples.append(look(model, probe, workload.tokens, workload.sequences, run.seconds))

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
        except GlinferError as error:
            run.stopped = f"after {workload.tokens} tokens, behind {name!r}: {type(error).__name__}: {error}"
        finally:
            grown = tracer.stop()
    return run.report(
        renderer=model.device.description,
        plan=model.plan.name,
        weights=model.weights,
        cache=model.cache,
        tokens=workload.tokens,
        sequences=workload.sequences,
        uses=workload.counts,
        accepted=workload.accepted,
        grown=grown,
    )


def judge(
    samples: Sequence[Sample], accepted: Sequence[str] = (), *, speed_drift: float | None = SPEED_DRIFT
) -> tuple[SoakCheck, ...]:
    """Judge samples; ``accepted`` names mistakes that were not refused.

    Speed may change by ``speed_drift``; where that is None, it is printed but not judged.
    """
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
    checks.append(_speed(samples, speed_drift))
    odd = [sample for sample in samples if sample.differs]
    detail = f"first after {odd[0].tokens} tokens: {', '.join(odd[0].differs)}" if odd else ""
    equal = len(samples) - len(odd)
    checks.append(SoakCheck("answers as at first", len(samples), equal, None, 0.0, not odd, "samples", detail))
    if accepted:
        detail = f"not refused: {', '.join(sorted(set(accepted)))}"
        checks.append(SoakCheck("mistakes refused", None, None, None, 0.0, False, detail=detail))
    return tuple(checks)


def _speed(samples: Sequence[Sample], limit: float | None) -> SoakCheck:
    """Compare the speeds of the quarters, which may neither fall nor rise."""
    scale = samples[0].calibration_seconds
    first, last = (value / scale for value in _quarters([sample.tokens_per_calibration for sample in samples]))
    change = last / first - 1
    passed = None if limit is None else abs(change) <= limit
    return SoakCheck("speed", first, last, change, limit or 0.0, passed, _PER_SECOND)


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and of the last quarter."""
    count = max(1, len(values) // 4)
    return statistics.median(values[:count]), statistics.median(values[-count:])


def drift(values: Sequence[float]) -> float:
    """Change from the median of the first quarter to that of the last, as a fraction."""
    first, last = _quarters(values)
    return last / first - 1 if first else 0.0


def _known(values: Sequence[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _flat(name: str, values: Sequence[int | None], limit: float, unit: str = "") -> SoakCheck:
    """Compare the quarters of a number, which may fall."""
    known = _known(values)
    if len(known) < len(values):
        return SoakCheck(name, None, None, None, limit, None, unit)
    first, last = _quarters(known)
    change = drift(known)
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
