"""Plans over many rows without a GPU: counts, limits, refusals, and the cells that cover them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from changed_plans import all_refused, rebound, redefined, refused, with_draw
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.values import compiled
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused.rows import batch_plan, chunk_plan, fitting_chunk_plan
from glinfer.lower.options import PlanOptions
from glinfer.program.compiled import CELL_UNIFORMS, Cells, cell_edges, compile_plan
from glinfer.program.plan import Plan, PlanLimits

SMALL = ModelConfig(37, 15, 3, 2, 70)
WEBGL2 = PlanLimits(2048, 4, 16, 1.0)


def options_of(weights: str = "f32", kernels: KernelOptions | None = None, edge: int = 2048) -> PlanOptions:
    return PlanOptions(SMALL, weights, kernels or KernelOptions(), edge)


def chunk_of(*, rows: int = 20, cache_slots: int = 128, likelihoods: bool = False, **options: Any) -> Plan:
    return chunk_plan(options_of(**options), rows=rows, cache_slots=cache_slots, likelihoods=likelihoods)


def score_of(**options: Any) -> Plan:
    return chunk_of(likelihoods=True, **options)


def batch_of(*, sequences: int = 3, capacity: int = 128, **options: Any) -> Plan:
    return batch_plan(options_of(**options), sequences=sequences, capacity=capacity)


MAKERS: dict[str, Callable[..., Plan]] = {"chunk": chunk_of, "score": score_of, "batch": batch_of}
every_plan = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


# Memory and limits


@every_plan
def test_more_targets_than_a_renderer_has_are_refused(make: Callable[..., Plan]) -> None:
    plan = make(kernels=KernelOptions(rows_per_draw=8))
    with refused("draw embed writes 8 targets; this renderer allows 4"):
        plan.validate(WEBGL2)
    eight = dataclasses.replace(WEBGL2, max_draw_buffers=8)
    with refused(r"draw h\.0\.(attn\.out_proj|mlp\.fc_out) samples 18 textures; this renderer allows 16"):
        plan.validate(eight)
    blending = make(kernels=KernelOptions(rows_per_draw=8, blends=True))
    assert blending.validate(eight) is blending, "nothing samples the residual stream to add to it"


@every_plan
def test_points_of_several_blocks_are_refused_where_they_are_too_large(make: Callable[..., Plan]) -> None:
    plan = make(kernels=KernelOptions(cover="points", largest_cell=4))
    with refused("draw embed draws points of 16×16 pixels; this renderer allows 4"):
        plan.validate(dataclasses.replace(WEBGL2, max_point_size=4.0))
    assert plan.validate(dataclasses.replace(WEBGL2, max_point_size=16.0)) is plan
    single = make(kernels=KernelOptions(cover="points"))
    assert single.validate(dataclasses.replace(WEBGL2, max_point_size=4.0)) is single
    with refused("draw embed draws points of 4×4 pixels; this renderer allows 3.5"):
        single.validate(dataclasses.replace(WEBGL2, max_point_size=3.5))


# Cells


@st.composite
def covered(draw: st.DrawFn) -> tuple[BlockLayout, int, int]:
    """A layout, how many of its slots are written, and the largest cell.

    Tiles are a whole number of cells wide, as they are with every choice of kernels that is made by default.
    """
    shape, largest = (draw(st.integers(1, 400)), draw(st.integers(1, 700))), draw(st.sampled_from([1, 2, 4, 8]))
    try:
        if draw(st.booleans()):
            layout = BlockLayout.by_block(shape, draw(st.sampled_from([256, 2048])))
        else:
            tiles, pitch = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([32, 64, 128]))
            layout = BlockLayout.of(shape, 2048, tiles=tiles, pitch=pitch)
    except PlanError:
        assume(False)
        raise
    return layout, draw(st.integers(1, shape[0])), largest


@settings(max_examples=25)
@given(covered())
def test_cells_cover_all_blocks_of_the_first_slots_and_little_else(case: tuple[BlockLayout, int, int]) -> None:
    layout, slots, largest = case
    cells = Cells.of(layout, slots, int(cell_edges(layout, slots, largest)))
    assert cells.count == layout.tiles * cells.each
    assert cells.each % cells.across == 0
    assert largest % cells.edge == 0
    # As shaders/common/blocks.vert places them.
    number = np.arange(cells.count)
    tile, cell = number // cells.each, number % cells.each
    left = tile * layout.pitch + 4 * cells.edge * (cell % cells.across)
    bottom = 4 * cells.edge * (cell // cells.across)
    hit = np.zeros((layout.height + 4 * largest, layout.width + layout.pitch + 4 * largest), dtype=np.int32)
    for x, y in zip(left.tolist(), bottom.tolist(), strict=True):
        hit[y : y + 4 * cells.edge, x : x + 4 * cells.edge] += 1
    assert hit.max() == 1, "nothing is computed twice, or added twice"
    x, y = layout.texels_of(slots)
    assert hit[y, x].all(), "every block of the slots is covered"
    inside = tile * layout.pitch, (tile + 1) * layout.pitch
    if layout.tiles > 1:
        assert (left >= inside[0]).all()
        assert (left + 4 * cells.edge <= inside[1]).all(), "no cell reaches into another tile"
    assert ((left < layout.width) & (bottom < layout.height)).all(), "no cell is wholly beside the texture"
    places = layout.blocks_up_to(slots)
    needed = layout.tiles * min(layout.columns, places) * -(-places // layout.columns)
    held = layout.blocks / (layout.tiles * -(-layout.blocks // layout.tiles))
    assert cells.edge == 1 or cells.count * cells.edge**2 <= 1.1 * needed * held + 1e-6
    if cells.edge == 1:
        assert cells.count == needed


def test_draws_in_cells_compute_them_from_their_slots() -> None:
    kernels = KernelOptions(cover="quads", largest_cell=4, rows_per_draw=4, tiles=2)
    plan, seen = chunk_of(rows=96, kernels=kernels), set()
    made = compile_plan(plan, PlanLimits(2048, 8, 16))
    for tokens in (1, 5, 9, 33, 64, 96):
        values = made.plan.values(plan.values_for(tokens))
        for spec, draw in zip(plan.draws, made.draws, strict=True):
            if spec.largest_cell:
                layout = made.layouts[spec.outputs[0]]
                assert isinstance(layout, BlockLayout)
                slots = spec.extent(values)[0]
                *uniforms, count = Cells.of(layout, slots, int(cell_edges(layout, slots, spec.largest_cell)))
                assert compiled(draw.call.vertices)(values) == 6 * count
                given = {**dict(draw.call.constants), **{name: values[key] for name, key in draw.call.per_run}}
                assert [given[name] for name in CELL_UNIFORMS] == uniforms
                seen.add(int(uniforms[0]))
    assert len(seen) > 1


# Refusals


def test_a_plan_that_cannot_be_is_refused() -> None:
    cases: list[tuple[Callable[[], Plan], str]] = [
        (lambda: chunk_of(cache_slots=70), "a cache of 70 slots; expected a multiple of 64"),
        (lambda: chunk_of(cache_slots=0), "a cache of 0 slots; expected a multiple of 64"),
        (lambda: batch_of(capacity=70), "room for 70 tokens; expected a multiple of 64"),
        (lambda: batch_of(capacity=0), "room for 0 tokens; expected a multiple of 64"),
        (
            lambda: chunk_of(rows=65, cache_slots=64),
            r"draw h\.0\.attn\.store writes \[65, 128\] elements; h\.0\.attn\.cache is \[64, 176\]",
        ),
        (lambda: chunk_of(weights="q4"), r"there is no weight format 'q4'; expected one of f32, .*"),
        (lambda: batch_of(weights="q4"), r"there is no weight format 'q4'; expected one of f32, .*"),
        (
            lambda: batch_of(sequences=600, edge=256),
            r"\d+ vectors of 192 floats need 256×300 texels; the largest texture here is 256×256",
        ),
    ]
    for make, message in cases:
        with refused(message):
            make()


GOOD, SCORE, BATCH = chunk_of(), score_of(), batch_of()


DEFECTS: dict[str, Plan] = {
    "draw h.0.attn.store: a strip needs a target with each block of all slots in one line": with_draw(
        "h.0.attn.store", chunk_of(edge=256), cover="strip"
    ),
    "draw embed: its targets row.hidden.a.0 and row.inner.0 differ in shape": with_draw(
        "embed", GOOD, outputs=("row.hidden.a.0", "row.hidden.a.1", "row.inner.0", "row.hidden.a.3")
    ),
    "draw h.0.mlp.fc_in: x2 is [5, 48]; expected [5, 15]": rebound("h.0.mlp.fc_in", "x2", "row.mixed.2", GOOD),
    "draw h.0.mlp.fc_out: r1 is [5, 48]; expected [5, 15]": rebound("h.0.mlp.fc_out", "r1", "row.mixed.2", GOOD),
    "draw h.0.mlp.fc_in: norms is [5, 48]; expected [5, 16]": rebound("h.0.mlp.fc_in", "norms", "row.mixed.2", GOOD),
    "draw h.0.mlp.fc_in: STEPS does not fit x": redefined("h.0.mlp.fc_in", GOOD, STEPS=8),
    "draw h.0.mlp.fc_in: 4 steps in 3 parts": redefined("h.0.mlp.fc_in", GOOD, PARTS=3),
    "draw h.0.attn.values: x0 is [5, 176]; expected [any, 192]": rebound("h.0.attn.values", "x0", "row.qkv.0", GOOD),
    "draw h.1.attn.values: rows is [4, 8]; expected [3, any]": redefined("h.1.attn.values", BATCH, MANY=3),
    "draw score: x0 is [5, 37]; expected [5, 36]": redefined("score", SCORE, VOCAB=36),
    "draw pick: x0 is [1, 37]; expected [any, 36]": redefined("pick", BATCH, VOCAB=36),
}


def test_a_defect_is_refused() -> None:
    for plan in (GOOD, SCORE, BATCH):
        assert plan.validate() is plan
    all_refused(DEFECTS)


# Figures of transformers show what chunks of every family compute, see test_families.py; here are their ends.


def test_the_rows_of_a_chunk_are_halved_until_their_scores_fit() -> None:
    config, kernels = ModelConfig(7, 32, 8, 1, 300), KernelOptions()
    options, narrow = (PlanOptions(config, "f32", kernels, edge) for edge in (256, 16))
    scored: dict[str, Any] = {"likelihoods": True, "cache_slots": 512}
    with refused(r"640 vectors of 512 floats need \d+×\d+ texels; the largest texture here is 256×256"):
        chunk_plan(options, rows=512, **scored)
    plan = fitting_chunk_plan(options, rows=512, **scored)
    assert (plan.max_rows, plan.name) == (256, "score")
    assert fitting_chunk_plan(options, rows=256, **scored).max_rows == 256
    with refused(r".*; the largest texture here is 16×16"):
        fitting_chunk_plan(narrow, rows=64, **scored)
