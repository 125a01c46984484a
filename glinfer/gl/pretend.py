"""Pretended devices: a layer between OpenGL and glinfer that lacks what some devices lack, and fails as they fail.

The layer stands at the loader of OpenGL's functions. It hides extensions, lowers limits, changes shaders, changes
numbers on their way to and from the driver, and spoils draws.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_float, c_int32, c_uint32, c_void_p
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import ContextError
from glinfer.gl import egl
from glinfer.gl.context import WHOLE_LIMITS, Device, Limits, NativeContext, hand_over
from glinfer.gl.raw import (
    GL_ALIASED_POINT_SIZE_RANGE,
    GL_BLEND,
    GL_COLOR_BUFFER_BIT,
    GL_FLOAT,
    GL_RGBA,
    GL_RGBA_INTEGER,
    GL_SCISSOR_TEST,
    GL_UNSIGNED_INT,
)

_GL_RENDERER, _GL_NUM_EXTENSIONS, _GL_VIEWPORT = 0x1F01, 0x821D, 0x0BA2
_FIRST_ADDRESS = 1 << 20  # smaller ones are offsets into a buffer
_LONG = 64  # texels of a long draw
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Pretence:
    """What a pretended device is like.

    Attributes:
        about: a description.
        limits, extensions: its limits, None for the driver's, and whether it has the driver's extensions.
        integers, floats: change uniforms of that type.
        texels: changes texels on their way to the driver, given their numbers.
        reads: changes texels that are read; given [count, 4] numbers.
        shader: a pattern in shaders, and what stands there instead.
        targets: the most render targets that are written.
        blends: whether blending works.
        spoils: whether a draw is spoiled, by its number from 1 on and its texels.
        zeros: whether spoiled draws write zeros, instead of nothing.
        renderer: its name; empty for the driver's and the pretence.
    """

    about: str
    limits: Limits | None = None
    extensions: bool = True
    integers: Callable[[Numbers], Numbers] | None = None
    floats: Callable[[Numbers], Numbers] | None = None
    texels: Callable[[Numbers], Numbers] | None = None
    reads: Callable[[Numbers], Numbers] | None = None
    shader: tuple[str, str] | None = None
    targets: int = 99
    blends: bool = True
    spoils: Callable[[int, int], bool] | None = None
    zeros: bool = False
    renderer: str = ""


def _short(numbers: Numbers) -> Numbers:
    return numbers & 0xFFFF if numbers.dtype == np.uint32 else numbers


def _halves(numbers: Numbers) -> Numbers:
    if numbers.dtype != np.float32:
        return numbers
    with np.errstate(over="ignore"):
        return numbers.astype(np.float16)


PRETENCES: Mapping[str, Pretence] = {
    "webgl2": Pretence("WebGL2's guaranteed minimum, without extensions", Limits.webgl2_minimum(), extensions=False),
    "slow": Pretence("a GPU that is slower than the CPU", renderer="V3D 7.1"),
    "short": Pretence("integer uniforms of 16 bits", integers=lambda x: x.astype(np.int16)),
    "half": Pretence("float uniforms of 16 bits", floats=_halves),
    "short-words": Pretence("words of textures with 16 bits", texels=_short),
    "half-texels": Pretence("float textures of 16 bits", texels=_halves),
    "rounded": Pretence("floats that are read with 16 bits", reads=_halves),
    "swapped": Pretence("texels that are read in another order", reads=lambda x: x[:, ::-1]),
    "unread": Pretence("reads that give zeros", reads=np.zeros_like),
    "one-target": Pretence("one render target of each draw", targets=1),
    "unblended": Pretence("blending that overwrites", blends=False),
    "zeros": Pretence("every third draw gives zeros", spoils=lambda number, _: number % 3 == 0, zeros=True),
    "drops": Pretence("every third draw is dropped", spoils=lambda number, _: number % 3 == 0),
    "long-zeros": Pretence(
        "long draws give zeros, as by a watchdog", spoils=lambda _, texels: texels > _LONG, zeros=True
    ),
    "long-drops": Pretence("long draws are dropped", spoils=lambda _, texels: texels > _LONG),
    "late-zeros": Pretence("after ten draws, draws give zeros", spoils=lambda number, _: number > 10, zeros=True),
    "late-drops": Pretence("after ten draws, draws are dropped", spoils=lambda number, _: number > 10),
    "shifts": Pretence("shifts by 15 bits at most", shader=(r">> (\d+)u", r">> (\1u & 15u)")),
    "products": Pretence("integer products of 24 bits", shader=(r"\* 0x..(\w{6})u", r"* 0x\1u")),
    "division": Pretence("integer division towards -∞", shader=(r"-size / 7\b", "-(size + 6) / 7")),
    "bits": Pretence("bits of floats with 16 bits", shader=(r"\bfloatBitsToUint\(", "0xffff0000u & floatBitsToUint(")),
    "denormal": Pretence("half floats of another scale", shader=(r"\bunpackHalf2x16\(", "0.5 * unpackHalf2x16(")),
    "exp": Pretence("an inaccurate exp", shader=(r"\bexp\(", "1.001 * exp(")),
    "log": Pretence("an inaccurate log", shader=(r"\blog\(", "1.001 * log(")),
    "sqrt": Pretence("a sqrt that is wrong near 0", shader=(r"\bsqrt\(", "1e-3 + sqrt(")),
    "rsqrt": Pretence("an inaccurate inversesqrt", shader=(r"\binversesqrt\(", "1.001 * inversesqrt(")),
    "loops": Pretence("loops that end early", shader=(r"\bi < 16;", "i < 15;")),
    "finite": Pretence("no infinity", shader=(r"float infinity = (.*);", r"float infinity = min(\1, 3e38);")),
    "fetches": Pretence("fetches from another column", shader=(r"ivec2\(texel, 0\)", "ivec2(texel & 7, 0)")),
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
        address = POINTER(c_int32)
        integers, image = (None, c_uint32, address), [c_uint32, c_uint32, c_void_p]
        self._wrapped: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
            "glGetString": ((c_void_p, c_uint32), self._string),
            "glGetIntegerv": (integers, self._integers),
            "glGetFloatv": ((None, c_uint32, POINTER(c_float)), self._floats),
            "glDrawArraysInstanced": ((None, c_uint32, *[c_int32] * 3), self._draw),
        }
        if pretence.integers is not None:
            kinds = {"glUniform1iv": c_int32, "glUniform1uiv": c_uint32}
            self._wrapped |= {name: self._uniform(kind, pretence.integers) for name, kind in kinds.items()}
        if pretence.floats is not None:
            self._wrapped["glUniform1fv"] = self._uniform(c_float, pretence.floats)
        if pretence.texels is not None:
            self._wrapped["glTexImage2D"] = ((None, *[c_int32] * 6, *image), self._image(3, 4))
            self._wrapped["glTexSubImage2D"] = ((None, *[c_int32] * 6, *image), self._image(4, 5))
        if pretence.reads is not None:
            self._wrapped["glReadPixels"] = ((None, *[c_int32] * 4, *image), self._read)
        if pretence.shader is not None:
            self._wrapped["glShaderSource"] = ((None, c_uint32, c_int32, POINTER(c_char_p), address), self._source)
        if not pretence.blends:
            self._wrapped["glEnable"] = ((None, c_uint32), self._enable)
        self._wrapped["glDrawBuffers"] = ((None, c_int32, c_void_p), self._targets)

    def load(self, name: str) -> int:
        """The address of a function, or of its replacement; 0 if the driver has none."""
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
        driver = f"{ctypes.string_at(address).decode()} pretending {self._name}"
        text = c_char_p((self._pretence.renderer or driver).encode())
        self._kept.append(text)
        return ctypes.cast(text, c_void_p).value

    def _integers(self, real: Any, name: int, values: Any) -> None:
        real(name, values)
        if name == _GL_NUM_EXTENSIONS and not self._pretence.extensions:
            values[0] = 0
        elif name in WHOLE_LIMITS and self._pretence.limits is not None:
            values[0] = min(values[0], asdict(self._pretence.limits)[WHOLE_LIMITS[name]])

    def _floats(self, real: Any, name: int, values: Any) -> None:
        real(name, values)
        if name == GL_ALIASED_POINT_SIZE_RANGE and self._pretence.limits is not None:
            values[1] = min(values[1], self._pretence.limits.max_point_size)

    def _uniform(self, kind: Any, change: Callable[[Numbers], Numbers]) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        def changed(real: Any, location: int, count: int, values: Any) -> None:
            numbers = np.ctypeslib.as_array(values, (count,))
            real(location, count, (kind * count)(*change(numbers).astype(numbers.dtype).tolist()))

        return (None, c_int32, c_int32, POINTER(kind)), changed

    def _image(self, width: int, height: int) -> Callable[..., None]:
        """Changes an upload; the arguments of its width and height have these indices."""

        def changed(real: Any, *given: int) -> None:
            *region, pixels, kind, data = given
            numbers = self._texels(given[width], given[height], pixels, kind, data)
            if numbers is not None and self._pretence.texels is not None:
                numbers = self._pretence.texels(numbers).astype(numbers.dtype)
            real(*region, pixels, kind, data if numbers is None else numbers.ctypes.data)

        return changed

    def _texels(self, width: int, height: int, pixels: int, kind: int, data: int | None) -> Numbers | None:
        """The numbers at an address, four a row where texels have four; None for an offset or another type."""
        kinds: dict[int, Any] = {GL_FLOAT: c_float, GL_UNSIGNED_INT: c_uint32}
        if kind not in kinds or not data or data < _FIRST_ADDRESS:
            return None
        channels = 4 if pixels in (GL_RGBA, GL_RGBA_INTEGER) else 1
        numbers = (kinds[kind] * (width * height * channels)).from_address(data)
        return np.ctypeslib.as_array(numbers).reshape(-1, channels)

    def _read(self, real: Any, *given: int) -> None:
        real(*given)
        _, _, width, height, pixels, kind, data = given
        numbers = self._texels(width, height, pixels, kind, data)
        if numbers is not None and self._pretence.reads is not None:
            numbers[...] = self._pretence.reads(numbers.copy())

    def _source(self, real: Any, shader: int, count: int, texts: Any, lengths: Any) -> None:
        text = b"".join(texts[index] for index in range(count)).decode()
        pattern, instead = self._pretence.shader or ("", "")
        real(shader, 1, (c_char_p * 1)(re.sub(pattern, instead, text).encode()), None)

    def _enable(self, real: Any, capability: int) -> None:
        if capability != GL_BLEND:
            real(capability)

    def _targets(self, real: Any, count: int, targets: int) -> None:
        real(min(count, self._pretence.targets), targets)

    def _draw(self, real: Any, *given: int) -> None:
        self.draws += 1
        spoils, viewport = self._pretence.spoils, (c_int32 * 4)()
        CFUNCTYPE(None, c_uint32, c_void_p)(self._native.load("glGetIntegerv"))(_GL_VIEWPORT, viewport)
        alone = CFUNCTYPE(ctypes.c_ubyte, c_uint32)(self._native.load("glIsEnabled"))(GL_SCISSOR_TEST)
        if spoils is None or not spoils(self.draws, 1 if alone else viewport[2] * viewport[3]):
            real(*given)
        elif self._pretence.zeros:
            self._clear(viewport, alone=bool(alone))

    def _clear(self, viewport: Any, *, alone: bool) -> None:
        """Set the viewport of all targets to zero, or what the scissor leaves of it."""

        def call(name: str, *arguments: Any) -> None:
            types = [c_float if isinstance(each, float) else c_int32 for each in arguments]
            CFUNCTYPE(None, *types)(self._native.load(name))(*arguments)

        if not alone:
            call("glScissor", *viewport)
            call("glEnable", GL_SCISSOR_TEST)
        call("glClearColor", 0.0, 0.0, 0.0, 0.0)
        call("glClear", GL_COLOR_BUFFER_BIT)
        if not alone:
            call("glDisable", GL_SCISSOR_TEST)


def open_pretended(name: str, device: int = 0) -> Device:
    """Open an EGL device, by its index, as one of :data:`PRETENCES`; ContextError if that fails."""
    if name not in PRETENCES:
        raise ContextError(f"there is no pretended device {name!r}; expected one of {', '.join(PRETENCES)}")
    native = egl.EglContext(egl.device_at(device))
    return hand_over(PretendedContext(native, name, PRETENCES[name]), "es", None)
