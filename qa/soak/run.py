"""Whether a model stays as it was when it runs for long: memory, OpenGL's objects, files, speed, and its answers.

Many thousands of tokens are run in thousands of sequences of all kinds (:mod:`qa.soak.traffic`). From time
to time nothing is open but the model, and a sample is taken (:mod:`qa.soak.watch`). What is made once and
kept (programs, scratch textures, plans for many rows) is made in a warm-up, which does not count. Of what follows, the
medians of the first and of the last quarter of the samples are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from glinfer.engine.model import Model
from glinfer.errors import GlinferError, InputError
from qa.soak.traffic import Traffic
from qa.soak.watch import Grown, Probe, Sample, Tracer, look

MEMORY_GROWTH = 0.01
"""How much more memory the last quarter may have than the first, as a fraction."""
PYTHON_GROWTH = 0.05
"""The same for Python's own objects: what is remembered for each length of a prompt comes to its end slowly. One object
left over by each sequence would be more."""
SPEED_DRIFT = 0.1
"""How much slower or faster the last quarter may be than the first, as a fraction."""
WARM_UP = 0.1
"""The part of the tokens that warms up; at least everything once, and half of them come behind it in any case."""
USUAL_SAMPLES = 40
FEWEST_SAMPLES = 4
FEWEST_TOKENS = 100
_TOKENS_A_SEQUENCE = 25
_MEMORY, _PER_SECOND, _BYTES = "memory of the process", "tok/s", "bytes"


@dataclass(frozen=True)
class Check:
    """One thing that has to stay as it was.

    Attributes:
        name: what.
        first: the median of the first quarter of the samples (of memory perhaps the least), or the first value.
        last: the same at the end.
        change: last / first - 1; None where there is nothing to divide.
        limit: how far the change may go, as a fraction; 0 where every sample has to have the same value.
        passed: whether it stayed; None where this system does not say the numbers.
        unit: of both numbers.
        detail: which samples differ, where some do; and of memory what the numbers are.
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
    """A soak: what was run, what was found on the way, and whether all of it stayed.

    Attributes:
        renderer: version and renderer of the device.
        plan: name of the plan.
        weights, cache: formats of the weights, and of keys and values.
        seed: of the uses.
        tokens: how many tokens were read or chosen.
        sequences: in how many sequences.
        uses: how often each kind of use came.
        seconds: all of it, samples included.
        warm_up_tokens: after how many tokens the first sample was taken.
        samples: in order.
        checks: what was judged.
        raw_speed_drift: of tokens a second as the clock has it, not compared with the work that never changes.
        stopped: the error that ended it early; empty where none did.
        grown: the lines of Python whose memory grew most, where that was traced.
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
    checks: tuple[Check, ...]
    raw_speed_drift: float
    stopped: str = ""
    grown: tuple[Grown, ...] = ()

    @property
    def failed(self) -> tuple[Check, ...]:
        """What did not stay."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def passed(self) -> bool:
        """Whether everything stayed, and nothing ended it early."""
        return not self.failed and not self.stopped

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        samples = [sample.to_json() for sample in self.samples]
        return {**asdict(self), "samples": samples, "passed": self.passed}


