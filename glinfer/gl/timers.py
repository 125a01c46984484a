"""Times each draw of a run, by the renderer's timestamps between draws, or by fences if it has none.

A **timestamp** is a query among the commands: the renderer notes its clock when everything before it is done, and
nothing waits for it (core in desktop OpenGL 3.3; GL_EXT_disjoint_timer_query in OpenGL ES). A **fence** is glFinish
after each draw: it reads the CPU's clock, and draws no longer overlap with Python's work.

Either way the time of a draw runs from the end of the previous draw to its own end. It includes the renderer's wait for
Python to issue the draw. So the times of all draws add up to the whole run.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glinfer.errors import ContextError, InputError
from glinfer.gl.context import Device, GLObject
from glinfer.gl.replay import Draw, Tape

GL_QUERY_COUNTER_BITS = 0x8864
GL_QUERY_RESULT = 0x8866
GL_TIMESTAMP = 0x8E28
GL_GPU_DISJOINT = 0x8FBB

DISJOINT_QUERIES = "GL_EXT_disjoint_timer_query"
TIMESTAMPS, FENCES = "GPU timestamps", "CPU fences"
"""The two methods, as reports call them."""
_FENCES_TRIED = 200


@dataclass(frozen=True)
class Timeline:
    """One timed run of n draws; nanoseconds on the clock of ``time.perf_counter_ns``.

    Attributes:
        start: when the run began.
        end: when everything was done.
        issued: for each draw, when Python began to issue it, and when it had.
        bounds: n + 1 moments: when the first draw could begin, then when each was done.
        fence_ns: cost of a fence, subtracted from each draw; 0 for timestamps.
    """

    start: int
    end: int
    issued: tuple[tuple[int, int], ...]
    bounds: tuple[int, ...]
    fence_ns: int = 0

    @property
    def draws_ns(self) -> tuple[int, ...]:
        """The time of each draw, at least 0."""
        return tuple(max(0, done - before - self.fence_ns) for before, done in pairwise(self.bounds))


class TimestampQueries(GLObject):
    """Query objects for the timestamps of a run, made once; the device owns them until they are released."""

    kind = "timestamp query"

    def __init__(self, device: Device, count: int) -> None:
        """Make ``count`` query objects.

        Raises:
            InputError: this renderer has no timestamps; the message has the reason.
            GLError: the driver refused.
        """
        self.device, self.count = device, count
        suffix = _suffix(device)
        function = device.raw.function
        try:
            generate = function(f"glGenQueries{suffix}", None, c_int32, c_void_p)
            self._delete_queries = function(f"glDeleteQueries{suffix}", None, c_int32, c_void_p)
            self._counter = function(f"glQueryCounter{suffix}", None, c_uint32, c_uint32)
            self._result = function(f"glGetQueryObjectui64v{suffix}", None, c_uint32, c_uint32, c_void_p)
            about = function(f"glGetQueryiv{suffix}", None, c_uint32, c_uint32, c_void_p)
            self._clock = function("glGetInteger64v", None, c_uint32, c_void_p)
        except ContextError as error:
            raise InputError(f"{device.renderer} does not support timestamps ({error}); time by fences") from None
        device.activate()
        bits = c_int32()
        about(GL_TIMESTAMP, GL_QUERY_COUNTER_BITS, byref(bits))
        device.check("asking for the bits of a timestamp")
        if bits.value < 1:
            raise InputError(
                f"{device.renderer} does not support timestamps (its counters have 0 bits); time by fences"
            )
        self._mask = (1 << bits.value) - 1
        with self._making():
            self.gl = (c_uint32 * count)()
            generate(count, self.gl)
            device.check(f"making {count} queries")

    def stamp(self, index: int) -> None:
        """Record the renderer's clock as timestamp ``index`` when all commands so far are done."""
        self._counter(self.gl[index], GL_TIMESTAMP)

    def now(self) -> int:
        """The renderer's clock in nanoseconds, now; 0 if it cannot be read."""
        value = (c_int64 * 2)()
        self._clock(GL_TIMESTAMP, value)
        return 0 if self.device.raw.pending_errors() else int(value[0]) & self._mask

    def read(self) -> list[int]:
        """All timestamps in nanoseconds, counted from the first; waits for the last one."""
        found = [self._one(name) for name in self.gl]
        return [(each - found[0]) & self._mask for each in found]

    def first(self) -> int:
        """The first timestamp on the renderer's clock, in nanoseconds."""
        return self._one(self.gl[0])

    def _one(self, name: int) -> int:
        value = c_uint64()
        self._result(name, GL_QUERY_RESULT, byref(value))
        return value.value

    def disjoint(self) -> bool:
        """Whether the clock was disturbed since the last call, by a change of frequency for example."""
        return self.device.api == "es" and bool(self.device.raw.integer(GL_GPU_DISJOINT))

    def _delete(self) -> None:
        self._delete_queries(self.count, self.gl)


def _suffix(device: Device) -> str:
    """The suffix of the functions' names."""
    if device.api == "desktop":
        return ""  # core in 3.3
    if DISJOINT_QUERIES not in device.extensions:
        raise InputError(f"{device.renderer} does not support timestamps (it lacks {DISJOINT_QUERIES}); time by fences")
    return "EXT"


