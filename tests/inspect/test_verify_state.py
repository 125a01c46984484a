"""Every draw is made in the right state of OpenGL, or ``verify --draws`` names the draw and what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from ctypes import c_char_p, c_float, c_int32, c_uint32, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import moderngl
import numpy as np
import pytest
from bound_engines import checked_draws
from commands import ran
from each_case import each_case
from scripted_models import SMALL
from verify_documents import verified

from glinfer.config import ModelConfig
from glinfer.formats import random_checkpoint
from glinfer.gl.context import Device
from glinfer.gl.program import load_source, shader_root
from glinfer.gl.replay import Draw
from glinfer.gl.state import GLState
from glinfer.inspect.verify import suite as module
from glinfer.inspect.verify.draws import DrawCheck, verify_draws
from glinfer.inspect.verify.state import StateFault, low_precisions
from glinfer.kernels import DrawSpec
from glinfer.lower.plans import plan_for
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

IDS = [13, 132, 251]
PLAN = plan_for(ModelConfig.from_options(SMALL), "reference")
GL_TEXTURE_2D, GL_LINEAR, GL_MAG_FILTER, GL_WRAP_S, GL_REPEAT = 0x0DE1, 0x2601, 0x2800, 0x2802, 0x2901
MIN_FILTER = ("min filter", "GL_LINEAR", "GL_NEAREST")
MAG_FILTER = ("mag filter", "GL_LINEAR", "GL_NEAREST")
DEFAULT = "{}, the default of GLSL ES"
Plant = Callable[[Session], object]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def checked(device: Device, plant: Plant | None = None, *, plan: str = "reference", **hooks: Any) -> list[DrawCheck]:
    """The draws of the small model, with something planted in the bound session."""
    checkpoint = random_checkpoint(ModelConfig.from_options(SMALL), seed=1)
    return checked_draws(checkpoint, device, IDS, plan, hooks={"on_bound": plant, **hooks})


def wrong(checks: list[DrawCheck]) -> dict[str, list[StateFault]]:
    """The findings of each draw that has any."""
    return {check.name: list(check.findings) for check in checks if check.findings}


def change_draw(session: Session, name: str, change: Callable[[Draw], dict[str, Any]]) -> None:
    """Give a bound draw other fields."""
    session.draws = tuple(
        dataclasses.replace(draw, **change(draw)) if draw.name == name else draw for draw in session.draws
    )


def plant_linear(session: Session, name: str = "transformer.h.1.attn.q_proj.weight") -> None:
    session.texture(name).gl.filter = (moderngl.LINEAR, moderngl.LINEAR)


def plant_transposed(session: Session, name: str = "transformer.h.1.attn.k_proj.weight") -> None:
    session.texture(name).upload(np.ascontiguousarray(session.read(name).T))


def plant_feedback(session: Session, name: str = "h.1.mlp.fc_in") -> None:
    """The draw samples its own target in the place of its first input."""
    change_draw(session, name, lambda draw: {"textures": (draw.framebuffer.textures[0], *draw.textures[1:])})


def plant_float(session: Session, name: str = "lm_head", uniform: str = "rows") -> None:
    """An integer uniform is set as a float, as ``gl.uniform1f`` does it."""
    program: Any = next(draw.program for draw in session.draws if draw.name == name)
    raw = session.device.raw
    uniform1f = raw.function("glUniform1f", None, c_int32, c_float)

    def as_float(wanted: str, value: float) -> None:
        if wanted == uniform:
            raw.use_program(program.gl.glo)
            uniform1f(program.gl[uniform].location, float(value))
        else:
            type(program).set(program, wanted, value)

    program.set = as_float


def plant_source(session: Session, old: str, new: str = "") -> None:
    """Every fragment shader is compiled from another source, behind glinfer's back."""
    raw, state = session.device.raw, GLState(session.device)
    set_source = raw.function("glShaderSource", None, c_uint32, c_int32, c_void_p, c_void_p)
    compile_shader, link = (raw.function(f"gl{name}", None, c_uint32) for name in ("CompileShader", "LinkProgram"))
    for draw, spec in zip(session.draws, session.plan.draws, strict=True):
        shader, source = state.fragment_shader(draw.program)
        if old not in source:
            continue
        set_source(shader, 1, (c_char_p * 1)(source.replace(old, new).encode()), None)
        compile_shader(shader)
        link(draw.program.gl.glo)
        draw.program.values.clear()
        for unit, (sampler, _) in enumerate(spec.inputs):
            draw.program.gl[sampler].value = unit


