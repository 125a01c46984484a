"""The activations of a plan that may be regions of one texture, their layouts in it, and the defines of their draws.

A draw takes a region where its op says so (:attr:`glinfer.kernels.spec.Op.regions`). Its shader gets the defines of
shaders/common/regions.glsl for each of them, under the prefix that its sampler has in all other defines: X for ``x`` or
``x0``, OUT for the output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels import OPS, DrawSpec
from glinfer.program.plan import Plan

OUTPUT = "output"
FORMAT = "rgba32f"
"""The format of the texture that activations share."""
_EDGE = 64  # texels; regions begin at multiples of it, as blocks and the tiles of llvmpipe do


class RegionLayout(NamedTuple):
    """The first texel (x, y) of a region, and the width and height of its texture."""

    x: int
    y: int
    width: int
    height: int


def region_layouts(plan: Plan, max_texture_size: int, apart: Collection[str] = ()) -> dict[str, RegionLayout]:
    """The layout of each activation that becomes a region; empty where none gains by it.

    They are one above the other. A tensor stays apart if its name is in ``apart``, if another tensor is a view of it,
    if a draw that reads or writes it takes no regions, or if the texture would be too high with it.
    """
    viewed = {tensor.view_of for tensor in plan.tensors}
    found = {
        tensor.name: tensor.layout
        for tensor in plan.of_kind("activation")
        if isinstance(tensor.layout, BlockLayout) and tensor.format == FORMAT
    }
    refused = viewed.union(apart)
    for draw in plan.draws:
        refused.update(name for sampler, name in draw.inputs if not _samples_region(draw, sampler))
        refused.update(draw.outputs if not _renders_to_region(draw) else ())
    starts: dict[str, int] = {}
    top = width = height = 0
    for name, layout in found.items():
        if name not in refused and top + layout.height <= max_texture_size:
            starts[name] = top
            width, height = max(width, layout.width), top + layout.height
            top += -(-layout.height // _EDGE) * _EDGE
    return {name: RegionLayout(0, y, width, height) for name, y in starts.items()} if len(starts) > 1 else {}


def region_defines(
    draw: DrawSpec, inputs: Sequence[str], outputs: Sequence[str], regions: Mapping[str, RegionLayout]
) -> dict[str, int]:
    """The defines of a draw that tell its shader where its regions are.

    ``inputs`` and ``outputs`` are the tensors whose textures it has, ``regions`` the layouts of regions by tensor.
    Raises PlanError for a region that the draw's op does not take there.
    """
    defines: dict[str, int] = {}
    for (sampler, _), name in zip(draw.inputs, inputs, strict=True):
        if name in regions:
            _require(_samples_region(draw, sampler), draw, name)
            prefix, layout = _prefix(sampler), regions[name]
            defines.update({f"{prefix}_AT_X": layout.x, f"{prefix}_AT_Y": layout.y})
            defines.update({f"{prefix}_WIDTH": layout.width, f"{prefix}_HEIGHT": layout.height})
    for name in outputs:
        if name in regions:
            _require(_renders_to_region(draw), draw, name)
            defines.update(OUT_AT_X=regions[name].x, OUT_AT_Y=regions[name].y)
    return defines


def _prefix(sampler: str) -> str:
    return sampler.rstrip("0123456789").upper()


def _samples_region(draw: DrawSpec, sampler: str) -> bool:
    same = [each for each, _ in draw.inputs if _prefix(each) == _prefix(sampler)]
    return sampler in OPS[draw.op].regions and len(same) == 1


def _renders_to_region(draw: DrawSpec) -> bool:
    # Cells of several blocks may cover texels after the tensor; instances that do not blend write texels twice.
    once = draw.adds or draw.instances == 1
    return OUTPUT in OPS[draw.op].regions and len(draw.outputs) == 1 and draw.largest_cell == 0 and once


def _require(condition: bool, draw: DrawSpec, name: str) -> None:
    if not condition:
        raise PlanError(f"draw {draw.name}: {name} is a region of a larger texture; expected its own texture")
