"""A bound draw, and what issues draws and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import moderngl

from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import Extent
from glinfer.gl.program import Program
from glinfer.gl.raw import GL_BLEND, GL_FRAMEBUFFER, GL_SCISSOR_TEST, Rectangle
from glinfer.gl.sentinel import EDGE, Sentinel
from glinfer.gl.texture import Framebuffer, Texture
from glinfer.gl.values import Value, compiled

Render = Callable[[int, int, int, int], None]
"""Draws, given the primitive mode, vertex count, first vertex and instance count."""
RunValues = Mapping[str, int | float]
Call = tuple[Callable[..., object], tuple[Any, ...] | None]
"""A function to call, and its arguments; None for the run values."""
Watched = Mapping[int, bool]
"""Indices of draws that a :class:`glinfer.gl.sentinel.Sentinel` watches, each with whether for the first time."""
_NONE: Watched = {}
_MANY_ROWS = 64  # a draw of this many rows may keep other threads waiting too long


def in_parts(render: Render, most: int | None) -> Render:
    """``render``, with calls of more than ``most`` vertices split; None for no limit."""
    if most is None:
        return render

    def parts(mode: int, vertices: int, first: int, instances: int) -> None:
        for start in range(first, first + vertices, most):
            render(mode, min(most, first + vertices - start), start, instances)

    return parts


@dataclass(frozen=True)
class DrawCall:
    """What a draw sets and issues, without objects; what changes from run to run is an expression of run values.

    Attributes:
        constants: (uniform, number) pairs.
        per_run: (uniform, run value) pairs.
        viewport: (x, y, width, height) of the texels that it may write; empty for its whole target.
        vertices: their number.
        points: whether each vertex is a point, instead of the corner of a triangle.
        rows: rows of the matrix that it writes.
        instances: instances of the shape.
        adds: whether blending adds to the target.
        clears: rectangles of texels to clear first.
    """

    constants: tuple[tuple[str, int | float], ...] = ()
    per_run: tuple[tuple[str, str], ...] = ()
    viewport: tuple[Value, ...] = ()
    vertices: Value = 3
    points: bool = False
    rows: Extent = 1
    instances: Extent = 1
    adds: bool = False
    clears: tuple[tuple[Value, ...], ...] = ()


@dataclass(frozen=True)
class Draw:
    """One draw with its full state.

    ``barrier`` means that it needs a texture barrier before it, see :class:`glinfer.gl.region.Barriers`.
    """

    name: str
    program: Program
    framebuffer: Framebuffer
    textures: tuple[Texture, ...] = ()
    call: DrawCall = DrawCall()
    barrier: bool = False

    def rectangle(self, values: Mapping[str, int | float]) -> Rectangle:
        """The texels that the draw may write with these run values."""
        viewport = self.call.viewport
        return _rectangle_of(viewport)(values) if viewport else self.framebuffer.textures[0].rectangle

    def watch(self, values: RunValues, render: Callable[[], None], *, first_time: bool) -> None:
        """Render with a sentinel in the first texels of the draw, which are also drawn alone the first time."""
        device, (x, y, width, height) = self.framebuffer.device, self.rectangle(values)
        kind, within = self.framebuffer.textures[0].form.kind, (x, y, min(EDGE, width), min(EDGE, height))
        again = partial(replay, device, [self], values, watched={0: True})
        sentinel = Sentinel(self.name, self.framebuffer.gl.glo, kind, within, again)
        if first_time:
            sentinel.compare(device.raw, render, device.renderer)
        else:
            device.sentinels[sentinel.framebuffer, self.name] = sentinel
            sentinel.plant(device.raw)
            render()


def _rectangle_of(numbers: Iterable[Value]) -> Callable[[RunValues], Rectangle]:
    """A function that gives a rectangle from the run values."""
    x, y, width, height = map(compiled, numbers)
    return lambda values: (x(values), y(values), width(values), height(values))


class _State:
    """What the earlier draws of a run have set."""

    def __init__(self) -> None:
        self._known: dict[object, object] = {"blending": False}

    def _changes(self, what: object, value: object) -> bool:
        """Note that a draw sets ``what`` to ``value``; whether that changes it."""
        changed = what not in self._known or self._known[what] != value
        self._known[what] = value
        return changed

    def calls(self, draw: Draw) -> Iterator[Call]:
        """The calls that issue a draw, without those that would set what is set already; the last one renders."""
        call, program, device = draw.call, draw.program, draw.framebuffer.device
        yield from self._target(draw)
        # Regions may sample texels that were written before this run.
        if draw.framebuffer.part is not None and (self._changes("settled", value=True) or draw.barrier):
            assert device.texture_barrier is not None  # or the session has no regions
            yield device.texture_barrier, ()
        for unit, texture in enumerate(draw.textures):
            if self._changes(unit, texture.gl):
                yield texture.gl.use, (unit,)
        for name, constant in call.constants:
            if self._changes((program, name), constant):
                yield program.set, (name, constant)
        for name, key in call.per_run:
            if self._changes((program, name), key):
                yield partial(_set, program, name, key), None
        if call.adds and self._changes("blend function", value=True):
            yield setattr, (device.gl, "blend_func", (moderngl.ONE, moderngl.ONE))
        if self._changes("blending", call.adds):
            yield device.raw.enable if call.adds else device.raw.disable, (GL_BLEND,)
        yield from _clear(draw)
        mode = moderngl.POINTS if call.points else moderngl.TRIANGLES
        render = in_parts(program.vertex_array.render, device.most_vertices)
        if _fixed((call.vertices, call.instances)):
            yield render, (mode, call.vertices, 0, call.instances)
        else:
            vertices, instances = compiled(call.vertices), compiled(call.instances)
            yield lambda values: render(mode, vertices(values), 0, instances(values)), None

    def _target(self, draw: Draw) -> Iterator[Call]:
        """Bind a draw's framebuffer and set its viewport."""
        raw, target, first = draw.framebuffer.device.raw, draw.framebuffer.gl, "target" not in self._known
        if self._changes("target", target):
            # ``use`` also resets masks and the scissor test; raw calls take a tenth of the time.
            yield (target.use, ()) if first else (raw.bind_framebuffer, (GL_FRAMEBUFFER, target.glo))
        viewport = draw.call.viewport or draw.framebuffer.textures[0].rectangle
        if self._changes("viewport", viewport) or not _fixed(viewport):
            yield _rectangle_call(raw.viewport, viewport)


