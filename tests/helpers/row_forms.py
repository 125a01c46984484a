"""Every form of the shaders for many rows that a plan can ask for: the draws of the plans themselves."""

from __future__ import annotations

from dataclasses import replace

from glinfer.config import ModelConfig
from glinfer.models.fast.rows import batch_plan, chunk_plan, drafted_plan
from glinfer.models.fast.shortlist import allowed_plan, shortlist_plan
from glinfer.models.fast.token import fast_plan
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.ops import DrawSpec
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.formats import WEIGHT_FORMATS

CONFIG = ModelConfig(70, 34, 2, 2, 130)
KERNELS = {
    "plain": KernelOptions(),
    "one row": KernelOptions(rows_per_draw=1, quad=False, mantissa=True),
    "eight rows": KernelOptions(
        rows_per_draw=8, row_tiles=8, largest_cell=4, blends=True, lookup_texture=True, cover="points"
    ),
    "parts": KernelOptions(
        rows_per_draw=2,
        part_steps=4,
        split_norms=True,
        split_inner=True,
        split_values=True,
        blends=True,
        largest_cell=2,
        fused=True,
    ),
}


def _over_bytes(options: PlanOptions) -> list[Plan]:
    """Plans over caches in bytes, that of one token too, whose passes differ from those of others there."""
    options = replace(options, cache="q8")
    return [
        fast_plan(options),
        chunk_plan(options, rows=40, cache_slots=192, likelihoods=True),
        drafted_plan(options, rows=16, cache_slots=192),
        batch_plan(options, sequences=3, capacity=128),
    ]


def row_forms() -> dict[str, DrawSpec]:
    """One draw for each shader and set of defines, by a name for messages."""
    found: dict[tuple[object, ...], tuple[str, DrawSpec]] = {}
    for name, kernels in KERNELS.items():
        for weights in WEIGHT_FORMATS:
            # Narrow textures: the cache of a batch is then in more than one line, and is no strip.
            for edge in (2048, 512):
                options = PlanOptions(CONFIG, weights, kernels, edge)
                plans = [
                    chunk_plan(options, rows=40, cache_slots=192, export_residual=True),
                    chunk_plan(options, rows=40, cache_slots=192, likelihoods=True),
                    drafted_plan(options, rows=16, cache_slots=192),
                    batch_plan(options, sequences=3, capacity=128),
                ]
                over = plans[-1]
                plans += [
                    shortlist_plan(over, kernels=kernels, max_texture_size=edge),
                    shortlist_plan(over, kernels=kernels, max_texture_size=edge, masked=True),
                    allowed_plan(over, kernels=kernels, max_texture_size=edge),
                ]
                if weights == "f32" and edge == 2048:
                    plans += _over_bytes(options)
                for plan in plans:
                    for spec in plan.draws:
                        form = (spec.shader, spec.vertex, spec.cover, spec.defines)
                        masked = ", masked" if "mask" in dict(spec.inputs) else ""
                        found.setdefault(form, (f"{plan.name} {spec.name}{masked}, {weights}, {name}, {edge}", spec))
    return dict(found.values())
