"""Where the time of a token goes: each draw timed, with what it reads and writes, and what textures take.

Runs in which every draw is timed (:mod:`glinfer.gl.timers`) take turns with plain runs of the same token, so that the
times of draws can be held against the time that the token really takes. Of runs the median counts, of a draw the mean
over the middle third of its runs. Neither kind of run uploads the token or reads anything back; both end when all is
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glinfer.engine.engine import Engine
from glinfer.engine.model import Model
from glinfer.errors import InputError
from glinfer.gl.timers import TIMESTAMPS, fence_ns
from glinfer.inspect.bench.turns import Spread
from glinfer.inspect.profile.bytes import Traffic, textures_of
from glinfer.inspect.profile.measure import (
    TIMINGS,
    Measured,
    measure,
    measure_ceilings_of,
    measure_growth,
    traffic_of,
)
from glinfer.inspect.profile.report import DrawProfile, GrowthPoint, ProfileReport
from glinfer.inspect.profile.subject import Subject, Subjects

MOST_RUNS = 10_000
Progress = Callable[[str, int, int], None]


def profile(
    model: Model | Engine,
    *,
    tokens: int | None = None,
    prompt_tokens: int | None = None,
    runs: int | None = None,
    timing: str = "auto",
    ceiling: bool = False,
    growth: bool = False,
    label: str = "",
    on_step: Progress = lambda what, done, total: None,
) -> ProfileReport:
    """Profile one token of a model, or what takes in a prompt.

    Args:
        model: a model, whose own sequence stays as it is, or an engine, whose caches are overwritten.
        tokens: the place of the token in the sequence, counted from 1; of the reference plan the sequence's length.
            Left out, 128, or the context where that is less.
        prompt_tokens: profile the plan that takes in prompts instead, with one of so many tokens.
        runs: how many plain runs, and as many profiled ones; left out, what about two seconds have room for.
        timing: one of :data:`TIMINGS`.
        ceiling: measure how fast texels can be fetched at most, too.
        growth: measure other places of the sequence, too, as far as the time for it goes.
        label: what the report calls the model.
        on_step: told what is being done, and (steps done, steps in all) of it.

    Raises:
        InputError: an option that cannot be, or timestamps were asked for and there are none.
    """
    if timing not in TIMINGS:
        raise InputError(f"timing is {timing!r}; expected one of {', '.join(TIMINGS)}")
    if runs is not None and (isinstance(runs, bool) or not isinstance(runs, int) or not 1 <= runs <= MOST_RUNS):
        raise InputError(f"runs is {runs!r}; expected 1 to {MOST_RUNS}")
    if prompt_tokens is not None and (tokens is not None or growth):
        other = "growth" if growth else "tokens"
        raise InputError(f"prompt_tokens and {other} do not go together: {other} is about single tokens; leave one out")
    engine = model.engine if isinstance(model, Model) else model
    device = engine.bound.device
    with Subjects(engine, apart=isinstance(model, Model)) as subjects:
        subject = subjects.at(tokens) if prompt_tokens is None else subjects.prompt(prompt_tokens)
        measured = measure(subject, device, timing, runs, lambda *steps: on_step("timing draws", *steps))
        costs = traffic_of(subject, device)
        points, left_out = list[GrowthPoint](), list[str]()
        if growth:
            method = "auto" if measured.method == TIMESTAMPS else "fence"
            points, left_out = measure_growth(subjects, device, method, lambda *steps: on_step("growth", *steps))
        ceilings = measure_ceilings_of(costs, device, lambda *steps: on_step("ceilings", *steps)) if ceiling else []
        return ProfileReport(
            model=label,
            config=engine.options.config.to_dict(),
            renderer=device.description,
            plan=subject.session.plan.name,
            weights=engine.options.weights,
            what=subject.what,
            tokens=subject.tokens,
            timing=measured.method,
            fence_us=fence_ns(device) / 1000.0,
            runs=len(measured.walls),
            disturbed=measured.disturbed,
            wall=Spread.of(measured.walls),
            issue=Spread.of(measured.issues),
            profiled=Spread.of(measured.profiled),
            before_ms=measured.outside_ms[0],
            after_ms=measured.outside_ms[1],
            draws=tuple(_draws(subject, measured, costs)),
            textures=tuple(textures_of(*subject.sessions)),
            ceilings=tuple(ceilings),
            growth=tuple(points),
            notes=(*subject.notes, *measured.notes, *left_out),
            timeline=measured.usual,
        )


def _draws(subject: Subject, measured: Measured, costs: Sequence[Traffic]) -> list[DrawProfile]:
    found = []
    times = zip(subject.specs, measured.draws_ms, measured.issue_ms, costs, strict=True)
    for index, (spec, ms, issue_ms, cost) in enumerate(times):
        rows, cols = spec.extent(subject.values)
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
