"""Queries of OpenGL's current state, for checks: bound textures, their filters, targets, uniforms.

The queries ask the context itself, not the state that glinfer and moderngl remember. They change only the active
texture unit.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_float, c_int32, c_ubyte, c_uint32, c_void_p, create_string_buffer
from dataclasses import dataclass
from typing import Any

from glinfer.gl.context import Device
from glinfer.gl.program import Program
from glinfer.gl.raw import GL_COLOR_ATTACHMENT0, GL_DRAW_FRAMEBUFFER, GL_FLOAT, GL_SAMPLERS, GL_UNSIGNED_INT

_GL_TEXTURE_2D, _GL_TEXTURE0 = 0x0DE1, 0x84C0
_GL_TEXTURE_BINDING_2D, _GL_SAMPLER_BINDING = 0x8069, 0x8919
_GL_CURRENT_PROGRAM, _GL_DRAW_FRAMEBUFFER_BINDING, _GL_VIEWPORT = 0x8B8D, 0x8CA6, 0x0BA2
_GL_FRAGMENT_SHADER, _GL_SHADER_TYPE, _GL_SHADER_SOURCE_LENGTH = 0x8B30, 0x8B4F, 0x8B88
_GL_ATTACHMENT_TYPE, _GL_ATTACHMENT_NAME, _GL_TEXTURE = 0x8CD0, 0x8CD1, 0x1702
_PARAMETERS = {"min filter": 0x2801, "mag filter": 0x2800, "wrap x": 0x2802, "wrap y": 0x2803}
_PARAMETER_VALUES = {
    0x2600: "GL_NEAREST",
    0x2601: "GL_LINEAR",
    0x2700: "GL_NEAREST_MIPMAP_NEAREST",
    0x2701: "GL_LINEAR_MIPMAP_NEAREST",
    0x2702: "GL_NEAREST_MIPMAP_LINEAR",
    0x2703: "GL_LINEAR_MIPMAP_LINEAR",
    0x2901: "GL_REPEAT",
    0x812F: "GL_CLAMP_TO_EDGE",
    0x8370: "GL_MIRRORED_REPEAT",
}
_UNIFORM_TYPES = {0x1404: "int", GL_UNSIGNED_INT: "uint", GL_FLOAT: "float", 0x8B56: "bool", **GL_SAMPLERS}
SWITCHES = {
    "GL_BLEND": 0x0BE2,
    "GL_CULL_FACE": 0x0B44,
    "GL_DEPTH_TEST": 0x0B71,
    "GL_SCISSOR_TEST": 0x0C11,
    "GL_STENCIL_TEST": 0x0B90,
}
"""Switches that can discard fragments, or change the values that they write."""


@dataclass(frozen=True)
class BoundTexture:
    """The binding of a texture unit: names of its texture and sampler object, 0 for none, and texture parameters.

    ``parameters`` maps ``min filter``, ``mag filter``, ``wrap x`` and ``wrap y`` to OpenGL's names of their values.
    """

    name: int
    sampler: int
    parameters: dict[str, str]


class GLState:
    """Queries of one device's context, which must be current."""

    def __init__(self, device: Device) -> None:
        """Resolve the functions."""
        function = device.raw.function
        self._raw = device.raw
        self._active_texture: Callable[[int], None] = function("glActiveTexture", None, c_uint32)
        self._integers = function("glGetIntegerv", None, c_uint32, c_void_p)
        self._is_enabled = function("glIsEnabled", c_ubyte, c_uint32)
        self._parameter = function("glGetTexParameteriv", None, c_uint32, c_uint32, c_void_p)
        self._attachment = function(
            "glGetFramebufferAttachmentParameteriv", None, c_uint32, c_uint32, c_uint32, c_void_p
        )
        self._attached = function("glGetAttachedShaders", None, c_uint32, c_int32, c_void_p, c_void_p)
        self._of_shader = function("glGetShaderiv", None, c_uint32, c_uint32, c_void_p)
        self._source = function("glGetShaderSource", None, c_uint32, c_int32, c_void_p, c_void_p)
        arguments = (None, c_uint32, c_int32, c_void_p)
        self._uniform: dict[str, tuple[Any, Any]] = {
            "float": (function("glGetUniformfv", *arguments), c_float),
            "uint": (function("glGetUniformuiv", *arguments), c_uint32),
            "int": (function("glGetUniformiv", *arguments), c_int32),
        }

    def unit(self, unit: int) -> BoundTexture:
        """The binding of a texture unit; without a texture it has no parameters."""
        self._active_texture(_GL_TEXTURE0 + unit)
        name = self._raw.integer(_GL_TEXTURE_BINDING_2D)
        parameters = {what: self._one_parameter(number) for what, number in _PARAMETERS.items()} if name else {}
        return BoundTexture(name, self._raw.integer(_GL_SAMPLER_BINDING), parameters)

    def _one_parameter(self, number: int) -> str:
        value = (c_int32 * 1)()
        self._parameter(_GL_TEXTURE_2D, number, value)
        return _PARAMETER_VALUES.get(value[0], f"0x{value[0]:04X}")

    @property
    def program(self) -> int:
        """The name of the program in use."""
        return self._raw.integer(_GL_CURRENT_PROGRAM)

    @property
    def viewport(self) -> tuple[int, int, int, int]:
        """(x, y, width, height) in texels."""
        values = (c_int32 * 4)()
        self._integers(_GL_VIEWPORT, values)
        return int(values[0]), int(values[1]), int(values[2]), int(values[3])

    def enabled(self) -> set[str]:
        """The switches of :data:`SWITCHES` that are on."""
        return {name for name, number in SWITCHES.items() if self._is_enabled(number)}

    def targets(self, count: int) -> list[int]:
        """The names of the textures that the first ``count`` colour attachments render to, 0 for none."""
        if not self._raw.integer(_GL_DRAW_FRAMEBUFFER_BINDING):
            return [0] * count
        return [self._target(GL_COLOR_ATTACHMENT0 + index) for index in range(count)]

    def _target(self, attachment: int) -> int:
        value = (c_int32 * 1)()
        self._attachment(GL_DRAW_FRAMEBUFFER, attachment, _GL_ATTACHMENT_TYPE, value)
        if value[0] != _GL_TEXTURE:
            return 0
        self._attachment(GL_DRAW_FRAMEBUFFER, attachment, _GL_ATTACHMENT_NAME, value)
        return int(value[0])

    def fragment_shader(self, program: Program) -> tuple[int, str]:
        """The name of a program's fragment shader, and its source; 0 and "" if the driver no longer has it."""
        count, length, shaders = c_int32(), c_int32(), (c_uint32 * 2)()
        self._attached(program.gl.glo, len(shaders), byref(count), shaders)
        for shader in shaders[: count.value]:
            self._of_shader(shader, _GL_SHADER_TYPE, byref(length))
            if length.value == _GL_FRAGMENT_SHADER:
                self._of_shader(shader, _GL_SHADER_SOURCE_LENGTH, byref(length))
                text = create_string_buffer(length.value + 1)
                self._source(shader, len(text), None, text)
                return shader, text.value.decode("utf-8", "replace")
        return 0, ""

    def uniform(self, program: Program, name: str) -> tuple[str, int | float]:
        """The type that a program declares for a uniform, such as ``int``, and its value; a sampler's is its unit."""
        member = program.gl[name]
        kind = _UNIFORM_TYPES.get(member.gl_type, f"0x{member.gl_type:04X}")
        ask, holder = self._uniform.get(kind, self._uniform["int"])
        value = (holder * 16)()  # enough for the largest type, a 4×4 matrix
        ask(program.gl.glo, member.location, value)
        return kind, value[0]
