"""A bound draw, and the one loop that issues draws and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import moderngl

from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BlockLayout
from glinfer.gl.layouts.matrix import Extent, TexelLayout
from glinfer.gl.program import Program
from glinfer.gl.texture import Framebuffer, Texture

Viewport = tuple[int, int, int, int]
_MODES = {
    "triangle": moderngl.TRIANGLES,
    "strip": moderngl.TRIANGLES,
    "points": moderngl.POINTS,
    "quads": moderngl.TRIANGLES,
    "scatter": moderngl.POINTS,
}


@dataclass(frozen=True)
class Cells:
    """Squares of ``edge`` blocks a side that cover the first slots of a layout.

    ``across`` squares lie side by side in a tile, ``each`` in one tile, ``count`` in all. A few large squares are set
    up faster than one square a block.
    """

    edge: int
    across: int
    each: int
    count: int

    @classmethod
    def of(cls, layout: BlockLayout, slots: int, largest: int) -> Cells:
        """The largest cells that cover few places beyond the blocks of the first ``slots`` slots.

        Cells of one block are drawn only where a block is (shaders/common/blocks.vert).
        """
        places = layout.places_of(slots)
        columns, lines = min(layout.columns, places), -(-places // layout.columns)
        # Places behind the last block of a slot, which small cells leave out.
        dealt = layout.tiles * -(-layout.kept_blocks // layout.tiles)
        needed = columns * lines * layout.kept_blocks / dealt
        edge = largest
        while True:
            across, up = -(-columns // edge), -(-lines // edge)
            little = across * up * edge * edge <= _MAX_COVERED * needed
            alone = layout.tiles == 1 or across * edge <= layout.columns  # no block of the next tile is drawn twice
            # A point whose centre is outside of the target is not drawn.
            right = (layout.tiles - 1) * layout.pitch + BLOCK_EDGE * (across - 1) * edge + BLOCK_EDGE * edge // 2
            top = BLOCK_EDGE * (up - 1) * edge + BLOCK_EDGE * edge // 2
            if edge == 1 or (little and alone and right < layout.width and top < layout.height):
                return cls(edge, across, across * up, layout.tiles * across * up)
            edge //= 2


CELL_UNIFORMS = ("cell_edge", "cells_across", "cells_each")
_MAX_COVERED = 1.1  # blocks that cells cover, for each block that is written


@dataclass(frozen=True)
class Draw:
    """One draw with its full state frozen: what it binds, what it sets, where it writes.

    The fields are those of :class:`glinfer.ops.spec.DrawSpec`, bound to objects. ``size`` is the (rows, cols) of the
    output matrix that this draw writes, ``per_run`` pairs a uniform with the run value that it takes; everything else
    never changes after binding. ``layout`` is the layout of the output matrix, where the target's texture was made for
    another view of the same texels.
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
    largest_cell: int = 0
    points: Extent = 0
    layout: TexelLayout | None = None

    def viewport(self, values: Mapping[str, int | float]) -> Viewport:
        """(x, y, width, height) in texels for one run's values."""
        layout = self.framebuffer.textures[0].layout
        if self.cover == "strip":
            assert isinstance(layout, BlockLayout)
            return BLOCK_EDGE * int(values["strip_first"]), 0, BLOCK_EDGE * self._rows(values), layout.kept_height
        if self.cover != "triangle":
            return 0, 0, layout.width, layout.height
        rows, cols = (extent if isinstance(extent, int) else int(values[extent]) for extent in self.size)
        return 0, 0, *(self.layout or layout).region(rows, cols)

    def vertices(self, values: Mapping[str, int | float]) -> int:
        """Number of vertices of one run."""
        if self.cover in ("triangle", "strip"):
            return 3
        if self.cover == "scatter":
            return self.points if isinstance(self.points, int) else int(values[self.points])
        each = 1 if self.cover == "points" else 6
        return each * (self.cells(values).count if self.largest_cell else self._blocks.blocks * self._rows(values))

    def _rows(self, values: Mapping[str, int | float]) -> int:
        return self.size[0] if isinstance(self.size[0], int) else int(values[self.size[0]])

    def cells(self, values: Mapping[str, int | float]) -> Cells:
        """The cells that cover the blocks of all slots in one run."""
        rows = self._rows(values)
        if rows not in self._cells:
            self._cells[rows] = Cells.of(self._blocks, rows, self.largest_cell)
        return self._cells[rows]

    @cached_property
    def _cells(self) -> dict[int, Cells]:
        return {}

    @cached_property
    def _blocks(self) -> BlockLayout:
        layout = self.framebuffer.textures[0].layout
        assert isinstance(layout, BlockLayout)  # the plan was validated
        return layout

    @cached_property
    def _whole(self) -> Viewport | None:
        """The viewport, if it is the same in every run."""
        return None if self.cover in ("triangle", "strip") else self.viewport({})


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

    Binds only what differs from the draw before. ``flush_every`` tells the driver to begin after each so many draws;
    otherwise it may wait for the readback. ``before`` and ``after`` are called around each draw, for checking one pass
    at a time, and may bind what they like.
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
            if draw.adds and not blending:
                blending = True
                device.gl.enable(moderngl.BLEND)
                device.gl.blend_func = moderngl.ONE, moderngl.ONE
            elif blending and not draw.adds:
                device.gl.disable(moderngl.BLEND)
                blending = False  # afterwards: an interrupt in between leaves it to be switched off again
            if draw.clears:
                for attachment in range(len(framebuffer.textures)):
                    device.raw.clear_color(attachment, 0.0, integer=False)
            if draw.largest_cell:
                cells = draw.cells(values)
                for name, number in zip(CELL_UNIFORMS, (cells.edge, cells.across, cells.each), strict=True):
                    program.set(name, number)
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
