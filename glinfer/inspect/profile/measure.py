"""Profiles: times every draw of one run of a plan, and counts the bytes that it reads and writes.

Runs in which every draw is timed (:mod:`glinfer.gl.timers`) alternate with plain runs of the same token, so that the
times of draws can be compared with the time of the token. Runs neither upload the token nor read anything back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median

from glinfer.engine.engine import Engine, FastEngine, WholeEngine
from glinfer.engine.ids import check_within
from glinfer.engine.prefill import Companions, Prefill
from glinfer.engine.progress import Progress, StagedProgress, no_progress, no_staged_progress
from glinfer.errors import InputError
from glinfer.gl.context import Device
from glinfer.gl.timers import TIMESTAMPS, FenceTimer, Timeline, Timer, TimestampTimer, fence_ns
from glinfer.inspect.ceiling import FetchRate, fetch_rates
from glinfer.inspect.draws import example_ids
from glinfer.inspect.profile.result import DrawProfile, GrowthPoint, ProfileReport
from glinfer.inspect.profile.traffic import DrawTraffic, draw_traffic, textures_of
from glinfer.inspect.timing import Spread, Work, interleaved, milliseconds
from glinfer.kernels.spec import Array
from glinfer.lower.feed import runs
from glinfer.program.session import Session

DEFAULT_TOKENS = 128
"""Position of the profiled token, or length of the sequence, by default."""
Given = tuple[Mapping[str, Array], Mapping[str, int | float]]
TOKEN_RUN, PROMPT_RUN, SEQUENCE_RUN = "token", "prompt", "sequence"
"""Kinds of runs: one token after others, several tokens of a prompt, a whole sequence."""
TIMINGS = ("auto", "gpu", "fence")
"""Values of ``timing``: timestamps if the renderer has good ones, else fences; timestamps; fences."""

_SECONDS = 2.0  # time for all runs, unless their number is given
_MIN_RUNS, _MAX_RUNS = 5, 100  # number of runs, unless given
_SLOW_SECONDS, _MIN_SLOW_RUNS = 2.0, 3  # duration of a slow pair of runs, and the fewest pairs of such
_TRIES = 3  # attempts for each profiled run, because disturbed ones are discarded
_CREDIBLE = 0.5, 1.1  # sum of timestamps over the time on the CPU's clock
_GROWTH_SECONDS = 20.0  # time for all positions; further ones are left out
_GROWTH_SAMPLE_SECONDS = 0.4  # time for one position
_MIN_POSITION_RUNS = 12  # runs for a position: plain, profiled and warm-up
_POSITIONS = (1, *(4**power for power in range(2, 16)))  # 1, 16, 64, 256, …
_CEILING_SAMPLE_SECONDS = 0.002
_MIN_SHARE = 0.05  # share of the bytes read for which a format's ceiling is measured


def profile(
    engine: Engine,
    *,
    tokens: int | None = None,
    prompt_tokens: int | None = None,
    runs: int | None = None,
    timing: str = "auto",
    ceiling: bool = False,
    growth: bool = False,
    label: str = "",
    on_progress: StagedProgress = no_staged_progress,
) -> ProfileReport:
    """Profile one token of a model's engine, or the prefill of a prompt of ``prompt_tokens``.

    Caches are overwritten; a sequence that they hold runs again when it continues. ``tokens`` is the token's position,
    counted from 1, or the sequence's length with the reference plan; default: 128, or the context if that is less.
    ``runs`` is the number of plain runs, and of profiled ones; default: as many as fit into about two seconds.
    ``timing`` is one of :data:`TIMINGS`. ``ceiling`` and ``growth`` also measure fetch rates, and other positions
    within 20 seconds. ``label`` names the model in the report; ``on_progress`` receives (stage, finished steps, steps).
    InputError if an option is invalid, or timestamps are unavailable.
    """
    if prompt_tokens is not None and (tokens is not None or growth):
        other = "--growth" if growth else "--tokens"
        raise InputError(f"found both --prompt-tokens and {other}, which needs a single token; leave one out")
    device = engine.bound.device
    engine.forget_own()
    with ExitStack() as held:
        plan_run = run_at(engine, tokens) if prompt_tokens is None else run_of_prompt(engine, prompt_tokens, held)
        measured = measure(plan_run, timing, runs, partial(on_progress, "timing draws"))
        costs = plan_run.traffic()
        points, left_out = list[GrowthPoint](), list[str]()
        if growth:
            method = "auto" if measured.method == TIMESTAMPS else "fence"
            points, left_out = measure_growth(engine, method, partial(on_progress, "growth"))
        ceilings = measure_fetch_rates(costs, device, partial(on_progress, "ceilings")) if ceiling else []
        return ProfileReport(
            model=label,
            config=engine.options.config.to_dict(),
            renderer=device.description,
            plan=plan_run.session.plan.name,
            weights=engine.options.weights,
            what=plan_run.what,
            tokens=plan_run.tokens,
            timing=measured.method,
            fence_us=fence_ns(device) / 1000.0,
            runs=len(measured.walls),
            disturbed=measured.disturbed,
            wall=Spread.of(measured.walls),
            issue=Spread.of(measured.issues),
            profiled=Spread.of(measured.profiled),
            before_ms=measured.outside_ms[0],
            after_ms=measured.outside_ms[1],
            draws=tuple(_draws(plan_run, measured, costs)),
            textures=tuple(textures_of(*plan_run.sessions)),
            ceilings=tuple(ceilings),
            growth=tuple(points),
            notes=(*plan_run.notes, *measured.notes, *left_out),
            timeline=measured.usual,
        )


def _draws(plan_run: PlanRun, measured: Timings, costs: Sequence[DrawTraffic]) -> list[DrawProfile]:
    found = []
    times = zip(plan_run.session.plan.draws, measured.draws_ms, measured.issue_ms, costs, strict=True)
    for index, (spec, ms, issue_ms, cost) in enumerate(times):
        rows, cols = spec.extent(plan_run.values)
        found.append(
            DrawProfile(
                index=index,
                name=spec.name,
                kind=spec.kind,
                op=spec.op,
                shader=spec.shader,
                reads=cost.reads,
                outputs=spec.outputs,
                rows=rows,
                cols=cols,
                defines=dict(spec.defines),
                ms=ms,
                issue_ms=issue_ms,
                bytes_read=cost.read,
                bytes_written=cost.written,
            )
        )
    return found


@dataclass(frozen=True)
class PlanRun:
    """One repeatable run of a plan: the last of its sessions with run values and arrays for input tensors.

    Caches hold zeros instead of earlier tokens, which does not change the time. ``what`` is :data:`TOKEN_RUN`, with the
    token's position counted from 1 in ``tokens``, or :data:`PROMPT_RUN` or :data:`SEQUENCE_RUN`, with their length.
    """

    what: str
    tokens: int
    sessions: tuple[Session, ...]
    inputs: Mapping[str, Array]
    values: Mapping[str, int | float]
    flush_every: int
    notes: tuple[str, ...]

    @property
    def session(self) -> Session:
        """The bound plan."""
        return self.sessions[-1]

    def timed(self, timer: Timer) -> Timeline | None:
        """Run once and time every draw; None if the renderer's clock was disturbed."""
        return timer.run(self.values, flush_every=self.flush_every)

    def traffic(self) -> list[DrawTraffic]:
        """Count what each draw reads and writes."""
        return draw_traffic(self.session.plan, self.values, self.session.device.limits.max_texture_size)


