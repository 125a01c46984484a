"""Timing draws: what the times say, that nothing is left behind, and what happens where there are no timestamps."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glinfer.errors import InputError
from glinfer.gl import timers
from glinfer.gl.context import Device, open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, DrawCall, Tape
from glinfer.gl.texture import Texture
from glinfer.gl.timers import DISJOINT_QUERIES, FenceTimer, Timeline, Timer, TimestampQueries, TimestampTimer, fence_ns

pytestmark = pytest.mark.gl

EDGE, LIGHT, HEAVY = 256, 1, 60  # of more than one of llvmpipe's tiles; rounds of multiply-adds
TIMERS = (TimestampTimer, FenceTimer)


class Work:
    """Draws that take as long as one likes, into as many targets as one likes."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.owned = ExitStack()
        self.programs: dict[int, Program] = {}

    def target(self) -> Texture:
        made = Texture(self.device, Layout.of((EDGE, EDGE), "rgba32f", 1 << 14), "target")
        self.owned.callback(made.release)
        return made

    def draw(self, target: Texture, rounds: int) -> Draw:
        if rounds not in self.programs:
            self.programs[rounds] = Program(self.device, "ceiling_alu", {"ROUNDS": rounds}, [])
            self.owned.callback(self.programs[rounds].release)
        return Draw(
            name=f"{rounds} rounds",
            program=self.programs[rounds],
            framebuffer=target.framebuffer,
            call=DrawCall((("factor", 0.999), ("addend", 0.5)), rows=EDGE),
        )


@pytest.fixture
def work(device: Device) -> Iterator[Work]:
    made = Work(device)
    with made.owned:
        yield made


class Clock:
    """A renderer's clock that moves by what is drawn alone: 1 µs for each round, 1 ns for each look at it.

    The draws are really made. As tilers do it, those of one target are done together, when the next target comes or
    when they are flushed, and a timestamp between them is that of the last.
    """

    def __init__(self, device: Device, patch: pytest.MonkeyPatch) -> None:
        self.now, self.target = 0, None
        self.batch: list[int | Callable[[int], None]] = []
        self.stamps: dict[int, int] = {}
        finish, flush, stamp = device.raw.finish, device.raw.flush, TimestampQueries.stamp
        clock = self

        class NotedTape(Tape):
            def __init__(self, device: Device, draws: Sequence[Draw], *, after: Callable[[int], None]) -> None:
                self.draws, self.after = tuple(draws), after

            def run(self, values: Any, watched: int | None = None) -> int:
                for place, draw in enumerate(self.draws):
                    Tape(device, [draw]).run(values)
                    if draw.framebuffer is not clock.target:
                        clock.do()
                    clock.target = draw.framebuffer
                    clock.batch.append(1000 * int(draw.name.split()[0]))
                    self.after(place)
                return len(self.draws)

        def stamped(queries: TimestampQueries, place: int) -> None:
            stamp(queries, place)
            self.batch.append(lambda now: self.stamps.update({place: now}))

        def done(wait: Callable[[], None]) -> Callable[[], None]:
            return lambda: (wait(), self.do())[1]

        patch.setattr(timers, "time", SimpleNamespace(perf_counter_ns=self.look))
        patch.setattr(timers, "Tape", NotedTape)
        patch.setattr(device.raw, "finish", done(finish))
        patch.setattr(device.raw, "flush", done(flush))
        patch.setattr(TimestampQueries, "stamp", stamped)
        patch.setattr(TimestampQueries, "now", lambda queries: self.now)
        patch.setattr(TimestampQueries, "first", lambda queries: self.stamps[0])
        patch.setattr(TimestampQueries, "read", lambda queries: [at - self.stamps[0] for at in self.stamps.values()])

    def look(self) -> int:
        self.now += 1
        return self.now

    def do(self) -> None:
        self.now += sum(each for each in self.batch if isinstance(each, int))
        for each in self.batch:
            if not isinstance(each, int):
                each(self.now)
        self.batch.clear()


