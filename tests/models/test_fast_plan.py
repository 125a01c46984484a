"""The fast plan of every family without a GPU: counts, programs, memory, and that each defect is refused by name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from family_layers import further_draws
from hypothesis import given
from hypothesis import strategies as st
from tiers import tiered
from tiny_models import NORMS_OF_LAYERS, in_formats, tiny

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats.packed import PACKED_FORMATS
from glinfer.formats.tensors import weight_shapes
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.models.choice import WEIGHTS, plan_for
from glinfer.models.fast.token import HEAD_DRAWS, LOGITS, PICKS, fast_plan, layer_draws, tail_draws
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan, PlanBuilder, PlanLimits, draw_table
from glinfer.models.reference.gab import MAX_DRAWS
from glinfer.models.transforms.recipe import Recipes
from glinfer.ops import DrawSpec
from glinfer.ops.fused.cached import Heads, cached_scores, cached_values
from glinfer.ops.fused.dense import Matrix, Turning, shared_parts
from glinfer.ops.fused.embed import embed_token
from glinfer.ops.fused.gemv import gemv
from glinfer.ops.fused.rows import RowInterleaved
from glinfer.ops.fused.sample import pick
from glinfer.ops.fused.turn import turn_heads
from glinfer.ops.kernels import KernelOptions, default_kernels
from glinfer.quant.formats import WEIGHT_FORMATS

ROOT = Path(__file__).resolve().parents[2]
GAB = ModelConfig.from_options("")
SMALL = ModelConfig(37, 15, 3, 2, 70)
WEBGL2 = PlanLimits(2048, 4, 16, 1.0)
KERNELS = {
    "llvmpipe": default_kernels("llvmpipe (LLVM 15.0.6, 256 bits)", 64.0),
    "a GPU": default_kernels("NVIDIA H100", 2047.0),
    "llvmpipe, small points": default_kernels("llvmpipe (LLVM 15.0.6, 256 bits)", 1.0),
    "a GPU, small points": default_kernels("NVIDIA H100", 1.0),
    "plain": KernelOptions(),
    "one by one": KernelOptions(quad=False, part_steps=0, split_values=False),
    "everything": KernelOptions(8, 32, "points", True, True, 4, 4, True, True),
}
every_kernel = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)
every_format = pytest.mark.parametrize("weights", sorted(WEIGHT_FORMATS))
every_family = pytest.mark.parametrize("family", sorted(DECODERS))
DRAWS_OF_A_LAYER = {
    name: 6 + NORMS_OF_LAYERS[name][0] + NORMS_OF_LAYERS[name][2] + 3 * family.experts
    for name, family in DECODERS.items()
}
_SOME = ("llama", "gemma3_text", "qwen3_moe", "granitemoe", "gpt_oss")
assert [DRAWS_OF_A_LAYER[name] for name in _SOME] == [6, 9, 10, 9, 9]
EDGE = 16384
LLAMA_1B = ModelConfig(
    128256,
    2048,
    32,
    16,
    4096,
    8192,
    hidden_act="silu",
    model_type="llama",
    tie_word_embeddings=True,
    num_key_value_heads=8,
    rope_theta=5e5,
    rope_scaling={
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },  # type: ignore[arg-type]
)


def plan_of(
    config: ModelConfig = SMALL,
    weights: str = "f32",
    kernels: KernelOptions | None = None,
    edge: int = 2048,
    **options: Any,
) -> Plan:
    return fast_plan(
        PlanOptions(config, weights=weights, kernels=kernels or KernelOptions(), max_texture_size=edge, **options)
    )


def packed_plan(config: ModelConfig, form: str, kernels: KernelOptions | None = None, edge: int = 2048) -> Plan:
    """The plan of a file whose matrices are in a format."""
    formats = {name: form for name, shape in weight_shapes(config).items() if len(shape) == 2 and "wpe" not in name}
    return plan_of(config, "file", kernels, edge, formats=formats)


def refused(message: str) -> Any:
    """Expect a PlanError of one line that is exactly this pattern."""
    return pytest.raises(PlanError, match=rf"\A{message}\Z")


GOOD = plan_of()
ADDING = plan_of(kernels=KernelOptions(part_steps=2, split_values=True))
LLAMA, NORMED = plan_of(tiny("llama")), plan_of(tiny("qwen3"))
PACKED = packed_plan(tiny("llama", 16, hidden_size=32, intermediate_size=32), "Q8_0")


def spec(name: str, plan: Plan = GOOD) -> DrawSpec:
    return next(draw for draw in plan.draws if draw.name == name)


def with_draw(name: str, plan: Plan = GOOD, **changes: Any) -> Plan:
    """The good plan with one draw changed."""
    assert spec(name, plan)
    draws = [dataclasses.replace(draw, **changes) if draw.name == name else draw for draw in plan.draws]
    return dataclasses.replace(plan, draws=tuple(draws))


def rebound(name: str, sampler: str, tensor: str, plan: Plan = GOOD) -> Plan:
    """The good plan with one sampler of one draw bound to another tensor."""
    inputs = tuple((each, tensor if each == sampler else found) for each, found in spec(name, plan).inputs)
    return with_draw(name, plan, inputs=inputs)


def redefined(name: str, plan: Plan = GOOD, **values: Any) -> Plan:
    """The good plan with some defines of one draw changed, or taken away where the value is None."""
    defines = {**dict(spec(name, plan).defines), **values}
    return with_draw(name, plan, defines=tuple((key, value) for key, value in defines.items() if value is not None))


# Counts


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 20), st.integers(1, 70), st.integers(1, 150))
def test_the_draws_are_6_times_blocks_plus_3(blocks: int, heads: int, width: int, vocab: int, context: int) -> None:
    plan = plan_of(ModelConfig(vocab, heads * width, heads, blocks, context))
    assert len(plan.draws) == 6 * blocks + 3
    table = draw_table(plan, context)
    assert table.total == sum(row.count for row in table.rows) == len(plan.draws)
    assert plan.max_rows == context


@every_family
@pytest.mark.parametrize("layers", [1, 2, 5])
def test_every_family_takes_six_draws_a_layer_and_more_for_norms_of_their_own(family: str, layers: int) -> None:
    """Whatever else it has: shared keys, windows, biases, tied embeddings, heads of any size."""
    # A convolution has no heads to normalise, and six draws too; a delta rule has eleven.
    expected = DRAWS_OF_A_LAYER[family] * layers + 3 + further_draws(tiny(family, num_hidden_layers=layers))
    shared: dict[str, Any] = {}
    if FAMILIES[family].rotary:
        shared = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5, "attention_bias": True}
    for head_dim in (6, 8, 64, 66):
        for tied in (False, True):
            config = tiny(family, head_dim, num_hidden_layers=layers, tie_word_embeddings=tied)
            plan = plan_of(config)
            assert len(plan.draws) == expected == draw_table(plan, 1).total
            assert len(plan_of(dataclasses.replace(config, mlp_bias=True, **shared)).draws) == expected
    assert layer_draws(config) == DRAWS_OF_A_LAYER[family] + further_draws(
        dataclasses.replace(config, num_hidden_layers=1)
    )
    end = further_draws(config, first=layers - 1)
    assert tail_draws(plan, config) == DRAWS_OF_A_LAYER[family] + end + HEAD_DRAWS
    last = [draw.name for draw in plan.draws[-tail_draws(plan, config) :]]
    begins = Recipes(config, "f32").mixing_in(layers - 1).name
    assert (last[0], last[-1]) == (begins, "pick")


@every_family
@tiered("form", PACKED_FORMATS, keep=[0, 1, 2, 10])
def test_files_of_every_format_take_no_more_draws(family: str, form: str) -> None:
    checkpoint = in_formats(tiny(family, 128, hidden_size=256, intermediate_size=512), form)
    assert form in checkpoint.formats().values()
    for kernels in (KERNELS["llvmpipe"], KERNELS["a GPU"], KernelOptions()):
        plan = plan_of(checkpoint.config, "file", kernels, formats=checkpoint.formats())
        assert len(plan.draws) == 2 * DRAWS_OF_A_LAYER[family] + 3 + further_draws(checkpoint.config)


def test_rows_of_different_formats_take_no_more_draws() -> None:
    config = tiny("llama", 16, hidden_size=32, intermediate_size=64)
    names = [name for name, shape in weight_shapes(config).items() if len(shape) == 2]
    for others in (["Q4_0"], ["Q8_0", "Q5_1"], ["F16", "Q8_0", "BF16"], ["", "Q4_0"]):
        formats = {name: others[place % len(others)] or "F32" for place, name in enumerate(names)}
        assert len(plan_of(config, "file", formats=formats).draws) == 2 * 6 + 3


@every_kernel
@every_format
def test_gab_takes_39_draws_whatever_the_weights_and_kernels(kernels: KernelOptions, weights: str) -> None:
    table = draw_table(plan_of(GAB, weights, kernels), 1)
    assert table.total == int(table) == 39
    assert {row.kind: row.count for row in table.rows} == {
        "embed": 1,
        "attn.qkv": 6,
        "attn.scores": 6,
        "attn.values": 6,
        "attn.out_proj": 6,
        "mlp.fc_in": 6,
        "mlp.fc_out": 6,
        "lm_head": 1,
        "pick": 1,
    }


def test_the_order_of_passes() -> None:
    block = ["gemv", "cached_scores", "cached_values", "gemv", "gemv", "gemv"]
    assert [draw.op for draw in GOOD.draws] == ["embed_token", *block, *block, "gemv", "pick"]
    assert [draw.name for draw in GOOD.draws[-HEAD_DRAWS:]] == ["lm_head", "pick"]
    assert GOOD.draws[-2].outputs == (LOGITS,)
    assert GOOD.draws[-1].outputs == (PICKS,)
    assert all(len(draw.outputs) == 1 for draw in GOOD.draws)
    normed = ["gemv", "turn_heads", *block[1:]]
    assert [draw.op for draw in plan_of(tiny("qwen3")).draws] == ["embed_token", *normed, *normed, "gemv", "pick"]
    for family in DECODERS:
        if DRAWS_OF_A_LAYER[family] == 6:
            assert [draw.op for draw in plan_of(tiny(family)).draws] == [draw.op for draw in GOOD.draws]
    ended = [*normed[:4], "gemv", "post_norm", "gemv", "gemv", "post_norm"]
    assert [draw.op for draw in plan_of(tiny("gemma3_text")).draws] == ["embed_token", *ended, *ended, "gemv", "pick"]


@every_kernel
@every_format
def test_gab_compiles_fewer_than_20_programs(kernels: KernelOptions, weights: str) -> None:
    """Slow compiling is what users of WebGL models complain about most."""
    distinct = {
        (draw.op, draw.cover, tuple(sorted(draw.defines)), tuple(sampler for sampler, _ in draw.inputs))
        for draw in plan_of(GAB, weights, kernels).draws
    }
    assert len(distinct) <= 9  # one a kind of pass


@every_family
@every_kernel
def test_every_family_compiles_one_program_a_kind_of_pass(family: str, kernels: KernelOptions) -> None:
    info = FAMILIES[family]
    mixed = info.convolves or info.delta_rule
    windows = {"sliding_window": 8, "max_window_layers": 2} if info.rotary and not mixed else {}
    # The products before and behind a convolution, its store and itself; a delta rule has five more, and gates are one.
    mixing = 4 if info.convolves else 10 if info.delta_rule else 0
    for changes, further in (({}, 0), (windows, 2)):  # other scores and values where some layers have windows
        config = tiny(family, 16, num_hidden_layers=5, **changes)
        distinct = {
            (draw.op, draw.cover, tuple(sorted(draw.defines)), tuple(sampler for sampler, _ in draw.inputs))
            for draw in plan_of(config, kernels=kernels).draws
        }
        assert len(distinct) <= 3 + DRAWS_OF_A_LAYER[family] + mixing + further


def test_only_the_scores_and_the_instances_grow_with_the_position() -> None:
    for plan in (GOOD, ADDING):
        first, last = plan.values_for(1), plan.values_for(70)
        assert (first["position"], first["score_slots"]) == (0, 1)
        assert (last["position"], last["score_slots"]) == (69, 2)
        growing = {draw.kind for draw in plan.draws if draw.extent(first) != draw.extent(last)}
        assert growing == {"attn.scores"}
        assert {draw.kind for draw in plan.draws if isinstance(draw.instances, str)} <= {"attn.values"}
        moving = {draw.kind for draw in plan.draws if draw.first_row(first) != draw.first_row(last)}
        assert moving == {"attn.qkv", "pick"}
        assert {draw.first_row(last) for draw in plan.draws} == {0, 69}


@pytest.mark.parametrize(
    ("context", "slots"), [(1, [1]), (63, [1]), (64, [1]), (65, [1, 2]), (128, [1, 2]), (129, [1, 2, 3])]
)
def test_slots_of_scores_are_64_tokens(context: int, slots: list[int]) -> None:
    plan = plan_of(ModelConfig(7, 4, 1, 1, context))
    found = [plan.values_for(tokens)["score_slots"] for tokens in range(1, context + 1)]
    assert sorted(set(found)) == slots
    assert all(64 * (found[tokens - 1] - 1) < tokens <= 64 * found[tokens - 1] for tokens in range(1, context + 1))
    assert plan.table["h.0.attn.cache"].shape[0] == 64 * slots[-1]


# Run values


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("position", [0, 69], [-1, 70, 0.0, None, True, "3"]),
        ("score_slots", [1, 2], [0, 3, 1.0, None]),
        ("token", [-1, 0, 36], [-2, 37, 1.5, None]),
        ("noise", [0.0, 1.0, 1], [-0.1, 1.1, float("nan"), None, True]),
        ("inverse_temperature", [0.0, 1.25, 1e38], [-1.0, float("inf"), float("nan"), None]),
        ("noise_key", [0, 2**32 - 1], [-1, 2**32, 0.5, None]),
    ],
)
def test_run_values_are_checked(name: str, good: list[Any], bad: list[Any]) -> None:
    value = {value.name: value for value in GOOD.run_values}[name]
    for accepted in good:
        value.check(accepted)
    for wrong in bad:
        with refused(rf"{name} is .*; expected a (whole )?number from \S+ to \S+"):
            value.check(wrong)


def test_the_values_of_a_run_are_within_their_ranges() -> None:
    assert {value.name for value in GOOD.run_values} == set(GOOD.values_for(1))
    for tokens in (1, 63, 64, 65, 70):
        for value in GOOD.run_values:
            value.check(GOOD.values_for(tokens)[value.name])
    for tokens in (0, 71):
        with refused(f"found {tokens} tokens; expected 1 to 70, the context of this model"):
            GOOD.values_for(tokens)


# Memory and limits


@every_kernel
@every_format
def test_gab_runs_within_what_webgl2_guarantees(kernels: KernelOptions, weights: str) -> None:
    plan = plan_of(GAB, weights, kernels)
    if kernels.cover == "points":
        with refused(r"draw embed draws points of 4×4 pixels; this renderer allows 1"):
            plan.validate(WEBGL2)
        plan.validate(dataclasses.replace(WEBGL2, max_point_size=4.0))
    else:
        assert plan.validate(WEBGL2) is plan


def test_texture_memory_falls_with_the_weights() -> None:
    taken = {name: plan_of(GAB, name).texture_bytes(2048, "weight") for name in WEIGHT_FORMATS}
    parameters, head = 25_339_016, 5256 * 512
    tables = (5256 + 2048) * 512
    assert 4 * parameters < taken["f32"] < 4.2 * parameters
    # Embeddings are half floats; the padding of matrices and the constants take little.
    for name, matrices in (("f16", 2), ("q16", 2), ("q8", 1)):
        assert 0 < taken[name] - (2 * tables + matrices * (parameters - tables)) < 0.08 * parameters, name
    assert taken["q8l"] - taken["q8"] == pytest.approx(head, rel=0.03)


BILLION = 1_235_814_400  # parameters, with the tied vocabulary once
TABLE = 128256 * 2048
ROPE_BYTES = 4 * 4096 * 64


@pytest.mark.parametrize(
    ("weights", "matrix", "head", "table"),
    [("f32", 4, 4, 4), ("f16", 2, 2, 2), ("q16", 2, 2, 2), ("q8", 1, 1, 2), ("q8l", 1, 2, 2)],
)
def test_a_billion_parameters_fit(weights: str, matrix: int, head: int, table: int) -> None:
    """Llama 3.2 1B, without GL: nothing is allocated, and every texture is one that nearly every renderer has."""
    plan = plan_of(LLAMA_1B, weights, edge=EDGE)
    assert plan.validate(PlanLimits(EDGE, 4, 16)) is plan
    assert len(plan.draws) == 6 * 16 + 3
    # The gains of the last norm are folded into the vocabulary's matrix, so that embeddings are there beside it.
    least = matrix * (BILLION - TABLE) + (head + table) * TABLE
    assert least <= plan.texture_bytes(EDGE, "weight") - ROPE_BYTES <= 1.02 * least
    # Of keys and values those of every token, of queries one; lines are of the width of the texture.
    assert 0 <= plan.texture_bytes(EDGE, "cache") - 2 * 16 * 8 * 4096 * 64 * 4 <= (16 + 1) * 4 * EDGE * 16
    assert plan.texture_bytes(EDGE, "activation") < 4 << 20


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        *(
            ("F16", 16),
            ("BF16", 16),
            ("Q8_ROW", 8),
            ("Q16_ROW", 16),
            ("Q8_0", 9),
            ("Q4_0", 5),
            ("Q4_1", 5),
            ("Q5_0", 6),
        ),
        *(("Q5_1", 6), ("Q2_K", 4.75), ("Q3_K", 5), ("Q4_K", 4.75), ("Q5_K", 5.75), ("Q6_K", 7)),
        *(("IQ4_NL", 5), ("MXFP4", 5), ("IQ4_XS", 4.75), ("IQ2_XXS", 4.75)),
    ],
)
def test_blocks_of_a_billion_parameters_take_so_many_bits_each(form: str, bits: float) -> None:
    """With the scales; tied embeddings in blocks are read out of the vocabulary's matrix."""
    plan = packed_plan(LLAMA_1B, form, edge=EDGE)
    assert len(plan.draws) == 6 * 16 + 3
    assert plan.validate(PlanLimits(EDGE, 4, 16)) is plan
    table = {"F16": 2, "BF16": 4, "Q8_ROW": 4, "Q16_ROW": 4}.get(form, 0) * TABLE
    least = BILLION * bits / 8 + table
    assert 0.999 * least <= plan.texture_bytes(EDGE, "weight") - ROPE_BYTES <= 1.02 * least
    assert ("wte" in plan.table) is bool(table)


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        (16, r"\d+ vectors of \d+ floats need \S+ texels; the largest texture here is 16×16"),
        (48, r"\d+ vectors of \d+ floats need \S+ texels; the largest texture here is 48×48"),
        (64, r"128 vectors of 176 floats need 64×68 texels; the largest texture here is 64×64"),
        (100, r"a matrix of 176×15 weights needs 24 lines of 128 texels; the largest texture here is 100×100"),
    ],
)
def test_textures_that_are_too_small(edge: int, message: str) -> None:
    with refused(message):
        plan_of(edge=edge)


