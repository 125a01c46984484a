"""The draw, and the one loop that issues draws and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import moderngl

from glinfer.gl.blocks import BlockLayout
from glinfer.gl.context import Device
from glinfer.gl.layout import Extent
from glinfer.gl.program import Program
from glinfer.gl.texture import Framebuffer, Texture

Viewport = tuple[int, int, int, int]
_MODES = {"triangle": moderngl.TRIANGLES, "points": moderngl.POINTS, "quads": moderngl.TRIANGLES}


@dataclass(frozen=True)
class Draw:
    """One draw with its full state frozen: what is bound, what is set, where it writes.

    ``size`` is the (rows, cols) of the output matrix that this draw writes, ``per_run`` pairs a uniform with the run
    value it takes; everything else never changes after binding. ``cover`` is what is drawn, ``instances`` times: one
    ``triangle`` over the rectangle of those rows, or for rows in blocks ``points`` or ``quads``, one on every block
    from the uniform ``first_slot`` on. With ``adds`` blending adds to what the target holds, which ``clears`` sets to
    zero first.
    """

    name: str
    program: Program
    framebuffer: Framebuffer
    textures: tuple[Texture, ...]
    constants: tuple[tuple[str, int | float], ...]
    per_run: tuple[tuple[str, str], ...]
    size: tuple[Extent, Extent]
    cover: str = "triangle"
    instances: Extent = 1
    adds: bool = False
    clears: bool = False

    def viewport(self, values: Mapping[str, int | float]) -> Viewport:
        """(x, y, width, height) in texels for one run's values."""
        layout = self.framebuffer.textures[0].layout
        if self.cover != "triangle":
            return 0, 0, layout.width, layout.height
        rows, cols = (extent if isinstance(extent, int) else int(values[extent]) for extent in self.size)
        return 0, 0, *layout.region(rows, cols)

    def vertices(self, values: Mapping[str, int | float]) -> int:
        """How many vertices are drawn in one run."""
        if self.cover == "triangle":
            return 3
        rows = self.size[0] if isinstance(self.size[0], int) else int(values[self.size[0]])
        return self._row_vertices * rows

    @cached_property
    def _row_vertices(self) -> int:
        layout = self.framebuffer.textures[0].layout
        assert isinstance(layout, BlockLayout)  # the plan was validated
        return layout.blocks * (1 if self.cover == "points" else 6)

    @cached_property
    def _whole(self) -> Viewport | None:
        """The viewport, where it is the same in every run."""
        return None if self.cover == "triangle" else self.viewport({})


def replay(
    device: Device,
    draws: Iterable[Draw],
    values: Mapping[str, int | float],
    before: Callable[[Draw], None] | None = None,
    after: Callable[[Draw], None] | None = None,
    *,
    flush_every: int = 0,
) -> int:
    """Issue ``draws`` in order and return how many draw calls that took.

    Binds only what differs from the draw before. With ``flush_every`` the driver is told to begin each time so many
    draws were issued; left alone it may wait for the readback. ``before`` and ``after`` are called around each draw
    (for checking a pass at a time); they may bind what they like.
    """
    device.activate()
    framebuffer: Framebuffer | None = None
    viewport: Viewport | None = None
    bound: dict[int, Texture] = {}
    issued = 0
    blending = False
    try:
        for draw in draws:
            if before is not None or after is not None:
                framebuffer, viewport = None, None
                bound.clear()
            if before is not None:
                before(draw)
            if draw.framebuffer is not framebuffer:
                framebuffer = draw.framebuffer
                framebuffer.gl.use()
                viewport = framebuffer.gl.viewport  # moderngl keeps one for each framebuffer, and sets it with it
            size = draw._whole or draw.viewport(values)
            if size != viewport:
                device.gl.viewport = viewport = size
            for unit, texture in enumerate(draw.textures):
                if bound.get(unit) is not texture:
                    texture.gl.use(unit)
                    bound[unit] = texture
            program = draw.program
            for name, constant in draw.constants:
                program.set(name, constant)
            for name, key in draw.per_run:
                program.set(name, values[key])
            if blending is not draw.adds:
                blending = draw.adds
                (device.gl.enable if blending else device.gl.disable)(moderngl.BLEND)
                device.gl.blend_func = moderngl.ONE, moderngl.ONE
            if draw.clears:
                device.raw.clear_color(0, 0.0, integer=False)
            instances = draw.instances if isinstance(draw.instances, int) else int(values[draw.instances])
            program.vertex_array.render(_MODES[draw.cover], draw.vertices(values), 0, instances)
            device.draws_issued += 1
            issued += 1
            if flush_every and issued % flush_every == 0:
                device.raw.flush()
            if after is not None:
                after(draw)
    finally:
        if blending:
            device.gl.disable(moderngl.BLEND)
    device.check("replaying the plan")
    return issued
