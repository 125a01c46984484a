"""Compile a plan for the limits of a renderer: everything that is fixed before the first draw, as data.

:class:`glinfer.program.session.Session` binds it to GL objects, and :mod:`glinfer.export.plan` writes it as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from glinfer.gl.context import Limits
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BlockLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import Extent, Layout, TexelLayout
from glinfer.gl.program import BLOCKS_SHADER, VERTEX_SHADER, OwnShader
from glinfer.gl.replay import DrawCall
from glinfer.gl.values import Value, calculated
from glinfer.kernels import DrawSpec
from glinfer.kernels.spec import Array, RunValue
from glinfer.program.plan import Plan, PlanLimits
from glinfer.program.regions import RegionLayout, region_defines

FIRST_SLOT = "first_slot"
CELL_UNIFORMS = ("cell_edge", "cells_across", "cells_each")
_MAX_COVERED = 1.1  # blocks covered by cells, per block written
_MANY = (1 << 31) - 1
Rectangle = tuple[Value, Value, Value, Value]
"""(x, y, width, height) in texels."""


class Shaders(NamedTuple):
    """The two shaders of a program, and what specialises them.

    Attributes:
        fragment: ``shaders/<fragment>.frag``.
        defines: (name, value) pairs, sorted by name; floats are spelt as in GLSL, since 1 and 1.0 are two programs.
        samplers: in the order of their texture units.
        vertex: the file of the vertex shader.
        own: the caller's own shader, which ``fragment`` includes.
    """

    fragment: str
    defines: tuple[tuple[str, int | str], ...]
    samplers: tuple[str, ...]
    vertex: str
    own: OwnShader | None


@dataclass(frozen=True)
class CompiledDraw:
    """One pass of a compiled plan: its name and kind in the plan, its program, the tensors whose textures it has."""

    name: str
    kind: str
    shaders: Shaders
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    call: DrawCall


@dataclass(frozen=True)
class CompiledPlan:
    """A plan within limits: with the run values that its draws need beyond its own, and a layout for each tensor."""

    plan: Plan
    layouts: Mapping[str, TexelLayout]
    draws: tuple[CompiledDraw, ...]


def compile_plan(
    plan: Plan, limits: PlanLimits | Limits, regions: Mapping[str, RegionLayout] | None = None
) -> CompiledPlan:
    """Validate a plan against limits and lay it out; ``regions`` has the tensors within larger textures.

    The result is kept with the plan, since every new sequence binds its plans again. Raises PlanError as
    :meth:`glinfer.program.plan.Plan.validate`, or for a region that a draw does not take.
    """
    key = limits, tuple((regions or {}).items())
    found: CompiledPlan | None = plan.compiled.get(key)
    if found is None:
        found = plan.compiled[key] = _compiled(plan, limits, regions or {})
    return found


def _compiled(plan: Plan, limits: PlanLimits | Limits, regions: Mapping[str, RegionLayout]) -> CompiledPlan:
    plan.validate(limits)
    layouts = {tensor.name: tensor.layout_within(limits.max_texture_size) for tensor in plan.tensors}
    compiler = _Compiler(plan, layouts, regions)
    draws = tuple(map(compiler.draw, plan.draws))
    return CompiledPlan(replace(plan, run_values=(*plan.run_values, *compiler.run_values)), layouts, draws)


class _Compiler:
    """Compiles the draws of one plan, and collects the run values that they need beyond the plan's."""

    def __init__(self, plan: Plan, layouts: Mapping[str, TexelLayout], regions: Mapping[str, RegionLayout]) -> None:
        self._plan, self._layouts, self._regions = plan, layouts, regions
        self._cells: dict[tuple[BlockLayout, str, int], list[str]] = {}
        self.run_values: list[RunValue] = []

    def draw(self, spec: DrawSpec) -> CompiledDraw:
        inputs, outputs = (tuple(map(self._plan.root, names)) for names in (spec.reads, spec.outputs))
        target = self._layouts[outputs[0]]
        vertex, defines, by_cover = shading(spec)
        defines.update(region_defines(spec, inputs, outputs, self._regions))
        used = [self._layouts[name] for name in (*outputs, *inputs)]
        if any(isinstance(layout, Layout) and layout.wrapped for layout in used):
            defines.update(WRAPPED=1, OUT_WIDTH=target.width, OUT_ROWS=target.rows)
        samplers = tuple(sampler for sampler, _ in spec.inputs)
        spelt = tuple((name, _spelt(value)) for name, value in sorted(defines.items()))
        vertices, further = self._vertices(spec, target)
        if FIRST_SLOT in by_cover:
            further[FIRST_SLOT] = spec.first
        x, y, *_ = self._regions.get(outputs[0], (0, 0))
        call = DrawCall(
            constants=(*spec.uniforms, *((name, value) for name, value in further.items() if isinstance(value, int))),
            per_run=(*spec.per_run, *((name, value) for name, value in further.items() if isinstance(value, str))),
            viewport=_viewport(spec, target, self._layouts[spec.outputs[0]], x, y),
            vertices=vertices,
            points=spec.cover in ("points", "scatter"),
            rows=spec.size[0],
            instances=spec.instances,
            adds=spec.adds,
            clears=_cleared(spec, target, x, y),
        )
        shaders = Shaders(spec.shader, spelt, samplers, vertex, spec.own)
        return CompiledDraw(spec.name, spec.kind, shaders, inputs, outputs, call)

    def _vertices(self, spec: DrawSpec, target: TexelLayout) -> tuple[Value, dict[str, Extent]]:
        """The number of vertices, and the uniforms of a draw in cells."""
        if spec.cover in ("triangle", "strip"):
            return 3, {}
        if spec.cover == "scatter":
            return spec.points, {}
        assert isinstance(target, BlockLayout)  # the plan was validated
        each, uniforms = 1 if spec.cover == "points" else 6, dict[str, Extent]()
        squares = calculated("multiply", spec.size[0], target.blocks)
        if spec.largest_cell:
            *values, squares = self._covering(target, spec.size[0], spec.largest_cell)
            uniforms.update(zip(CELL_UNIFORMS, values, strict=True))
        return calculated("multiply", squares, each), uniforms

    def _covering(self, layout: BlockLayout, slots: Extent, largest: int) -> Sequence[Extent]:
        """The fields of the :class:`Cells` of some slots: numbers, or the names of run values."""
        if isinstance(slots, int):
            return Cells.of(layout, slots, int(cell_edges(layout, slots, largest)))
        key = layout, slots, largest
        if key not in self._cells:
            counted = next(each for each in self._plan.run_values if each.name == slots)
            counts = np.arange(counted.smallest, counted.largest + 1)
            edges = cell_edges(layout, counts, largest)
            starts = [0, *np.flatnonzero(np.diff(edges)) + 1]
            steps = tuple((int(counts[start]), int(edges[start])) for start in starts)
            names = [f"cells.{len(self._cells)}.{field}" for field in Cells._fields]
            values = Cells.of(layout, slots, names[0])._replace(edge=("steps", steps, slots))
            self.run_values += [RunValue(name, 1, _MANY, value) for name, value in zip(names, values, strict=True)]
            self._cells[key] = names
        return self._cells[key]


