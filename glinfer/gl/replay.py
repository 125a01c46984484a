"""The draw, and the one loop that issues draws and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import moderngl

from glinfer.gl.context import Device
from glinfer.gl.layout import Extent
from glinfer.gl.program import Program
from glinfer.gl.texture import Framebuffer, Texture


@dataclass(frozen=True)
class Draw:
    """One draw with its full state frozen: what is bound, what is set, where it writes.

    ``size`` is the (rows, cols) of the output matrix that this draw writes, ``per_run`` pairs a uniform with
    the per-run value it takes; everything else never changes after binding.
    """

    name: str
    program: Program
    framebuffer: Framebuffer
    textures: tuple[Texture, ...]
    constants: tuple[tuple[str, int | float], ...]
    per_run: tuple[tuple[str, str], ...]
    size: tuple[Extent, Extent]

    def viewport(self, values: Mapping[str, int]) -> tuple[int, int]:
        """Width and height in texels for one run's values."""
        rows, cols = (extent if isinstance(extent, int) else values[extent] for extent in self.size)
        return self.framebuffer.textures[0].layout.region(rows, cols)


def replay(
    device: Device,
    draws: Iterable[Draw],
    values: Mapping[str, int],
    before: Callable[[Draw], None] | None = None,
    after: Callable[[Draw], None] | None = None,
) -> int:
    """Issue ``draws`` in order and return how many draw calls that took.

    Binds only what differs from the draw before. ``before`` and ``after`` are called around each draw (for
    checking a pass at a time); they may bind what they like.
    """
    device.activate()
    framebuffer: Framebuffer | None = None
    viewport: tuple[int, int] | None = None
    bound: dict[int, Texture] = {}
    issued = 0
    for draw in draws:
        if before is not None or after is not None:
            framebuffer, viewport = None, None
            bound.clear()
        if before is not None:
            before(draw)
        if draw.framebuffer is not framebuffer:
            draw.framebuffer.gl.use()
            framebuffer, viewport = draw.framebuffer, None
        size = draw.viewport(values)
        if size != viewport:
            device.gl.viewport = (0, 0, *size)
            viewport = size
        for unit, texture in enumerate(draw.textures):
            if bound.get(unit) is not texture:
                texture.gl.use(unit)
                bound[unit] = texture
        for name, constant in draw.constants:
            draw.program.set(name, constant)
        for name, key in draw.per_run:
            draw.program.set(name, values[key])
        draw.program.vertex_array.render(moderngl.TRIANGLES, vertices=3)
        device.draws_issued += 1
        issued += 1
        if after is not None:
            after(draw)
    device.check("replaying the plan")
    return issued
