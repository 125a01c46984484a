"""The fast plan without a GPU: its counts, its programs, its memory, and that each defect is refused by name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.gl.blocks import BlockLayout
from glinfer.models.choice import WEIGHTS, plan_for
from glinfer.models.fast import HEAD_DRAWS, LOGITS, PICKS, fast_plan
from glinfer.models.fold import WEIGHT_FORMATS
from glinfer.models.gab import MAX_DRAWS
from glinfer.models.plan import Plan, PlanBuilder, PlanLimits, draw_table
from glinfer.ops import DrawSpec
from glinfer.ops.cached import cached_scores
from glinfer.ops.embed import embed_token
from glinfer.ops.gemv import gemv
from glinfer.ops.kernels import Kernels, default_kernels
from glinfer.ops.sample import pick

ROOT = Path(__file__).resolve().parents[2]
GAB = ModelConfig.from_options("")
SMALL = ModelConfig(37, 15, 3, 2, 70)
WEBGL2 = PlanLimits(2048, 4, 16, 1.0)
KERNELS = {
    "llvmpipe": default_kernels("llvmpipe (LLVM 15.0.6, 256 bits)", 64.0),
    "a GPU": default_kernels("NVIDIA H100", 2047.0),
    "llvmpipe, small points": default_kernels("llvmpipe (LLVM 15.0.6, 256 bits)", 1.0),
    "a GPU, small points": default_kernels("NVIDIA H100", 1.0),
    "plain": Kernels(),
    "one by one": Kernels(quad=False, part_steps=0, split_values=False),
    "everything": Kernels(8, 32, "points", True, True, 4, 4, True, True),
}
every_kernel = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)
every_format = pytest.mark.parametrize("weights", sorted(WEIGHT_FORMATS))


def plan_of(
    config: ModelConfig = SMALL, weights: str = "f32", kernels: Kernels | None = None, edge: int = 2048
) -> Plan:
    return fast_plan(config, weights=weights, kernels=kernels or Kernels(), max_texture_size=edge)


def refused(message: str) -> Any:
    """Expect a PlanError of one line that is exactly this pattern."""
    return pytest.raises(PlanError, match=rf"\A{message}\Z")


GOOD = plan_of()
ADDING = plan_of(kernels=Kernels(part_steps=2, split_values=True))


def spec(name: str, plan: Plan = GOOD) -> DrawSpec:
    return next(draw for draw in plan.draws if draw.name == name)


def with_draw(name: str, plan: Plan = GOOD, **changes: Any) -> Plan:
    """The good plan with one draw changed."""
    assert spec(name, plan)
    draws = [dataclasses.replace(draw, **changes) if draw.name == name else draw for draw in plan.draws]
    return dataclasses.replace(plan, draws=tuple(draws))


def rebound(name: str, sampler: str, tensor: str) -> Plan:
    """The good plan with one sampler of one draw bound to another tensor."""
    inputs = tuple((each, tensor if each == sampler else found) for each, found in spec(name).inputs)
    return with_draw(name, inputs=inputs)


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


@every_kernel
@every_format
def test_gab_takes_39_draws_whatever_the_weights_and_kernels(kernels: Kernels, weights: str) -> None:
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


@every_kernel
@every_format
def test_gab_compiles_fewer_than_20_programs(kernels: Kernels, weights: str) -> None:
    """Slow compiling is what users of WebGL models complain about most."""
    distinct = {
        (draw.op, draw.cover, tuple(sorted(draw.defines)), tuple(sampler for sampler, _ in draw.inputs))
        for draw in plan_of(GAB, weights, kernels).draws
    }
    assert len(distinct) <= 9  # one a kind of pass


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
def test_gab_runs_within_what_webgl2_guarantees(kernels: Kernels, weights: str) -> None:
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


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        (16, r"\d+ vectors of \d+ floats need \S+ texels; the largest texture here is 16×16"),
        (48, r"\d+ vectors of \d+ floats need \S+ texels; the largest texture here is 48×48"),
        (64, r"128 vectors of 144 floats need 64×96 texels; the largest texture here is 64×64"),
        (100, r"a matrix of 144×15 weights needs 24 lines of 128 texels; the largest texture here is 100×100"),
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
        lambda: with_draw("h.1.attn.qkv", first="score_slots", size=(128, 144)),
        r"draw h\.1\.attn\.qkv writes \[128, 144\] elements from row 2; h\.1\.attn\.cache is \[128, 144\]",
    ),
    (
        lambda: with_draw("pick", size=(70, 64)),
        r"draw pick writes \[70, 64\] elements from row 69; picks is \[70, 64\]",
    ),
    (
        lambda: rebound("h.0.mlp.fc_in", "weight", "h.0.mlp.fc_out.weight"),
        r"draw h\.0\.mlp\.fc_in: weight is \[15, 60\]; expected \[60, any\]",
    ),
    (
        lambda: rebound("h.0.mlp.fc_in", "x", "mlp.inner"),
        r"draw h\.0\.mlp\.fc_in samples mlp\.inner, .*",
    ),
    (
        lambda: rebound("h.1.mlp.fc_in", "x", "attn.mixed"),
        r"draw h\.1\.mlp\.fc_in: weight is \[60, 16\]; expected \[60, 48\]",
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
        r"draw h\.0\.mlp\.fc_out: parts are added up without norm, activation or residual",
    ),
    (
        lambda: redefined("h.0.attn.scores", HEADS=2),
        r"draw h\.0\.attn\.scores: cache is \[128, 144\]; expected \[any, 96\]",
    ),
    (
        lambda: redefined("h.0.attn.values", HEAD_TEXELS=8),
        r"draw h\.0\.attn\.values: cache is \[128, 144\]; expected \[any, 288\]",
    ),
    (
        lambda: with_draw("h.0.attn.scores", per_run=()),
        r"draw h\.0\.attn\.scores: op cached_scores needs a define or uniform 'position'",
    ),
    (lambda: rebound("pick", "logits", "mlp.inner"), r"draw pick: logits is \[1, 60\]; expected \[1, 37\]"),
    (lambda: rebound("embed", "wte", "wpe"), r"plan fast: no draw reads weight wte"),
    (lambda: with_draw("embed", outputs=("mlp.inner",)), r"draw embed: output is \[1, 60\]; expected \[1, 15\]"),
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
    kernels = Kernels()
    with refused("draw d: flat does not lie in blocks"):
        cached_scores("d", flat, block, heads=1, head_floats=16, kernels=kernels)
    with refused("draw d: a head of 15 floats; expected whole quads of 16, padded with zeros"):
        cached_scores("d", block, block, heads=1, head_floats=15, kernels=kernels)
    with refused("draw d: expected vectors in blocks, and packed weights and constants"):
        gemv("d", "d", block, block, block, flat, kernels=kernels)
    with refused("draw d: activation 'relu'; known: none, gelu_new, gelu, silu"):
        gemv("d", "d", block, block, block, block, activation="relu", kernels=kernels)
    with refused("draw d: expected tables of rows, and candidates and output in blocks"):
        embed_token("d", flat, flat, block, block, kernels=kernels)
    with refused("draw d: expected logits and candidates in blocks"):
        pick("d", flat, block, vocab=5, kernels=kernels)


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
        Kernels(**options)


def test_points_are_drawn_only_where_they_are_large_enough() -> None:
    for renderer in ("llvmpipe", "ANGLE (Apple, ANGLE Metal Renderer)", ""):
        assert default_kernels(renderer, 4.0).cover == "points"
        assert default_kernels(renderer, 3.9).cover == default_kernels(renderer, 1.0).cover == "quads"


@pytest.mark.parametrize("blocks", [1 << 24, MAX_DRAWS // 6 + 1])
def test_an_absurd_model_is_refused_before_its_plan_is_built(blocks: int) -> None:
    with refused(f"{blocks} blocks need {6 * blocks + 3} draws; expected at most {MAX_DRAWS}"):
        plan_for(ModelConfig(19, 8, 2, blocks, 7), "fast")


def test_plans_need_no_opengl() -> None:
    code = (
        "import sys\nfrom glinfer.config import ModelConfig\nfrom glinfer.models.fast import fast_plan\n"
        "from glinfer.models.plan import draw_table\nfrom glinfer.ops.kernels import Kernels\n"
        "import glinfer.models.fold, glinfer.models.oracle\n"
        "plan = fast_plan(ModelConfig.from_options(''), weights='q8', kernels=Kernels(), max_texture_size=2048)\n"
        "assert draw_table(plan, 1).total == 39\n"
        "print(sorted({'moderngl', 'glcontext'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_an_unknown_weight_format_is_one_line() -> None:
    with refused(r"there is no weight format 'q4'; expected one of f32, f16, q16, q8l, q8"):
        plan_of(weights="q4")