def _viewport(spec: DrawSpec, target: TexelLayout, written: TexelLayout, x: int, y: int) -> Rectangle:
    """The texels that a draw may write of the matrix ``written``, which begins at (x, y) of its texture."""
    rows, cols = spec.size
    if spec.cover == "strip":
        assert isinstance(target, BlockLayout)  # the plan was validated
        left = calculated("add", calculated("multiply", "strip_first", BLOCK_EDGE), x)
        return left, y, calculated("multiply", rows, BLOCK_EDGE), target.kept_height
    if spec.cover != "triangle":
        return x, y, target.width, target.height
    if isinstance(written, FlatLayout) or (isinstance(written, Layout) and written.wrapped):
        texels = calculated("multiply", rows, written.row_texels)
        return x, y, written.width, calculated("ceildiv", texels, written.width)
    return x, y, cols, rows


def _cleared(spec: DrawSpec, target: TexelLayout, x: int, y: int) -> tuple[Rectangle, ...]:
    """The texels to clear before a draw: those of all outputs, or of the slot that it writes."""
    if spec.clears != "rows":
        return ((x, y, target.width, target.height),) if spec.clears else ()
    assert isinstance(target, BlockLayout)  # whose slots are rectangular, or the draw would clear all
    left = calculated("add", calculated("multiply", spec.first, BLOCK_EDGE), x)
    slot: Rectangle = left, y, BLOCK_EDGE, BLOCK_EDGE * target.kept_blocks
    aside: Rectangle = x, y + target.kept_height, BLOCK_EDGE * target.aside, BLOCK_EDGE
    return (slot, aside) if target.aside else (slot,)