class Timer(ABC):
    """Runs the same draws repeatedly and times each of them; its user releases it.

    Attributes:
        method: :data:`TIMESTAMPS` or :data:`FENCES`.
    """

    method: str

    def __init__(self, device: Device, draws: Sequence[Draw]) -> None:
        """Time these draws, in this order."""
        self.device, self.draws = device, tuple(draws)
        self._issued: list[tuple[int, int]] = []

    @abstractmethod
    def run(self, values: Mapping[str, int | float], *, flush_every: int = 0) -> Timeline | None:
        """Issue all draws with these run values, and wait for them; None if the clock was disturbed.

        ``flush_every`` as in :class:`glinfer.gl.replay.Tape`.
        """

    def release(self) -> None:  # noqa: B027
        """Release the timer's own objects, if it has any; harmless when repeated."""

    def __enter__(self) -> Timer:
        """Enter the context manager, which releases the timer at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release."""
        self.release()


class TimestampTimer(Timer):
    """Times draws by timestamps, see :class:`TimestampQueries`.

    Software renderers and tilers run all draws to one target together, tile by tile, and record the timestamps in the
    last tile. So a flush follows each draw whose successor has the same target; at a new target they begin anyway.
    """

    method = TIMESTAMPS

    def __init__(self, device: Device, draws: Sequence[Draw]) -> None:
        """Time these draws, in this order; InputError without timestamps."""
        super().__init__(device, draws)
        targets = [draw.framebuffer.gl for draw in self.draws]
        # Whether the next draw has the same target; the last draw is followed by the next run's first.
        self._again = [one is other for one, other in pairwise([*targets, *targets[:1]])]
        self.queries = TimestampQueries(device, len(self.draws) + 1)
        self._tape = Tape(device, self.draws, after=self._stamp)
        self._flush_every = self._began = 0

    def run(self, values: Mapping[str, int | float], *, flush_every: int = 0) -> Timeline | None:
        """See :class:`Timer`."""
        device, queries, finish = self.device, self.queries, self.device.raw.finish
        device.activate()
        finish()
        queries.disjoint()  # forget earlier disturbances
        offset = self._offset()
        start = time.perf_counter_ns()
        self._flush_every, self._issued, self._began = flush_every, [], time.perf_counter_ns()
        queries.stamp(0)
        if self._again[-1]:
            device.raw.flush()
        self._tape.run(values)
        finish()
        end = time.perf_counter_ns()
        stamps, first = queries.read(), queries.first()
        device.check("reading timestamps")
        if queries.disjoint():
            return None
        began = first + offset if offset else self._issued[0][0]
        return Timeline(start, end, tuple(self._issued), tuple(began + stamp for stamp in stamps))

    def _offset(self) -> int:
        """Offset of the CPU's clock to the idle renderer's clock; 0 if the renderer's clock cannot be read."""
        before, clock, after = time.perf_counter_ns(), self.queries.now(), time.perf_counter_ns()
        return (before + after) // 2 - clock if clock else 0

    def _stamp(self, index: int) -> None:
        """Stamp after the draw with this index."""
        self._issued.append((self._began, time.perf_counter_ns()))
        self.queries.stamp(index + 1)
        if self._again[index] or (self._flush_every and (index + 1) % self._flush_every == 0):
            self.device.raw.flush()
        self._began = time.perf_counter_ns()

    def release(self) -> None:
        """Release the queries."""
        self.queries.release()


class FenceTimer(Timer):
    """Times draws by fences: waits for each draw before it issues the next."""

    method = FENCES

    def __init__(self, device: Device, draws: Sequence[Draw]) -> None:
        """Time these draws, in this order."""
        super().__init__(device, draws)
        self.fence_ns = fence_ns(device)
        self._bounds: list[int] = []
        self._tape = Tape(device, self.draws, after=self._fence)

    def run(self, values: Mapping[str, int | float], *, flush_every: int = 0) -> Timeline | None:
        """See :class:`Timer`; a fence flushes, so ``flush_every`` changes nothing."""
        self.device.activate()
        self.device.raw.finish()
        start = time.perf_counter_ns()
        self._issued, self._bounds = [], [start]
        self._tape.run(values)
        end = time.perf_counter_ns()
        return Timeline(start, end, tuple(self._issued), tuple(self._bounds), self.fence_ns)

    def _fence(self, index: int) -> None:
        """Wait for the draw with this index."""
        issued = time.perf_counter_ns()
        self._issued.append((self._bounds[-1], issued))
        self.device.raw.finish()
        self._bounds.append(time.perf_counter_ns())


def timer_for(device: Device, draws: Sequence[Draw]) -> Timer:
    """A timer by timestamps if a GPU has them, else by fences."""
    if not device.in_main_memory:
        with contextlib.suppress(InputError):
            return TimestampTimer(device, draws)
    return FenceTimer(device, draws)


def fence_ns(device: Device) -> int:
    """The cost of glFinish on an idle renderer: the median of many calls, in nanoseconds."""
    device.activate()
    finish, clock = device.raw.finish, time.perf_counter_ns
    finish()
    moments = [clock()]
    for _ in range(_FENCES_TRIED):
        finish()
        moments.append(clock())
    return int(np.median(np.diff(moments)))
