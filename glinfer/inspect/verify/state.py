"""Comparison of OpenGL's state after a draw with the plan: textures, filters, targets, shaders, uniforms, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.gl.program import Program
from glinfer.gl.region import Region
from glinfer.gl.replay import Draw
from glinfer.gl.state import SWITCHES, GLState
from glinfer.kernels import DrawSpec
from glinfer.program.session import Session

KINDS = {
    "error": "an error of OpenGL",
    "feedback loop": "one draw samples a texture and renders to it",
    "min filter": "a sampled texture is not GL_NEAREST",
    "mag filter": "a sampled texture is not GL_NEAREST",
    "wrap x": "a sampled texture is not GL_CLAMP_TO_EDGE",
    "wrap y": "a sampled texture is not GL_CLAMP_TO_EDGE",
    "sampler": "a sampler object replaces the texture's filters",
    "texture": "another texture is sampled",
    "target": "another texture is rendered to",
    "program": "another program draws",
    "precision": "a fragment shader of OpenGL ES has floats, integers or samplers of fewer than 32 bits",
    "uniform": "a uniform has another value",
    "switch": "a capability such as GL_SCISSOR_TEST is enabled or disabled",
    "viewport": "another part of the target is drawn to",
    "weight": "a weight's texture has other bits than were uploaded; checked if a draw computes wrong values",
}
"""Kinds of faults of a draw besides wrong values."""
NO_ERROR = "GL_NO_ERROR"
_CLAMPED, _NEAREST = "GL_CLAMP_TO_EDGE", "GL_NEAREST"
_PARAMETERS = {"min filter": _NEAREST, "mag filter": _NEAREST, "wrap x": _CLAMPED, "wrap y": _CLAMPED}

_DEFAULT_PRECISIONS = {"int": "mediump", "sampler2D": "lowp"}  # in fragment shaders, GLSL ES 3.00, 4.5.4
_COMMENT = re.compile(r"//.*|/\*[\s\S]*?\*/")
_PRECISION = re.compile(r"\b(precision\s+)?(?:(lowp|mediump|highp)\s+)?(float|int|sampler2D)\b(?!\s*\()")


@dataclass(frozen=True)
class StateFault:
    """A fault of one draw: one of :data:`KINDS`, and the tensor, uniform or switch, empty without one."""

    kind: str
    name: str
    found: str
    expected: str

    @property
    def text(self) -> str:
        """Description in one line."""
        if self.kind == "error":
            return f"error: {self.found}" + (f" in {self.name}" if self.name else "")
        return f"{self.kind}{f' of {self.name}' if self.name else ''}: found {self.found}; expected {self.expected}"


class StateCheck:
    """Compares OpenGL's state right after a draw with the plan and the bound session."""

    def __init__(self, session: Session) -> None:
        """Remember the draws as they are bound now."""
        self._session, self._state = session, GLState(session.device)
        self._draws = session.draws
        self._precisions: dict[Program, list[StateFault]] = {}
        tensors = [tensor.name for tensor in session.plan.tensors if not tensor.view_of]
        textures = {name: session.texture(name) for name in tensors}
        self._names = {
            each.gl.glo: each.whole.name if isinstance(each, Region) else name for name, each in textures.items()
        }

    def errors(self, where: str = "") -> list[StateFault]:
        """Take the pending errors of OpenGL, named ``where``."""
        return [StateFault("error", where, error, NO_ERROR) for error in self._session.device.raw.pending_errors()]

    def look(self, index: int, values: Mapping[str, int | float]) -> list[StateFault]:
        """List faults right after draw number ``index`` with these run values."""
        draw, spec = self._draws[index], self._session.plan.draws[index]
        found = [
            *self._textures(draw, spec),
            *self._targets(spec),
            *self._precision(draw.program),
            *self._uniforms(draw, values),
            *self._switches(draw, values),
        ]
        return sorted(found, key=lambda finding: finding.kind != "feedback loop")

    def _called(self, name: int) -> str:
        return self._names.get(name, f"OpenGL's texture {name}") if name else "none"

    def _textures(self, draw: Draw, spec: DrawSpec) -> Iterator[StateFault]:
        targets = self._state.targets(len(spec.outputs))
        seen: set[int] = set()
        for index, (sampler, tensor) in enumerate(spec.inputs):
            _, number = self._state.uniform(draw.program, sampler)
            unit = int(number)
            if unit != index:
                yield StateFault("uniform", sampler, f"texture unit {unit}", f"texture unit {index}")
            bound, wanted = self._state.unit(unit), self._session.texture(tensor)
            name = self._called(bound.name)
            apart = isinstance(wanted, Region) and bound.name == wanted.gl.glo  # from the target, as binding checked
            if bound.name and bound.name in targets and not apart:
                yield StateFault("feedback loop", name, f"sampled as {sampler} by the draw that renders to it", tensor)
            if bound.name != wanted.gl.glo:
                yield StateFault("texture", sampler, name, tensor)
            if bound.sampler:
                yield StateFault("sampler", name, f"sampler object {bound.sampler} on its unit", "none")
            if bound.name not in seen:
                seen.add(bound.name)
                for what, value in bound.parameters.items():
                    if value != _PARAMETERS[what]:
                        yield StateFault(what, name, value, _PARAMETERS[what])

    def _targets(self, spec: DrawSpec) -> Iterator[StateFault]:
        for name, target in zip(spec.outputs, self._state.targets(len(spec.outputs)), strict=True):
            if target != self._session.texture(name).gl.glo:
                yield StateFault("target", name, self._called(target), name)

    def _precision(self, program: Program) -> list[StateFault]:
        if program not in self._precisions:
            # Desktop OpenGL ignores precisions.
            source = self._state.fragment_shader(program)[1] if self._session.device.api == "es" else ""
            self._precisions[program] = [
                StateFault("precision", kind, found, f"highp; add `precision highp {kind};` to the shader")
                for kind, found in low_precisions(source).items()
            ]
        return self._precisions[program]

    def _uniforms(self, draw: Draw, values: Mapping[str, int | float]) -> Iterator[StateFault]:
        program = self._state.program
        if program != draw.program.gl.glo:
            yield StateFault("program", draw.program.shader, f"program {program}", f"program {draw.program.gl.glo}")
        wanted = [*draw.call.constants, *((name, values[key]) for name, key in draw.call.per_run)]
        for name, value in wanted:
            kind, held = self._state.uniform(draw.program, name)
            if held != _as_held(kind, value):
                yield StateFault("uniform", name, f"{kind} {held:g}", f"{kind} {value:g}")

    def _switches(self, draw: Draw, values: Mapping[str, int | float]) -> Iterator[StateFault]:
        on, wanted = self._state.enabled(), {"GL_BLEND"} if draw.call.adds else set()
        for name in SWITCHES:
            if (name in on) != (name in wanted):
                yield StateFault("switch", name, *(("on", "off") if name in on else ("off", "on")))
        viewport, expected = self._state.viewport, draw.rectangle(values)
        if viewport != expected:
            yield StateFault("viewport", "", _numbers(viewport), _numbers(expected))


def low_precisions(source: str) -> dict[str, str]:
    """Map the types that a fragment shader in GLSL ES declares below highp to their precision."""
    defaults = {kind: f"{precision}, the default of GLSL ES" for kind, precision in _DEFAULT_PRECISIONS.items()}
    found: dict[str, str] = {}
    for statement, given, kind in _PRECISION.findall(_COMMENT.sub("", source)):
        if statement:
            defaults[kind] = given
        elif (precision := given or defaults.get(kind, "highp")) != "highp":
            found.setdefault(kind, precision)
    return found


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _as_held(kind: str, value: int | float) -> int | float:
    """Return the value that a uniform of a type holds after it is set."""
    if kind == "float":
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    return int(value) % 2**32 if kind == "uint" else int(value)