def run_at(engine: Engine, tokens: int | None = None) -> PlanRun:
    """Make the run of one token at a position, counted from 1; with the reference plan, of the sequence.

    InputError if the position is outside the context.
    """
    config, bound = engine.options.config, engine.bound
    length = DEFAULT_TOKENS if tokens is None else _checked(engine, "tokens", tokens)
    ids = example_ids(config, min(length, config.max_position_embeddings)).tolist()
    if not isinstance(engine, WholeEngine):
        return _made(engine, TOKEN_RUN, len(ids), (bound,), runs(bound.plan, ids)[-1])
    # Without a published plan this binds one for sequences of that length, which the engine keeps.
    (session,) = engine.sessions_for(len(ids))
    (given,) = runs(session.plan, ids)
    return _made(engine, SEQUENCE_RUN, len(ids), tuple(dict.fromkeys((bound, session))), given)


def run_of_prompt(engine: Engine, tokens: int, held: ExitStack) -> PlanRun:
    """Make the first prefill run of a prompt of ``tokens``; with the reference plan, the run of the sequence.

    The end of ``held`` releases its session. InputError if the prompt is longer than the context, PlanError if the plan
    does not fit the renderer.
    """
    tokens = _checked(engine, "prompt_tokens", tokens)
    if not isinstance(engine, FastEngine):
        return run_at(engine, tokens)
    prefill = Prefill(engine.options)
    session = Companions(prefill, engine.bound).chunk(prefill.rows).session
    held.callback(session.release)
    rows = min(tokens, session.plan.max_rows)
    (given,) = runs(session.plan, example_ids(engine.options.config, rows).tolist())
    note = f"a prompt of {tokens} tokens needs several runs; this is the first one, of {rows} tokens"
    return _made(engine, PROMPT_RUN, rows, (engine.bound, session), given, (note,) if rows < tokens else ())


