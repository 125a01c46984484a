"""Plans over many rows without a GPU: counts, limits, refusals, the cells that cover them, and that they are the model.

Their float64 oracles are compared with those of the fast and the reference plan, a row at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from family_layers import further_draws
from hypothesis import assume, given
from hypothesis import strategies as st
from tiers import tiered
from tiny_models import NORMS_OF_LAYERS, in_floats, in_formats, tiny

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.gl.replay import Cells
from glinfer.models.fast.rows import (
    LOGITS,
    PICKS,
    ROWS,
    SCORES,
    batch_plan,
    chunk_plan,
    drafted_plan,
    fitting_chunk_plan,
    slots_for,
)
from glinfer.models.fast.token import HIDDEN, fast_plan
from glinfer.models.feed import TOKENS, chunk_feed, runs
from glinfer.models.options import PlanOptions
from glinfer.models.oracle import final_tensors, run_plan
from glinfer.models.plan import Plan, PlanBuilder, PlanLimits, draw_table
from glinfer.models.reference.gab import LOGITS as REFERENCE_LOGITS
from glinfer.models.reference.gab import reference_plan
from glinfer.models.transforms.fold import FoldedWeights
from glinfer.models.transforms.recipe import Recipes
from glinfer.ops import DrawSpec
from glinfer.ops.fused.cached import Heads, cached_scores, score_slots
from glinfer.ops.fused.dense import Matrix, Turning
from glinfer.ops.fused.embed import embed_rows
from glinfer.ops.fused.gemm import gemm
from glinfer.ops.fused.norms import row_norms
from glinfer.ops.fused.rows import (
    BASE,
    CHOSEN,
    NOISE,
    POSITION,
    TARGETS,
    TOKEN,
    WANTED,
    RowInterleaved,
    interleaved,
    row_table,
    table_layout,
)
from glinfer.ops.fused.sample import best_candidate, pick_rows
from glinfer.ops.fused.score import log_probabilities
from glinfer.ops.fused.tiles import store_rows, tile_scores, tile_values
from glinfer.ops.kernels import KernelOptions, default_kernels
from glinfer.ops.spec import TensorSpec
from glinfer.quant.formats import WEIGHT_FORMATS

Array = np.ndarray[Any, Any]
GAB = ModelConfig.from_options("")
SMALL = ModelConfig(37, 15, 3, 2, 70)
WEBGL2 = PlanLimits(2048, 4, 16, 1.0)
NARROW = KernelOptions(rows_per_draw=4, largest_cell=4)
KERNELS = {
    "plain": KernelOptions(),
    "narrow": NARROW,
    "llvmpipe": default_kernels("llvmpipe (LLVM 15.0.6, 256 bits)", 64.0),
    "a GPU": default_kernels("NVIDIA H100", 2047.0),
    "one by one": KernelOptions(quad=False, rows_per_draw=1),
    "mantissa": KernelOptions(tiles=8, pitch=16, mantissa=True, rows_per_draw=2, part_steps=2, split_values=True),
}
every_kernel = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)
every_format = pytest.mark.parametrize("weights", sorted(WEIGHT_FORMATS))


def chunk_of(
    config: ModelConfig = SMALL,
    weights: str = "f32",
    kernels: KernelOptions | None = None,
    *,
    rows: int = 20,
    cache_slots: int = 128,
    edge: int = 2048,
    formats: Mapping[str, str] | None = None,
    **further: Any,
) -> Plan:
    options = PlanOptions(config, weights, kernels or KernelOptions(), edge, formats)
    return chunk_plan(options, rows=rows, cache_slots=cache_slots, **further)


def score_of(*arguments: Any, **options: Any) -> Plan:
    return chunk_of(*arguments, likelihoods=True, **options)


def batch_of(
    config: ModelConfig = SMALL,
    weights: str = "f32",
    kernels: KernelOptions | None = None,
    *,
    sequences: int = 3,
    capacity: int = 128,
    edge: int = 2048,
    formats: Mapping[str, str] | None = None,
) -> Plan:
    options = PlanOptions(config, weights, kernels or KernelOptions(), edge, formats)
    return batch_plan(options, sequences=sequences, capacity=capacity)


MAKERS: dict[str, Callable[..., Plan]] = {"chunk": chunk_of, "score": score_of, "batch": batch_of}
every_plan = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def refused(message: str) -> Any:
    """Expect a PlanError of one line that is exactly this pattern."""
    return pytest.raises(PlanError, match=rf"\A{message}\Z")


# Counts


def draws_of(name: str, blocks: int, family: str = "llama") -> int:
    """The draws of a plan: norms of heads and behind branches are passes, those before branches too but in a batch.

    Experts take seven more: rows in one tensor, the router, the choice, the groups of rows with one expert, which are
    counted, placed and listed, and the sum. The norm is in their products.
    """
    turns, before, after = NORMS_OF_LAYERS[family]
    experts = DECODERS[family].experts
    if name == "batch":
        return (7 + turns + after + 7 * experts) * blocks + 3
    whole = 7 + turns + before - experts + after + 7 * experts
    if name == "score":
        return 1 + whole * blocks + 3
    return 1 + whole * (blocks - 1) + 2 + turns + before // 2  # the last layer ends with its keys and values


@given(
    st.sampled_from(sorted(MAKERS)),
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 20), st.integers(1, 70), st.integers(1, 150)),
    st.sampled_from(sorted(KERNELS)),
    st.sampled_from(sorted(WEIGHT_FORMATS)),
    st.integers(1, 60),
)
def test_the_draws_of_any_model(name: str, shape: tuple[int, ...], kernels: str, weights: str, most: int) -> None:
    """And that its plan is valid, which building it has checked."""
    blocks, heads, width, vocab, context = shape
    config = ModelConfig(vocab, heads * width, heads, blocks, context)
    sizes = {"sequences": min(most, 8), "capacity": 192} if name == "batch" else {"rows": most, "cache_slots": 192}
    plan = MAKERS[name](config, weights, KERNELS[kernels], **sizes)
    assert plan.name == name
    assert plan.max_rows == (min(most, 8) if name == "batch" else most)
    assert len(plan.draws) == draws_of(name, blocks) == draw_table(plan, plan.max_rows).total


def ungrouped(config: ModelConfig, plan: Plan) -> int:
    """The draws that a plan is spared where its rows choose fewer experts than there are."""
    experts = config.layer(0).experts
    few = experts is not None and plan.max_rows * experts.stacked.used < experts.stacked.count
    return 3 * few * (config.num_hidden_layers - (plan.name == "chunk"))


@every_plan
@pytest.mark.parametrize("family", sorted(DECODERS))
@pytest.mark.parametrize("layers", [1, 3])
def test_the_draws_of_every_family(make: Callable[..., Plan], family: str, layers: int) -> None:
    """A batch takes a draw more a layer than a token alone, two with gates, five with experts, none with a convolution.

    Of experts one is for rows in one tensor, and three deal rows to groups, whatever the number of rows.
    """
    shared: dict[str, Any] = {}
    if FAMILIES[family].rotary:
        shared = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5, "attention_bias": True}
    for config in (tiny(family, 6, num_hidden_layers=layers), tiny(family, 64, num_hidden_layers=layers, **shared)):
        plan = make(config)
        expected = draws_of(plan.name, layers, family) + further_draws(config, plan.name) - ungrouped(config, plan)
        assert len(plan.draws) == expected == draw_table(plan, 1).total
        fast = fast_plan(PlanOptions(config, weights="f32", kernels=KernelOptions(), max_texture_size=2048))
        more = 1 + 4 * DECODERS[family].experts
        apart, batch = further_draws(config, "batch") - further_draws(config), batch_of(config)
        assert len(batch.draws) == len(fast.draws) + more * layers + apart - ungrouped(config, batch)


@every_plan
@pytest.mark.parametrize("form", ["F16", "Q8_0", "Q8_ROW", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("family", ["gab", "gpt2", "llama", "qwen3"])
def test_files_of_every_format_take_no_more_draws(make: Callable[..., Plan], form: str, family: str) -> None:
    checkpoint = in_formats(tiny(family, 128, hidden_size=256, intermediate_size=512), form)
    plan = make(checkpoint.config, "file", formats=checkpoint.formats())
    assert len(plan.draws) == draws_of(plan.name, 2, family)


def test_handing_over_takes_one_draw_more() -> None:
    plan = chunk_of(export_residual=True)
    assert len(plan.draws) == draws_of("chunk", 2) + 1
    assert [(draw.op, draw.outputs) for draw in plan.draws[-1:]] == [("take_row", (HIDDEN,))]
    fast = fast_plan(PlanOptions(SMALL, weights="f32", kernels=KernelOptions(), max_texture_size=2048))
    assert plan.table[HIDDEN] == fast.table[HIDDEN], "so that it can be the same texture"
    assert HIDDEN not in GOOD.table


def test_the_order_of_passes() -> None:
    start, whole = ["row_norms", "gemm", "store_rows"], ["tile_scores", "tile_values", "gemm"]
    block = [*start, *whole, "row_norms", "gemm", "gemm"]
    assert [draw.op for draw in chunk_of().draws] == ["embed_rows", *block, *start]
    assert [draw.op for draw in score_of().draws] == ["embed_rows", *block, *block, "row_norms", "gemm", "score_rows"]
    row = ["gemm", "store_rows", "row_scores", "row_values", "gemm", "gemm", "gemm"]
    assert [draw.op for draw in batch_of().draws] == ["embed_rows", *row, *row, "gemm", "pick_rows"]
    for make in MAKERS.values():
        assert [draw.op for draw in make(tiny("llama")).draws] == [draw.op for draw in make().draws]
        turned = [draw.op for draw in make(tiny("qwen3")).draws]
        assert [op for op in turned if op != "turn_heads"] == [draw.op for draw in make().draws]
        assert {turned[place - 1] for place, op in enumerate(turned) if op == "turn_heads"} == {"gemm"}
        assert {turned[place + 1] for place, op in enumerate(turned) if op == "turn_heads"} == {"store_rows"}
        assert turned.count("turn_heads") == 2


@every_plan
@every_kernel
def test_gab_compiles_fewer_than_20_programs(make: Callable[..., Plan], kernels: KernelOptions) -> None:
    distinct = {
        (draw.shader, draw.vertex, draw.cover, draw.largest_cell, tuple(sorted(draw.defines)), len(draw.inputs))
        for draw in make(GAB, "q8", kernels).draws
    }
    assert len(distinct) <= 12


@every_plan
@pytest.mark.parametrize("targets", TARGETS)
def test_a_row_in_each_target(make: Callable[..., Plan], targets: int) -> None:
    plan = make(kernels=KernelOptions(rows_per_draw=targets))
    assert {len(draw.outputs) for draw in plan.draws} <= {1, targets}
    assert len(plan.draws[0].outputs) == targets
    slots = slots_for(plan.max_rows, targets)
    assert plan.table["row.hidden.a.0"].shape == (slots, SMALL.hidden_size)
    assert plan.table[ROWS].shape == (slots * targets, 8)


def test_rows_fill_up_slots() -> None:
    assert [slots_for(rows, 4) for rows in (1, 3, 4, 5, 8, 9)] == [1, 1, 1, 2, 2, 3]
    assert [slots_for(rows, 1) for rows in (1, 7)] == [1, 7]


@every_plan
@pytest.mark.parametrize("blends", [False, True])
def test_the_stream_is_added_to_in_place_where_blending_may(make: Callable[..., Plan], blends: bool) -> None:
    plan = make(kernels=KernelOptions(blends=blends))
    into = {draw.name: draw for draw in plan.draws if draw.kind in ("attn.out_proj", "mlp.fc_out")}
    assert {draw.adds for draw in into.values()} == {blends}
    assert ("row.hidden.b.0" in plan.table) is not blends
    assert {"r0" in dict(draw.inputs) for draw in into.values()} == {not blends}


def test_only_the_batch_shares_out_sums() -> None:
    """As the fast plan does, whose bits it gives; a chunk has work enough for all cores."""
    kernels = KernelOptions(blends=True, part_steps=2, split_values=True)
    assert {draw.instances for draw in chunk_of(kernels=kernels).draws} == {1}
    shared = {draw.kind: draw.instances for draw in batch_of(kernels=kernels).draws if draw.instances != 1}
    assert shared == {"attn.out_proj": 2, "mlp.fc_out": 2}, "a value has one instance where there are many rows"
    fast = fast_plan(PlanOptions(SMALL, weights="f32", kernels=kernels, max_texture_size=2048))
    alone = {draw.kind: draw.instances for draw in fast.draws if draw.instances != 1}
    assert {**shared, "attn.values": alone["attn.values"]} == alone


# Run values


@every_plan
def test_the_values_of_a_run_are_within_their_ranges(make: Callable[..., Plan]) -> None:
    plan = make()
    for tokens in (1, 2, plan.max_rows):
        found = plan.values_for(tokens)
        assert set(found) == {value.name for value in plan.run_values}
        for value in plan.run_values:
            value.check(found[value.name])
    for tokens in (0, plan.max_rows + 1):
        with refused(f"found {tokens} tokens; expected 1 to {plan.max_rows}, the context of this model"):
            plan.values_for(tokens)


@pytest.mark.parametrize(
    ("make", "name", "good", "bad"),
    [
        (chunk_of, "rows", [1, 20], [0, 21, 1.0, None]),
        (chunk_of, "row_slots", [1, 5], [0, 6, None]),
        (chunk_of, "score_slots", [1, 10], [0, 11, None]),
        (chunk_of, "strip_first", [0, 127], [-1, 128, None]),
        (chunk_of, "last_row", [0, 19], [-1, 20, None]),
        (batch_of, "rows", [3], [1, 2, 4, None]),
        (batch_of, "score_slots", [4, 8], [3, 9, None]),
    ],
)
def test_run_values_are_checked(make: Callable[..., Plan], name: str, good: list[Any], bad: list[Any]) -> None:
    value = {value.name: value for value in make().run_values}[name]
    for accepted in good:
        value.check(accepted)
    for wrong in bad:
        with refused(rf"{name} is .*; expected a whole number from \S+ to \S+"):
            value.check(wrong)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("context", [64, 70, 128])
def test_there_is_room_for_what_fills_up_the_last_slot(targets: int, context: int) -> None:
    """The rows of a slot are run together, and those behind the last real one look back furthest."""
    config = ModelConfig(7, 16, 1, 2, context)
    plan = chunk_of(config, kernels=KernelOptions(rows_per_draw=targets), rows=64, cache_slots=128)
    allowed = {value.name: value for value in plan.run_values}["score_slots"]
    for position in range(context):
        rows = min(64, context - position)
        slots = slots_for(rows, targets)
        allowed.check(slots * score_slots(position + slots * targets))


# Memory and limits


@every_plan
@every_format
def test_gab_runs_within_what_webgl2_guarantees(make: Callable[..., Plan], weights: str) -> None:
    sizes = {"sequences": 4, "capacity": 512} if make is batch_of else {"rows": 512, "cache_slots": 2048}
    plan = make(GAB, weights, NARROW, **sizes)
    assert plan.validate(WEBGL2) is plan


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


@every_plan
@every_format
def test_weights_and_caches_lie_as_in_the_fast_plan(make: Callable[..., Plan], weights: str) -> None:
    """So that the textures can be shared. A batch's caches are its own, and the chunk's of as many slots as they."""
    fast = fast_plan(PlanOptions(SMALL, weights=weights, kernels=NARROW, max_texture_size=2048))
    plan = make(weights=weights, kernels=NARROW)
    ours = {tensor.name: tensor for tensor in plan.of_kind("weight")}
    theirs = {tensor.name: tensor for tensor in fast.of_kind("weight")}
    assert all(ours[name] == theirs[name] for name in ours)
    if make is chunk_of:
        left_out = ("h.1.attn.out_proj", "h.1.mlp.fc_in", "h.1.mlp.fc_out", "lm_head")
        assert set(theirs) - set(ours) == {f"{name}.{part}" for name in left_out for part in ("weight", "consts")}
    else:
        assert set(ours) == set(theirs)
    caches = {tensor.name: tensor for tensor in plan.of_kind("cache")}
    if make is batch_of:
        long = chunk_of(weights=weights, kernels=NARROW, cache_slots=3 * 128, every=128)
        assert caches.pop(PICKS).shape == (plan.table[ROWS].shape[0], 64), (
            "where the next run finds what this one chose"
        )
        assert caches == {tensor.name: tensor for tensor in long.of_kind("cache")}
    else:
        assert caches == {tensor.name: tensor for tensor in fast.of_kind("cache") if tensor.name != "picks"}


@pytest.mark.parametrize("form", ["", "Q8_0", "F16"])
@pytest.mark.parametrize("family", sorted(DECODERS))
def test_every_family_shares_its_textures(family: str, form: str) -> None:
    checkpoint = in_formats(tiny(family, 16, hidden_size=32, intermediate_size=64), form)
    options: dict[str, Any] = {"weights": "file", "kernels": NARROW, "formats": checkpoint.formats()}
    fast = fast_plan(PlanOptions(checkpoint.config, max_texture_size=2048, **options))
    theirs = {tensor.name: tensor for tensor in fast.tensors if tensor.kind in ("weight", "cache")}
    for make, sizes in ((chunk_of, {"cache_slots": 64}), (score_of, {"cache_slots": 64}), (batch_of, {})):
        plan = make(checkpoint.config, **options, **sizes)
        ours = plan.of_kind("weight") if make is batch_of else [*plan.of_kind("weight"), *plan.of_kind("cache")]
        first = Recipes(checkpoint.config, "f32").mixing_in(0).name
        assert {f"{first}.weight", f"{first}.consts", "h.0.mlp.fc_out.weight"} <= {each.name for each in ours}
        assert all(theirs[tensor.name] == tensor for tensor in ours)


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


@given(covered())
def test_cells_cover_all_blocks_of_the_first_slots_and_little_else(case: tuple[BlockLayout, int, int]) -> None:
    layout, slots, largest = case
    cells = Cells.of(layout, slots, largest)
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
    x, y = layout.places(slots)
    assert hit[y, x].all(), "every block of the slots is covered"
    inside = tile * layout.pitch, (tile + 1) * layout.pitch
    if layout.tiles > 1:
        assert (left >= inside[0]).all()
        assert (left + 4 * cells.edge <= inside[1]).all(), "no cell reaches into another tile"
    assert ((left < layout.width) & (bottom < layout.height)).all(), "no cell is wholly beside the texture"
    places = layout.places_of(slots)
    needed = layout.tiles * min(layout.columns, places) * -(-places // layout.columns)
    held = layout.blocks / (layout.tiles * -(-layout.blocks // layout.tiles))
    assert cells.edge == 1 or cells.count * cells.edge**2 <= 1.1 * needed * held + 1e-6
    if cells.edge == 1:
        assert cells.count == needed


def test_cells_are_as_large_as_they_may_be() -> None:
    layout = BlockLayout.of((64, 64 * 16), 2048)  # 16 blocks side by side, 64 lines of them
    assert Cells.of(layout, 64, 4) == Cells(edge=4, across=4, each=64, count=64)
    assert Cells.of(layout, 64, 2) == Cells(edge=2, across=8, each=256, count=256)
    assert Cells.of(layout, 64, 1) == Cells(edge=1, across=16, each=1024, count=1024)
    assert Cells.of(layout, 3, 4) == Cells(edge=1, across=16, each=48, count=48), "a third too much"
    assert Cells.of(layout, 2, 4) == Cells(edge=2, across=8, each=8, count=8)
    assert Cells.of(layout, 39, 4).edge == 4, "40 lines for 39"
    padded = BlockLayout.of((64, 64 * 9), 2048, tiles=4)  # three places a slot in each tile; three tiles need two
    assert Cells.of(padded, 64, 4) == Cells(edge=1, across=16, each=192, count=768), "a third too much"


@given(covered())
def test_the_blocks_of_a_tile_are_counted_from_its_first_to_its_last(case: tuple[BlockLayout, int, int]) -> None:
    layout, slots, _ = case
    x, y = layout.origin(np.arange(slots)[:, None], np.arange(layout.blocks)[None, :])
    place = y // 4 * layout.columns + x % layout.pitch // 4 if layout.tiles > 1 else y // 4 * layout.columns + x // 4
    assert layout.places_of(slots) == int(place.max()) + 1


@pytest.mark.parametrize(
    ("layout", "one_line"),
    [
        (BlockLayout.by_block((128, 150), 2048), True),
        (BlockLayout.by_block((512, 1), 2048), True),
        (BlockLayout.by_block((513, 1), 2048), False),
        (BlockLayout.by_block((128, 150), 256), False),
        (BlockLayout.of((128, 150), 2048), False),
        (BlockLayout.of((1, 640), 2048), False),
    ],
)
def test_a_strip_needs_each_block_of_all_slots_in_one_line(layout: BlockLayout, one_line: bool) -> None:
    assert layout.in_one_line is one_line
    x, y = layout.origin(np.arange(layout.rows)[:, None], np.arange(layout.blocks)[None, :])
    if one_line:
        assert np.array_equal(x, np.broadcast_to(4 * np.arange(layout.rows)[:, None], x.shape))
        assert np.array_equal(y, np.broadcast_to(4 * np.arange(layout.blocks)[None, :], y.shape))


@pytest.mark.parametrize(("edge", "cover"), [(2048, "strip"), (512, "strip"), (256, "quads")])
def test_a_chunk_is_stored_as_a_strip_where_the_cache_lies_in_lines(edge: int, cover: str) -> None:
    stores = [draw for draw in chunk_of(edge=edge).draws if draw.op == "store_rows"]
    assert {draw.cover for draw in stores} == {cover}
    assert {draw.vertex for draw in stores} == {"" if cover == "strip" else "common/rows.vert"}
    batched = [draw for draw in batch_of(edge=edge).draws if draw.op == "store_rows"]
    assert {(draw.cover, draw.vertex) for draw in batched} == {("quads", "common/rows.vert")}


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: chunk_of(cache_slots=70), "a cache of 70 slots; expected a multiple of 64"),
        (lambda: chunk_of(cache_slots=0), "a cache of 0 slots; expected a multiple of 64"),
        (lambda: score_of(cache_slots=-64), "a cache of -64 slots; expected a multiple of 64"),
        (lambda: batch_of(capacity=70), "room for 70 tokens; expected a multiple of 64"),
        (lambda: batch_of(capacity=0), "room for 0 tokens; expected a multiple of 64"),
        (
            lambda: chunk_of(rows=65, cache_slots=64),
            r"draw h\.0\.attn\.store writes \[65, 128\] elements; h\.0\.attn\.cache is \[64, 176\]",
        ),
        (lambda: chunk_of(weights="q4"), r"there is no weight format 'q4'; expected one of f32, .*"),
        (lambda: batch_of(weights="q4"), r"there is no weight format 'q4'; expected one of f32, .*"),
        (lambda: chunk_of(edge=16), r".*; the largest texture here is 16×16"),
        (
            lambda: batch_of(sequences=600, edge=256),
            r"\d+ vectors of 192 floats need 256×300 texels; the largest texture here is 256×256",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(make: Callable[[], Plan], message: str) -> None:
    with refused(message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_draw": 3}, "rows_per_draw is 3; expected 1, 2, 4 or 8"),
        ({"rows_per_draw": 0}, "rows_per_draw is 0; expected 1, 2, 4 or 8"),
        ({"rows_per_draw": 16}, "rows_per_draw is 16; expected 1, 2, 4 or 8"),
        ({"largest_cell": 0}, "largest_cell is 0; expected at least 1"),
        ({"chunk": 0}, "chunk is 0; expected at least 1"),
    ],
)
def test_kernels_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with refused(message):
        KernelOptions(**options)


@pytest.mark.parametrize("renderer", ["llvmpipe (LLVM 15)", "NVIDIA H100", ""])
def test_cells_are_of_several_blocks_only_where_points_are_large_enough(renderer: str) -> None:
    cells = {size: default_kernels(renderer, size).largest_cell for size in (1.0, 4.0, 15.9, 16.0, 2047.0)}
    large = 4 if "llvmpipe" in renderer else 1  # one block fills a GPU most evenly
    assert cells == {1.0: 4, 4.0: 1, 15.9: 1, 16.0: large, 2047.0: large}, "at 1.0 they are triangles"
    for size in cells:
        made = default_kernels(renderer, size)
        assert (made.rows_per_draw, made.blends) == (8, True)
        limits = PlanLimits(16384, 8, 32, size)
        for make in MAKERS.values():
            make(kernels=made).validate(limits)


def tensors(*layouts: Any) -> tuple[TensorSpec, ...]:
    plan = PlanBuilder("p", 5, [])
    return tuple(plan.laid_out(f"t{number}", "input", layout) for number, layout in enumerate(layouts))


BLOCKS = BlockLayout.of((5, 64), 2048)


def test_a_matrix_is_dealt_to_tensors_of_one_layout() -> None:
    with refused(r"found 3 tensors for one matrix; expected one of \(1, 2, 4, 8\)"):
        RowInterleaved(tensors(BLOCKS, BLOCKS, BLOCKS))
    with refused(r"found 0 tensors for one matrix; expected one of \(1, 2, 4, 8\)"):
        RowInterleaved(())
    with refused("t0 and those beside it do not lie in blocks of one layout"):
        RowInterleaved(tensors(BLOCKS, BlockLayout.of((6, 64), 2048)))
    table = RowLayout.of((5, 64), "rgba32f", 2048)
    with refused("t0 and those beside it do not lie in blocks of one layout"):
        RowInterleaved(tensors(table, table))
    good = RowInterleaved(tensors(BLOCKS, BLOCKS))
    assert (good.slots, good.cols, good.names, good.layout) == (5, 64, ("t0", "t1"), BLOCKS)
    assert good.inputs("r") == (("r0", "t0"), ("r1", "t1"))


def test_builders_refuse_tensors_that_do_not_fit() -> None:
    plan, kernels = PlanBuilder("p", 5, []), KernelOptions()
    block, cache = RowInterleaved(tensors(BLOCKS)), tensors(BlockLayout.by_block((64, 192), 2048))[0]
    flat = plan.input("flat", 5, 64, "r32f")
    rows, bad = (
        plan.laid_out(name, "input", RowLayout.of((5, cols), "rgba32ui", 2048))
        for name, cols in (("rows", 8), ("bad", 4))
    )
    weight = plan.laid_out("w", "weight", GemvLayout.of(64, 64, "f32", True, 2048))
    consts = plan.laid_out("c", "weight", ConstantLayout.of(64, False, True, 2048))
    options: dict[str, Any] = {"slots": 5, "kernels": kernels}
    matrix = Matrix(weight, consts, 64)
    with refused("draw d: activation 'relu'; known: none, gelu_new, gelu, silu, tanh"):
        gemm("d", "d", block, matrix, block, activation="relu", **options)
    with refused("draw d: expected rows in blocks"):
        gemm("d", "d", flat, matrix, block, **options)
    with refused("draw d: expected packed weights and constants"):
        gemm("d", "d", block, Matrix(block.tensors[0], consts, 64), block, **options)
    with refused("draw d: norms lie in blocks, and are not computed twice"):
        gemm("d", "d", block, matrix, block, norms=flat, **options)
    with refused("draw d: norms lie in blocks, and are not computed twice"):
        gemm("d", "d", block, matrix, block, norms=block.tensors[0], norm_eps=1e-5, **options)
    table = plan.laid_out("table", "weight", RowLayout.of((9, 16), "rgba32f", 2048))
    with refused("draw d: rotary positions need the table of rows"):
        gemm("d", "d", block, matrix, block, turning=Turning(table, 16, 48), **options)
    with refused("draw d: flat does not lie in blocks"):
        row_norms("d", "d", block, flat, eps=1e-5, **options)
    with refused("draw d: expected a table of rows, or of packed rows"):
        embed_rows("d", rows, flat, None, block, **options)
    with refused("draw d: expected a table of positions"):
        embed_rows("d", rows, table, flat, block, **options)
    for wrong in (flat, bad):
        with refused(f"{wrong.name} is no table of rows with 8 words each"):
            table_layout(wrong)
    heads = Heads(1, 1, 16)
    for make in (tile_scores, tile_values):
        with refused("draw d: flat does not lie in blocks"):
            make("d", block, flat, rows, block, heads, kernels=kernels)
        with refused("bad is no table of rows with 8 words each"):
            make("d", block, cache, bad, block, heads, kernels=kernels)
    with refused("bad is no table of rows with 8 words each"):
        cached_scores("d", cache, block.tensors[0], heads, rows=bad, kernels=kernels)
    with refused("draw d: flat does not lie in blocks"):
        store_rows("d", block, rows, flat, together=True, kernels=kernels)
    with refused("draw d: flat does not lie in blocks"):
        pick_rows("d", block, rows, flat, vocab=64, count=5, kernels=kernels)


GOOD, SCORE, BATCH = chunk_of(), score_of(), batch_of()


def with_draw(plan: Plan, name: str, **changes: Any) -> Plan:
    """The plan with one draw changed."""
    assert name in {draw.name for draw in plan.draws}
    draws = [dataclasses.replace(draw, **changes) if draw.name == name else draw for draw in plan.draws]
    return dataclasses.replace(plan, draws=tuple(draws))


def spec(plan: Plan, name: str) -> DrawSpec:
    return next(draw for draw in plan.draws if draw.name == name)


def rebound(plan: Plan, name: str, sampler: str, tensor: str) -> Plan:
    inputs = tuple((each, tensor if each == sampler else found) for each, found in spec(plan, name).inputs)
    return with_draw(plan, name, inputs=inputs)


def redefined(plan: Plan, name: str, **values: Any) -> Plan:
    return with_draw(plan, name, defines=tuple({**dict(spec(plan, name).defines), **values}.items()))


DEFECTS: list[tuple[Callable[[], Plan], str]] = [
    (
        lambda: with_draw(chunk_of(edge=256), "h.0.attn.store", cover="strip"),
        r"draw h\.0\.attn\.store: a strip needs a target with each block of all slots in one line",
    ),
    (
        lambda: with_draw(GOOD, "h.0.mlp.fc_in", cover="strip"),
        r"draw h\.0\.mlp\.fc_in: a strip needs a target with each block of all slots in one line",
    ),
    (lambda: with_draw(GOOD, "embed", cover="triangle"), "draw embed: a target in blocks is covered block by block"),
    (lambda: with_draw(GOOD, "embed", size=("slots", 15)), "draw embed: 'slots' is no run value of the plan; .*"),
    (
        lambda: with_draw(GOOD, "embed", outputs=("row.hidden.a.0", "row.hidden.a.1", "row.inner.0", "row.hidden.a.3")),
        r"draw embed: its targets row\.hidden\.a\.0 and row\.inner\.0 differ in shape",
    ),
    (
        lambda: with_draw(GOOD, "embed", outputs=("row.hidden.a.0",) * 2),
        r"draw embed writes one tensor twice: row\.hidden\.a\.0, row\.hidden\.a\.0",
    ),
    (
        lambda: with_draw(GOOD, "h.0.mlp.fc_out", outputs=spec(GOOD, "h.0.mlp.fc_in").outputs),
        r"draw h\.0\.mlp\.fc_out samples row\.inner\.0, which it renders to: a feedback loop, undefined in OpenGL",
    ),
    (
        lambda: rebound(GOOD, "h.0.mlp.fc_in", "x2", "row.mixed.2"),
        r"draw h\.0\.mlp\.fc_in: x2 is \[5, 48\]; expected \[5, 15\]",
    ),
    (
        lambda: rebound(GOOD, "h.0.mlp.fc_out", "r1", "row.mixed.2"),
        r"draw h\.0\.mlp\.fc_out: r1 is \[5, 48\]; expected \[5, 15\]",
    ),
    (
        lambda: rebound(GOOD, "h.0.mlp.fc_in", "norms", "row.mixed.2"),
        r"draw h\.0\.mlp\.fc_in: norms is \[5, 48\]; expected \[5, 16\]",
    ),
    (
        lambda: rebound(GOOD, "h.0.mlp.fc_in", "weight", "h.0.mlp.fc_out.weight"),
        r"draw h\.0\.mlp\.fc_in: weight is \[15, 60\]; expected \[60, 16\]",
    ),
    (lambda: redefined(GOOD, "h.0.mlp.fc_in", STEPS=8), r"draw h\.0\.mlp\.fc_in: STEPS does not fit x"),
    (lambda: redefined(GOOD, "h.0.mlp.fc_in.norms", STEPS=8), r"draw h\.0\.mlp\.fc_in\.norms: STEPS does not fit x"),
    (
        lambda: redefined(GOOD, "h.0.mlp.fc_in", PARTS=2),
        r"draw h\.0\.mlp\.fc_in: parts are added up without activation, rounding or residual",
    ),
    (lambda: redefined(GOOD, "h.0.mlp.fc_in", PARTS=3), r"draw h\.0\.mlp\.fc_in: 4 steps in 3 parts"),
    (
        lambda: redefined(GOOD, "h.0.attn.scores", HEADS=2, KV_HEADS=1),
        r"draw h\.0\.attn\.scores: cache is \[128, 176\]; expected \[any, 96\]",
    ),
    (
        lambda: rebound(GOOD, "h.0.attn.values", "x0", "row.qkv.0"),
        r"draw h\.0\.attn\.values: x0 is \[5, 176\]; expected \[any, 192\]",
    ),
    (
        lambda: rebound(GOOD, "h.0.attn.store", "x3", "row.inner.3"),
        r"draw h\.0\.attn\.store reads row\.inner\.3, which no earlier draw has written",
    ),
    (
        lambda: rebound(GOOD, "h.0.attn.values", "rows", "row.norms"),
        r"draw h\.0\.attn\.values: rows row\.norms has format rgba32f; expected whole numbers",
    ),
    (
        lambda: rebound(BATCH, "lm_head", "x0", "row.mixed"),
        r"draw lm_head: x0 is \[4, 48\]; expected \[1, 15\]",
    ),
    (
        lambda: redefined(BATCH, "h.1.attn.values", MANY=3),
        r"draw h\.1\.attn\.values: rows is \[4, 8\]; expected \[3, any\]",
    ),
    (lambda: redefined(SCORE, "score", VOCAB=36), r"draw score: x0 is \[5, 37\]; expected \[5, 36\]"),
    (lambda: redefined(BATCH, "pick", VOCAB=36), r"draw pick: x0 is \[1, 37\]; expected \[any, 36\]"),
]


@pytest.mark.parametrize(("make", "message"), DEFECTS, ids=[message[:50] for _, message in DEFECTS])
def test_a_defect_is_refused(make: Callable[[], Plan], message: str) -> None:
    for plan in (GOOD, SCORE, BATCH):
        assert plan.validate() is plan
    with refused(message):
        make().validate()


# The model, in float64


IDS = [int(token) for token in np.random.default_rng(4).integers(0, 37, 70)]


@dataclasses.dataclass
class Model:
    """A model in a weight format, and what its file has."""

    checkpoint: Checkpoint
    weights: str = "f32"

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @cached_property
    def arrays(self) -> dict[str, Array]:
        return dict(FoldedWeights(self.checkpoint, self.weights))

    @cached_property
    def kept(self) -> int:
        """Columns of a cache that hold keys and values."""
        return 2 * Recipes(self.config, "f32").heads(0).kv_floats

    def plan(self, make: Callable[..., Plan], **options: Any) -> Plan:
        return make(self.config, self.weights, formats=self.checkpoint.formats(), **options)

    def stepped(self, ids: Sequence[int]) -> tuple[dict[str, Array], list[Array]]:
        """The caches and the logits after each token, a token at a time."""
        plan = fast_plan(
            PlanOptions(
                self.config,
                weights=self.weights,
                kernels=KernelOptions(),
                max_texture_size=2048,
                formats=self.checkpoint.formats(),
            )
        )
        caches: dict[str, Array] = {}
        logits = [final_tensors(plan, self.arrays, *given, caches)["logits"][0] for given in runs(plan, ids)]
        return caches, logits


def shaped(family: str, head_dim: int, **changes: Any) -> ModelConfig:
    return tiny(family, head_dim, vocab_size=37, max_position_embeddings=70, **changes)


MODELS = {
    "gab": Model(random_checkpoint(SMALL, seed=11, scale=0.3)),
    "llama": Model(in_floats(shaped("llama", 6, num_attention_heads=4, num_key_value_heads=2))),
    "qwen3": Model(in_floats(shaped("qwen3", 18, num_attention_heads=4, num_key_value_heads=1)), "q8"),
    "mistral": Model(in_floats(shaped("mistral", 8, sliding_window=5, max_window_layers=1))),
    "gemma": Model(in_formats(shaped("gemma", 16, hidden_size=32, tie_word_embeddings=True), "Q8_0"), "file"),
    "gpt2": Model(in_formats(shaped("gpt2", 16, intermediate_size=64), "Q5_1"), "file"),
    "gift_of_gab": Model(in_formats(shaped("gift_of_gab", 10, mlp_bias=True), "Q8_ROW"), "file"),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def chunk_inputs(plan: Plan, ids: Sequence[int], position: int, targets: int) -> tuple[dict[str, Array], Any]:
    """The table and the run values of tokens that follow each other."""
    table = row_table(plan.table[ROWS].shape[0])
    values = chunk_feed(table, ids, position, targets)
    table[: len(ids), WANTED] = [*ids[1:], 0]
    return {ROWS: table}, values


def check_chunks(model: Model, targets: int) -> None:
    expected, _ = model.stepped(IDS)
    plan = model.plan(chunk_of, kernels=KernelOptions(rows_per_draw=targets, blends=targets > 2), rows=40)
    caches: dict[str, Array] = {}
    for start, end in ((0, 1), (1, 33), (33, 70)):
        inputs, values = chunk_inputs(plan, IDS[start:end], start, targets)
        assert len(list(run_plan(plan, model.arrays, inputs, values, caches))) == len(plan.draws)
    assert caches
    for name, cache in caches.items():
        found, wanted = cache[:, : model.kept], expected[name][:, : model.kept]
        assert wanted[:70].any(axis=1).all()
        assert np.allclose(found[:70], wanted[:70], rtol=1e-9, atol=1e-11), name
        assert not found[70 + targets :].any()


@pytest.mark.parametrize("targets", TARGETS)
def test_chunks_leave_the_caches_that_single_tokens_leave(targets: int) -> None:
    check_chunks(MODELS["gab"], targets)


@every_model
def test_chunks_of_every_family_leave_the_caches_that_single_tokens_leave(model: Model) -> None:
    check_chunks(model, 4)


@pytest.mark.parametrize("last", [0, 36, 39])
def test_what_is_handed_over_is_the_stream_before_the_last_block(last: int) -> None:
    """Of the row that is named: the fast plan's last block goes on from there to the same logits."""
    model = MODELS["qwen3"]
    plan = model.plan(chunk_of, rows=40, export_residual=True)
    caches: dict[str, Array] = {}
    inputs, values = chunk_inputs(plan, IDS[: last + 1], 0, 4)
    stream = final_tensors(plan, model.arrays, inputs, values, caches)[HIDDEN]
    fast = fast_plan(PlanOptions(model.config, weights="q8", kernels=KernelOptions(), max_texture_size=2048))
    held: dict[str, Array] = {}
    for inputs, values in runs(fast, IDS[: last + 1]):
        ran = run_plan(fast, model.arrays, inputs, values, held)
        streams = [written for draw, written in ran if draw.kind in ("embed", "mlp.fc_out")]
    assert len(streams) == 3
    assert np.allclose(stream, streams[-2], rtol=1e-9, atol=1e-11)


