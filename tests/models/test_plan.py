"""Plans without a GPU: each defect is refused by name, and the counts are what the formula says."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from changed_plans import all_refused, rebound, redefined, refused, spec, with_draw

from glinfer.config import ModelConfig
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.kernels import TensorSpec
from glinfer.kernels.flat.elementwise import scale
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.published.linear import linear
from glinfer.kernels.spec import Pass, RunValue
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.gab import reference_plan
from glinfer.program.plan import Plan, PlanBuilder, PlanLimits, draw_table

ROOT = Path(__file__).resolve().parents[2]
SMALL = ModelConfig(vocab_size=19, hidden_size=6, num_attention_heads=3, num_hidden_layers=1, max_position_embeddings=7)
GOOD = reference_plan(SMALL)
NAMES = [draw.name for draw in GOOD.draws]
BLOCK = "transformer.h.0"


def with_tensor(name: str, **changes: Any) -> Plan:
    """The good plan with one tensor changed."""
    assert name in GOOD.table
    tensors = [dataclasses.replace(each, **changes) if each.name == name else each for each in GOOD.tensors]
    return dataclasses.replace(GOOD, tensors=tuple(tensors))


def builder(rows: int = 5) -> PlanBuilder:
    """An empty plan for sequences of at most ``rows`` tokens, all of them in use."""
    return PlanBuilder("p", rows, [RunValue("rows", 1, rows, usual="tokens")])


def test_the_good_plan_is_good_and_comes_back() -> None:
    assert GOOD.validate() is GOOD
    assert GOOD.validate(PlanLimits(2048, 4, 16)) is GOOD
    assert GOOD.validate(PlanLimits(19, 1, 4)) is GOOD


def swapped(name: str) -> Plan:
    """The good plan with one draw behind the next one."""
    draws, at = list(GOOD.draws), NAMES.index(name)
    draws[at], draws[at + 1] = draws[at + 1], draws[at]
    return dataclasses.replace(GOOD, draws=tuple(draws))


def with_spare(like: str, name: str) -> Plan:
    """The good plan with a cache like one of its tensors, which may be read without being written."""
    spare = dataclasses.replace(GOOD.table[like], name=name, kind="cache")
    return dataclasses.replace(GOOD, tensors=(*GOOD.tensors, spare))


def without_k() -> Plan:
    """The good plan with scores of all heads that sample the queries twice."""
    plan = GOOD
    for head in range(SMALL.num_attention_heads):
        plan = rebound(f"h.0.attn.head.{head}.scores", "k", "q", plan)
    return plan


# Names, flow and formats


DEFECTS: dict[str, Plan] = {
    "draw ln_f: 'tokens' is not a run value of the plan; known: rows": with_draw("ln_f", GOOD, size=("tokens", 6)),
    "draw ln_f: 'cols' is not a run value of the plan; known: rows": with_draw("ln_f", GOOD, size=(1, "cols")),
    "draw ln_f: 'pos' is not a run value of the plan; known: rows": with_draw("ln_f", GOOD, per_run=(("rows", "pos"),)),
    "draw ln_f samples hidden.a, which it renders to: ...": with_draw("ln_f", GOOD, outputs=("normed", "hidden.a")),
    **{
        f"draw ln_f writes [{rows}, {cols}] elements; normed is [7, 6]": with_draw("ln_f", GOOD, size=(rows, cols))
        for rows, cols in ((8, 6), (7, 7), (0, 6), (7, 0), (-1, 6), (10**12, 10**12))
    },
    "draw ln_f: there is no tensor 'hidden.c'": rebound("ln_f", "x", "hidden.c", GOOD),
    "draw ln_f: there is no tensor 'hidden.d'": with_draw("ln_f", GOOD, outputs=("hidden.d",)),
    "draw ln_f writes nothing": with_draw("ln_f", GOOD, outputs=()),
    "draw ln_f writes one tensor twice: normed, normed": with_draw("ln_f", GOOD, outputs=("normed", "normed")),
    "draw ln_f: op layer_norm needs sampler 'bias'": with_draw("ln_f", GOOD, inputs=spec("ln_f", GOOD).inputs[:2]),
    "draw ln_f: op layer_norm cannot bind sampler 'residual'": with_draw(
        "ln_f", GOOD, inputs=(*spec("ln_f", GOOD).inputs, ("residual", "hidden.b"))
    ),
    "draw ln_f: op layer_norm cannot bind sampler 'x'": with_draw(
        "ln_f", GOOD, inputs=(*spec("ln_f", GOOD).inputs, ("x", "hidden.b"))
    ),
    "draw h.0.ln_1 reads hidden.b, which no earlier draw has written": rebound("h.0.ln_1", "x", "hidden.b", GOOD),
    "draw h.0.attn.head.0.mixed reads attn.probs, which no earlier draw has written": swapped("h.0.attn.head.0.probs"),
    "draw ln_f writes transformer.wpe.weight, which is weight, not an activation": with_draw(
        "ln_f", GOOD, outputs=("transformer.wpe.weight",)
    ),
    "draw h.0.ln_1 writes normed, which is input, not an activation": with_tensor("normed", kind="input"),
    "draw embed: tokens tokens has format r32f; expected integers": with_tensor("tokens", format="r32f"),
    "draw embed: position_embedding transformer.wpe.weight has format r32i; expected floats": with_tensor(
        "transformer.wpe.weight", format="r32i"
    ),
    "draw h.0.ln_1: output normed has format r32i; expected floats": with_tensor("normed", format="r32i"),
    "draw ln_f: its targets normed and logits differ in shape": with_draw("ln_f", GOOD, outputs=("normed", "logits")),
    "draw ln_f: scattered points need a number and a vertex shader that places them": with_draw(
        "ln_f", GOOD, cover="scatter", points=3
    ),
    "plan reference: two tensors have the same name": dataclasses.replace(
        GOOD, tensors=(*GOOD.tensors, GOOD.table["q"])
    ),
    "plan reference: two draws have the same name: probs": dataclasses.replace(
        GOOD, draws=(*GOOD.draws, GOOD.draws[-1])
    ),
    "draw ln_f: there is no op 'rms_norm'; known: ...layer_norm...": with_draw("ln_f", GOOD, op="rms_norm"),
    "draw ... samples joined.a, which it renders to: a feedback loop, undefined in OpenGL": with_draw(
        "h.0.attn.head.1.joined", GOOD, outputs=("joined.a",)
    ),
    "plan reference: no draw reads weight spare": dataclasses.replace(
        GOOD, tensors=(*GOOD.tensors, TensorSpec("spare", (3, 3), "weight"))
    ),
    "plan reference: no draw reads input spare": dataclasses.replace(
        GOOD, tensors=(*GOOD.tensors, TensorSpec("spare", (3, 3), "input"))
    ),
    "draw ln_f overwrites normed, which draw h.0.ln_2 wrote and no draw has read": rebound(
        "h.0.mlp.fc_in", "x", "hidden.b", GOOD
    ),
    "draw h.0.attn.head.1.mixed overwrites attn.mixed, which draw h.0.attn.head.0.mixed wrote and no draw has read": (
        rebound("h.0.attn.head.0.joined", "mixed", "attn.spare", with_spare("attn.mixed", "attn.spare"))
    ),
    "draw h.0.attn.k_proj writes k, which no later draw reads; plan reference has the results probs": without_k(),
    "draw ln_f writes normed, which no later draw reads; plan reference has the results probs": rebound(
        "lm_head", "x", "hidden.a", GOOD
    ),
    "draw probs writes probs, which no later draw reads; plan reference has the results logits": dataclasses.replace(
        GOOD, results=("logits",)
    ),
    "draw probs writes probs, which no later draw reads; plan reference has the results none": dataclasses.replace(
        GOOD, results=()
    ),
    **{
        f"plan reference: no draw writes its result {name}": dataclasses.replace(GOOD, results=("probs", name))
        for name in ("picks", "hidden.c")
    },
    "plan reference: no draw writes its result spare": dataclasses.replace(
        GOOD, tensors=(*GOOD.tensors, TensorSpec("spare", (3, 3), "activation")), results=("probs", "spare")
    ),
    "rows is 8; expected an integer from 1 to 7": dataclasses.replace(GOOD, max_rows=8),
    "plan reference: a run value needs 'later'; expected an earlier run value": dataclasses.replace(
        GOOD, run_values=(RunValue("before", 0, 9, ("add", "later", 1)), RunValue("later", 0, 8), *GOOD.run_values)
    ),
    "plan reference is for sequences of at most 0 tokens; expected at least 1": dataclasses.replace(GOOD, max_rows=0),
}


def test_a_defect_is_refused() -> None:
    all_refused(DEFECTS)


def test_a_weight_may_be_read_more_than_once() -> None:
    """Tied embeddings: one matrix as the first and as the last."""
    tensors = tuple(each for each in GOOD.tensors if each.name != "lm_head.weight")
    plan = dataclasses.replace(rebound("lm_head", "weight", "transformer.wte.weight", GOOD), tensors=tensors)
    assert plan.validate() is plan


# Shapes, op by op: (a plan with exactly one wrong shape, what is said)

WRONG_SHAPES: dict[str, Plan] = {
    "draw embed: tokens is [7, 2]; expected [any, 1]": with_tensor("tokens", shape=(7, 2)),
    "draw embed: token_embedding is [18, 6]; expected [19, 6]": with_tensor("transformer.wte.weight", shape=(18, 6)),
    "draw embed: position_embedding is [6, 6]; expected [7, 6]": with_tensor("transformer.wpe.weight", shape=(6, 6)),
    "draw embed: output is [7, 5]; expected [7, 6]": with_tensor("hidden.a", shape=(7, 5)),
    "draw h.0.ln_1: weight is [1, 5]; expected [1, 6]": with_tensor(f"{BLOCK}.ln_1.weight", shape=(1, 5)),
    "draw ln_f: x is [7, 6]; expected [any, 5]": redefined("ln_f", GOOD, DIM=5),
    "draw h.0.attn.q_proj: weight is [6, 7]; expected [6, 6]": with_tensor(f"{BLOCK}.attn.q_proj.weight", shape=(6, 7)),
    "draw h.0.mlp.fc_in: bias is [1, 25]; expected [1, 24]": with_tensor(f"{BLOCK}.mlp.fc_in.bias", shape=(1, 25)),
    "draw h.0.attn.out_proj: residual is [7, 7]; expected [7, 6]": rebound(
        "h.0.attn.out_proj", "residual", "attn.scores", GOOD
    ),
    "draw lm_head: output is [7, 19]; expected [1, 19]": with_tensor("logits", shape=(7, 19)),
    "draw lm_head: op linear needs a define or uniform 'rows'": with_draw("lm_head", GOOD, per_run=()),
    "draw probs: output is [1, 18]; expected [1, 19]": with_tensor("probs", shape=(1, 18)),
    "draw probs: x is [1, 19]; expected [any, 18]": redefined("probs", GOOD, STRIDE=18),
    "draw probs: softmax over 20 columns of a matrix of 19": with_draw("probs", GOOD, uniforms=(("cols", 20),)),
    "draw probs: op softmax needs a define or uniform 'cols'": with_draw("probs", GOOD, uniforms=()),
    "draw h.0.attn.head.0.scores: output is [7, 6]; expected [7, 7]": with_tensor("attn.scores", shape=(7, 6)),
    "draw h.0.attn.head.0.scores: op attention_scores needs a define or uniform 'DIM'": redefined(
        "h.0.attn.head.0.scores", GOOD, DIM=None
    ),
    "draw h.0.attn.head.2.scores: head 3 of width 2 lies outside 6 columns": with_draw(
        "h.0.attn.head.2.scores", GOOD, uniforms=(("head", 3),)
    ),
    "draw h.0.attn.head.2.joined: mixed is [7, 2]; expected [7, 3]": redefined(
        "h.0.attn.head.2.joined", GOOD, HEAD_DIM=3
    ),
    "draw h.0.attn.head.0.mixed: probs is [7, 6]; expected [7, 7]": rebound(
        "h.0.attn.head.0.mixed", "probs", "k", GOOD
    ),
    "draw h.0.attn.head.0.mixed: v is [7, 7]; expected [7, 6]": rebound(
        "h.0.attn.head.0.mixed", "v", "attn.scores", GOOD
    ),
    "draw h.0.attn.head.1.joined: so_far is [7, 7]; expected [7, 6]": rebound(
        "h.0.attn.head.1.joined", "so_far", "attn.scores", GOOD
    ),
    "draw h.0.attn.head.1.joined: exactly the first head has no so_far": redefined(
        "h.0.attn.head.1.joined", GOOD, FIRST=1
    ),
}


def test_a_wrong_shape_is_refused() -> None:
    all_refused(WRONG_SHAPES)
    other = rebound("h.0.attn.head.0.scores", "k", "hidden.a", GOOD)
    assert other.validate() is other, "another tensor of the same shape is as good, while other heads read the keys"


def test_the_last_of_more_rows_than_there_are() -> None:
    plan = builder()
    x, weight = plan.input("x", 4, 3, "r32f"), plan.weight("w", 2, 3)
    plan.draw(linear("last", "last", x, weight, plan.activation("y", 1, 2), last_row=True))
    with refused("draw last: the last of 5 rows of a matrix of 4"):
        plan.build()


# Tensors by themselves


def test_a_tensor_that_cannot_be() -> None:
    known = "r32f, r32i, rgba32f, rgba16f, rgba8i, rgba32i, rgba32ui"
    for arguments, message in (
        (("t", (1, 1), "buffer"), "tensor t is of kind 'buffer'; expected one of weight, input, activation, cache"),
        (("t", (1, 1), "input", "rgba"), f"tensor t has format 'rgba'; known: {known}"),
        (("t", (0, 1), "input"), r"tensor t has shape \(0, 1\); every edge must be at least 1"),
        (("t", (1, -1), "input"), r"tensor t has shape \(1, -1\); every edge must be at least 1"),
    ):
        with refused(message):
            TensorSpec(*arguments)  # type: ignore[arg-type]


def test_the_builder_takes_vectors_and_matrices() -> None:
    plan = builder()
    assert plan.weight("v", 4).shape == (1, 4)
    assert plan.weight("m", 4, 3).shape == (4, 3)
    for shape in ((), (2, 3, 4)):
        with refused(r"weight w has shape \[.*\]; expected a vector or a matrix"):
            plan.weight("w", *shape)


def test_two_draws_may_write_different_rows_of_a_result() -> None:
    plan = fast_plan(PlanOptions(SMALL, "f32", KernelOptions(), 2048))
    pick = plan.draws[-1]
    for first, message in (
        ("position", "draw again overwrites picks, which draw pick wrote and no draw has read"),
        (0, ""),
    ):
        again = dataclasses.replace(pick, name="again", first=first)
        changed = dataclasses.replace(plan, draws=(*plan.draws, again))
        with refused(message) if message else nullcontext():
            changed.validate()


def test_what_no_draw_uses_takes_no_texture() -> None:
    plan, _ = viewed(6, 4)
    plan.view(plan.flat("spare", "activation", 2, 12, "rgba32f", 64), 6, 4)
    made = plan.build()
    assert [tensor.name for tensor in made.tensors] == ["x", "y", "z", "y@6x4"]
    assert made.results == ("z",)


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
    plan = dataclasses.replace(with_draw("ln_f", GOOD, outputs=("normed", "normed.b")), tensors=(*GOOD.tensors, extra))
    plan = dataclasses.replace(plan, results=("probs", "normed.b"))
    assert plan.validate(PlanLimits(2048, 2, 16)) is plan
    with refused("draw ln_f writes 2 targets; this renderer allows 1"):
        plan.validate(PlanLimits(2048, 1, 16))


# Views: the texels of one tensor as another matrix


def viewed(rows: int, cols: int) -> tuple[PlanBuilder, dict[str, TensorSpec]]:
    """x is scaled into y [2, 12], y into z; ``rows`` × ``cols`` is what z is, and what y is seen as to be read."""
    plan = builder()
    tensors = {
        "x": plan.flat("x", "input", 2, 12, "rgba32f", 64),
        "y": plan.flat("y", "activation", 2, 12, "rgba32f", 64),
        "z": plan.flat("z", "activation", rows, cols, "rgba32f", 64),
    }
    tensors["y as x"], tensors["y as z"] = plan.view(tensors["y"], 2, 12), plan.view(tensors["y"], rows, cols)
    plan.draw(scale(Pass("one", KernelOptions()), tensors["x"], tensors["y as x"], factor=2.0))
    plan.draw(scale(Pass("two", KernelOptions()), tensors["y as z"], tensors["z"], factor=2.0))
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


def test_views_that_cannot_be() -> None:
    plan, tensors = viewed(6, 4)
    for rows, cols in ((8, 3), (4, 6), (24, 1)):
        with refused(f"tensor y cannot be seen as {rows}×{cols}: its rows are not whole texels"):
            plan.view(tensors["y"], rows, cols)
    for rows, cols in ((6, 8), (5, 4), (3, 12), (1, 4)):
        with refused(f"a 2×12 matrix cannot share its texels with one of {rows}×{cols}"):
            plan.view(tensors["y"], rows, cols)
    with refused("tensor single cannot be seen as 6×4: its rows are not whole texels"):
        plan.view(plan.activation("single", 2, 12), 6, 4)
    flat = {shape: FlatLayout.of(shape, "rgba32f", 64) for shape in ((7, 4), (6, 3))}
    other = "which is not a tensor of its kind and format"
    changes: list[tuple[dict[str, Any], str]] = [
        *(({"view_of": name}, f"tensor y@6x4 is a view of {name}, {other}") for name in ("x", "w")),
        ({"name": "v", "view_of": "v"}, f"tensor v is a view of v, {other}"),
        ({"kind": "cache"}, f"tensor y@6x4 is a view of y, {other}"),
        ({"view_of": "z"}, "draw two samples y@6x4, which it renders to: a feedback loop, undefined in OpenGL"),
        ({"layout": None}, "tensor y@6x4 is not within the texels of y"),
        *(
            ({"shape": shape, "layout": layout}, ".* (cannot share its texels|is not within the texels) .*")
            for shape, layout in flat.items()
        ),
    ]
    for change, message in changes:
        with refused(message):
            changed_view(**change).validate()


def test_a_feedback_loop_through_a_view() -> None:
    plan, tensors = viewed(6, 4)
    plan.draw(scale(Pass("loop", KernelOptions()), tensors["y as z"], plan.view(tensors["y"], 6, 4), factor=1.0))
    with refused("draw loop samples y@6x4, which it renders to: a feedback loop, undefined in OpenGL"):
        plan.build()
    plan, tensors = viewed(2, 12)
    out = plan.view(plan.flat("out", "activation", 2, 12, "rgba32f", 64), 6, 4)
    plan.draw(scale(Pass("no loop", KernelOptions()), plan.view(tensors["y"], 6, 4), out, factor=1.0))
    assert plan.build("z", out.name).draws[-1].name == "no loop"


def test_a_weight_may_be_read_through_a_view_alone() -> None:
    plan = builder()
    weight, out = plan.flat("w", "weight", 2, 12, "rgba32f", 64), plan.flat("o", "activation", 6, 4, "rgba32f", 64)
    plan.draw(scale(Pass("d", KernelOptions()), plan.view(weight, 6, 4), out, factor=1.0))
    assert [tensor.name for tensor in plan.build().of_kind("weight")] == ["w"]


# Counts


def test_the_draws_are_blocks_times_8_plus_4_heads_plus_4() -> None:
    for blocks, heads, width, vocab, context in (
        (1, 1, 1, 1, 1),
        (2, 3, 5, 30, 7),
        (6, 8, 64, 5256, 2048),
        (12, 12, 2, 9, 30),
    ):
        plan = reference_plan(ModelConfig(vocab, heads * width, heads, blocks, context))
        assert len(plan.draws) == blocks * (8 + 4 * heads) + 4
        table = draw_table(plan, context)
        assert table.total == int(table) == len(plan.draws) == sum(row.count for row in table.rows)
        assert abs(sum(row.share for row in table.rows) - 1) < 1e-9


def test_plans_need_no_opengl() -> None:
    code = (
        "import sys\nfrom glinfer.config import ModelConfig\n"
        "from glinfer.lower.fused.token import fast_plan\nfrom glinfer.lower.options import PlanOptions\n"
        "from glinfer.program.plan import draw_table\nfrom glinfer.lower.plain.gab import reference_plan\n"
        "from glinfer.lower.plain.decoder import reference_decoder_plan\n"
        "from glinfer.kernels.options import KernelOptions\nimport glinfer.lower.weights.fold, glinfer.program.oracle\n"
        "gab, kernels = ModelConfig.from_options(''), KernelOptions()\n"
        "llama = ModelConfig(31, 20, 2, 2, 48, 24, model_type='llama', hidden_act='silu')\n"
        "options = PlanOptions(llama, 'f32', kernels, 2048)\n"
        "fast = fast_plan(PlanOptions(gab, 'q8', kernels, 2048))\n"
        "for plan in (reference_plan(gab), fast, reference_decoder_plan(options, rows=48)):\n"
        "    print(draw_table(plan, 1).total)\n"
        "print(sorted({'moderngl', 'glcontext'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "244\n39\n55\n[]\n"