def soak(
    model: Model,
    tokens: int,
    *,
    sequences: int | None = None,
    seed: int = 0,
    samples: int = USUAL_SAMPLES,
    trace: bool = False,
    on_tokens: Callable[[int, int], None] = lambda done, total: None,
) -> SoakReport:
    """Run so many tokens, and look from time to time.

    Args:
        model: what to run; nothing else should use it, its device or this process meanwhile.
        tokens: how many; the probe's are not counted.
        sequences: about how many sequences they are spread over; left out, one for 25 tokens.
        seed: of the uses.
        samples: how many to take, evenly from the end of the warm-up to the end.
        trace: find the lines of Python whose memory grows, which slows everything down.
        on_tokens: told (tokens run, tokens in all).

    Raises:
        InputError: a number that cannot be.
    """
    sequences = max(1, tokens // _TOKENS_A_SEQUENCE) if sequences is None else sequences
    for name, found, least in (
        ("tokens", tokens, FEWEST_TOKENS),
        ("sessions", sequences, 1),
        ("samples", samples, FEWEST_SAMPLES),
        ("seed", seed, 0),
    ):
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise InputError(f"{name} is {found!r}; expected a whole number of at least {least}")
    started = time.perf_counter()
    traffic, tracer = Traffic(model, seed, tokens / sequences), Tracer()
    taken: list[Sample] = []
    stopped, name, warm_up = "", "everything once", 0
    with Probe(model) as probe:

        def sample() -> None:
            taken.append(look(model, probe, traffic.tokens, traffic.sequences, time.perf_counter() - started))

        try:
            traffic.everything()
            while traffic.tokens < WARM_UP * tokens:
                name = traffic.step()
            if trace:
                tracer.start()
            warm_up = traffic.tokens
            sample()
            apart = max(tokens - warm_up, tokens // 2) / (samples - 1)
            while len(taken) < samples:
                while traffic.tokens < warm_up + len(taken) * apart:
                    name = traffic.step()
                    on_tokens(min(traffic.tokens, tokens), tokens)
                sample()
        except GlinferError as error:
            stopped = f"after {traffic.tokens} tokens, behind {name!r}: {type(error).__name__}: {error}"
        finally:
            grown = tracer.stop()
    return SoakReport(
        renderer=model.device.description,
        plan=model.plan.name,
        weights=model.weights,
        cache=model.cache,
        seed=seed,
        tokens=traffic.tokens,
        sequences=traffic.sequences,
        uses=dict(sorted(traffic.counts.items())),
        seconds=time.perf_counter() - started,
        warm_up_tokens=warm_up,
        samples=tuple(taken),
        checks=judge(taken, traffic.accepted) if taken else (),
        raw_speed_drift=_drift([sample.tokens_per_second for sample in taken]) if taken else 0.0,
        stopped=stopped,
        grown=grown,
    )


def judge(samples: Sequence[Sample], accepted: Sequence[str] = ()) -> tuple[Check, ...]:
    """What stayed and what did not; ``accepted`` are mistakes that were not refused."""
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
    speeds = [sample.tokens_per_calibration for sample in samples]
    scale = samples[0].calibration_seconds
    first, last = (value / scale for value in _quarters(speeds))
    drift = last / first - 1
    checks.append(Check("speed", first, last, drift, SPEED_DRIFT, abs(drift) <= SPEED_DRIFT, _PER_SECOND))
    odd = [sample for sample in samples if sample.differs]
    detail = f"first after {odd[0].tokens} tokens: {', '.join(odd[0].differs)}" if odd else ""
    equal = len(samples) - len(odd)
    checks.append(Check("answers as at first", len(samples), equal, None, 0.0, not odd, "samples", detail))
    if accepted:
        detail = f"not refused: {', '.join(sorted(set(accepted)))}"
        checks.append(Check("mistakes refused", None, None, None, 0.0, False, detail=detail))
    return tuple(checks)


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and of the last quarter."""
    count = max(1, len(values) // 4)
    return statistics.median(values[:count]), statistics.median(values[-count:])


def _drift(values: Sequence[float]) -> float:
    first, last = _quarters(values)
    return last / first - 1 if first else 0.0


def _known(values: Sequence[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _flat(name: str, values: Sequence[int | None], limit: float, unit: str = "") -> Check:
    """A number whose quarters are compared; it may fall."""
    known = _known(values)
    if len(known) < len(values):
        return Check(name, None, None, None, limit, None, unit)
    first, last = _quarters(known)
    change = _drift(known)
    return Check(name, first, last, change, limit, change <= limit if first else not last, unit)


def _memory(values: Sequence[int | None]) -> Check:
    """Medians of the quarters, or the least of each, whichever grew less."""
    medians = _flat(_MEMORY, values, MEMORY_GROWTH, _BYTES)
    known, count = _known(values), max(1, len(values) // 4)
    if medians.passed is None or medians.change is None:
        return medians
    first, last = min(known[:count]), min(known[-count:])
    change = last / first - 1
    if change >= medians.change:
        return replace(medians, detail=f"medians; the least of each {change:+.2%}")
    detail = f"the least of each; medians {medians.change:+.2%}"
    return Check(_MEMORY, first, last, change, MEMORY_GROWTH, change <= MEMORY_GROWTH, _BYTES, detail)


def _same(name: str, values: Sequence[int | None]) -> Check:
    """A number that is the same in all samples."""
    known = _known(values)
    if len(known) < len(values):
        return Check(name, None, None, None, 0.0, None)
    other = [place for place, value in enumerate(known) if value != known[0]]
    detail = f"{len(other)} of {len(known)} samples differ: {min(known)} to {max(known)}" if other else ""
    change = known[-1] / known[0] - 1 if known[0] else None
    return Check(name, known[0], known[-1], change, 0.0, not other, detail=detail)