def likelihoods_of(model: Model, count: int) -> tuple[Array, Array]:
    plan = model.plan(score_of, rows=count)
    inputs, values = chunk_inputs(plan, IDS[:count], 0, 4)
    found = final_tensors(plan, model.arrays, inputs, values)
    parts = np.stack([found[f"{SCORES}.{n}"] for n in range(4)], axis=1).reshape(-1, BLOCK_FLOATS)[: count - 1]
    return log_probabilities(parts)[:2]


def check_likelihoods(model: Model, logits: Array, limit: float) -> None:
    likelihoods, likeliest = likelihoods_of(model, 70)
    log_sums = np.log(np.exp(logits).sum(axis=1))
    expected = logits[np.arange(69), IDS[1:]] - log_sums[:69]
    assert np.abs(likelihoods - expected).max() <= limit
    assert np.array_equal(likeliest, logits[:69].argmax(axis=1))


def test_likelihoods_are_those_of_the_reference_plan() -> None:
    model = MODELS["gab"]
    tokens = {TOKENS: np.array(IDS, dtype=np.int32)[:, None]}
    plan = reference_plan(SMALL, all_rows=True)
    logits = final_tensors(plan, model.checkpoint.tensors, tokens, {"rows": 70})[REFERENCE_LOGITS]
    check_likelihoods(model, logits, 1e-5)  # the folded weights are float32