def _clear(draw: Draw) -> Iterator[Call]:
    """The calls that clear rectangles before a draw."""
    raw = draw.framebuffer.device.raw
    if draw.call.clears:
        yield raw.enable, (GL_SCISSOR_TEST,)
        for rectangle in draw.call.clears:
            yield _rectangle_call(raw.scissor, rectangle)
            for attachment, texture in enumerate(draw.framebuffer.textures):
                yield raw.zeroing(attachment, texture.form.kind)
        yield raw.disable, (GL_SCISSOR_TEST,)


def _rectangle_call(function: Callable[..., None], numbers: tuple[Value, ...]) -> Call:
    """A call with a rectangle, which may depend on the run."""
    if _fixed(numbers):
        return function, numbers
    rectangle = _rectangle_of(numbers)
    return lambda values: function(*rectangle(values)), None


def _fixed(numbers: Iterable[Value]) -> bool:
    """Whether no number depends on the run."""
    return all(isinstance(each, int) for each in numbers)


def _set(program: Program, name: str, key: str, values: RunValues) -> None:
    program.set(name, values[key])


def _make(calls: Iterable[Call], values: RunValues) -> None:
    for function, arguments in calls:
        function(values) if arguments is None else function(*arguments)


def _waits(draw: Draw) -> bool:
    """Whether to wait for a draw in software: moderngl's next call would wait for it while it holds the GIL."""
    rows = draw.call.rows
    return draw.framebuffer.device.in_main_memory and (not isinstance(rows, int) or rows >= _MANY_ROWS)


class Tape:
    """The calls that issue some draws in order, worked out once: on a GPU, this work took as long as the draws.

    Attributes:
        draws: the draws.
    """

    def __init__(
        self,
        device: Device,
        draws: Sequence[Draw],
        flush_every: int = 0,
        after: Callable[[int], None] | None = None,
    ) -> None:
        """Work out the calls.

        Args:
            device: of the draws.
            draws: in order.
            flush_every: the driver starts work after this number of draws; with 0 it may wait for the readback.
            after: called after each draw with its index; it must change no binding.
        """
        self.draws, self._device, state = tuple(draws), device, _State()
        self._renders: list[int] = []  # the index of each draw's last call
        calls: list[Call] = []
        for index, draw in enumerate(self.draws):
            calls += state.calls(draw)
            self._renders.append(len(calls) - 1)
            if _waits(draw):
                calls.append((device.raw.finish, ()))
            elif flush_every and (index + 1) % flush_every == 0:
                calls.append((device.raw.flush, ()))
            if after is not None:
                calls.append((after, (index,)))
        self._calls = tuple(calls)

    def run(self, values: RunValues, watched: Watched = _NONE, within: Rectangle | None = None) -> int:
        """Issue the draws with these run values and return their number; a sentinel watches some of them.

        A tape of one draw fills only the texels ``within``, if that is given, and waits for them.
        """
        device = self._device
        try:
            if within is None:
                self.issue(values, watched)
            else:
                self._fill(values, within)
        finally:
            device.raw.disable(GL_BLEND)
        device.check("replaying the plan")
        return len(self.draws)

    def _fill(self, values: RunValues, within: Rectangle) -> None:
        """Issue the only draw within a rectangle, and wait for it."""
        device, (render,) = self._device, self._renders
        device.activate()
        _make(self._calls[:render], values)
        with device.raw.scissored(within):
            _make(self._calls[render : render + 1], values)
            device.raw.finish()
        device.draws_issued += 1

    def issue(self, values: RunValues, watched: Watched = _NONE) -> None:
        """Issue the draws as :meth:`run` does, but leave the last one's state and errors for the caller to see."""
        device, calls, done = self._device, self._calls, 0
        device.activate()
        for index, first_time in sorted(watched.items()):
            render = self._renders[index]
            _make(calls[done:render], values)
            done = render + 1
            self.draws[index].watch(values, partial(_make, calls[render:done], values), first_time=first_time)
        _make(calls[done:], values)
        device.draws_issued += len(self.draws)


def replay(
    device: Device,
    draws: Iterable[Draw],
    values: RunValues,
    before: Callable[[Draw], None] | None = None,
    after: Callable[[Draw], None] | None = None,
    *,
    watched: Watched = _NONE,
) -> int:
    """Issue ``draws`` in order, and return the number of draw calls.

    ``before`` and ``after`` are called around each draw and may change any binding; ``watched`` as in :meth:`Tape.run`.
    """
    if before is None and after is None:
        return Tape(device, tuple(draws)).run(values, watched)
    issued = 0
    for draw in draws:
        if before is not None:
            before(draw)
        try:
            Tape(device, [draw]).issue(values, {0: watched[issued]} if issued in watched else _NONE)
            issued += 1
            if after is not None:
                after(draw)
        finally:
            device.raw.disable(GL_BLEND)
    device.check("replaying the plan")
    return issued
