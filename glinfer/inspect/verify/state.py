"""Is OpenGL in the state that a draw needs: textures, filters, targets, uniforms, switches, and no error?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.gl.replay import Draw
from glinfer.gl.state import SWITCHES, GLState
from glinfer.models.session import Session
from glinfer.ops import DrawSpec

KINDS = {
    "error": "an error of OpenGL",
    "feedback loop": "a texture that is sampled and rendered to by one draw",
    "min filter": "of a texture that is sampled, and not GL_NEAREST",
    "mag filter": "likewise",
    "wrap x": "of a texture that is sampled, and not GL_CLAMP_TO_EDGE",
    "wrap y": "likewise",
    "sampler": "a sampler object, whose filters are used in the place of the texture's",
    "texture": "another texture is sampled",
    "target": "another texture is rendered to",
    "program": "another program draws",
    "uniform": "holds another value",
    "switch": "something such as GL_SCISSOR_TEST is on or off",
    "viewport": "another part of the target is drawn to",
    "weight": "a weight's texture holds other bits than were given; looked at where a draw computes something else",
}
"""What may be wrong with a draw beside what it computes."""
NO_ERROR = "GL_NO_ERROR"
_CLAMPED, _NEAREST = "GL_CLAMP_TO_EDGE", "GL_NEAREST"
_PARAMETERS = {"min filter": _NEAREST, "mag filter": _NEAREST, "wrap x": _CLAMPED, "wrap y": _CLAMPED}


@dataclass(frozen=True)
class Finding:
    """Something about one draw that is not as it has to be.

    Attributes:
        kind: one of :data:`KINDS`.
        name: of the tensor, the uniform or the switch; empty where there is none.
        found: what it is.
        expected: what it has to be.
    """

    kind: str
    name: str
    found: str
    expected: str

    @property
    def text(self) -> str:
        """In one line."""
        if self.kind == "error":
            return f"error: {self.found}" + (f" in {self.name}" if self.name else "")
        return f"{self.kind}{f' of {self.name}' if self.name else ''}: found {self.found}; expected {self.expected}"


class StateCheck:
    """Compares what OpenGL holds right after a draw with what the plan and the bound session say."""

    def __init__(self, session: Session) -> None:
        """Remember the draws as they are bound now, whatever is done to them later."""
        self._session, self._state = session, GLState(session.device)
        self._draws = session.draws
        tensors = [tensor.name for tensor in session.plan.tensors if not tensor.view_of]
        self._names = {session.texture(name).gl.glo: name for name in tensors}

    def errors(self, where: str = "") -> list[Finding]:
        """Take the pending errors of OpenGL; ``where`` is told with them."""
        return [Finding("error", where, error, NO_ERROR) for error in self._session.device.raw.pending_errors()]

    def look(self, index: int, values: Mapping[str, int | float]) -> list[Finding]:
        """What is wrong now that draw number ``index`` was made with these run values."""
        draw, spec = self._draws[index], self._session.plan.draws[index]
        found = [
            *self._textures(draw, spec),
            *self._targets(spec),
            *self._uniforms(draw, values),
            *self._switches(draw, values),
        ]
        return sorted(found, key=lambda finding: finding.kind != "feedback loop")

    def _called(self, name: int) -> str:
        return self._names.get(name, f"OpenGL's texture {name}") if name else "none"

    def _textures(self, draw: Draw, spec: DrawSpec) -> Iterator[Finding]:
        targets = self._state.targets(len(spec.outputs))
        seen: set[int] = set()
        for place, (sampler, tensor) in enumerate(spec.inputs):
            _, number = self._state.uniform(draw.program, sampler)
            unit = int(number)
            if unit != place:
                yield Finding("uniform", sampler, f"texture unit {unit}", f"texture unit {place}")
            bound, wanted = self._state.unit(unit), self._session.texture(tensor)
            name = self._called(bound.name)
            if bound.name and bound.name in targets:
                yield Finding("feedback loop", name, f"sampled as {sampler} by the draw that renders to it", tensor)
            if bound.name != wanted.gl.glo:
                yield Finding("texture", sampler, name, tensor)
            if bound.sampler:
                yield Finding("sampler", name, f"sampler object {bound.sampler} on its unit", "none")
            if bound.name not in seen:
                seen.add(bound.name)
                for what, value in bound.parameters.items():
                    if value != _PARAMETERS[what]:
                        yield Finding(what, name, value, _PARAMETERS[what])

    def _targets(self, spec: DrawSpec) -> Iterator[Finding]:
        for name, target in zip(spec.outputs, self._state.targets(len(spec.outputs)), strict=True):
            if target != self._session.texture(name).gl.glo:
                yield Finding("target", name, self._called(target), name)

    def _uniforms(self, draw: Draw, values: Mapping[str, int | float]) -> Iterator[Finding]:
        program = self._state.program
        if program != draw.program.gl.glo:
            yield Finding("program", draw.program.shader, f"program {program}", f"program {draw.program.gl.glo}")
        wanted = [*draw.constants, *((name, values[key]) for name, key in draw.per_run)]
        for name, value in wanted:
            kind, held = self._state.uniform(draw.program, name)
            if held != _as_held(kind, value):
                yield Finding("uniform", name, f"{kind} {held:g}", f"{kind} {value:g}")

    def _switches(self, draw: Draw, values: Mapping[str, int | float]) -> Iterator[Finding]:
        on, wanted = self._state.enabled(), {"GL_BLEND"} if draw.adds else set()
        for name in SWITCHES:
            if (name in on) != (name in wanted):
                yield Finding("switch", name, *(("on", "off") if name in on else ("off", "on")))
        viewport, expected = self._state.viewport, draw.viewport(values)
        if viewport != expected:
            yield Finding("viewport", "", _numbers(viewport), _numbers(expected))


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _as_held(kind: str, value: int | float) -> int | float:
    """What a uniform of that type holds when it was set to a value."""
    if kind == "float":
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    return int(value) % 2**32 if kind == "uint" else int(value)