def test_a_smaller_renderer_than_the_plan_was_built_for() -> None:
    with refused(r"tensor \S+: it is laid out in \d+×\d+ texels; the largest texture here is 100×100"):
        GOOD.validate(PlanLimits(100, 4, 16))
    with refused(r"draw h\.0\.attn\.out_proj samples 4 textures; this renderer allows 3"):
        GOOD.validate(PlanLimits(2048, 4, 3))
    assert ADDING.validate(PlanLimits(2048, 1, 3)) is ADDING, "nothing samples the residual stream to add to it"


# Defects


def test_the_good_plans_are_good() -> None:
    assert GOOD.validate() is GOOD
    assert ADDING.validate() is ADDING
    for plan in (LLAMA, NORMED, PACKED):
        assert plan.validate() is plan


DEFECTS: list[tuple[Callable[[], Plan], str]] = [
    (lambda: with_draw("embed", first="row"), "draw embed: 'row' is no run value of the plan; known: .*"),
    (lambda: with_draw("embed", instances="rows"), "draw embed: 'rows' is no run value of the plan; known: .*"),
    (lambda: with_draw("pick", per_run=(("noise", "heat"),)), "draw pick: 'heat' is no run value of the plan; .*"),
    (lambda: with_draw("embed", cover="circles"), "draw embed covers its target with 'circles'; known: triangle, .*"),
    (lambda: with_draw("embed", cover="triangle"), "draw embed: a target in blocks is covered block by block"),
    (
        lambda: with_draw("h.0.mlp.fc_out", outputs=("mlp.inner",)),
        r"draw h\.0\.mlp\.fc_out samples mlp\.inner, which it renders to: a feedback loop, undefined in OpenGL",
    ),
    (
        lambda: rebound("h.0.attn.scores", "cache", "attn.mixed"),
        r"draw h\.0\.attn\.scores reads attn\.mixed, which no earlier draw has written",
    ),
    (
        lambda: with_draw("h.0.attn.out_proj", ADDING, outputs=(LOGITS,)),
        r"draw h\.0\.attn\.out_proj adds to logits, which no earlier draw has written",
    ),
    (
        lambda: with_draw("h.0.attn.values", ADDING, clears=False),
        r"draw h\.0\.attn\.values adds to attn\.mixed, which no earlier draw has written",
    ),
    (lambda: with_draw("pick", outputs=("wte",)), "draw pick writes wte, which is weight, not an activation"),
    (
        lambda: with_draw("h.1.attn.qkv", first="score_slots", size=(128, 176)),
        r"draw h\.1\.attn\.qkv writes \[128, 176\] elements from row 2; h\.1\.attn\.cache is \[128, 176\]",
    ),
    (
        lambda: with_draw("pick", size=(70, 64)),
        r"draw pick writes \[70, 64\] elements from row 69; picks is \[70, 64\]",
    ),
    (
        lambda: rebound("h.0.mlp.fc_in", "weight", "h.0.mlp.fc_out.weight"),
        r"draw h\.0\.mlp\.fc_in: weight is \[15, 60\]; expected \[60, 16\]",
    ),
    (
        lambda: rebound("h.0.mlp.fc_in", "x", "mlp.inner"),
        r"draw h\.0\.mlp\.fc_in samples mlp\.inner, .*",
    ),
    (
        lambda: rebound("h.1.mlp.fc_in", "x", "attn.mixed"),
        r"draw h\.1\.mlp\.fc_in: x is \[1, 48\]; expected \[1, 15\]",
    ),
    (
        lambda: rebound("h.1.attn.out_proj", "residual", "mlp.inner"),
        r"draw h\.1\.attn\.out_proj: residual is \[1, 60\]; expected \[1, 15\]",
    ),
    (
        lambda: rebound("lm_head", "consts", "h.0.mlp.fc_in.consts"),
        r"draw lm_head: consts is \[60, 1\]; expected \[37, 1\]",
    ),
    (lambda: redefined("lm_head", SCALED=1), r"draw lm_head: consts is \[37, 1\]; expected \[37, 5\]"),
    (lambda: redefined("lm_head", WEIGHTS=3), r"draw lm_head: weight is \[37, 16\]; expected \[37, 4\]"),
    (lambda: redefined("lm_head", UNROLL=3), "draw lm_head: 4 steps in 1 parts"),
    (lambda: redefined("lm_head", STEPS=8), "draw lm_head: STEPS does not fit x"),
    (
        lambda: redefined("h.0.mlp.fc_out", ADDING, ACTIVATION=1),
        r"draw h\.0\.mlp\.fc_out: parts are added up without activation, rounding or residual",
    ),
    (
        lambda: redefined("h.0.attn.scores", HEADS=2, KV_HEADS=1),
        r"draw h\.0\.attn\.scores: cache is \[128, 176\]; expected \[any, 96\]",
    ),
    (
        lambda: redefined("h.0.attn.values", HEAD_TEXELS=8),
        r"draw h\.0\.attn\.values: cache is \[128, 176\]; expected \[any, 288\]",
    ),
    (
        lambda: with_draw("h.0.attn.scores", per_run=()),
        r"draw h\.0\.attn\.scores: op cached_scores needs a define or uniform 'position'",
    ),
    (lambda: rebound("pick", "logits", "mlp.inner"), r"draw pick: logits is \[1, 60\]; expected \[1, 37\]"),
    (lambda: rebound("embed", "wte", "wpe"), r"plan fast: no draw reads weight wte"),
    (lambda: with_draw("embed", outputs=("mlp.inner",)), r"draw embed: wte is \[37, 15\]; expected \[any, 60\]"),
    (lambda: redefined("embed", POSITIONS=0), "draw embed: POSITIONS does not fit its tables"),
    (lambda: redefined("embed", TABLE_FORMAT=6), "draw embed: TABLE_FORMAT does not fit its tables"),
    (
        lambda: redefined("h.0.mlp.fc_in", LLAMA, GATED=0),
        r"draw h\.0\.mlp\.fc_in: consts is \[128, 1\]; expected \[24, 1\]",
    ),
    (
        lambda: redefined("h.0.mlp.fc_in", PACKED, GATED=0),
        r"draw h\.0\.mlp\.fc_in: consts is \[128, 1\]; expected \[32, 1\]",
    ),
    (
        lambda: redefined("h.0.mlp.fc_out", LLAMA, GATED=1),
        r"draw h\.0\.mlp\.fc_out: consts is \[20, 1\]; expected \[128, 1\]",
    ),
    (lambda: redefined("h.0.mlp.fc_in", PACKED, INPUTS=64), r"draw h\.0\.mlp\.fc_in: x is \[1, 32\]; .*"),
    (
        lambda: redefined("h.0.mlp.fc_in", PACKED, GROUPED=2),
        r"draw h\.0\.mlp\.fc_in: weight is .*; expected \[128, 8\]",
    ),
    (lambda: redefined("h.0.mlp.fc_in", PACKED, STEPS=2), r"draw h\.0\.mlp\.fc_in: STEPS does not fit x"),
    (lambda: redefined("h.0.mlp.fc_in", PACKED, CENTRED=1), r"draw .*: consts is \[128, 1\]; expected \[128, 2\]"),
    (
        lambda: rebound("h.0.attn.qkv", "gain", "h.0.attn.qkv.consts", PACKED),
        r"draw h\.0\.attn\.qkv: gain is \[96, 1\]; expected \[1, 32\]",
    ),
    (
        lambda: with_draw("h.0.attn.qkv", LLAMA, per_run=()),
        r"draw h\.0\.attn\.qkv: op gemv needs a define or uniform 'position'",
    ),
    (
        lambda: redefined("h.0.attn.turn", NORMED, HEAD_DIM=17),
        r"draw h\.0\.attn\.turn: a head is larger than its place",
    ),
    (
        lambda: rebound("h.0.attn.turn", "gains", "rope", NORMED),
        r"draw h\.0\.attn\.turn: gains is \[48, 16\]; expected \[2, 16\]",
    ),
    (lambda: dataclasses.replace(GOOD, max_rows=71), "draw .*"),
    (
        lambda: dataclasses.replace(GOOD, draws=tuple(draw for draw in GOOD.draws if draw.name != "h.0.attn.scores")),
        r"draw h\.0\.attn\.values reads attn\.scores, which no earlier draw has written",
    ),
]


