"""Pretended devices: a layer between OpenGL and glinfer that lacks what some devices lack, and fails as they fail.

The layer stands at the loader of OpenGL's functions. It hides extensions, lowers limits, cuts uniforms to 16 bits, and
spoils every n-th draw.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_float, c_int32, c_uint32, c_void_p
from dataclasses import asdict, dataclass
from typing import Any

from glinfer.errors import ContextError
from glinfer.gl import egl
from glinfer.gl.context import Device, Limits, NativeContext, hand_over
from glinfer.gl.raw import (
    GL_ALIASED_POINT_SIZE_RANGE,
    GL_COLOR_BUFFER_BIT,
    GL_MAX_COLOR_ATTACHMENTS,
    GL_MAX_DRAW_BUFFERS,
    GL_MAX_TEXTURE_IMAGE_UNITS,
    GL_MAX_TEXTURE_SIZE,
    GL_MAX_UNIFORM_BLOCK_SIZE,
    GL_SCISSOR_TEST,
)

_GL_RENDERER, _GL_NUM_EXTENSIONS, _GL_VIEWPORT = 0x1F01, 0x821D, 0x0BA2
_LIMITS = {
    GL_MAX_TEXTURE_SIZE: "max_texture_size",
    GL_MAX_DRAW_BUFFERS: "max_draw_buffers",
    GL_MAX_COLOR_ATTACHMENTS: "max_draw_buffers",
    GL_MAX_TEXTURE_IMAGE_UNITS: "max_texture_units",
    GL_MAX_UNIFORM_BLOCK_SIZE: "max_uniform_block_bytes",
}


@dataclass(frozen=True)
class Pretence:
    """What a pretended device is like.

    Attributes:
        about: a description.
        limits: its limits; None for the driver's.
        extensions: whether it has the driver's extensions.
        short_uniforms: whether integer uniforms keep 16 bits only.
        spoils: every draw of this number is spoiled; 0 for none.
        zeros: whether spoiled draws write zeros, instead of nothing.
    """

    about: str
    limits: Limits | None = None
    extensions: bool = True
    short_uniforms: bool = False
    spoils: int = 0
    zeros: bool = False


PRETENCES: Mapping[str, Pretence] = {
    "webgl2": Pretence("WebGL2's guaranteed minimum, without extensions", Limits.webgl2_minimum(), extensions=False),
    "short": Pretence("integer uniforms of 16 bits, as on some Adreno GPUs", short_uniforms=True),
    "zeros": Pretence("every third draw gives zeros, as by a watchdog", spoils=3, zeros=True),
    "drops": Pretence("every third draw is dropped", spoils=3),
}
"""The pretended devices by name."""


class PretendedContext:
    """A context for :class:`glinfer.gl.context.Device` that behaves as a pretence says.

    Attributes:
        draws: draw calls so far.
    """

    def __init__(self, native: NativeContext, name: str, pretence: Pretence) -> None:
        """Stand in front of ``native``, which is current."""
        self._native, self._name, self._pretence = native, name, pretence
        self._kept: list[object] = []  # for as long as the context may call them
        self.draws = 0
        integers = (None, c_uint32, POINTER(c_int32))
        self._wrapped: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
            "glGetString": ((c_void_p, c_uint32), self._string),
            "glGetIntegerv": (integers, self._integers),
            "glGetFloatv": ((None, c_uint32, POINTER(c_float)), self._floats),
            "glUniform1iv": ((None, c_int32, c_int32, POINTER(c_int32)), self._uniforms),
            "glUniform1uiv": ((None, c_int32, c_int32, POINTER(c_uint32)), self._uniforms),
            "glDrawArraysInstanced": ((None, c_uint32, *[c_int32] * 3), self._draw),
        }

    def load(self, name: str) -> int:
        """The address of a function, or of one in its place; 0 if the driver has none."""
        address = self._native.load(name)
        if not address or name not in self._wrapped:
            return address
        types, instead = self._wrapped[name]
        kind = CFUNCTYPE(*types)
        real = kind(address)
        made = kind(lambda *given: instead(real, *given))
        self._kept += [real, made]
        return int(ctypes.cast(made, c_void_p).value or 0)

    def __enter__(self) -> Any:
        """Make the context current."""
        return self._native.__enter__()

    def __exit__(self, *args: object) -> None:
        """As the native context."""
        self._native.__exit__(*args)

    def release(self) -> None:
        """Release the native context."""
        self._native.release()

    def _string(self, real: Any, name: int) -> int | None:
        address: int | None = real(name)
        if name != _GL_RENDERER or not address:
            return address
        text = c_char_p((ctypes.string_at(address).decode() + f" pretending {self._name}").encode())
        self._kept.append(text)
        return ctypes.cast(text, c_void_p).value

    def _integers(self, real: Any, name: int, values: Any) -> None:
        real(name, values)
        if name == _GL_NUM_EXTENSIONS and not self._pretence.extensions:
            values[0] = 0
        elif name in _LIMITS and self._pretence.limits is not None:
            values[0] = min(values[0], asdict(self._pretence.limits)[_LIMITS[name]])

    def _floats(self, real: Any, name: int, values: Any) -> None:
        real(name, values)
        if name == GL_ALIASED_POINT_SIZE_RANGE and self._pretence.limits is not None:
            values[1] = min(values[1], self._pretence.limits.max_point_size)

    def _uniforms(self, real: Any, location: int, count: int, values: Any) -> None:
        if not self._pretence.short_uniforms:
            real(location, count, values)
            return
        kind = values._type_
        sign = 0x8000 if kind is c_int32 else 0
        real(location, count, (kind * count)(*(((values[i] & 0xFFFF) ^ sign) - sign for i in range(count))))

    def _draw(self, real: Any, *given: int) -> None:
        self.draws += 1
        spoiled = self._pretence.spoils and self.draws % self._pretence.spoils == 0
        if not spoiled:
            real(*given)
        elif self._pretence.zeros:
            self._clear()

    def _clear(self) -> None:
        """Set the viewport of all targets to zero."""

        def call(name: str, *arguments: Any) -> None:
            types = [c_float if isinstance(each, float) else c_int32 for each in arguments]
            CFUNCTYPE(None, *types)(self._native.load(name))(*arguments)

        viewport = (c_int32 * 4)()
        CFUNCTYPE(None, c_uint32, c_void_p)(self._native.load("glGetIntegerv"))(_GL_VIEWPORT, viewport)
        call("glScissor", *viewport)
        call("glEnable", GL_SCISSOR_TEST)
        call("glClearColor", 0.0, 0.0, 0.0, 0.0)
        call("glClear", GL_COLOR_BUFFER_BIT)
        call("glDisable", GL_SCISSOR_TEST)


def open_pretended(name: str, device: int = 0) -> Device:
    """Open an EGL device, by its index, as a pretended device.

    Raises:
        ContextError: there is no such device, it does not open, or the name is not in :data:`PRETENCES`.
    """
    if name not in PRETENCES:
        raise ContextError(f"there is no pretended device {name!r}; expected one of {', '.join(PRETENCES)}")
    native = egl.EglContext(egl.device_at(device))
    return hand_over(PretendedContext(native, name, PRETENCES[name]), "es", None)
