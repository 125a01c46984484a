"""The one loop that draws: what it counts, what it skips, and that nothing of one run shows in the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import _moderngl
import moderngl
import numpy as np
import pytest
from own_process import ran

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats import random_checkpoint
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, DrawCall, in_parts, replay
from glinfer.gl.state import GLState
from glinfer.gl.texture import Texture
from glinfer.kernels import DrawSpec
from glinfer.lower.plain.gab import LOGITS, PROBS, TOKENS, reference_plan
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
CONFIG = ModelConfig(
    vocab_size=19, hidden_size=6, num_attention_heads=3, num_hidden_layers=2, max_position_embeddings=7
)
WEIGHTS = random_checkpoint(CONFIG, seed=3).tensors


@pytest.fixture
def session(device: Device) -> Session:
    return Session(reference_plan(CONFIG), WEIGHTS, device)


def run(session: Session, ids: list[int], **hooks: Any) -> tuple[Array, Array]:
    session.write(TOKENS, np.array(ids, dtype=np.int32)[:, None])
    assert session.run({"rows": len(ids)}, **hooks) == len(session.plan.draws)
    return session.read(LOGITS).copy(), session.read(PROBS).copy()


class Calls:
    """Counts the calls that reach moderngl and OpenGL, by name, with what they were given."""

    def __init__(self, patch: pytest.MonkeyPatch, device: Device) -> None:
        self.made: list[tuple[str, Any]] = []
        for owner, name in (
            (moderngl.VertexArray, "render"),
            (moderngl.Texture, "use"),
            (moderngl.Framebuffer, "use"),
            (_moderngl.Uniform, "write"),
        ):
            patch.setattr(owner, name, self.wrap(f"{owner.__name__}.{name}", getattr(owner, name)))
        for name in ("bind_framebuffer", "viewport"):
            patch.setattr(device.raw, name, self.wrap(name, getattr(device.raw, name)))

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(owner: Any, *arguments: Any, **options: Any) -> Any:
            self.made.append((name, (owner, *arguments)))
            return real(owner, *arguments, **options)

        return call

    def take(self) -> Counter[str]:
        counted = Counter(name for name, _ in self.made)
        self.made.clear()
        return counted


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, device: Device) -> Calls:
    return Calls(monkeypatch, device)


# Counting


def test_what_is_counted_is_what_was_drawn(session: Session, calls: Calls) -> None:
    planned = len(session.plan.draws)
    for rows in (1, 4, 7):
        session.write(TOKENS, np.zeros((rows, 1), dtype=np.int32))
        calls.take()
        assert session.run({"rows": rows}) == planned
        assert {given[1:] for name, given in calls.made if name == "VertexArray.render"} == {
            (moderngl.TRIANGLES, 3, 0, 1)
        }
        assert calls.take()["VertexArray.render"] == planned
    assert session.runs == 3
    assert session.draws_issued == session.device.draws_issued == 3 * planned


def test_python_waits_for_draws_of_many_rows_in_software(
    session: Session, monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    waited = []
    monkeypatch.setattr(session.device, "in_main_memory", True)
    drawn = lambda: sum(name == "VertexArray.render" for name, _ in calls.made)  # noqa: E731
    monkeypatch.setattr(session.device.raw, "finish", lambda: waited.append(drawn()))
    run(session, [3, 1])
    of_any_length = [draw.name for draw in session.plan.draws if draw.size[0] == "rows"]
    assert [session.plan.draws[number - 1].name for number in waited] == of_any_length
    assert 0 < len(of_any_length) < len(session.plan.draws), "the head computes one row"


def test_draws_before_a_failing_hook_are_still_counted(session: Session) -> None:
    seen: list[str] = []

    def fail_at_third(spec: DrawSpec) -> None:
        seen.append(spec.name)
        if len(seen) == 3:
            raise RuntimeError("enough")

    session.write(TOKENS, np.zeros((1, 1), dtype=np.int32))
    with pytest.raises(RuntimeError, match="enough"):
        session.run({"rows": 1}, after=fail_at_third)
    assert session.device.draws_issued == 3
    assert seen == [draw.name for draw in session.plan.draws[:3]]
    first = run(session, [4, 5])
    assert all(np.array_equal(a, b) for a, b in zip(first, run(session, [4, 5]), strict=True))


# Skipping what is bound already


def test_redundant_binds_are_skipped_and_needed_ones_are_not(session: Session, calls: Calls) -> None:
    for rows in (3, 3, 5, 7):
        session.write(TOKENS, np.zeros((rows, 1), dtype=np.int32))
        calls.take()
        session.run({"rows": rows})
        counted = calls.take()
        framebuffers, textures, changed, bound = 0, 0, 0, {}
        target, viewport = None, None
        for draw in session.draws:
            if draw.framebuffer is not target:
                framebuffers, target = framebuffers + 1, draw.framebuffer
            if "rows" in draw.call.viewport or draw.rectangle({"rows": rows}) != viewport:
                changed, viewport = changed + 1, draw.rectangle({"rows": rows})
            for unit, texture in enumerate(draw.textures):
                if bound.get(unit) is not texture:
                    textures, bound[unit] = textures + 1, texture
        assert counted["Framebuffer.use"] == 1  # the first, which also resets masks
        assert counted["bind_framebuffer"] == framebuffers - 1
        assert counted["Texture.use"] == textures < sum(len(draw.textures) for draw in session.draws)
        assert counted["viewport"] == changed <= len(session.draws)


@pytest.mark.parametrize("hooked", [False, True])
def test_only_draws_that_add_are_blended_and_hooks_see_it(device: Device, hooked: bool) -> None:
    layout = Layout.of((3, 5), "rgba32f", 64)
    ones, target = (Texture(device, layout, name, np.full((3, 5, 4), 1.0, np.float32)) for name in "at")
    program = Program(device, "copy", {"COLS": 5}, ["x"])
    adds = Draw("adds", program, target.framebuffer, (ones,), DrawCall(adds=True))
    cleared = Draw("cleared", program, target.framebuffer, (ones,), DrawCall(adds=True, clears=((0, 0, 2, "rows"),)))
    plain = Draw("plain", program, target.framebuffer, (ones,), DrawCall(viewport=(4, 0, 1, 3)))
    seen: list[bool] = []
    look = (lambda _: seen.append("GL_BLEND" in GLState(device).enabled())) if hooked else None
    replay(device, [adds, adds, cleared, plain, adds, plain], {"rows": 1}, after=look)
    assert target.read()[:, :, 0].tolist() == [[2, 2, 5, 5, 1], *[[5, 5, 5, 5, 1]] * 2]
    assert seen == [True, True, True, False, True, False] * hooked
    assert "GL_BLEND" not in GLState(device).enabled()


def test_a_second_run_sets_only_uniforms_that_differ(session: Session, calls: Calls) -> None:
    per_run = {name for draw in session.draws for name, _ in draw.call.per_run}
    assert per_run
    heads = {id(draw.program): set() for draw in session.draws}
    for draw in session.draws:
        heads[id(draw.program)].update(draw.call.constants)
    run(session, [1, 2])
    calls.take()
    run(session, [3, 4])
    written = [arguments[0].name for name, arguments in calls.made if name == "Uniform.write"]
    # Programs that several heads share change their head; what is the same as before is not written again.
    assert set(written) == {"head"}
    assert len(written) <= sum(len(draw.call.constants) for draw in session.draws)
    calls.take()
    run(session, [3, 4, 5])
    again = [arguments[0].name for name, arguments in calls.made if name == "Uniform.write"]
    assert set(again) == {"head", *per_run}


# Uniforms of programs that draws share


# Hooks


def test_hooks_that_bind_everything_do_not_disturb_the_result(session: Session) -> None:
    device = session.device
    plain = run(session, [3, 1, 4, 1, 5])
    layout = Layout.of((30, 40), "r32f", 64)
    noise = Texture(device, layout, "noise", np.full((30, 40), 99, dtype=np.float32))
    target = Texture(device, layout, "target")
    program = Program(device, "copy", {"COLS": 40}, ["x"])

    def disturb(spec: DrawSpec) -> None:
        for unit in range(6):
            noise.gl.use(unit)
        target.fill(5.0)
        device.gl.viewport = (0, 0, 1, 1)
        replay(device, [Draw("noise", program, target.framebuffer, (noise,))], {})
        session.read(spec.outputs[0])
        session.read(spec.reads[0])

    assert np.array_equal(run(session, [3, 1, 4, 1, 5], before=disturb, after=disturb), plain)
    assert np.array_equal(run(session, [3, 1, 4, 1, 5]), plain)


# Nothing is made while running


def test_a_run_makes_no_object(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(session, [1, 2, 3])
    alive = session.device.live_objects()
    programs = session.program_count

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a GL object was made during a run")

    makers = [name for name in dir(moderngl.Context) if name in MAKERS]
    assert set(makers) == MAKERS
    for name in makers:
        monkeypatch.setattr(moderngl.Context, name, refuse)
    for _ in range(3):
        assert np.array_equal(run(session, [1, 2, 3]), first)
    run(session, [1, 2, 3, 4, 5, 6, 7])
    assert session.device.live_objects() == alive
    assert session.program_count == programs


MAKERS = {
    "buffer", "compute_shader", "depth_renderbuffer", "depth_texture", "framebuffer", "program", "query",
    "renderbuffer", "sampler", "simple_framebuffer", "simple_vertex_array", "texture", "texture3d",
    "texture_array", "texture_cube", "vertex_array",
}  # fmt: skip


# Sessions


def test_rows_and_tensors_that_the_plan_has_not_are_refused(session: Session) -> None:
    for rows in (0, -1, 8, 10**9, 1.5, "3", None):
        with pytest.raises(PlanError, match=r"^rows is .*; expected an integer from 1 to 7$"):
            session.run({"rows": rows})  # type: ignore[dict-item]
    with pytest.raises(PlanError, match=r"^plan reference has no tensor 'nothing'$"):
        session.read("nothing")
    with pytest.raises(PlanError, match=r"^rows is None; expected an integer from 1 to 7$"):
        session.run({"cols": 3})
    assert session.runs == session.draws_issued == 0


def test_a_released_session_refuses_use(session: Session) -> None:
    session.release()
    session.release()
    assert not session.device.live_objects()
    uses: list[Callable[[], object]] = [
        lambda: session.run({"rows": 1}),
        lambda: session.read(LOGITS),
        lambda: session.write(TOKENS, np.zeros((1, 1), dtype=np.int32)),
    ]
    for use in uses:
        with pytest.raises(PlanError, match=r"^this session of plan reference was released; bind the plan again$"):
            use()
    session.device.close()
    session.release()


def test_uploads_are_told_and_one_that_is_interrupted_leaves_nothing(device: Device) -> None:
    seen: list[int] = []
    plan = reference_plan(CONFIG)
    Session(plan, WEIGHTS, device, on_upload=seen.append).release()
    assert len(seen) == len(plan.of_kind("weight"))
    assert sum(seen) == plan.texture_bytes(device.limits.max_texture_size, "weight") > 0

    def interrupt(count: int) -> None:
        seen.append(count)
        if len(seen) == 3:
            raise KeyboardInterrupt

    seen.clear()
    with pytest.raises(KeyboardInterrupt):
        Session(plan, WEIGHTS, device, on_upload=interrupt)
    assert not device.live_objects()


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (None, r"the checkpoint has no tensor lm_head\.bias; the plan needs \[1, 19\]"),
        (np.zeros(18, np.float32), r"tensor lm_head\.bias is \[1, 18\]; the plan needs \[1, 19\]"),
        (np.zeros((1, 1, 19), np.float32), r"tensor lm_head\.bias is \[1, 1, 19\]; the plan needs \[1, 19\]"),
        (np.float32(0), r"tensor lm_head\.bias is \[\]; the plan needs \[1, 19\]"),
        (np.zeros(19), r"tensor lm_head\.bias is float64; .* float32"),
        ([0.0] * 19, r"tensor lm_head\.bias is float64; .* float32"),
    ],
    ids=["missing", "short", "3-D", "scalar", "float64", "list"],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_left(device: Device, bias: Any, message: str) -> None:
    weights = {**WEIGHTS, "lm_head.bias": bias}
    if bias is None:
        del weights["lm_head.bias"]
    with pytest.raises(PlanError, match=rf"^{message}$"):
        Session(reference_plan(CONFIG), weights, device)
    assert not device.live_objects()


# A driver that numbers vertices anew behind 4096 of them

SCATTER = """
import numpy as np
from glinfer.tensors.device import Device
with Device() as device:
    print(device.context.renderer)
    for count in (4096, 4097, 9000):
        numbers = np.arange(count)
        with device.tensor(numbers.astype("int32")) as ids, device.tensor(numbers[:, None].astype("float32")) as grad:
            sums, counts = device.ops.embedding_backward(ids, grad, count, method="scatter")
            print(np.array_equal(sums.numpy()[:, 0], numbers), int(counts.numpy().max()))
"""


def test_many_vertices_are_drawn_in_parts_where_a_driver_needs_that() -> None:
    calls: list[tuple[int, ...]] = []
    in_parts(lambda *call: calls.append(call), 6)(1, 14, 3, 2)
    assert calls == [(1, 6, 3, 2), (1, 6, 9, 2), (1, 2, 15, 2)]
    plain = calls.append
    assert in_parts(plain, None) is plain  # type: ignore[comparison-overlap, arg-type]


@pytest.mark.slow
def test_many_points_are_right_on_softpipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLIUM_DRIVER", "softpipe")
    renderer, *found = ran(SCATTER)
    if renderer != "softpipe":
        pytest.skip(f"there is no softpipe here: {renderer} opens")
    assert found == ["True 1"] * 3