class TestPlanted:
    def test_nothing_is_found_where_nothing_is_planted(self, device: Device) -> None:
        for plan in ("reference", "fast"):
            checks = checked(device, lambda session: None, plan=plan, before=lambda spec: None)
            assert all(check.passed for check in checks)
            assert wrong(checks) == {}

    def test_a_linear_filter_is_named_at_every_draw_that_samples_it(self, device: Device) -> None:
        name = "transformer.h.1.attn.q_proj.weight"
        checks = checked(device, plant_linear)
        found = wrong(checks)
        assert list(found) == [draw.name for draw in PLAN.draws if name in draw.reads] == ["h.1.attn.q_proj"]
        [findings] = found.values()
        assert [(each.kind, each.name, each.found, each.expected) for each in findings] == [
            (kind, name, was, wanted) for kind, was, wanted in (MIN_FILTER, MAG_FILTER)
        ]
        bad = next(check for check in checks if not check.passed)
        assert bad.name == "h.1.attn.q_proj"
        assert findings[0].text == f"min filter of {name}: found GL_LINEAR; expected GL_NEAREST"

    def test_a_sampler_object_is_found_though_the_texture_is_right(self, device: Device) -> None:
        made = device.gl.sampler()
        made.filter = (moderngl.LINEAR, moderngl.LINEAR)
        made.use(1)
        try:
            found = wrong(checked(device))
        finally:
            made.clear(1)
            made.release()
        assert {finding.kind for findings in found.values() for finding in findings} == {"sampler"}
        assert list(found) == [draw.name for draw in PLAN.draws if len(draw.inputs) > 1]

    def test_a_feedback_loop_is_named_first(self, device: Device) -> None:
        found = wrong(checked(device, plant_feedback))
        assert list(found) == ["h.1.mlp.fc_in"]
        loop, other = found["h.1.mlp.fc_in"]
        assert (loop.kind, loop.name) == ("feedback loop", "mlp.inner")
        assert "sampled as x by the draw that renders to it" in loop.found
        assert (other.kind, other.name, other.found) == ("texture", "x", "mlp.inner")
        assert other.expected == loop.expected == "normed"

    def test_another_target_is_named(self, device: Device) -> None:
        def plant(session: Session) -> None:
            change_draw(session, "h.0.attn.k_proj", lambda _: {"framebuffer": session.texture("q").framebuffer})

        checks = checked(device, plant)
        assert wrong(checks) == {"h.0.attn.k_proj": [StateFault("target", "k", "q", "k")]}
        first = next(check for check in checks if not check.passed)
        assert first.unwritten == first.rows * first.cols

    def test_a_transposed_weight_is_told_from_other_wrong_results(self, device: Device) -> None:
        name = "transformer.h.1.attn.k_proj.weight"
        checks = checked(device, plant_transposed)
        assert wrong(checks) == {
            "h.1.attn.k_proj": [StateFault("weight", name, "the matrix transposed", "the bits that were given")]
        }
        assert not next(check for check in checks if not check.passed).exact

    def test_samplers_of_low_precision_are_found_in_the_source(self, device: Device) -> None:
        checks = checked(device, partial(plant_source, old="precision highp sampler2D;"))
        expected = StateFault(
            "precision",
            "sampler2D",
            "lowp, the default of GLSL ES",
            "highp; add `precision highp sampler2D;` to the shader",
        )
        assert all(check.findings == (expected,) and not check.passed for check in checks)
        assert expected.text == (
            "precision of sampler2D: found lowp, the default of GLSL ES; expected highp; "
            "add `precision highp sampler2D;` to the shader"
        )

    def test_a_sampler_with_a_precision_of_its_own_is_found_where_it_is(self, device: Device) -> None:
        plant = partial(plant_source, old="uniform sampler2D weight;", new="uniform mediump sampler2D weight;")
        found = wrong(checked(device, plant))
        reads = [
            draw.name
            for draw in PLAN.draws
            if "uniform sampler2D weight;" in load_source(f"{draw.shader}.frag", {}, api="es").text
        ]
        assert list(found) == reads
        assert {(each.name, each.found) for findings in found.values() for each in findings} == {
            ("sampler2D", "mediump")
        }

    def test_an_integer_set_as_a_float_by_a_wrapped_program(self, device: Device) -> None:
        checks = checked(device, plant_float)
        found = wrong(checks)
        assert list(found) == ["lm_head"]
        assert found["lm_head"] == [
            StateFault("error", "", "GL_INVALID_OPERATION", "GL_NO_ERROR"),
            StateFault("uniform", "rows", "int 0", f"int {len(IDS)}"),
        ]
        assert found["lm_head"][0].text == "error: GL_INVALID_OPERATION"
        assert not any(check.findings for check in checks if check.name != "lm_head")

    @pytest.mark.slow
    def test_errors_of_earlier_runs_are_put_on_their_draw(self, device: Device) -> None:
        """A plan with a cache runs the tokens before the last without a look at what they compute."""
        seen: list[str] = []

        def before(spec: DrawSpec) -> None:
            seen.append(spec.name)
            if spec.name == "h.1.attn.scores" and seen.count(spec.name) == 2:
                device.raw.read_buffer(0x1234)

        found = wrong(checked(device, plan="fast", before=before))
        assert found == {"h.1.attn.scores": [StateFault("error", "run 2 of 3", "GL_INVALID_ENUM", "GL_NO_ERROR")]}
        assert found["h.1.attn.scores"][0].text == "error: GL_INVALID_ENUM in run 2 of 3"

    def test_a_switch_is_found(self, device: Device) -> None:
        try:
            found = wrong(checked(device, before=lambda spec: device.gl.enable(moderngl.DEPTH_TEST)))
        finally:
            device.gl.disable(moderngl.DEPTH_TEST)
        assert len(found) == len(PLAN.draws)
        wanted = StateFault("switch", "GL_DEPTH_TEST", "on", "off")
        assert all(findings == [wanted] for findings in found.values())

    def test_a_viewport_that_is_too_small_is_found(self, device: Device) -> None:
        def plant(session: Session) -> None:
            small = (0, 0, 16, "rows")
            change_draw(session, "embed", lambda draw: {"call": dataclasses.replace(draw.call, viewport=small)})

        checks = checked(device, plant)
        assert wrong(checks) == {"embed": [StateFault("viewport", "", "0, 0, 16, 3", "0, 0, 32, 3")]}
        assert checks[0].unwritten == 3 * 16