@every_model
def test_likelihoods_of_every_family_are_those_of_single_tokens(model: Model) -> None:
    _, logits = model.stepped(IDS)
    check_likelihoods(model, np.array(logits), 1e-8)


@every_model
@tiered("kernels", [KernelOptions(), KernelOptions(rows_per_draw=2, blends=True, part_steps=2, split_values=True)])
def test_a_batch_gives_each_sequence_what_it_gives_alone(model: Model, kernels: KernelOptions) -> None:
    """Three sequences of their own lengths and tokens, the longest over more than one group of 64."""
    plan, ids = model.plan(batch_of, kernels=kernels), [IDS, IDS[::-1], IDS[3:40]]
    starts, caches = (62, 5, 0), {}
    alone = [model.stepped(each) for each in ids]
    for name in (tensor.name for tensor in plan.of_kind("cache")):
        caches[name] = np.zeros(plan.table[name].shape)
        for number, (start, (own, _)) in enumerate(zip(starts, alone, strict=True) if name != PICKS else ()):
            caches[name][128 * number : 128 * number + start] = own[name][:start]
    for step in range(4):
        table = row_table(plan.table[ROWS].shape[0])
        for row, start in enumerate(starts):
            table[row, [TOKEN, POSITION, BASE, NOISE]] = ids[row][start + step], start + step, 128 * row, 0
        groups = score_slots(starts[0] + step + 1)
        values = {"rows": 3, "score_slots": groups * len(table)}
        found = final_tensors(plan, model.arrays, {ROWS: table}, values, caches)
        logits = interleaved([found[f"{LOGITS}.{target}"] for target in range(kernels.rows_per_draw)])
        for row, start in enumerate(starts):
            expected = alone[row][1][start + step]
            assert np.allclose(logits[row], expected, rtol=1e-9, atol=1e-10)
            assert best_candidate(found[PICKS][row]) == int(expected.argmax())
    # What was just chosen, whether the table says so or has the tokens.
    table[:3, POSITION] += 1
    given = []
    for tokens in ([CHOSEN] * 3, [best_candidate(found[PICKS][row]) for row in range(3)]):
        table[:3, TOKEN] = tokens
        kept = {name: cache.copy() for name, cache in caches.items()}
        given.append(final_tensors(plan, model.arrays, {ROWS: table}, values, kept)[f"{LOGITS}.0"])
    assert np.array_equal(*given)


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


def test_draws_do_not_grow_with_rows_and_few_rows_are_not_grouped() -> None:
    """Rows that choose fewer experts than there are go one by one, and so do drafted ones."""
    config = tiny("qwen3_moe", num_experts=7, num_experts_per_tok=2)
    counts = {rows: len(chunk_of(config, rows=rows).draws) for rows in (3, 4, 16, 64)}
    assert counts[4] == counts[16] == counts[64] == counts[3] + 3
    ops = {rows: [draw.op for draw in batch_of(config, sequences=rows).draws] for rows in (3, 4)}
    assert ops[3].count("expert_gemm") == ops[4].count("tally_experts") - 2 == 0
    drafted = drafted_plan(PlanOptions(config, "f32", KernelOptions(), 2048), rows=16, cache_slots=64)
    assert "expert_gemm" not in [draw.op for draw in drafted.draws]