def _made(
    engine: Engine, what: str, tokens: int, sessions: tuple[Session, ...], given: Given, notes: tuple[str, ...] = ()
) -> PlanRun:
    flush_every = 0 if what == SEQUENCE_RUN else engine.options.kernels.flush_every
    tables, values = given
    return PlanRun(what, tokens, sessions, tables, sessions[-1].compiled.plan.values(values), flush_every, notes)


def _checked(engine: Engine, name: str, tokens: int) -> int:
    return check_within(name, tokens, engine.options.config.max_position_embeddings, ", the context of this model")


@dataclass
class Timings:
    """Times of plain and profiled runs; ``walls`` and ``issues`` are milliseconds of plain runs.

    ``disturbed`` counts discarded profiled runs.
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
        return [_ms(line.end - line.start) for line in self.timelines]

    @property
    def middle(self) -> list[Timeline]:
        """Middle third of the profiled runs by duration, fastest first."""
        ordered = sorted(self.timelines, key=lambda line: line.end - line.start)
        rest = len(ordered) // 3
        return ordered[rest : len(ordered) - rest]

    @property
    def draws_ms(self) -> list[float]:
        """Mean time of each draw over the middle runs; means, unlike medians, add up to a typical run."""
        return [_ms(mean(each)) for each in zip(*(line.draws_ns for line in self.middle), strict=True)]

    @property
    def outside_ms(self) -> tuple[float, float]:
        """Mean time before the first draw and after the last one; both clocks agree to microseconds."""
        before = mean(max(0, line.bounds[0] - line.start) for line in self.middle)
        return _ms(before), _ms(mean(max(0, line.end - line.bounds[-1]) for line in self.middle))

    @property
    def issue_ms(self) -> list[float]:
        """Mean time that Python took to issue each draw, over the middle runs."""
        spans = ([end - begin for begin, end in line.issued] for line in self.middle)
        return [_ms(mean(each)) for each in zip(*spans, strict=True)]

    @property
    def usual(self) -> Timeline:
        """Profiled run of median duration."""
        return self.middle[len(self.middle) // 2]


def _ms(nanoseconds: float) -> float:
    return nanoseconds / 1e6


def measure(
    plan_run: PlanRun, timing: str, runs: int | None, on_progress: Progress, seconds: float = _SECONDS
) -> Timings:
    """Time plain and profiled runs alternately, after a warm-up of both; ``runs`` defaults to what ``seconds`` allow.

    ``timing`` is one of :data:`TIMINGS`; ``on_progress`` receives (finished runs, runs). InputError if timestamps are
    unavailable, or the clock was disturbed in all runs.
    """
    for name, array in plan_run.inputs.items():
        plan_run.session.write(name, array)
    for _ in range(2):
        _plain(plan_run)
    timer, notes = _timer(plan_run, timing)
    with timer:
        if runs is None:
            pair = sum(_plain(plan_run)) + milliseconds(lambda: plan_run.timed(timer)) / 1000.0
            runs = max(_MIN_RUNS if pair < _SLOW_SECONDS else _MIN_SLOW_RUNS, min(_MAX_RUNS, int(seconds / pair)))
        found = _alternated(plan_run, timer, runs, on_progress)
    if not found.timelines:
        raise InputError(
            f"the clock of {plan_run.session.device.renderer} was disturbed in all runs; use --timing fence"
        )
    found.notes = notes
    return found


def _alternated(plan_run: PlanRun, timer: Timer, runs: int, on_progress: Progress) -> Timings:
    found = Timings(timer.method)

    def plain() -> None:
        issue, rest = _plain(plan_run)
        found.issues.append(1000.0 * issue)
        found.walls.append(1000.0 * (issue + rest))

    def profiled() -> None:
        for _ in range(_TRIES):
            if (line := plan_run.timed(timer)) is not None:
                found.timelines.append(line)
                return
            found.disturbed += 1

    interleaved((Work(plain), Work(profiled)), runs, warm_ups=0, on_progress=on_progress)
    return found


def _plain(plan_run: PlanRun) -> tuple[float, float]:
    """Return seconds of a plain run: until its draws are issued, and from then until they are done."""
    device = plan_run.session.device
    device.activate()
    device.raw.finish()
    began = time.perf_counter()
    plan_run.session.run(plan_run.values, flush_every=plan_run.flush_every)
    issued = time.perf_counter()
    device.raw.finish()
    return issued - began, time.perf_counter() - issued


def _timer(plan_run: PlanRun, timing: str) -> tuple[Timer, list[str]]:
    """Choose and warm up a timer; returns it with notes on the choice."""
    session, notes = plan_run.session, list[str]()
    device, draws = session.device, session.draws
    if timing != "fence":
        try:
            with ExitStack() as held:
                timer = held.enter_context(TimestampTimer(device, draws))
                plan_run.timed(timer)
                if timing == "gpu" or _credible(timer, plan_run):
                    held.pop_all()
                    return timer, []
            notes.append(f"the timestamps of {device.renderer} do not add up to the elapsed time; timed by fences")
        except InputError as error:
            if timing == "gpu":
                raise
            notes.append(str(error))
    fences = FenceTimer(device, draws)
    plan_run.timed(fences)
    return fences, notes


def _credible(timer: Timer, plan_run: PlanRun) -> bool:
    """Check that a run's timestamps increase, and add up to about the time on the CPU's clock."""
    for _ in range(_TRIES):
        line = plan_run.timed(timer)
        if line is None:
            continue
        total, passed = line.bounds[-1] - line.bounds[0], line.end - line.start
        if sorted(line.bounds) == list(line.bounds) and _CREDIBLE[0] * passed <= total <= _CREDIBLE[1] * passed:
            return True
    return False


def positions(context: int) -> list[int]:
    """List the positions at which growth is measured: 1, 16, 64, 256, … and the last one."""
    return [*(position for position in _POSITIONS if position < context), context]


def measure_growth(engine: Engine, timing: str, on_progress: Progress) -> tuple[list[GrowthPoint], list[str]]:
    """Measure other positions within the time limit; returns them, with a note if some were skipped."""
    wanted = positions(engine.options.config.max_position_embeddings)
    found, started = list[GrowthPoint](), time.perf_counter()
    for done, position in enumerate(wanted):
        on_progress(done, len(wanted))
        # The time of a position grows with the sequence at most in proportion.
        expected = _MIN_POSITION_RUNS * found[-1].wall_ms / 1000.0 * position / found[-1].tokens if found else 0.0
        if found and time.perf_counter() - started + expected > _GROWTH_SECONDS:
            return found, [f"growth is measured up to {found[-1].tokens} tokens; longer sequences would take too long"]
        plan_run, kinds = run_at(engine, position), dict[str, float]()
        measured = measure(plan_run, timing, None, no_progress, _GROWTH_SAMPLE_SECONDS)
        for spec, each in zip(plan_run.session.plan.draws, measured.draws_ms, strict=True):
            kinds[spec.kind] = kinds.get(spec.kind, 0.0) + each
        read = sum(cost.read for cost in plan_run.traffic())
        found.append(GrowthPoint(position, median(measured.walls), read, kinds))
    on_progress(len(wanted), len(wanted))
    return found, []


def measure_fetch_rates(costs: Sequence[DrawTraffic], device: Device, on_progress: Progress) -> list[FetchRate]:
    """Measure fetch rates of the formats of most bytes read, with textures of that total size."""
    sizes: dict[str, int] = {}
    for cost in costs:
        for read in cost.reads:
            sizes[read.format] = sizes.get(read.format, 0) + read.bytes
    total = sum(sizes.values())
    main = [(name, size) for name, size in sizes.items() if size >= _MIN_SHARE * total]
    return fetch_rates(device, main, _CEILING_SAMPLE_SECONDS, on_progress)
