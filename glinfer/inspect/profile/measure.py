"""The measuring behind a profile: plain and profiled runs in turns, other places of the sequence, ceilings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from glinfer.errors import InputError
from glinfer.gl.context import Device
from glinfer.gl.timers import FenceTimer, Timeline, Timer, TimestampTimer
from glinfer.inspect.ceiling import STANDARD_BYTES, FetchRate, fetch_rate, nearest_texels
from glinfer.inspect.profile.bytes import Traffic, traffic
from glinfer.inspect.profile.report import GrowthPoint
from glinfer.inspect.profile.subject import Subject, Subjects

TIMINGS = ("auto", "gpu", "fence")
"""What ``timing`` takes: timestamps where the renderer has good ones, else fences; the one; the other."""

_SECONDS = 2.0  # for all runs, unless their number is given
_FEWEST, _MOST = 5, 100  # runs, likewise
_SLOW_SECONDS, _FEWEST_SLOW = 2.0, 3  # a run of each kind, and how many there are of those at least
_TRIES = 3  # times as many profiled runs as are wanted, where the clock is disturbed
_CREDIBLE = 0.5, 1.1  # of the time on the CPU's clock: what timestamps have to add up to
_GROWTH_SECONDS = 20.0  # for all places of the sequence; what would take longer is left out
_GROWTH_SAMPLE_SECONDS = 0.4  # for one of them
_GROWTH_RUNS = 3, 20
_RUNS_OF_A_PLACE = 12  # the fewest, both kinds and warm-ups together
_FIRST_PLACES = 1, 16
_PLACE_STEP = 4  # from place to place behind those
_CEILING_SAMPLE_SECONDS = 0.002
_MATTERS = 0.05  # of the bytes read: the least for which the ceiling of a format is measured

Steps = Callable[[int, int], None]


@dataclass
class Measured:
    """Plain and profiled runs of one subject; ``walls`` and ``issues`` in milliseconds.

    ``disturbed`` counts the profiled runs that were thrown away.
    """

    method: str
    walls: list[float] = field(default_factory=list)
    issues: list[float] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    disturbed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def profiled(self) -> list[float]:
        """Milliseconds of the profiled runs."""
        return [milliseconds(line.end - line.start) for line in self.timelines]

    @property
    def middle(self) -> list[Timeline]:
        """The third of the profiled runs that are neither the fastest nor the slowest, fastest first."""
        ordered = sorted(self.timelines, key=lambda line: line.end - line.start)
        rest = len(ordered) // 3
        return ordered[rest : len(ordered) - rest]

    @property
    def draws_ms(self) -> list[float]:
        """The time of each draw: the mean over the middle runs, so that all of them add up to a usual run.

        Medians of each would not: what disturbs a run disturbs another draw each time.
        """
        return [milliseconds(mean(each)) for each in zip(*(line.draws_ns for line in self.middle), strict=True)]

    @property
    def outside_ms(self) -> tuple[float, float]:
        """The time before the first draw begins, and after the last one's end, likewise; clocks agree to µs."""
        before = mean(max(0, line.bounds[0] - line.start) for line in self.middle)
        return milliseconds(before), milliseconds(mean(max(0, line.end - line.bounds[-1]) for line in self.middle))

    @property
    def issue_ms(self) -> list[float]:
        """The time that Python took to issue each draw, likewise."""
        spans = ([end - begin for begin, end in line.issued] for line in self.middle)
        return [milliseconds(mean(each)) for each in zip(*spans, strict=True)]

    @property
    def usual(self) -> Timeline:
        """The profiled run that took a median time."""
        return self.middle[len(self.middle) // 2]


def milliseconds(nanoseconds: float) -> float:
    """The same in milliseconds."""
    return nanoseconds / 1e6


def measure(subject: Subject, device: Device, timing: str, runs: int | None, on_step: Steps) -> Measured:
    """Plain and profiled runs in turns, after a warm-up of both.

    Args:
        subject: what is run.
        device: where.
        timing: one of :data:`TIMINGS`.
        runs: how many of each; left out, what there is time for.
        on_step: told (runs done, runs in all).

    Raises:
        InputError: timestamps were asked for and there are none, or the clock was disturbed all the time.
    """
    subject.write()
    for _ in range(2):
        _plain(subject, device)
    timer, notes = _timer(subject, device, timing)
    with timer:
        if runs is None:
            pair = sum(_plain(subject, device)) + _seconds_of(timer, subject)
            runs = max(_FEWEST if pair < _SLOW_SECONDS else _FEWEST_SLOW, min(_MOST, int(_SECONDS / pair)))
        found = _in_turns(subject, device, timer, runs, on_step)
    if not found.timelines:
        raise InputError(f"the clock of {device.renderer} was disturbed in all runs; time by fences (--timing fence)")
    found.notes = notes
    return found


def _in_turns(subject: Subject, device: Device, timer: Timer, runs: int, on_step: Steps) -> Measured:
    found = Measured(timer.method)
    for run in range(_TRIES * runs):
        if len(found.timelines) == runs:
            break
        if run < runs:
            issue, rest = _plain(subject, device)
            found.issues.append(1000.0 * issue)
            found.walls.append(1000.0 * (issue + rest))
        line = timer.run(subject.values, flush_every=subject.flush_every)
        if line is None:
            found.disturbed += 1
        else:
            found.timelines.append(line)
        on_step(len(found.timelines), runs)
    return found


def _plain(subject: Subject, device: Device) -> tuple[float, float]:
    """Seconds of a run that nothing disturbs: until its draws are issued, and from then until they are done."""
    device.activate()
    device.raw.finish()
    began = time.perf_counter()
    subject.run()
    issued = time.perf_counter()
    device.raw.finish()
    return issued - began, time.perf_counter() - issued


def _seconds_of(timer: Timer, subject: Subject) -> float:
    began = time.perf_counter()
    timer.run(subject.values, flush_every=subject.flush_every)
    return time.perf_counter() - began


def _timer(subject: Subject, device: Device, timing: str) -> tuple[Timer, list[str]]:
    """What times the draws, warmed up, and what there is to say of the choice."""
    draws = subject.session.draws[: subject.draws]
    if timing == "fence":
        return _warm(FenceTimer(device, draws), subject), []
    try:
        timer = TimestampTimer(device, draws)
    except InputError as error:
        if timing == "gpu":
            raise
        return _warm(FenceTimer(device, draws), subject), [str(error)]
    try:
        _warm(timer, subject)
        if timing == "gpu" or _credible(timer, subject):
            return timer, []
    except BaseException:
        timer.release()
        raise
    timer.release()
    note = f"the timestamps of {device.renderer} do not add up to the time that passes; timed by fences"
    return _warm(FenceTimer(device, draws), subject), [note]


def _warm(timer: Timer, subject: Subject) -> Timer:
    timer.run(subject.values, flush_every=subject.flush_every)
    return timer


def _credible(timer: Timer, subject: Subject) -> bool:
    """Whether a run's timestamps only ever go forward, and add up to about the time that passes on the CPU's clock."""
    for _ in range(_TRIES):
        line = timer.run(subject.values, flush_every=subject.flush_every)
        if line is None:
            continue
        total, passed = line.bounds[-1] - line.bounds[0], line.end - line.start
        forward = all(one <= other for one, other in zip(line.bounds, line.bounds[1:], strict=False))
        if forward and _CREDIBLE[0] * passed <= total <= _CREDIBLE[1] * passed:
            return True
    return False


def places(context: int) -> list[int]:
    """The places of a sequence at which growth is measured: 1, 16, 64, 256 and so on, and the last one."""
    found = list(_FIRST_PLACES)
    while found[-1] * _PLACE_STEP < context:
        found.append(found[-1] * _PLACE_STEP)
    return [*(place for place in found if place < context), context]


def measure_growth(
    subjects: Subjects, device: Device, timing: str, on_step: Steps
) -> tuple[list[GrowthPoint], list[str]]:
    """Runs at other places of the sequence, as many as there is time for; and a note of what is left out."""
    wanted = places(subjects.context)
    found, started = list[GrowthPoint](), time.perf_counter()
    for done, place in enumerate(wanted):
        on_step(done, len(wanted))
        subject = None if found and _too_long(found[-1], place, started) else subjects.at(place)
        if subject is None:
            return found, [f"growth is measured up to {found[-1].tokens} tokens only: more would take too long"]
        found.append(_growth_point(subject, device, timing))
    on_step(len(wanted), len(wanted))
    return found, []


def _too_long(last: GrowthPoint, place: int, started: float) -> bool:
    """Whether a run as much longer as its sequence is would take more time than there is left for growth."""
    seconds = last.wall_ms / 1000.0 * place / last.tokens
    return time.perf_counter() - started + _RUNS_OF_A_PLACE * seconds > _GROWTH_SECONDS


def _growth_point(subject: Subject, device: Device, timing: str) -> GrowthPoint:
    subject.write()
    pair = 2 * sum(_plain(subject, device))
    fewest, most = _GROWTH_RUNS
    runs = max(fewest, min(most, int(_GROWTH_SAMPLE_SECONDS / pair)))
    measured = measure(subject, device, timing, runs, lambda done, total: None)
    kinds: dict[str, float] = {}
    for spec, each in zip(subject.specs, measured.draws_ms, strict=True):
        kinds[spec.kind] = kinds.get(spec.kind, 0.0) + each
    read = sum(each.read for each in traffic_of(subject, device))
    return GrowthPoint(subject.tokens, median(measured.walls), read, kinds)


def traffic_of(subject: Subject, device: Device) -> list[Traffic]:
    """What each draw of a run reads and writes."""
    found = traffic(subject.session.plan, subject.values, device.limits.max_texture_size)
    return found[: subject.draws]


def measure_ceilings_of(costs: Sequence[Traffic], device: Device, on_step: Steps) -> list[FetchRate]:
    """How fast texels of the formats that most bytes are read in can be fetched, from textures as large together."""
    sizes: dict[str, int] = {}
    for cost in costs:
        for read in cost.reads:
            sizes[read.format] = sizes.get(read.format, 0) + read.bytes
    total = sum(sizes.values())
    matter = {name: size for name, size in sizes.items() if size >= _MATTERS * total}
    found = []
    for done, (name, size) in enumerate(matter.items()):
        on_step(done, len(matter))
        found.append(fetch_rate(device, name, nearest_texels(name, max(size, STANDARD_BYTES)), _CEILING_SAMPLE_SECONDS))
    on_step(len(matter), len(matter))
    return found