@pytest.mark.parametrize(("make", "message"), DEFECTS, ids=[message[:50] for _, message in DEFECTS])
def test_a_defect_is_refused(make: Callable[[], Plan], message: str) -> None:
    with refused(message):
        make().validate()


def test_an_unknown_weight_format_is_refused() -> None:
    known = ", ".join(WEIGHTS)
    with pytest.raises(InputError, match=rf"\Athere is no weight format 'q4'; expected one of {known}\Z"):
        plan_for(SMALL, "fast", weights="q4")


def test_builders_refuse_tensors_that_do_not_lie_in_blocks() -> None:
    plan = PlanBuilder("p", 5, GOOD.run_values)
    flat = plan.input("flat", 1, 64, "r32f")
    block = plan.laid_out("block", "input", BlockLayout.of((1, 64), 2048))
    kernels = KernelOptions()
    heads = Heads(1, 1, 16)
    with refused("draw d: flat does not lie in blocks"):
        cached_scores("d", flat, block, heads, kernels=kernels)
    with refused("draw d: flat does not lie in blocks"):
        cached_values("d", block, flat, block, heads, kernels=kernels)
    with refused("draw d: expected vectors in blocks"):
        gemv("d", "d", block, Matrix(block, block, 64), flat, kernels=kernels)
    with refused("draw d: expected packed weights and constants"):
        gemv("d", "d", block, Matrix(block, block, 64), block, kernels=kernels)
    weight = plan.laid_out("weight", "weight", GemvLayout.of(64, 64, "f32", True, 2048))
    consts = plan.laid_out("consts", "weight", ConstantLayout.of(64, False, True, 2048))
    with refused("draw d: activation 'relu'; known: none, gelu_new, gelu, silu, tanh"):
        gemv("d", "d", block, Matrix(weight, consts, 64), block, activation="relu", kernels=kernels)
    with refused("draw d: weight has no pairs of whole blocks of outputs"):
        gemv("d", "d", block, Matrix(weight, consts, 64, gated=True), block, kernels=kernels)
    with refused("draw d: flat is no table of rows"):
        gemv("d", "d", block, Matrix(weight, consts, 64), block, turning=Turning(flat, 16, 48), kernels=kernels)
    with refused("draw d: expected a table of gains"):
        turn_heads(
            "d",
            RowInterleaved((block,)),
            flat,
            Turning(flat, 16, 48),
            RowInterleaved((block,)),
            head_dim=16,
            eps=1e-5,
            rows=None,
            kernels=kernels,
        )
    table = plan.laid_out("table", "weight", RowLayout.of((5, 64), "rgba32f", 2048))
    with refused("draw d: flat does not lie in blocks"):
        embed_token("d", table, None, flat, block, kernels=kernels)
    with refused("draw d: expected a table of rows, or of packed rows"):
        embed_token("d", flat, None, block, block, kernels=kernels)
    with refused("draw d: expected a table of positions"):
        embed_token("d", table, flat, block, block, kernels=kernels)
    with refused("draw d: flat does not lie in blocks"):
        pick("d", flat, block, vocab=5, kernels=kernels)


