"""Plans without a GPU: each defect is refused by name, and the counts are what the formula says."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flat_ops import flat_ops
from hypothesis import given
from hypothesis import strategies as st

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.families import FAMILIES
from glinfer.families.record import Family
from glinfer.formats.tensors import weight_shapes
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.models.choice import reference_plans
from glinfer.models.fast.encode import encode_plan
from glinfer.models.fast.rows import batch_plan, chunk_plan, drafted_plan
from glinfer.models.fast.shortlist import allowed_plan, shortlist_plan
from glinfer.models.fast.token import fast_plan
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan, PlanBuilder, PlanLimits, draw_table
from glinfer.models.reference import gab
from glinfer.models.reference.gab import MAX_DRAWS, reference_plan
from glinfer.models.transforms.low_rank import AdapterRanks
from glinfer.ops import OPS, DrawSpec, TensorSpec
from glinfer.ops.flat.elementwise import scale
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.published.linear import linear
from glinfer.ops.spec import Op, RunValue, register

ROOT = Path(__file__).resolve().parents[2]
GAB = ModelConfig.from_options("")
SMALL = ModelConfig(vocab_size=19, hidden_size=6, num_attention_heads=3, num_hidden_layers=1, max_position_embeddings=7)
GOOD = reference_plan(SMALL)
NAMES = [draw.name for draw in GOOD.draws]
BLOCK = "transformer.h.0"


def refused(message: str) -> Any:
    """Expect a PlanError of one line that is exactly this pattern."""
    return pytest.raises(PlanError, match=rf"\A{message}\Z")


def with_draw(name: str, **changes: Any) -> Plan:
    """The good plan with one draw changed."""
    assert name in NAMES
    draws = [dataclasses.replace(draw, **changes) if draw.name == name else draw for draw in GOOD.draws]
    return dataclasses.replace(GOOD, draws=tuple(draws))


def with_tensor(name: str, **changes: Any) -> Plan:
    """The good plan with one tensor changed."""
    assert name in GOOD.table
    tensors = [dataclasses.replace(each, **changes) if each.name == name else each for each in GOOD.tensors]
    return dataclasses.replace(GOOD, tensors=tuple(tensors))


def spec(name: str) -> DrawSpec:
    return next(draw for draw in GOOD.draws if draw.name == name)


def rebound(name: str, sampler: str, tensor: str) -> Plan:
    """The good plan with one sampler of one draw bound to another tensor."""
    inputs = tuple((each, tensor if each == sampler else found) for each, found in spec(name).inputs)
    return with_draw(name, inputs=inputs)


def redefined(name: str, **values: Any) -> Plan:
    """The good plan with some defines of one draw changed, or taken away where the value is None."""
    defines = {**dict(spec(name).defines), **values}
    return with_draw(name, defines=tuple((key, value) for key, value in defines.items() if value is not None))


def builder(rows: int = 5) -> PlanBuilder:
    """An empty plan for sequences of at most ``rows`` tokens, all of them in use."""
    return PlanBuilder("p", rows, [RunValue("rows", 1, rows, lambda tokens: tokens)])


def test_the_good_plan_is_good_and_comes_back() -> None:
    assert GOOD.validate() is GOOD
    assert GOOD.validate(PlanLimits(2048, 4, 16)) is GOOD
    assert GOOD.validate(PlanLimits(19, 1, 4)) is GOOD


# Names


def test_two_tensors_of_one_name() -> None:
    plan = dataclasses.replace(GOOD, tensors=(*GOOD.tensors, GOOD.table["q"]))
    with refused("plan reference: two tensors have the same name"):
        plan.validate()


def test_two_draws_of_one_name() -> None:
    plan = dataclasses.replace(GOOD, draws=(*GOOD.draws, GOOD.draws[-1]))
    with refused("plan reference: two draws have the same name: probs"):
        plan.validate()


def test_an_unknown_op() -> None:
    with refused("draw ln_f: there is no op 'rms_norm'; known: .*layer_norm.*"):
        with_draw("ln_f", op="rms_norm").validate()


def test_an_unknown_tensor_read_or_written() -> None:
    with refused("draw ln_f: there is no tensor 'hidden.c'"):
        rebound("ln_f", "x", "hidden.c").validate()
    with refused("draw ln_f: there is no tensor 'hidden.c'"):
        with_draw("ln_f", outputs=("hidden.c",)).validate()


def test_a_draw_that_writes_nothing() -> None:
    with refused("draw ln_f writes nothing"):
        with_draw("ln_f", outputs=()).validate()


def test_a_draw_that_writes_a_tensor_twice() -> None:
    with refused("draw ln_f writes one tensor twice: normed, normed"):
        with_draw("ln_f", outputs=("normed", "normed")).validate()


def test_a_missing_sampler() -> None:
    with refused("draw ln_f: op layer_norm needs sampler 'bias'"):
        with_draw("ln_f", inputs=spec("ln_f").inputs[:2]).validate()


def test_a_sampler_that_the_op_does_not_know() -> None:
    with refused("draw ln_f: op layer_norm cannot bind sampler 'residual'"):
        with_draw("ln_f", inputs=(*spec("ln_f").inputs, ("residual", "hidden.b"))).validate()


def test_a_sampler_bound_twice() -> None:
    with refused("draw ln_f: op layer_norm cannot bind sampler 'x'"):
        with_draw("ln_f", inputs=(*spec("ln_f").inputs, ("x", "hidden.b"))).validate()


@pytest.mark.parametrize("change", [{"size": ("tokens", 6)}, {"size": (1, "cols")}, {"per_run": (("rows", "pos"),)}])
def test_a_value_that_does_not_change_per_run(change: dict[str, Any]) -> None:
    with refused("draw ln_f: '(tokens|cols|pos)' is no run value of the plan; known: rows"):
        with_draw("ln_f", **change).validate()


# Flow


def test_a_feedback_loop() -> None:
    with refused("draw ln_f samples hidden.a, which it renders to: a feedback loop, undefined in OpenGL"):
        with_draw("ln_f", outputs=("hidden.a",)).validate()


def test_a_feedback_loop_through_the_second_target() -> None:
    with refused("draw ln_f samples hidden.a, which it renders to: a feedback loop, undefined in OpenGL"):
        with_draw("ln_f", outputs=("normed", "hidden.a")).validate()


def test_the_classic_mistake_of_one_tensor_for_a_ping_pong_pair() -> None:
    """concat_head reading the very tensor that it adds its head to."""
    name = "h.0.attn.head.1.joined"
    with refused(f"draw {name} samples joined.a, which it renders to: a feedback loop, undefined in OpenGL"):
        with_draw(name, outputs=("joined.a",)).validate()


def test_a_read_of_what_was_never_written() -> None:
    with refused("draw h.0.ln_1 reads hidden.b, which no earlier draw has written"):
        rebound("h.0.ln_1", "x", "hidden.b").validate()


def test_a_read_of_what_is_written_only_later() -> None:
    draws = list(GOOD.draws)
    at = NAMES.index("h.0.attn.head.0.probs")
    draws[at], draws[at + 1] = draws[at + 1], draws[at]
    with refused("draw h.0.attn.head.0.mixed reads attn.probs, which no earlier draw has written"):
        dataclasses.replace(GOOD, draws=tuple(draws)).validate()


def test_a_write_to_a_weight() -> None:
    with refused(r"draw ln_f writes transformer\.wpe\.weight, which is weight, not an activation"):
        with_draw("ln_f", outputs=("transformer.wpe.weight",)).validate()


def test_a_write_to_an_input() -> None:
    plan = with_tensor("normed", kind="input")
    with refused("draw h.0.ln_1 writes normed, which is input, not an activation"):
        plan.validate()


def test_a_weight_that_nothing_reads() -> None:
    plan = dataclasses.replace(GOOD, tensors=(*GOOD.tensors, TensorSpec("spare", (3, 3), "weight")))
    with refused("plan reference: no draw reads weight spare"):
        plan.validate()


def test_a_weight_may_be_read_more_than_once() -> None:
    """Tied embeddings: one matrix as the first and as the last."""
    tensors = tuple(each for each in GOOD.tensors if each.name != "lm_head.weight")
    plan = dataclasses.replace(rebound("lm_head", "weight", "transformer.wte.weight"), tensors=tensors)
    assert plan.validate() is plan


# Formats


def test_floats_where_whole_numbers_belong() -> None:
    with refused("draw embed: tokens tokens has format r32f; expected whole numbers"):
        with_tensor("tokens", format="r32f").validate()


def test_whole_numbers_where_floats_belong() -> None:
    with refused(r"draw embed: position_embedding transformer\.wpe\.weight has format r32i; expected floats"):
        with_tensor("transformer.wpe.weight", format="r32i").validate()
    with refused("draw h.0.ln_1: output normed has format r32i; expected floats"):
        with_tensor("normed", format="r32i").validate()


# Shapes, op by op: (a plan with exactly one wrong shape, what is said)

WRONG_SHAPES: list[tuple[Callable[[], Plan], str]] = [
    (lambda: with_tensor("tokens", shape=(7, 2)), r"draw embed: tokens is \[7, 2\]; expected \[any, 1\]"),
    (
        lambda: with_tensor("transformer.wte.weight", shape=(18, 6)),
        r"draw embed: token_embedding is \[18, 6\]; expected \[19, 6\]",
    ),
    (
        lambda: with_tensor("transformer.wpe.weight", shape=(6, 6)),
        r"draw embed: position_embedding is \[6, 6\]; expected \[7, 6\]",
    ),
    (lambda: with_tensor("tokens", shape=(8, 1)), r"draw embed: output is \[7, 6\]; expected \[8, 6\]"),
    (lambda: with_tensor("hidden.a", shape=(7, 5)), r"draw embed: output is \[7, 5\]; expected \[7, 6\]"),
    (
        lambda: with_tensor(f"{BLOCK}.ln_1.weight", shape=(1, 5)),
        r"draw h\.0\.ln_1: weight is \[1, 5\]; expected \[1, 6\]",
    ),
    (lambda: with_tensor(f"{BLOCK}.ln_1.bias", shape=(6, 1)), r"draw h\.0\.ln_1: bias is \[6, 1\]; expected \[1, 6\]"),
    (lambda: with_tensor("normed", shape=(8, 6)), r"draw h\.0\.ln_1: output is \[8, 6\]; expected \[7, 6\]"),
    (lambda: redefined("ln_f", DIM=5), r"draw ln_f: x is \[7, 6\]; expected \[any, 5\]"),
    (
        lambda: with_tensor(f"{BLOCK}.attn.q_proj.weight", shape=(6, 7)),
        r"draw h\.0\.attn\.q_proj: weight is \[6, 7\]; expected \[6, 6\]",
    ),
    (lambda: with_tensor("q", shape=(7, 7)), r"draw h\.0\.attn\.q_proj: output is \[7, 7\]; expected \[7, 6\]"),
    (
        lambda: with_tensor(f"{BLOCK}.mlp.fc_in.bias", shape=(1, 25)),
        r"draw h\.0\.mlp\.fc_in: bias is \[1, 25\]; expected \[1, 24\]",
    ),
    (
        lambda: redefined("h.0.mlp.fc_in", IN=7),
        r"draw h\.0\.mlp\.fc_in: x is \[7, 6\]; expected \[any, 7\]",
    ),
    (
        lambda: rebound("h.0.mlp.fc_out", "residual", "logits"),
        r"draw h\.0\.mlp\.fc_out reads logits, which no earlier draw has written",
    ),
    (
        lambda: rebound("h.0.attn.out_proj", "residual", "attn.scores"),
        r"draw h\.0\.attn\.out_proj: residual is \[7, 7\]; expected \[7, 6\]",
    ),
    (lambda: with_tensor("logits", shape=(7, 19)), r"draw lm_head: output is \[7, 19\]; expected \[1, 19\]"),
    (
        lambda: with_draw("lm_head", per_run=()),
        "draw lm_head: op linear needs a define or uniform 'rows'",
    ),
    (lambda: with_tensor("probs", shape=(1, 18)), r"draw probs: output is \[1, 18\]; expected \[1, 19\]"),
    (lambda: redefined("probs", STRIDE=18), r"draw probs: x is \[1, 19\]; expected \[any, 18\]"),
    (
        lambda: with_draw("probs", uniforms=(("cols", 20),)),
        "draw probs: softmax over 20 columns of a matrix of 19",
    ),
    (
        lambda: with_draw("probs", uniforms=(("cols", 0),)),
        "draw probs: softmax over 0 columns of a matrix of 19",
    ),
    (
        lambda: with_draw("probs", uniforms=()),
        "draw probs: op softmax needs a define or uniform 'cols'",
    ),
    (
        lambda: with_tensor("attn.scores", shape=(7, 6)),
        r"draw h\.0\.attn\.head\.0\.scores: output is \[7, 6\]; expected \[7, 7\]",
    ),
    (
        lambda: rebound("h.0.attn.head.0.scores", "k", "hidden.a"),
        "",
    ),
    (
        lambda: rebound("h.0.attn.head.0.scores", "k", "tokens"),
        "draw h.0.attn.head.0.scores: k tokens has format r32i; expected floats",
    ),
    (
        lambda: redefined("h.0.attn.head.0.scores", DIM=None),
        "draw h.0.attn.head.0.scores: op attention_scores needs a define or uniform 'DIM'",
    ),
    (
        lambda: with_draw("h.0.attn.head.2.scores", uniforms=(("head", 3),)),
        "draw h.0.attn.head.2.scores: head 3 of width 2 lies outside 6 columns",
    ),
    (
        lambda: with_draw("h.0.attn.head.2.mixed", uniforms=(("head", -1),)),
        "draw h.0.attn.head.2.mixed: head -1 of width 2 lies outside 6 columns",
    ),
    (
        lambda: redefined("h.0.attn.head.2.joined", HEAD_DIM=3),
        r"draw h\.0\.attn\.head\.2\.joined: mixed is \[7, 2\]; expected \[7, 3\]",
    ),
    (
        lambda: with_tensor("attn.mixed", shape=(7, 3)),
        r"draw h\.0\.attn\.head\.0\.mixed: output is \[7, 3\]; expected \[7, 2\]",
    ),
    (
        lambda: rebound("h.0.attn.head.0.mixed", "probs", "k"),
        r"draw h\.0\.attn\.head\.0\.mixed: probs is \[7, 6\]; expected \[7, 7\]",
    ),
    (
        lambda: rebound("h.0.attn.head.0.mixed", "v", "attn.scores"),
        r"draw h\.0\.attn\.head\.0\.mixed: v is \[7, 7\]; expected \[7, 6\]",
    ),
    (
        lambda: rebound("h.0.attn.head.1.joined", "so_far", "attn.scores"),
        r"draw h\.0\.attn\.head\.1\.joined: so_far is \[7, 7\]; expected \[7, 6\]",
    ),
    (
        lambda: redefined("h.0.attn.head.1.joined", FIRST=1),
        "draw h.0.attn.head.1.joined: exactly the first head has no so_far",
    ),
    (
        lambda: redefined("h.0.attn.head.0.joined", FIRST=None),
        "draw h.0.attn.head.0.joined: exactly the first head has no so_far",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG_SHAPES, ids=[message[:60] or "good" for _, message in WRONG_SHAPES])
def test_a_wrong_shape(make: Callable[[], Plan], message: str) -> None:
    plan = make()
    if not message:  # another tensor of the same shape is as good: the control of this table
        assert plan.validate() is plan
        return
    with refused(message):
        plan.validate()


def test_more_rows_than_the_tensors_hold() -> None:
    with refused(r"draw embed writes \[8, 6\] elements; hidden\.a is \[7, 6\]"):
        dataclasses.replace(GOOD, max_rows=8).validate()
    with refused("plan reference is for sequences of at most 0 tokens; expected at least 1"):
        dataclasses.replace(GOOD, max_rows=0).validate()


def test_the_last_of_more_rows_than_there_are() -> None:
    plan = builder()
    x, weight = plan.input("x", 4, 3, "r32f"), plan.weight("w", 2, 3)
    plan.draw(linear("last", "last", x, weight, plan.activation("y", 1, 2), last_row=True))
    with refused("draw last: the last of 5 rows of a matrix of 4"):
        plan.build()


@pytest.mark.parametrize("size", [(8, 6), ("rows", 7), (0, 6), ("rows", 0), (-1, 6), (10**12, 10**12)])
def test_an_extent_that_is_not_in_the_target(size: tuple[Any, Any]) -> None:
    rows, cols = (7 if part == "rows" else part for part in size)
    with refused(rf"draw ln_f writes \[{rows}, {cols}\] elements; normed is \[7, 6\]"):
        with_draw("ln_f", size=size).validate()


def test_targets_of_different_shapes() -> None:
    with refused("draw ln_f: its targets normed and logits differ in shape"):
        with_draw("ln_f", outputs=("normed", "logits")).validate()


# Tensors by themselves


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t", (1, 1), "buffer"), "tensor t is of kind 'buffer'; expected one of weight, input, activation, cache"),
        (
            ("t", (1, 1), "input", "rgba"),
            "tensor t has format 'rgba'; known: r32f, r32i, rgba32f, rgba16f, rgba8i, rgba32i, rgba32ui",
        ),
        (("t", (0, 1), "input"), r"tensor t has shape \(0, 1\); every edge must be at least 1"),
        (("t", (1, -1), "input"), r"tensor t has shape \(1, -1\); every edge must be at least 1"),
    ],
)
def test_a_tensor_that_cannot_be(arguments: tuple[Any, ...], message: str) -> None:
    with refused(message):
        TensorSpec(*arguments)


def test_the_builder_takes_vectors_and_matrices() -> None:
    plan = builder()
    assert plan.weight("v", 4).shape == (1, 4)
    assert plan.weight("m", 4, 3).shape == (4, 3)
    for shape in ((), (2, 3, 4)):
        with refused(r"weight w has shape \[.*\]; expected a vector or a matrix"):
            plan.weight("w", *shape)


def test_the_builder_validates() -> None:
    plan = builder()
    plan.weight("w", 2, 3)
    with refused("plan p: no draw reads weight w"):
        plan.build()


def test_an_unknown_activation_function() -> None:
    plan = builder()
    x, weight, out = plan.input("x", 5, 3, "r32f"), plan.weight("w", 2, 3), plan.activation("y", 5, 2)
    with refused("draw d: activation 'relu'; known: none, gelu_new, gelu, silu, tanh"):
        linear("d", "d", x, weight, out, activation="relu")


def test_two_ops_of_one_name() -> None:
    with refused("two ops are named linear"):
        register(Op("linear", (), (), lambda shapes, params: None, lambda inputs, params, size: None))  # type: ignore[arg-type,return-value]


def test_a_draw_tells_what_it_binds() -> None:
    assert spec("ln_f").input("bias") == "transformer.ln_f.bias"
    assert spec("ln_f").reads == ("hidden.a", "transformer.ln_f.weight", "transformer.ln_f.bias")
    assert spec("ln_f").writes == ("normed",)
    with refused("draw ln_f binds nothing to sampler 'residual'"):
        spec("ln_f").input("residual")


# Limits


def test_textures_that_are_too_small() -> None:
    largest = max(tensor.shape[0] * tensor.shape[1] for tensor in GOOD.tensors)
    assert largest == 168  # mlp.inner [7, 24]
    assert GOOD.validate(PlanLimits(13, 4, 16)) is GOOD
    with refused(r"tensor mlp\.inner: a 7×24 matrix has 168 elements; the largest texture here is 12×12 = 144 texels"):
        GOOD.validate(PlanLimits(12, 4, 16))


def test_too_few_texture_units() -> None:
    assert GOOD.validate(PlanLimits(2048, 4, 4)) is GOOD
    with refused(r"draw h\.0\.mlp\.fc_out samples 4 textures; this renderer allows 3"):
        GOOD.validate(PlanLimits(2048, 4, 3))


def test_too_few_draw_buffers() -> None:
    extra = TensorSpec("normed.b", (7, 6), "activation")
    plan = dataclasses.replace(with_draw("ln_f", outputs=("normed", "normed.b")), tensors=(*GOOD.tensors, extra))
    assert plan.validate(PlanLimits(2048, 2, 16)) is plan
    with refused("draw ln_f writes 2 targets; this renderer allows 1"):
        plan.validate(PlanLimits(2048, 1, 16))


def test_gab_itself_runs_within_what_webgl2_guarantees() -> None:
    plan = reference_plan(GAB)
    assert plan.validate(PlanLimits(2048, 4, 16)) is plan
    assert max(len(draw.outputs) for draw in plan.draws) == 1


@pytest.mark.parametrize("edge", [2048, 16384])
def test_texture_bytes_are_those_of_the_parameters_and_little_more(edge: int) -> None:
    plan, parameters = reference_plan(GAB), 25_339_016
    weights = plan.texture_bytes(edge, "weight")
    assert 4 * parameters <= weights <= 4 * parameters + 4 * edge * len(plan.of_kind("weight"))
    others = plan.texture_bytes(edge, "input") + plan.texture_bytes(edge, "activation")
    assert weights + others == plan.texture_bytes(edge)


# Views: the texels of one tensor as another matrix


def viewed(rows: int, cols: int, *, through: tuple[int, int] = (2, 12)) -> tuple[PlanBuilder, dict[str, TensorSpec]]:
    """x is scaled into y [2, 12], y into z; ``rows`` × ``cols`` is what z is, and what y is seen as to be read."""
    plan = builder()
    tensors = {
        "x": plan.flat("x", "input", *through, "rgba32f", 64),
        "y": plan.flat("y", "activation", 2, 12, "rgba32f", 64),
        "z": plan.flat("z", "activation", rows, cols, "rgba32f", 64),
    }
    tensors["y as x"], tensors["y as z"] = plan.view(tensors["y"], *through), plan.view(tensors["y"], rows, cols)
    plan.draw(scale("one", "d", tensors["x"], tensors["y as x"], factor=2.0, kernels=KernelOptions()))
    plan.draw(scale("two", "d", tensors["y as z"], tensors["z"], factor=2.0, kernels=KernelOptions()))
    return plan, tensors


def changed_view(**changes: Any) -> Plan:
    """A good plan with its one view changed."""
    plan = viewed(6, 4)[0].build()
    tensors = [dataclasses.replace(each, **changes) if each.view_of else each for each in plan.tensors]
    draws = [
        dataclasses.replace(draw, inputs=tuple((sampler, changes.get("name", name)) for sampler, name in draw.inputs))
        if draw.name == "two"
        else draw
        for draw in plan.draws
    ]
    return dataclasses.replace(plan, tensors=tuple(tensors), draws=tuple(draws))


def test_a_view_has_the_texels_of_its_tensor() -> None:
    plan, tensors = viewed(6, 4)
    assert tensors["y as x"] is tensors["y"], "of its own shape it is the tensor itself"
    view = tensors["y as z"]
    assert (view.name, view.shape, view.view_of) == ("y@6x4", (6, 4), "y")
    made = plan.build()
    assert made.root("y@6x4") == made.root("y") == "y"
    assert [tensor.name for tensor in made.of_kind("activation")] == ["y", "z"]
    bytes_of = {tensor.name: tensor.layout_within(64).nbytes for tensor in made.tensors}
    assert made.texture_bytes(64) == bytes_of["x"] + bytes_of["y"] + bytes_of["z"]
    assert made.validate(PlanLimits(64, 4, 16)) is made


def test_a_view_is_declared_once_and_a_view_of_it_is_one_of_the_tensor() -> None:
    plan, tensors = viewed(6, 4)
    assert plan.view(tensors["y"], 6, 4) is not tensors["y"]
    assert plan.view(tensors["y as z"], 6, 4) is tensors["y as z"]
    assert plan.view(tensors["y as z"], 3, 8).view_of == "y"
    assert plan.view(tensors["y as z"], 3, 8) == plan.view(tensors["y"], 3, 8)
    names = [tensor.name for tensor in plan.build().tensors]
    assert names == ["x", "y", "z", "y@6x4", "y@3x8"]


def test_what_is_written_by_a_view_is_read_by_another() -> None:
    plan = viewed(3, 8, through=(6, 4))[0].build()
    assert [(*draw.reads, *draw.writes) for draw in plan.draws] == [("x", "y@6x4"), ("y@3x8", "z")]


@pytest.mark.parametrize(("rows", "cols"), [(8, 3), (4, 6), (24, 1)])
def test_a_view_with_rows_of_no_whole_texels(rows: int, cols: int) -> None:
    plan, tensors = viewed(6, 4)
    with refused(f"tensor y cannot be seen as {rows}×{cols}: its rows are no whole texels"):
        plan.view(tensors["y"], rows, cols)


@pytest.mark.parametrize(("rows", "cols"), [(6, 8), (5, 4), (3, 12), (1, 4)])
def test_a_view_of_other_texels(rows: int, cols: int) -> None:
    plan, tensors = viewed(6, 4)
    with refused(f"a 2×12 matrix does not lie in its texels as one of {rows}×{cols} does"):
        plan.view(tensors["y"], rows, cols)


def test_a_view_of_a_tensor_with_one_element_a_texel() -> None:
    plan = builder()
    with refused("tensor x cannot be seen as 6×4: its rows are no whole texels"):
        plan.view(plan.activation("x", 2, 12), 6, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"view_of": "x"}, "tensor y@6x4 is a view of x, which is no tensor of its kind and format"),
        ({"view_of": "w"}, "tensor y@6x4 is a view of w, which is no tensor of its kind and format"),
        ({"name": "v", "view_of": "v"}, "tensor v is a view of v, which is no tensor of its kind and format"),
        ({"kind": "cache"}, "tensor y@6x4 is a view of y, which is no tensor of its kind and format"),
        (
            {"view_of": "z"},
            "draw two samples y@6x4, which it renders to: a feedback loop, undefined in OpenGL",
        ),
        ({"layout": None}, "tensor y@6x4 does not lie in the texels of y"),
        (
            {"shape": (7, 4), "layout": FlatLayout.of((7, 4), "rgba32f", 64)},
            "a 2×12 matrix does not lie in its texels as one of 7×4 does",
        ),
        (
            {"shape": (6, 3), "layout": FlatLayout.of((6, 3), "rgba32f", 64)},
            "tensor y@6x4 does not lie in the texels of y",
        ),
    ],
)
def test_a_view_that_is_none(changes: dict[str, Any], message: str) -> None:
    plan = changed_view(**changes)
    with refused(message):
        plan.validate()


def test_a_feedback_loop_through_a_view() -> None:
    plan, tensors = viewed(6, 4)
    plan.draw(scale("loop", "d", tensors["y as z"], plan.view(tensors["y"], 6, 4), factor=1.0, kernels=KernelOptions()))
    with refused("draw loop samples y@6x4, which it renders to: a feedback loop, undefined in OpenGL"):
        plan.build()
    plan, tensors = viewed(2, 12)
    plan.draw(
        scale(
            "loop",
            "d",
            plan.view(tensors["y"], 6, 4),
            plan.view(tensors["z"], 6, 4),
            factor=1.0,
            kernels=KernelOptions(),
        )
    )
    assert plan.build().draws[-1].name == "loop"


def test_a_tensor_and_its_view_are_no_two_targets() -> None:
    plan = viewed(6, 4)[0].build()
    draws = (dataclasses.replace(plan.draws[0], outputs=("y", "y@6x4")), plan.draws[1])
    with refused("draw one writes one tensor twice: y, y@6x4"):
        dataclasses.replace(plan, draws=draws).validate()


def test_a_view_of_what_was_never_written() -> None:
    plan = viewed(6, 4)[0].build()
    with refused("draw two reads y@6x4, which no earlier draw has written"):
        dataclasses.replace(plan, draws=plan.draws[1:]).validate()


def test_a_weight_may_be_read_through_a_view_alone() -> None:
    plan = builder()
    weight, out = plan.flat("w", "weight", 2, 12, "rgba32f", 64), plan.flat("o", "activation", 6, 4, "rgba32f", 64)
    plan.draw(scale("d", "d", plan.view(weight, 6, 4), out, factor=1.0, kernels=KernelOptions()))
    assert [tensor.name for tensor in plan.build().of_kind("weight")] == ["w"]


# Counts


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.integers(1, 30), st.integers(1, 30))
def test_the_draws_are_blocks_times_8_plus_4_heads_plus_4(
    blocks: int, heads: int, width: int, vocab: int, context: int
) -> None:
    config = ModelConfig(vocab, heads * width, heads, blocks, context)
    plan = reference_plan(config)
    assert len(plan.draws) == blocks * (8 + 4 * heads) + 4
    table = draw_table(plan, context)
    assert table.total == int(table) == len(plan.draws)
    assert sum(row.count for row in table.rows) == table.total
    assert abs(sum(row.share for row in table.rows) - 1) < 1e-9
    per_head = sum(
        row.count for row in table.rows if row.kind in ("attn.scores", "attn.probs", "attn.mixed", "attn.joined")
    )
    assert per_head == 4 * heads * blocks


def test_gab_takes_244_draws() -> None:
    table = draw_table(reference_plan(GAB), 1)
    assert table.total == 244
    assert {row.kind: row.count for row in table.rows} == {
        "embed": 1,
        "ln_1": 6,
        "attn.q_proj": 6,
        "attn.k_proj": 6,
        "attn.v_proj": 6,
        "attn.scores": 48,
        "attn.probs": 48,
        "attn.mixed": 48,
        "attn.joined": 48,
        "attn.out_proj": 6,
        "ln_2": 6,
        "mlp.fc_in": 6,
        "mlp.fc_out": 6,
        "ln_f": 1,
        "lm_head": 1,
        "probs": 1,
    }


def test_the_published_order_of_passes() -> None:
    assert [draw.op for draw in GOOD.draws] == [
        "embed",
        "layer_norm",
        *["linear"] * 3,
        *["attention_scores", "softmax", "attention_values", "concat_head"] * 3,
        "linear",
        "layer_norm",
        *["linear"] * 2,
        "layer_norm",
        "linear",
        "softmax",
    ]


def test_the_sizes_in_the_table_are_those_of_the_tokens() -> None:
    rows = {row.kind: (row.shader, row.rows, row.cols) for row in draw_table(reference_plan(GAB), 5).rows}
    assert rows["embed"] == ("embed", 5, 512)
    assert rows["attn.scores"] == ("attention_scores", 5, 5)
    assert rows["attn.mixed"] == ("attention_values", 5, 64)
    assert rows["mlp.fc_in"] == ("linear", 5, 2048)
    assert rows["lm_head"] == ("linear", 1, 5256)


@pytest.mark.parametrize("tokens", [0, -1, 8])
def test_a_table_for_tokens_that_do_not_fit_is_refused(tokens: int) -> None:
    with refused(f"found {tokens} tokens; expected 1 to 7, the context of this model"):
        draw_table(GOOD, tokens)


def test_every_weight_of_the_file_is_in_the_plan_and_the_other_way_round() -> None:
    for config in (GAB, SMALL):
        planned = {tensor.name: tensor.shape for tensor in reference_plan(config).of_kind("weight")}
        stored = {name: shape if len(shape) == 2 else (1, *shape) for name, shape in weight_shapes(config).items()}
        assert planned == stored


@pytest.mark.parametrize(
    ("blocks", "heads"), [(1 << 24, 8), (1, 1 << 24), (1 << 24, 1 << 24), (MAX_DRAWS // 12 + 1, 1)]
)
def test_an_absurd_model_is_refused_before_its_plan_is_built(blocks: int, heads: int) -> None:
    config = ModelConfig(19, 1 << 24, heads, blocks, 7, intermediate_size=1)
    draws = blocks * (8 + 4 * heads) + 4
    with refused(f"{blocks} blocks of {heads} heads need {draws} draws; expected at most {MAX_DRAWS}"):
        reference_plan(config)


def test_the_longest_plan_is_still_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gab, "MAX_DRAWS", len(GOOD.draws))
    built = reference_plan(SMALL)
    # Functions are equal only to themselves; what they give is compared instead.
    assert [(value.name, value.smallest, value.largest) for value in built.run_values] == [("rows", 1, 7)]
    assert all(built.values_for(tokens) == GOOD.values_for(tokens) == {"rows": tokens} for tokens in range(1, 8))
    assert dataclasses.replace(built, run_values=GOOD.run_values) == GOOD
    monkeypatch.setattr(gab, "MAX_DRAWS", len(GOOD.draws) - 1)
    with refused("1 blocks of 3 heads need 24 draws; expected at most 23"):
        reference_plan(SMALL)


def test_plans_need_no_opengl() -> None:
    code = (
        "import sys\nfrom glinfer.config import ModelConfig\nfrom glinfer.models.reference.gab import reference_plan\n"
        "from glinfer.models.plan import draw_table\nimport glinfer.models.oracle\n"
        "assert draw_table(reference_plan(ModelConfig.from_options('')), 1).total == 244\n"
        "print(sorted({'moderngl', 'glcontext'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_every_op_belongs_to_a_plan_or_is_a_kernel_over_flat_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "after", Family("after", norms="after"))
    options = PlanOptions(SMALL, "f32", KernelOptions(), 2048)
    fast = fast_plan(options)
    chunk = chunk_plan(options, rows=8, cache_slots=64, export_residual=True)
    score = chunk_plan(options, rows=8, cache_slots=64, likelihoods=True)
    batch = batch_plan(options, sequences=3, capacity=64)
    qwen = ModelConfig.from_options("family=qwen3,dim=32,heads=2,blocks=1,vocab=9,context=7")
    normed = fast_plan(dataclasses.replace(options, config=qwen))
    after = fast_plan(dataclasses.replace(options, config=dataclasses.replace(qwen, model_type="after")))
    kernels = KernelOptions(part_steps=4, split_norms=True, split_inner=True, split_values=True, blends=True)
    shared = dataclasses.replace(options, kernels=kernels)
    few = [fast_plan(shared), drafted_plan(shared, rows=4, cache_slots=64)]
    listed = shortlist_plan(batch, kernels=KernelOptions(), max_texture_size=2048)
    allowed = allowed_plan(batch, kernels=KernelOptions(), max_texture_size=2048)
    bert = ModelConfig.from_options("family=bert,dim=32,heads=2,blocks=1,vocab=9,context=7")
    encode = encode_plan(dataclasses.replace(options, config=bert), rows=8)
    lfm2 = ModelConfig.from_options("family=lfm2,dim=32,heads=2,blocks=1,vocab=9,context=7")
    mixed = [fast_plan(dataclasses.replace(options, config=lfm2))]
    mixed.append(chunk_plan(dataclasses.replace(options, config=lfm2), rows=8, cache_slots=64))
    delta = ModelConfig.from_options("family=qwen3_5_text,dim=32,heads=2,head_dim=16,blocks=4,vocab=9,context=7")
    mixed.append(fast_plan(dataclasses.replace(options, config=delta)))
    mixed.append(chunk_plan(dataclasses.replace(options, config=delta), rows=48, cache_slots=64))
    mixed.append(reference_plans(delta, "f32", None, KernelOptions(), 2048).of(7))
    moe = ModelConfig.from_options("family=qwen3_moe,dim=32,heads=2,blocks=1,vocab=9,context=7,experts=3")
    mixed.append(batch_plan(dataclasses.replace(options, config=moe), sequences=3, capacity=64))
    ranks = AdapterRanks(("a",), {"model.layers.0.self_attn.q_proj.weight": 4})
    mixed.append(fast_plan(dataclasses.replace(options, config=qwen, adapters=ranks)))
    mixed.append(fast_plan(dataclasses.replace(options, config=qwen, cache="q8")))
    mixed.append(reference_plans(moe, "f32", None, KernelOptions(), 2048).of(7))
    plans = (GOOD, fast, chunk, score, batch, listed, allowed, normed, after, encode, *few, *mixed)
    ops = [{draw.op for draw in plan.draws} for plan in plans]
    assert set.union(*ops) | flat_ops() == set(OPS)
    assert flat_ops(), "no kernels were found"
    assert ops[0].isdisjoint(set.union(*ops[1:]))
