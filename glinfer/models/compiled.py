"""Compile a plan for the limits of a renderer: everything that is fixed before the first draw, as data.

:class:`glinfer.models.session.Session` binds it to GL objects, and :mod:`glinfer.export.plan` writes it as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from glinfer.gl.context import Limits
from glinfer.gl.layouts.matrix import Layout, TexelLayout
from glinfer.gl.program import BLOCKS_SHADER, VERTEX_SHADER, OwnShader
from glinfer.gl.replay import CELL_UNIFORMS
from glinfer.models.plan import Plan, PlanLimits
from glinfer.models.regions import Place, region_defines
from glinfer.ops import DrawSpec

FIRST_SLOT = "first_slot"


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
    """One pass of a compiled plan.

    Attributes:
        spec: the pass as the plan has it.
        shaders: its program.
        inputs, outputs: the tensors whose textures it samples and renders to.
        uniforms: values set before the draw, the same in every run.
        per_run: (uniform, run value) pairs.
        layout: the output matrix within its texture.
    """

    spec: DrawSpec
    shaders: Shaders
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    uniforms: tuple[tuple[str, int | float], ...]
    per_run: tuple[tuple[str, str], ...]
    layout: TexelLayout


@dataclass(frozen=True)
class CompiledPlan:
    """A plan within limits: its layouts and its draws.

    Attributes:
        plan: the plan.
        layouts: the layout of each tensor.
        draws: every pass in order.
    """

    plan: Plan
    layouts: Mapping[str, TexelLayout]
    draws: tuple[CompiledDraw, ...]


def compile_plan(plan: Plan, limits: PlanLimits | Limits, regions: Mapping[str, Place] | None = None) -> CompiledPlan:
    """Validate a plan against limits and lay it out; ``regions`` has the places of tensors within larger textures.

    Raises:
        PlanError: see :meth:`glinfer.models.plan.Plan.validate`; or a draw takes no region where it has one.
    """
    plan.validate(limits)
    layouts = {tensor.name: tensor.layout_within(limits.max_texture_size) for tensor in plan.tensors}
    return CompiledPlan(plan, layouts, tuple(_compiled(spec, plan, layouts, regions or {}) for spec in plan.draws))


def _compiled(
    spec: DrawSpec, plan: Plan, layouts: Mapping[str, TexelLayout], regions: Mapping[str, Place]
) -> CompiledDraw:
    inputs, outputs = (tuple(map(plan.root, names)) for names in (spec.reads, spec.outputs))
    vertex, defines, by_cover = shading(spec)
    defines.update(region_defines(spec, inputs, outputs, regions))
    target = layouts[outputs[0]]
    if any(isinstance(used, Layout) and used.wrapped for used in (layouts[name] for name in (*outputs, *inputs))):
        defines.update(WRAPPED=1, OUT_WIDTH=target.width, OUT_ROWS=target.rows)
    uniforms, per_run = spec.uniforms, spec.per_run
    if FIRST_SLOT in by_cover and isinstance(spec.first, int):
        uniforms = (*uniforms, (FIRST_SLOT, spec.first))
    elif FIRST_SLOT in by_cover:
        per_run = (*per_run, (FIRST_SLOT, str(spec.first)))
    samplers = tuple(sampler for sampler, _ in spec.inputs)
    spelt = tuple((name, _spelt(value)) for name, value in sorted(defines.items()))
    shaders = Shaders(spec.shader, spelt, samplers, vertex, spec.own)
    return CompiledDraw(spec, shaders, inputs, outputs, uniforms, per_run, layouts[spec.outputs[0]])


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
