"""The fast plan of every family without a GPU: counts, programs, memory, and that each defect is refused by name."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from changed_plans import all_refused, rebound, redefined, refused, with_draw
from family_layers import further_draws
from tiny_models import NORMS_OF_LAYERS, tiny

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.families import DECODERS
from glinfer.formats.packed import block_weights
from glinfer.formats.tensors import weight_shapes
from glinfer.kernels.options import KernelOptions, default_kernels
from glinfer.lower.fused.token import HEAD_DRAWS, LOGITS, fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.gab import MAX_DRAWS
from glinfer.lower.plans import WEIGHTS, plan_for
from glinfer.lower.weights.recipe import Recipes
from glinfer.program.plan import Plan, PlanLimits, draw_table
from glinfer.quant.formats import WEIGHT_FORMATS

GAB = ModelConfig.from_options("")
SMALL = ModelConfig(37, 15, 3, 2, 70)
WEBGL2 = PlanLimits(2048, 4, 16, 1.0)
KERNELS = {
    "llvmpipe": default_kernels("llvmpipe (LLVM 15.0.6, 256 bits)", 64.0),
    "a GPU": default_kernels("NVIDIA H100", 2047.0),
    "a GPU, small points": default_kernels("NVIDIA H100", 1.0),
    "plain": KernelOptions(),
    "one by one": KernelOptions(quad=False, part_steps=0, split_values=False),
    "everything": KernelOptions(8, 32, "points", True, True, 4, 4, True, True),
}
DRAWS_OF_A_LAYER = {
    name: 6 + NORMS_OF_LAYERS[name][0] + NORMS_OF_LAYERS[name][2] + 3 * family.experts
    for name, family in DECODERS.items()
}
_SOME = ("llama", "gemma3_text", "qwen3_moe", "granitemoe", "gpt_oss")
assert [DRAWS_OF_A_LAYER[name] for name in _SOME] == [6, 9, 10, 9, 9]
EDGE = 16384
LLAMA_1B = ModelConfig.from_options(
    "family=llama,vocab=128256,dim=2048,heads=32,kv_heads=8,blocks=16,inner=8192,context=4096,tied=1"
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


def packed_plan(config: ModelConfig, form: str) -> Plan:
    """The plan of a file whose matrices are in a format."""
    shapes = {name: shape for name, shape in weight_shapes(config).items() if len(shape) == 2 and "wpe" not in name}
    formats = {name: "F32" if shape[1] % block_weights(form) else form for name, shape in shapes.items()}
    return plan_of(config, "file", formats=formats)


GOOD = plan_of()
ADDING = plan_of(kernels=KernelOptions(part_steps=2, split_values=True))
LLAMA, NORMED = plan_of(tiny("llama")), plan_of(tiny("qwen3"))
PACKED = packed_plan(tiny("llama", 16, hidden_size=32, intermediate_size=32), "Q8_0")


# Counts


def test_every_family_takes_six_draws_a_layer_and_more_for_norms_of_their_own() -> None:
    """Whatever else it has: shared keys, windows, biases, tied embeddings, heads of any size."""
    shapes = ((3, 6, False), (5, 66, True))
    for (family, info), (layers, head_dim, tied) in itertools.product(DECODERS.items(), shapes):
        # A convolution has no heads to normalise, and six draws too; a delta rule has thirteen.
        small = tiny(family, num_hidden_layers=layers)
        expected = DRAWS_OF_A_LAYER[family] * layers + 3 + further_draws(small)
        expected += small.hidden_size_per_layer_input > 0  # the projection for all layers
        shared: dict[str, Any] = {"mlp_bias": True}
        if info.rotary:
            shared |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5, "attention_bias": True}
        config = tiny(family, head_dim, num_hidden_layers=layers, tie_word_embeddings=tied)
        plan = plan_of(config)
        assert len(plan.draws) == expected == draw_table(plan, 1).total, family
        assert len(plan_of(dataclasses.replace(config, **shared)).draws) == expected, family
        end = further_draws(config, first=layers - 1)
        last = [draw.name for draw in plan.draws[plan.last_layer :]]
        assert len(last) == DRAWS_OF_A_LAYER[family] + end + HEAD_DRAWS, family
        first = Recipes(config, "f32").mixing_in(layers - 1).name
        assert (last[0].removesuffix(".norm"), last[-1]) == (first, "pick"), family


def programs(plan: Plan) -> int:
    """How many different programs a plan compiles."""
    found = {
        (draw.op, draw.cover, tuple(sorted(draw.defines)), tuple(sampler for sampler, _ in draw.inputs))
        for draw in plan.draws
    }
    return len(found)


def test_gab_takes_39_draws_and_few_programs_within_what_webgl2_guarantees() -> None:
    """Whatever the weights and kernels; slow compiling is what users of WebGL models complain about most."""
    kinds = ("attn.qkv", "attn.scores", "attn.values", "attn.out_proj", "mlp.fc_in", "mlp.fc_out")
    for (name, kernels), weights in itertools.product(KERNELS.items(), WEIGHT_FORMATS):
        plan = plan_of(GAB, weights, kernels)
        table = draw_table(plan, 1)
        assert table.total == int(table) == 39, (name, weights)
        counts = {row.kind: row.count for row in table.rows}
        assert counts == {"embed": 1, **dict.fromkeys(kinds, 6), "lm_head": 1, "pick": 1}, (name, weights)
        assert programs(plan) <= 9, (name, weights)  # one a kind of pass
        if kernels.cover == "points":
            with refused(r"draw embed draws points of 4×4 pixels; this renderer allows 1"):
                plan.validate(WEBGL2)
            plan.validate(dataclasses.replace(WEBGL2, max_point_size=4.0))
        else:
            assert plan.validate(WEBGL2) is plan


# Run values


def test_run_values_are_checked() -> None:
    values = {value.name: value for value in GOOD.run_values}
    for name, good, bad in (
        ("position", [0, 69], [-1, 70, 0.0, None, True, "3"]),
        ("score_slots", [1, 2], [0, 3, 1.0, None]),
        ("token", [-1, 0, 36], [-2, 37, 1.5, None]),
        ("noise", [0.0, 1.0, 1], [-0.1, 1.1, float("nan"), None, True]),
        ("inverse_temperature", [0.0, 1.25, 1e38], [-1.0, float("inf"), float("nan"), None]),
        ("noise_key", [0, 2**32 - 1], [-1, 2**32, 0.5, None]),
    ):
        for accepted in good:
            values[name].check(accepted)
        for wrong in bad:
            with refused(rf"{name} is .*; expected (an integer|a number) from \S+ to \S+"):
                values[name].check(wrong)


# Memory and limits


BILLION = 1_235_814_400  # parameters, with the tied vocabulary once
TABLE = 128256 * 2048
ROPE_BYTES = 4 * 4096 * 64


def test_a_billion_parameters_fit() -> None:
    """Llama 3.2 1B, without GL: nothing is allocated, and every texture is one that nearly every renderer has."""
    for weights, matrix, head, table in (("f32", 4, 4, 4), ("q16", 2, 2, 2), ("q8", 1, 1, 2), ("q8l", 1, 2, 2)):
        plan = plan_of(LLAMA_1B, weights, edge=EDGE)
        assert plan.validate(PlanLimits(EDGE, 4, 16)) is plan
        # The gains of the last norm are folded into the vocabulary's matrix, so that embeddings are there beside it.
        least = matrix * (BILLION - TABLE) + (head + table) * TABLE
        assert least <= plan.texture_bytes(EDGE, "weight") - ROPE_BYTES <= 1.02 * least, weights
        # Of keys and values those of every token, of queries one; lines are of the width of the texture.
        assert 0 <= plan.texture_bytes(EDGE, "cache") - 2 * 16 * 8 * 4096 * 64 * 4 <= (16 + 1) * 4 * EDGE * 16
        assert plan.texture_bytes(EDGE, "activation") < 4 << 20


def test_textures_that_are_too_small() -> None:
    for edge, message in (
        (16, r"\d+ vectors of \d+ floats need \S+ texels; the largest texture here is 16×16"),
        (64, r"128 vectors of 176 floats need 64×68 texels; the largest texture here is 64×64"),
        (100, r"a matrix of 176×15 weights needs 24 lines of 128 texels; the largest texture here is 100×100"),
    ):
        with refused(message):
            plan_of(edge=edge)


def test_a_smaller_renderer_than_the_plan_was_built_for() -> None:
    with refused(r"tensor \S+: it is laid out in \d+×\d+ texels; the largest texture here is 100×100"):
        GOOD.validate(PlanLimits(100, 4, 16))
    with refused(r"draw h\.0\.attn\.out_proj samples 4 textures; this renderer allows 3"):
        GOOD.validate(PlanLimits(2048, 4, 3))
    assert ADDING.validate(PlanLimits(2048, 2, 3)) is ADDING, "nothing samples the residual stream to add to it"


# Defects


DEFECTS: dict[str, Plan] = {
    "draw embed: a target in blocks is covered block by block": with_draw("embed", GOOD, cover="triangle"),
    "draw h.0.attn.scores reads attn.mixed, which no earlier draw has written": rebound(
        "h.0.attn.scores", "cache", "attn.mixed", GOOD
    ),
    "draw h.0.attn.out_proj adds to logits, which no earlier draw has written": with_draw(
        "h.0.attn.out_proj", ADDING, outputs=(LOGITS,)
    ),
    "draw h.0.attn.values adds to attn.mixed, which no earlier draw has written": with_draw(
        "h.0.attn.values", ADDING, clears=False
    ),
    "draw pick writes [70, 64] elements from row 69; picks is [70, 64]": with_draw("pick", GOOD, size=(70, 64)),
    "draw h.0.mlp.fc_in: weight is [15, 60]; expected [60, 16]": rebound(
        "h.0.mlp.fc_in", "weight", "h.0.mlp.fc_out.weight", GOOD
    ),
    "draw h.1.mlp.fc_in: x0 is [1, 48]; expected [1, 15]": rebound("h.1.mlp.fc_in", "x0", "attn.mixed", GOOD),
    "draw h.1.attn.out_proj: r0 is [1, 60]; expected [1, 15]": rebound("h.1.attn.out_proj", "r0", "mlp.inner", GOOD),
    "draw lm_head: consts is [37, 1]; expected [37, 5]": redefined("lm_head", GOOD, SCALED=1),
    "draw lm_head: 4 steps in 1 parts": redefined("lm_head", GOOD, UNROLL=3),
    "draw lm_head: STEPS does not fit x": redefined("lm_head", GOOD, STEPS=8),
    "draw h.0.mlp.fc_out: parts are added up without activation, rounding or residual": redefined(
        "h.0.mlp.fc_out", ADDING, ACTIVATION=1
    ),
    "draw h.0.attn.scores: cache is [128, 176]; expected [any, 96]": redefined(
        "h.0.attn.scores", GOOD, HEADS=2, KV_HEADS=1
    ),
    "draw h.0.attn.values: cache is [128, 176]; expected [any, 288]": redefined("h.0.attn.values", GOOD, HEAD_TEXELS=8),
    "draw h.0.attn.scores: op cached_scores needs a define or uniform 'position'": with_draw(
        "h.0.attn.scores", GOOD, per_run=()
    ),
    "draw pick: logits is [1, 60]; expected [1, 37]": rebound("pick", "logits", "mlp.inner", GOOD),
    "draw embed: wte is [37, 15]; expected [any, 60]": with_draw("embed", GOOD, outputs=("mlp.inner",)),
    "draw embed: POSITIONS does not fit its tables": redefined("embed", GOOD, POSITIONS=0),
    "draw embed: TABLE_FORMAT does not fit its tables": redefined("embed", GOOD, TABLE_FORMAT=6),
    "draw h.0.mlp.fc_in: consts is [128, 1]; expected [24, 1]": redefined("h.0.mlp.fc_in", LLAMA, GATED=0),
    "draw h.0.attn.qkv: gain is [96, 1]; expected [1, 32]": rebound(
        "h.0.attn.qkv", "gain", "h.0.attn.qkv.consts", PACKED
    ),
    "draw h.0.attn.qkv: op gemm needs a define or uniform 'position'": with_draw("h.0.attn.qkv", LLAMA, per_run=()),
    "draw h.0.attn.turn: a head is larger than its texels": redefined("h.0.attn.turn", NORMED, HEAD_DIM=17),
    "draw h.0.attn.turn: gains is [48, 16]; expected [2, 16]": rebound("h.0.attn.turn", "gains", "rope", NORMED),
    "draw embed: 'row' is not a run value of the plan; known: ...": with_draw("embed", GOOD, first="row"),
    "draw pick: 'heat' is not a run value of the plan; ...": with_draw("pick", GOOD, per_run=(("noise", "heat"),)),
    "draw embed covers its target with 'circles'; known: triangle, ...": with_draw("embed", GOOD, cover="circles"),
    "draw h.0.mlp.fc_in: weight is ...; expected [128, 8]": redefined("h.0.mlp.fc_in", PACKED, GROUPED=2),
    "draw ...: consts is [128, 1]; expected [128, 2]": redefined("h.0.mlp.fc_in", PACKED, CENTRED=1),
}


def test_a_defect_is_refused() -> None:
    for plan in (GOOD, ADDING, LLAMA, NORMED, PACKED):
        assert plan.validate() is plan
    all_refused(DEFECTS)


def test_an_unknown_weight_format_is_refused() -> None:
    with pytest.raises(InputError, match=rf"\Athere is no weight format 'q4'; expected one of {', '.join(WEIGHTS)}\Z"):
        plan_for(SMALL, "fast", weights="q4")
    with refused(r"there is no weight format 'q4'; expected one of f32, f16, q16, q8l, q8, file"):
        plan_of(weights="q4")


def test_kernels_that_cannot_be() -> None:
    counts = ("tiles", "unroll", "largest_cell", "chunk")
    for options, message in (
        ({"cover": "triangle"}, "found cover 'triangle'; expected points or quads"),
        *(({name: 0}, f"{name} is 0; expected at least 1") for name in counts),
        *(({name: "8"}, f"{name} is '8'; expected an integer") for name in (*counts, "pitch", "rows_per_draw")),
        *(({name: -1}, f"{name} is -1; expected at least 0") for name in ("part_steps", "flush_every")),
        *(({"pitch": pitch}, f"pitch is {pitch}; expected a multiple of 4") for pitch in (0, 30)),
        *(({"rows_per_draw": rows}, f"rows_per_draw is {rows}; expected 1, 2, 4 or 8") for rows in (0, 3, 16)),
    ):
        with refused(message):
            KernelOptions(**options)  # type: ignore[arg-type]


def test_an_absurd_model_is_refused_before_its_plan_is_built() -> None:
    for family, blocks in (("gab", 1 << 24), ("llama", MAX_DRAWS // 6 + 1), ("qwen3", 1 << 24)):
        with refused(f"{blocks} layers need more than {MAX_DRAWS} draws; expected fewer"):
            plan_for(tiny(family, num_hidden_layers=blocks), "fast")