@pytest.fixture
def clock(device: Device, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(device, monkeypatch)


def in_rounds(line: Timeline | None) -> list[int]:
    """How many rounds each draw was by its time; looks at the clock are far less than one."""
    assert line is not None
    return [round(nanoseconds / 1000) for nanoseconds in line.draws_ns]


@pytest.mark.parametrize("timer", TIMERS)
class TestBothMethods:
    def test_they_see_which_draw_takes_long(self, work: Work, clock: Clock, timer: type[Timer]) -> None:
        """Draws of one target, too: drawn together tile by tile, they would only be told the times of the last tile."""
        rounds, one = [LIGHT, HEAVY, LIGHT, HEAVY // 2, LIGHT], work.target()
        for targets in ([work.target() for _ in rounds], [one] * len(rounds)):
            draws = [work.draw(target, each) for target, each in zip(targets, rounds, strict=True)]
            with timer(work.device, draws) as made:
                assert in_rounds(made.run({})) == in_rounds(made.run({})) == rounds

    def test_a_timed_run_draws_what_any_run_draws(self, work: Work, timer: type[Timer]) -> None:
        target = work.target()
        draw = work.draw(target, 3)
        plain = work.target()
        before = work.device.draws_issued
        with timer(work.device, [draw]) as made:
            line = made.run({})
        assert isinstance(line, Timeline)
        assert work.device.draws_issued == before + 1
        with timer(work.device, [work.draw(plain, 3)]) as made:
            made.run({}, flush_every=1)
        np.testing.assert_array_equal(target.framebuffer.read(0, EDGE, EDGE), plain.framebuffer.read(0, EDGE, EDGE))
        assert np.abs(target.framebuffer.read(0, EDGE, EDGE)).max() > 0

    def test_nothing_is_made_by_a_run_and_nothing_is_left(self, work: Work, timer: type[Timer]) -> None:
        draws = [work.draw(work.target(), LIGHT) for _ in range(3)]
        before = work.device.live_objects()
        made = timer(work.device, draws)
        held = work.device.live_objects()
        for _ in range(3):
            made.run({})
        assert work.device.live_objects() == held
        made.release()
        made.release()
        assert work.device.live_objects() == before


def test_the_driver_forgets_released_queries(work: Work) -> None:
    made, left = TimestampQueries(work.device, 2), TimestampQueries(work.device, 3)
    made.stamp(0)
    made.stamp(1)
    names = list(made.gl)
    is_query = work.device.raw.function("glIsQueryEXT", ctypes.c_ubyte, ctypes.c_uint32)
    assert [is_query(name) for name in names] == [1, 1]
    assert work.device.live_objects()["timestamp query"] == 2
    made.release()
    assert [is_query(name) for name in names] == [0, 0]
    work.owned.close()
    work.device.close()
    assert left.gl is None, "closing the device releases queries"


def test_renderers_without_timestamps_are_refused(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    real = work.device.raw.function

    def function(name: str, *types: Any) -> Any:
        if name == "glQueryCounterEXT" and "glQueryCounterEXT" in missing:
            raise timers.ContextError(f"the OpenGL driver has no {name}")
        return (lambda *_: None) if name == "glGetQueryivEXT" else real(name, *types)

    missing: set[str] = set()
    monkeypatch.setattr(work.device.raw, "function", function)
    with pytest.raises(InputError, match="its counters have 0 bits"):
        TimestampQueries(work.device, 1)
    missing.add("glQueryCounterEXT")
    with pytest.raises(InputError, match=r"does not support timestamps \(the OpenGL driver has no glQueryCounterEXT\)"):
        TimestampQueries(work.device, 1)
    assert work.device.live_objects()["timestamp query"] == 0
    monkeypatch.setattr(work.device, "extensions", work.device.extensions - {DISJOINT_QUERIES})
    with pytest.raises(InputError, match=r"does not support timestamps \(it lacks GL_EXT_disjoint_timer_query\)"):
        TimestampTimer(work.device, [work.draw(work.target(), LIGHT)])


def test_a_disturbed_run_is_none_and_a_clock_that_says_nothing_is_done_without(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TimestampTimer(work.device, [work.draw(work.target(), LIGHT)]) as made:
        answers = iter([True, True, True, False, True, False])  # before and after each of three runs
        monkeypatch.setattr(made.queries, "disjoint", lambda: next(answers))
        assert made.run({}) is None
        assert made.run({}) is not None
        monkeypatch.setattr(made.queries, "now", lambda: 0)
        line = made.run({})
    assert line is not None
    assert line.bounds[0] == line.issued[0][0]


def test_counters_may_wrap_around(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TimestampQueries(work.device, 2)
    made._mask = (1 << 36) - 1
    values = iter([(1 << 36) - 5, 7])

    def result(name: int, what: int, place: Any) -> None:
        place._obj.value = next(values)

    monkeypatch.setattr(made, "_result", result)
    assert made.read() == [0, 12]
    made.release()


def test_only_draws_of_one_target_are_flushed(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, third = work.target(), work.target(), work.target()
    flushes: list[int] = []
    monkeypatch.setattr(work.device.raw, "flush", lambda: flushes.append(len(made._issued)))
    with TimestampTimer(work.device, [work.draw(target, LIGHT) for target in (one, one, other, third)]) as made:
        made.run({})
        assert flushes == [1]
        flushes.clear()
        made.run({}, flush_every=3)
        assert flushes == [1, 3]
    flushes.clear()
    with TimestampTimer(work.device, [work.draw(target, LIGHT) for target in (one, other, one)]) as made:
        made.run({})
        made.run({})  # whose first draw follows the last one of the run before
        assert flushes == [0, 3, 0, 3]


def test_what_a_fence_costs_is_a_median(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fence_ns(device) >= 0
    moments = itertools.accumulate(itertools.chain([0] * 12, itertools.repeat(7)))
    monkeypatch.setattr(timers, "time", SimpleNamespace(perf_counter_ns=lambda: next(moments)))
    assert fence_ns(device) == 7


@pytest.mark.desktop
def test_desktop_opengl_has_timestamps() -> None:
    with open_device(api="desktop") as device:
        made = Work(device)
        with made.owned, TimestampTimer(device, [made.draw(made.target(), each) for each in (LIGHT, HEAVY)]) as timer:
            line = timer.run({})
        assert line is not None
        assert line.bounds == tuple(sorted(line.bounds))
        assert line.bounds[-1] > line.bounds[0]