class Cells(NamedTuple):
    """Squares of ``edge`` blocks a side that cover the first slots of a layout, as a few large ones are set up faster.

    A tile has ``across`` squares side by side and ``each`` in all; ``count`` is the total.
    """

    edge: Any
    across: Any
    each: Any
    count: Any

    @classmethod
    def of(cls, layout: BlockLayout, slots: Extent, edge: Extent) -> Cells:
        """The squares for numbers of slots and of blocks a side: numbers, or expressions of their names."""
        first = layout.blocks_up_to(1) - layout.slot_step
        blocks = calculated("add", calculated("multiply", slots, layout.slot_step), first)
        across = calculated("ceildiv", calculated("min", blocks, layout.columns), edge)
        up = calculated("ceildiv", calculated("ceildiv", blocks, layout.columns), edge)
        each = calculated("multiply", across, up)
        return cls(edge, across, each, calculated("multiply", each, layout.tiles))


def cell_edges(layout: BlockLayout, slots: Array | int, largest: int) -> Array:
    """Blocks a side of the largest cells that cover few blocks beyond those of the first ``slots`` slots.

    Cells of one block are drawn only at blocks (shaders/common/blocks.vert).
    """
    blocks = np.asarray(layout.blocks_up_to(slots))  # type: ignore[arg-type]
    columns, lines = np.minimum(layout.columns, blocks), -(-blocks // layout.columns)
    # Blocks after the last one of a slot, which small cells omit.
    padded = layout.tiles * -(-layout.kept_blocks // layout.tiles)
    needed = columns * lines * layout.kept_blocks / padded
    edges, edge = np.ones_like(blocks), 2
    while edge <= largest:
        across, up = -(-columns // edge), -(-lines // edge)
        little = across * up * edge * edge <= _MAX_COVERED * needed
        alone = layout.tiles == 1 or across * edge <= layout.columns  # no block of the next tile is drawn twice
        # A point whose centre is outside of the target is not drawn.
        right = (layout.tiles - 1) * layout.pitch + BLOCK_EDGE * (across - 1) * edge + BLOCK_EDGE * edge // 2
        top = BLOCK_EDGE * (up - 1) * edge + BLOCK_EDGE * edge // 2
        edges[little & alone & (right < layout.width) & (top < layout.height)] = edge
        edge *= 2
    return edges


def _spelt(value: int | float) -> int | str:
    return int(value) if isinstance(value, (int, np.integer)) else repr(float(value))


def shading(spec: DrawSpec) -> tuple[str, dict[str, int | float], set[str]]:
    """The vertex shader of a draw, its defines for any textures, and the uniforms that are set for its cover."""
    defines = dict(spec.defines)
    if spec.cover not in ("points", "quads"):
        return spec.vertex or VERTEX_SHADER, defines, set()
    defines.update(POINTS=int(spec.cover == "points"), CELLS=int(spec.largest_cell > 0))
    uniforms = set(CELL_UNIFORMS) if spec.largest_cell else set() if spec.vertex else {FIRST_SLOT}
    return spec.vertex or BLOCKS_SHADER, defines, uniforms