@pytest.mark.parametrize(
    ("count", "kv", "floats", "message"),
    [
        (1, 1, 15, "a head of 15 floats; expected whole quads of 16, padded with zeros"),
        (3, 2, 16, "3 heads of queries cannot share 2 of keys"),
        (3, 0, 16, "3 heads of queries cannot share 0 of keys"),
    ],
)
def test_heads_that_cannot_be(count: int, kv: int, floats: int, message: str) -> None:
    with refused(message):
        Heads(count, kv, floats)


@pytest.mark.parametrize(
    ("count", "kv", "floats", "queries_at"), [(8, 8, 64, 1024), (3, 3, 16, 128), (4, 1, 16, 64), (6, 2, 48, 192)]
)
def test_queries_begin_at_a_whole_block_behind_keys_and_values(
    count: int, kv: int, floats: int, queries_at: int
) -> None:
    heads = Heads(count, kv, floats)
    assert heads.queries_at == queries_at
    assert 0 <= queries_at - 2 * heads.kv_floats < 64
    assert heads.cols == queries_at + count * floats
    assert 64 * heads.aside >= count * floats > 64 * (heads.aside - 1)


def test_only_what_is_long_is_shared_out() -> None:
    def parts(plan: Plan) -> dict[str, int | str]:
        return {draw.kind: draw.instances for draw in plan.draws if draw.instances != 1}

    kernels = KernelOptions(part_steps=8, blends=True)
    assert parts(plan_of(GAB, kernels=kernels)) == {"attn.out_proj": 4, "mlp.fc_out": 16}
    # Of groups of 32 a step is a round of 128 inputs.
    config = tiny("llama", 128, hidden_size=256, intermediate_size=2048)
    assert parts(packed_plan(config, "Q4_K", kernels)) == {"attn.out_proj": 2, "mlp.fc_out": 16}
    weight = PlanBuilder("p", 5, []).laid_out("w", "weight", GemvLayout.of(64, 512, "f32", True, 2048))
    matrix = Matrix(weight, weight, 512)
    assert [shared_parts(matrix, steps) for steps in (0, 1, 8, 32, 100, 3)] == [1, 32, 4, 1, 8, 32]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cover": "triangle"}, "found cover 'triangle'; expected points or quads"),
        ({"tiles": 0}, "tiles is 0; expected at least 1"),
        ({"unroll": 0}, "unroll is 0; expected at least 1"),
        ({"part_steps": -1}, "part_steps is -1; expected at least 0"),
        ({"flush_every": -1}, "flush_every is -1; expected at least 0"),
        ({"pitch": 0}, "pitch is 0; expected a multiple of 4"),
        ({"pitch": 30}, "pitch is 30; expected a multiple of 4"),
    ],
)
def test_kernels_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with refused(message):
        KernelOptions(**options)