@each_case(
    "source, expected",
    [
        ("uniform sampler2D x; int n;", {"sampler2D": DEFAULT.format("lowp"), "int": DEFAULT.format("mediump")}),
        ("precision highp sampler2D; precision highp int; uniform sampler2D x; int n;", {}),
        ("uniform sampler2D x; precision highp sampler2D;", {"sampler2D": DEFAULT.format("lowp")}),
        ("// precision highp sampler2D;\nuniform sampler2D x;", {"sampler2D": DEFAULT.format("lowp")}),
        ("/* precision\nhighp */ uniform highp sampler2D x; /* int n; */", {}),
        ("precision highp sampler2D; float f(lowp sampler2D x);", {"sampler2D": "lowp"}),
        ("precision mediump float; float f() { return float(1); }", {"float": "mediump"}),
        ("precision highp float; float f() { return float(int(1.5)); }", {}),
        ("precision highp isampler2D; uniform isampler2D ids; uniform usampler2D words;", {}),
    ],
)
def test_what_a_source_says_of_precisions(source: str, expected: dict[str, str]) -> None:
    assert low_precisions(source) == expected


def test_every_shader_computes_in_highp() -> None:
    for path in sorted(shader_root().glob("*.frag")):
        if path.name == "own.frag":  # whose source a caller gives
            continue
        assert low_precisions(load_source(path.name, {}, api="es").text) == {}, path.name


def test_the_command_names_the_draw_and_the_fault(small: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(module, "verify_draws", partial(verify_draws, on_bound=plant_feedback))
    said, _ = ran(capsys, "verify", small, "--plan", "reference", "--draws", "--tokens", "3", status=1)
    assert "feedback loop of mlp.inner: found sampled as x" in said
    assert "the first draw that" in said
    assert "draw 48, h.1.mlp.fc_in (shaders/linear.frag)" in said
    document = verified(capsys, small, "--plan", "reference", "--draws", "--tokens", "3", status=1)
    [bad] = [draw for draw in document["runs"][0]["draws"] if draw["findings"]]
    assert bad["name"] == document["runs"][0]["first_bad_draw"]
