"""A bound draw, and the one loop that issues draws and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import moderngl

from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import Extent
from glinfer.gl.program import Program
from glinfer.gl.raw import Rectangle
from glinfer.gl.sentinel import EDGE, Sentinel
from glinfer.gl.texture import Framebuffer, Texture
from glinfer.gl.values import Value, evaluate

Render = Callable[[int, int, int, int], None]
"""Draws, given the primitive mode, vertex count, first vertex and instance count."""
_NONE: Mapping[str, bool] = {}
_MANY_ROWS = 64  # a draw of this many rows may keep other threads waiting too long


class Frozen(NamedTuple):
    """The functions and arguments of a draw, looked up once before the loop over draws.

    Attributes:
        target: moderngl's framebuffer, which regions of one texture share.
        use, render: functions of its framebuffer and of its program.
        barrier: the texture barrier, if the target is a region.
        viewport: None if it depends on the run.
        textures: (unit, OpenGL's texture, function that binds it).
        held: current values of its program's uniforms, by name.
        mode: primitive mode.
        vertices: their number, 0 if it depends on the run.
        finish: glFinish after software draws of many rows: moderngl's next call would wait while holding the GIL.
    """

    target: Any
    use: Callable[[], None]
    barrier: Callable[[], None] | None
    viewport: Rectangle | None
    textures: tuple[tuple[int, object, Callable[[int], None]], ...]
    held: Mapping[str, int | float]
    mode: int
    vertices: int
    finish: Callable[[], None] | None
    render: Render


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
    """One draw with its full state frozen.

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
        return numbers_of(viewport, values) if viewport else self.framebuffer.textures[0].rectangle

    @cached_property
    def frozen(self) -> Frozen:
        """The fixed state, looked up once."""
        device, call = self.framebuffer.device, self.call
        many = not isinstance(call.rows, int) or call.rows >= _MANY_ROWS
        return Frozen(
            target=self.framebuffer.gl,
            use=self.framebuffer.gl.use,
            barrier=None if self.framebuffer.part is None else device.texture_barrier,
            viewport=self.rectangle({}) if all(isinstance(each, int) for each in call.viewport) else None,
            textures=tuple((unit, texture.gl, texture.gl.use) for unit, texture in enumerate(self.textures)),
            held=self.program.values,
            mode=moderngl.POINTS if call.points else moderngl.TRIANGLES,
            vertices=call.vertices if isinstance(call.vertices, int) else 0,
            finish=device.raw.finish if many and device.in_main_memory else None,
            render=in_parts(self.program.vertex_array.render, device.most_vertices),
        )


def numbers_of(rectangle: Iterable[Value], values: Mapping[str, int | float]) -> Rectangle:
    """(x, y, width, height) of a rectangle with these run values."""
    x, y, width, height = (evaluate(each, values) for each in rectangle)
    return x, y, width, height


def replay(
    device: Device,
    draws: Iterable[Draw],
    values: Mapping[str, int | float],
    before: Callable[[Draw], None] | None = None,
    after: Callable[[Draw], None] | None = None,
    *,
    flush_every: int = 0,
    watched: Mapping[str, bool] = _NONE,
) -> int:
    """Issue ``draws`` in order and return the number of draw calls.

    State that the previous draw left right is not set again. The driver starts work after every ``flush_every`` draws;
    with 0 it may wait for the readback. ``before`` and ``after`` are called around each draw, to check one pass at a
    time, and may change any binding. A :class:`glinfer.gl.sentinel.Sentinel` watches each draw that ``watched`` names,
    with whether for the first time.
    """
    device.activate()
    framebuffer: Any = None
    viewport: Rectangle | None = None
    bound: dict[int, object] = {}
    issued = 0
    blending = False
    settled = False  # whether regions may sample texels that were written before this run
    try:
        for draw in draws:
            frozen = draw.frozen
            if before is not None or after is not None:
                framebuffer, viewport, settled = None, None, False
                bound.clear()
            if before is not None:
                before(draw)
            if frozen.target is not framebuffer:
                framebuffer = frozen.target
                frozen.use()
                viewport = framebuffer.viewport  # moderngl keeps one per framebuffer, and sets it on use
            if frozen.barrier is not None and (draw.barrier or not settled):
                frozen.barrier()
                settled = True
            size = frozen.viewport or draw.rectangle(values)
            if size != viewport:
                device.gl.viewport = viewport = size
            for unit, texture, use in frozen.textures:
                if bound.get(unit) is not texture:
                    use(unit)
                    bound[unit] = texture
            call, program, held = draw.call, draw.program, frozen.held
            for name, constant in call.constants:
                if held.get(name) != constant:
                    program.set(name, constant)
            for name, key in call.per_run:
                if held.get(name) != values[key]:
                    program.set(name, values[key])
            if call.adds and not blending:
                blending = True
                device.gl.enable(moderngl.BLEND)
                device.gl.blend_func = moderngl.ONE, moderngl.ONE
            elif blending and not call.adds:
                device.gl.disable(moderngl.BLEND)
                blending = False  # last, so that after an interrupt it is switched off again
            if call.clears:
                rectangles = [numbers_of(each, values) for each in call.clears]
                for attachment, texture in enumerate(draw.framebuffer.textures):
                    device.raw.clear_color(attachment, 0, texture.form.kind, rectangles)
            vertices = frozen.vertices or evaluate(call.vertices, values)
            instances = evaluate(call.instances, values)
            render = partial(frozen.render, frozen.mode, vertices, 0, instances)
            first_time = watched.get(draw.name)
            if first_time is not None:
                kind, edges = draw.framebuffer.textures[0].form.kind, (min(EDGE, size[2]), min(EDGE, size[3]))
                sentinel = Sentinel(draw.name, framebuffer.glo, kind, *size[:2], *edges)
            if first_time:
                sentinel.compare(device.raw, render, device.renderer)
            else:
                if first_time is not None:
                    device.sentinel = sentinel
                    sentinel.plant(device.raw)
                render()
            device.draws_issued += 1
            issued += 1
            if frozen.finish is not None:
                frozen.finish()
            elif flush_every and issued % flush_every == 0:
                device.raw.flush()
            if after is not None:
                after(draw)
    finally:
        if blending:
            device.gl.disable(moderngl.BLEND)
    device.check("replaying the plan")
    return issued
