"""A bound draw, and the one loop that issues draws and counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import moderngl

from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BlockLayout
from glinfer.gl.layouts.matrix import Extent, TexelLayout
from glinfer.gl.program import Program
from glinfer.gl.raw import Rectangle
from glinfer.gl.texture import Framebuffer, Texture

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

    A tile has ``across`` squares side by side and ``each`` in all; ``count`` is the total. A few large squares are set
    up faster than one square a block.
    """

    edge: int
    across: int
    each: int
    count: int

    @classmethod
    def of(cls, layout: BlockLayout, slots: int, largest: int) -> Cells:
        """The largest cells that cover few places beyond the blocks of the first ``slots`` slots.

        Cells of one block are drawn only at blocks (shaders/common/blocks.vert).
        """
        places = layout.places_of(slots)
        columns, lines = min(layout.columns, places), -(-places // layout.columns)
        # Places after the last block of a slot, which small cells omit.
        padded = layout.tiles * -(-layout.kept_blocks // layout.tiles)
        needed = columns * lines * layout.kept_blocks / padded
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


Render = Callable[[int, int, int, int], None]
"""Draws, given the primitive mode, vertex count, first vertex and instance count."""
CELL_UNIFORMS = ("cell_edge", "cells_across", "cells_each")
_MAX_COVERED = 1.1  # blocks covered by cells, per block written
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
class Draw:
    """One draw with its full state frozen: bindings, uniforms and target.

    The fields are those of :class:`glinfer.ops.spec.DrawSpec`, bound to objects. ``size`` is (rows, cols) of the output
    matrix; ``per_run`` pairs a uniform with its run value; the rest is fixed after binding. ``layout`` is the output
    matrix's layout if the target's texture was made for another view of the same texels. ``barrier`` means that the
    draw needs a texture barrier before it, see :class:`glinfer.gl.region.Barriers`.
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
    clears: str = ""
    first: Extent = 0
    largest_cell: int = 0
    points: Extent = 0
    layout: TexelLayout | None = None
    barrier: bool = False

    def viewport(self, values: Mapping[str, int | float]) -> Rectangle:
        """The texels that the draw may write with these run values."""
        target = self.framebuffer.textures[0]
        layout, (x, y) = target.layout, target.at
        if self.cover == "strip":
            assert isinstance(layout, BlockLayout)
            return x + BLOCK_EDGE * int(values["strip_first"]), y, BLOCK_EDGE * self._rows(values), layout.kept_height
        if self.cover != "triangle":
            return target.rectangle
        rows, cols = (extent if isinstance(extent, int) else int(values[extent]) for extent in self.size)
        return x, y, *(self.layout or layout).region(rows, cols)

    def vertices(self, values: Mapping[str, int | float]) -> int:
        """Number of vertices with these run values."""
        if self.cover in ("triangle", "strip"):
            return 3
        if self.cover == "scatter":
            return self.points if isinstance(self.points, int) else int(values[self.points])
        each = 1 if self.cover == "points" else 6
        return each * (self.cells(values).count if self.largest_cell else self._blocks.blocks * self._rows(values))

    def _rows(self, values: Mapping[str, int | float]) -> int:
        return self.size[0] if isinstance(self.size[0], int) else int(values[self.size[0]])

    def cells(self, values: Mapping[str, int | float]) -> Cells:
        """The cells that cover the blocks of all slots with these run values."""
        rows = self._rows(values)
        if rows not in self._cells:
            self._cells[rows] = Cells.of(self._blocks, rows, self.largest_cell)
        return self._cells[rows]

    @cached_property
    def frozen(self) -> Frozen:
        """The fixed state, looked up once."""
        counted = self.cover == "scatter" and not isinstance(self.points, int)
        fixed = not self.largest_cell and isinstance(self.size[0], int) and not counted
        device = self.framebuffer.device
        many = not isinstance(self.size[0], int) or self.size[0] >= _MANY_ROWS
        return Frozen(
            target=self.framebuffer.gl,
            use=self.framebuffer.gl.use,
            barrier=None if self.framebuffer.part is None else device.texture_barrier,
            viewport=self._whole,
            textures=tuple((unit, texture.gl, texture.gl.use) for unit, texture in enumerate(self.textures)),
            held=self.program.values,
            mode=_MODES[self.cover],
            vertices=self.vertices({}) if fixed else 0,
            finish=device.raw.finish if many and device.in_main_memory else None,
            render=in_parts(self.program.vertex_array.render, device.most_vertices),
        )

    @cached_property
    def _cells(self) -> dict[int, Cells]:
        return {}

    @cached_property
    def _blocks(self) -> BlockLayout:
        layout = self.framebuffer.textures[0].layout
        assert isinstance(layout, BlockLayout)  # the plan was validated
        return layout

    def cleared(self, values: Mapping[str, int | float]) -> list[Rectangle] | None:
        """The texels to clear first: the one slot that this draw writes, or its target; None for the whole texture."""
        if self.clears != "rows":
            return None if self.framebuffer.part is None else [self.framebuffer.part]
        slot = self.first if isinstance(self.first, int) else int(values[self.first])
        left, bottom = self.framebuffer.textures[0].at
        slots = self._blocks.slot_rectangles(slot)
        return [(left + x, bottom + y, width, height) for x, y, width, height in slots]

    @cached_property
    def _whole(self) -> Rectangle | None:
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
    """Issue ``draws`` in order and return the number of draw calls.

    State that the previous draw left right is not set again. The driver starts work after every ``flush_every`` draws;
    with 0 it may wait for the readback. ``before`` and ``after`` are called around each draw, to check one pass at a
    time, and may change any binding.
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
            size = frozen.viewport or draw.viewport(values)
            if size != viewport:
                device.gl.viewport = viewport = size
            for unit, texture, use in frozen.textures:
                if bound.get(unit) is not texture:
                    use(unit)
                    bound[unit] = texture
            program, held = draw.program, frozen.held
            for name, constant in draw.constants:
                if held.get(name) != constant:
                    program.set(name, constant)
            for name, key in draw.per_run:
                if held.get(name) != values[key]:
                    program.set(name, values[key])
            if draw.adds and not blending:
                blending = True
                device.gl.enable(moderngl.BLEND)
                device.gl.blend_func = moderngl.ONE, moderngl.ONE
            elif blending and not draw.adds:
                device.gl.disable(moderngl.BLEND)
                blending = False  # last, so that after an interrupt it is switched off again
            if draw.clears:
                rectangles = draw.cleared(values)
                for attachment in range(len(draw.framebuffer.textures)):
                    if rectangles is None:
                        device.raw.clear_to_zero(attachment)
                    else:
                        device.raw.clear_rectangles(attachment, rectangles)
            if draw.largest_cell:
                cells = draw.cells(values)
                for name, number in zip(CELL_UNIFORMS, (cells.edge, cells.across, cells.each), strict=True):
                    program.set(name, number)
            instances = draw.instances if isinstance(draw.instances, int) else int(values[draw.instances])
            frozen.render(frozen.mode, frozen.vertices or draw.vertices(values), 0, instances)
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