def test_points_are_drawn_only_where_they_are_large_enough() -> None:
    for renderer in ("llvmpipe", "ANGLE (Apple, ANGLE Metal Renderer)", ""):
        assert default_kernels(renderer, 4.0).cover == "points"
        assert default_kernels(renderer, 3.9).cover == default_kernels(renderer, 1.0).cover == "quads"


@pytest.mark.parametrize("blocks", [1 << 24, MAX_DRAWS // 6 + 1])
def test_an_absurd_model_is_refused_before_its_plan_is_built(blocks: int) -> None:
    for family in ("gab", "llama", "qwen3"):
        with refused(f"{blocks} layers need more than {MAX_DRAWS} draws; expected fewer"):
            plan_for(tiny(family, num_hidden_layers=blocks), "fast")


def test_plans_need_no_opengl() -> None:
    code = (
        "import sys\nfrom glinfer.config import ModelConfig\nfrom glinfer.models.fast.parts import PlanOptions\n"
        "from glinfer.models.fast.token import fast_plan\nfrom glinfer.models.plan import draw_table\n"
        "from glinfer.ops.kernels import KernelOptions\n"
        "import glinfer.models.transforms.fold, glinfer.models.oracle\n"
        "plan = fast_plan(PlanOptions(ModelConfig.from_options(''), 'q8', KernelOptions(), 2048))\n"
        "assert draw_table(plan, 1).total == 39\n"
        "print(sorted({'moderngl', 'glcontext'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_an_unknown_weight_format_is_one_line() -> None:
    with refused(r"there is no weight format 'q4'; expected one of f32, f16, q16, q8l, q8, file"):
        plan_of(weights="q4")
