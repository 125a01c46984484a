"""Five typical bugs of graphics code, planted one by one: the effect of each on the text, and how it is found.

    python examples/12_planted_bugs.py

docs/diagnostics.md walks through the output. Each bug is planted into a bound plan behind glinfer's back, where
none of the checks of a plan can see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from ctypes import c_char_p, c_float, c_int32, c_uint32, c_void_p

import moderngl
import numpy as np

import glinfer
from glinfer.gl.replay import Draw
from glinfer.gl.state import GLState
from glinfer.inspect.verify.draws import verify_draws
from glinfer.program.session import Session

PROMPT = "ROMEO:\nBut, soft!"


def feedback_loop(session: Session) -> None:
    """A pass samples the texture that it renders to, which OpenGL leaves undefined."""

    def looped(draw: Draw) -> Draw:
        if draw.name != "h.1.mlp.fc_in":
            return draw
        return dataclasses.replace(draw, textures=(draw.framebuffer.textures[0], *draw.textures[1:]))

    session.draws = tuple(map(looped, session.draws))


def transposed_weight(session: Session) -> None:
    """A transposed square matrix: every shape fits."""
    name = "transformer.h.5.attn.v_proj.weight"
    session.texture(name).upload(np.ascontiguousarray(session.read(name).T))


def linear_filtering(session: Session) -> None:
    """The default filter of a new texture; float textures cannot have it in OpenGL ES, and read as zeros."""
    session.texture("transformer.h.0.mlp.fc_out.weight").gl.filter = (moderngl.LINEAR, moderngl.LINEAR)


def integer_uniform_as_float(session: Session) -> None:
    """gl.uniform1f for an int: OpenGL records an error that no code may read, and the uniform keeps its value."""
    program, raw = next(draw.program for draw in session.draws if draw.name == "lm_head"), session.device.raw
    uniform1f = raw.function("glUniform1f", None, c_int32, c_float)

    def set_float(name: str, value: float) -> None:
        raw.use_program(program.gl.glo)
        uniform1f(program.gl[name].location, float(value))

    program.set = set_float  # type: ignore[method-assign]  # as a bug would


def samplers_of_lowp(session: Session) -> None:
    """Shaders without ``precision highp sampler2D``: sampled values have the default precision of GLSL ES, lowp."""
    raw, state = session.device.raw, GLState(session.device)
    set_source = raw.function("glShaderSource", None, c_uint32, c_int32, c_void_p, c_void_p)
    compile_shader = raw.function("glCompileShader", None, c_uint32)
    link = raw.function("glLinkProgram", None, c_uint32)
    for draw, spec in zip(session.draws, session.plan.draws, strict=True):
        program = draw.program
        shader, source = state.fragment_shader(program)
        changed = source.replace("precision highp sampler2D;", "")
        if changed == source:
            continue  # draws share programs
        set_source(shader, 1, (c_char_p * 1)(changed.encode()), None)
        compile_shader(shader)
        link(program.gl.glo)
        program.values.clear()  # linking resets uniforms
        for unit, (sampler, _) in enumerate(spec.inputs):
            program.gl[sampler].value = unit


BUGS: tuple[Callable[[Session], None] | None, ...] = (
    None,
    feedback_loop,
    transposed_weight,
    linear_filtering,
    integer_uniform_as_float,
    samplers_of_lowp,
)


def text_with(bug: Callable[[Session], None] | None) -> str:
    """The text that the model writes."""
    with glinfer.load("shakespeare", plan="reference") as model:
        if bug is not None:
            bug(model.bound)
        try:
            return repr(model.generate(PROMPT, max_tokens=7, temperature=0))
        except glinfer.GlinferError as error:
            return f"{type(error).__name__}: {error}"


for bug in BUGS:
    print(f"{'as it is' if bug is None else bug.__name__.replace('_', ' ')}")
    print(f"  writes {text_with(bug)}")
    with glinfer.load("shakespeare", plan="reference") as model:
        checks = verify_draws(model.engine, [82, 79], on_bound=bug)
    wrong = next((check for check in checks if not check.passed), None)
    if wrong is None:
        print(f"  verify: {len(checks)} draws, all within tolerance")
        continue
    number = f"{wrong.index + 1} of {len(checks)}"
    print(f"  verify: the first wrong draw is {number}, {wrong.name} (shaders/{wrong.shader}.frag)")
    for finding in wrong.findings:
        print(f"    {finding.text}")
