"""The OpenGL functions that moderngl lacks, or offers in a form that OpenGL ES lacks.

moderngl's ``Framebuffer.read`` and ``clear`` call glClampColor and glClearDepth, which ES does not have, and leave
GL_INVALID_OPERATION pending; glinfer checks for errors, so it reads and clears itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import c_float, c_int32, c_ssize_t, c_ubyte, c_uint32, c_uint64, c_void_p, create_string_buffer
from functools import partial
from typing import Any

from glinfer.errors import ContextError

Rectangle = tuple[int, int, int, int]
"""(x, y, width, height) in texels."""
GL_ERRORS = {
    0x0500: "GL_INVALID_ENUM",
    0x0501: "GL_INVALID_VALUE",
    0x0502: "GL_INVALID_OPERATION",
    0x0505: "GL_OUT_OF_MEMORY",
    0x0506: "GL_INVALID_FRAMEBUFFER_OPERATION",
    0x0507: "GL_CONTEXT_LOST",
}
GL_COLOR = 0x1800
GL_RED = 0x1903
GL_RGBA = 0x1908
GL_RED_INTEGER = 0x8D94
GL_RGBA_INTEGER = 0x8D99
GL_INT = 0x1404
GL_UNSIGNED_INT = 0x1405
GL_FLOAT = 0x1406
GL_FRAMEBUFFER = 0x8D40
GL_READ_FRAMEBUFFER = 0x8CA8
GL_DRAW_FRAMEBUFFER = 0x8CA9
GL_COLOR_BUFFER_BIT = 0x4000
GL_SCISSOR_TEST = 0x0C11
GL_BLEND = 0x0BE2
GL_NEAREST = 0x2600
GL_PACK_ALIGNMENT = 0x0D05
GL_PIXEL_PACK_BUFFER = 0x88EB
GL_STREAM_READ = 0x88E1
GL_MAP_READ_BIT = 0x0001
GL_COLOR_ATTACHMENT0 = 0x8CE0
GL_MAX_TEXTURE_SIZE = 0x0D33
GL_MAX_TEXTURE_IMAGE_UNITS = 0x8872
GL_MAX_DRAW_BUFFERS = 0x8824
GL_MAX_COLOR_ATTACHMENTS = 0x8CDF
GL_MAX_UNIFORM_BLOCK_SIZE = 0x8A30
GL_ALIASED_POINT_SIZE_RANGE = 0x846D
GL_IMPLEMENTATION_COLOR_READ_TYPE = 0x8B9A
GL_IMPLEMENTATION_COLOR_READ_FORMAT = 0x8B9B
READ_TYPES = {
    "f": (GL_RGBA, GL_FLOAT),
    "i": (GL_RGBA_INTEGER, GL_INT),
    "u": (GL_RGBA_INTEGER, GL_UNSIGNED_INT),
}
"""Format and type that every renderer reads texels back in, by the kind of a format: four numbers of 32 bits."""
GL_SYNC_GPU_COMMANDS_COMPLETE = 0x9117
GL_SYNC_FLUSH_COMMANDS_BIT = 0x0001
GL_SAMPLERS = {0x8B5E: "sampler2D", 0x8DCA: "isampler2D", 0x8DD2: "usampler2D"}

# A driver with more pending errors than this repeats "lost" for ever.
_MAX_PENDING = 64
_LONGEST_WAIT = 10**10  # nanoseconds


class RawGL:
    """Typed GL functions of one context, resolved through its own loader.

    Attributes:
        function: resolves any other function of the context, typed for ctypes, for checks and experiments:
            ``function("glUniform1f", None, c_int32, c_float)``. Raises ContextError if the driver lacks it.

    Functions that may wait for the renderer let other threads run meanwhile. Those that only set state keep the
    interpreter: between two of the hundreds of calls of a token, a busy server would take it away each time.
    """

    def __init__(self, load: Callable[[str], int]) -> None:
        """Resolve every function now, so that a missing one is found when the context opens."""

        def function(name: str, result: Any, *arguments: Any, waits: bool = True) -> Any:
            address = load(name)
            if not address:
                raise ContextError(f"the OpenGL driver has no {name}; OpenGL ES 3.0 or desktop 3.3 is needed")
            return (ctypes.CFUNCTYPE if waits else ctypes.PYFUNCTYPE)(result, *arguments)(address)

        quick = partial(function, waits=False)

        self.function: Callable[..., Any] = function
        self._get_error = quick("glGetError", c_uint32)
        self._get_integers = function("glGetIntegerv", None, c_uint32, c_void_p)
        self._get_floats = function("glGetFloatv", None, c_uint32, c_void_p)
        self.flush = function("glFlush", None)
        self.finish = function("glFinish", None)
        self.use_program = quick("glUseProgram", None, c_uint32)
        self.bind_framebuffer = quick("glBindFramebuffer", None, c_uint32, c_uint32)
        self.read_buffer = quick("glReadBuffer", None, c_uint32)
        self.pixel_store = quick("glPixelStorei", None, c_uint32, c_int32)
        self.read_pixels = function(
            "glReadPixels", None, c_int32, c_int32, c_int32, c_int32, c_uint32, c_uint32, c_void_p
        )
        self._blit = function("glBlitFramebuffer", None, *[c_int32] * 8, c_uint32, c_uint32)
        self._clears: dict[str, tuple[Any, Any]] = {
            kind: (quick(name, None, c_uint32, c_int32, c_void_p), number)
            for kind, name, number in (
                ("f", "glClearBufferfv", c_float),
                ("i", "glClearBufferiv", c_int32),
                ("u", "glClearBufferuiv", c_uint32),
            )
        }
        self._zeros = create_string_buffer(16)  # four numbers of any kind
        self.enable = quick("glEnable", None, c_uint32)
        self.disable = quick("glDisable", None, c_uint32)
        self.scissor = quick("glScissor", None, *[c_int32] * 4)
        self.viewport = quick("glViewport", None, *[c_int32] * 4)
        self._gen_buffers = function("glGenBuffers", None, c_int32, c_void_p)
        self._bind_buffer = function("glBindBuffer", None, c_uint32, c_uint32)
        self._buffer_data = function("glBufferData", None, c_uint32, c_ssize_t, c_void_p, c_uint32)
        self._map_buffer = function("glMapBufferRange", c_void_p, c_uint32, c_ssize_t, c_ssize_t, c_uint32)
        self._unmap_buffer = function("glUnmapBuffer", c_ubyte, c_uint32)
        self._delete_buffers = function("glDeleteBuffers", None, c_int32, c_void_p)
        self.fence = partial(quick("glFenceSync", c_void_p, c_uint32, c_uint32), GL_SYNC_GPU_COMMANDS_COMPLETE, 0)
        self._wait_for = function("glClientWaitSync", c_uint32, c_void_p, c_uint32, c_uint64)
        self.delete_fence = quick("glDeleteSync", None, c_void_p)
        self.is_texture = function("glIsTexture", c_ubyte, c_uint32)
        self.is_framebuffer = function("glIsFramebuffer", c_ubyte, c_uint32)
        self.is_program = function("glIsProgram", c_ubyte, c_uint32)
        self.is_vertex_array = function("glIsVertexArray", c_ubyte, c_uint32)
        self.is_buffer = function("glIsBuffer", c_ubyte, c_uint32)

    def of_extension(self, names: Mapping[str, str], extensions: Collection[str], result: Any) -> Any:
        """The first function, by extension, that the driver has; None for none.

        The extension is checked first, because loaders return an address for any name.
        """
        for extension, name in names.items():
            if extension in extensions:
                with suppress(ContextError):
                    return self.function(name, result, waits=False)
        return None

    def wait_for(self, fence: int) -> None:
        """Wait until everything that was issued before a fence is computed, but 10 s at most; releases the fence."""
        self._wait_for(fence, GL_SYNC_FLUSH_COMMANDS_BIT, _LONGEST_WAIT)
        self.delete_fence(fence)

    def pending_errors(self) -> list[str]:
        """Clear all pending errors and return their names, oldest first."""
        names: list[str] = []
        while len(names) < _MAX_PENDING and (code := self._get_error()):
            names.append(GL_ERRORS.get(code, f"GL error 0x{code:04X}"))
        return names

    def integer(self, name: int) -> int:
        """One integer of the GL state."""
        value = (c_int32 * 4)()
        self._get_integers(name, value)
        return int(value[0])

    def largest(self, name: int) -> float:
        """The upper end of a range of the GL state."""
        value = (c_float * 4)()
        self._get_floats(name, value)
        return float(value[1])

    def copy_color(self, source: int, target: int, rectangles: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        """Copy rectangles (x, y, target x, target y, width, height) from attachment 0 of a framebuffer to another's.

        The two must have different textures, because OpenGL ES cannot copy a texture into itself.
        """
        self.bind_framebuffer(GL_READ_FRAMEBUFFER, source)
        self.read_buffer(GL_COLOR_ATTACHMENT0)
        self.bind_framebuffer(GL_DRAW_FRAMEBUFFER, target)
        for x, y, to_x, to_y, width, height in rectangles:
            there = to_x, to_y, to_x + width, to_y + height
            self._blit(x, y, x + width, y + height, *there, GL_COLOR_BUFFER_BIT, GL_NEAREST)

    def new_read_buffer(self, nbytes: int) -> int:
        """The name of a new buffer for reading pixels."""
        name = (c_uint32 * 1)()
        self._gen_buffers(1, name)
        with self.read_buffer_bound(name[0]):
            self._buffer_data(GL_PIXEL_PACK_BUFFER, nbytes, None, GL_STREAM_READ)
        return int(name[0])

    @contextmanager
    def read_buffer_bound(self, name: int) -> Iterator[None]:
        """Make glReadPixels write into a buffer within the block; elsewhere it writes into memory."""
        self._bind_buffer(GL_PIXEL_PACK_BUFFER, name)
        try:
            yield
        finally:
            self._bind_buffer(GL_PIXEL_PACK_BUFFER, 0)

    def map_read_buffer(self, nbytes: int) -> int | None:
        """Wait for the bound buffer and return the address of its bytes; None if the driver refuses."""
        address: int | None = self._map_buffer(GL_PIXEL_PACK_BUFFER, 0, nbytes, GL_MAP_READ_BIT)
        return address

    def unmap_read_buffer(self) -> None:
        """Unmap the bound buffer."""
        self._unmap_buffer(GL_PIXEL_PACK_BUFFER)

    def delete_buffer(self, name: int) -> None:
        """Delete a buffer."""
        self._delete_buffers(1, (c_uint32 * 1)(name))

    def clear_color(
        self, attachment: int, value: float, kind: str, rectangles: Iterable[Rectangle] | None = None
    ) -> None:
        """Fill one attachment of the bound framebuffer with ``value`` in all four channels, or rectangles of it.

        ``kind`` is the attachment's :attr:`glinfer.gl.layouts.matrix.TexelFormat.kind`.
        """
        clear, number = self._clears[kind]
        values = (number * 4)(*([value] * 4))
        if rectangles is None:
            clear(GL_COLOR, attachment, values)
            return
        for rectangle in rectangles:
            with self.scissored(rectangle):
                clear(GL_COLOR, attachment, values)

    def zeroing(self, attachment: int, kind: str) -> tuple[Callable[..., None], tuple[int, int, Any]]:
        """The call that :meth:`clear_color` makes for 0, and its arguments."""
        clear, _ = self._clears[kind]
        return clear, (GL_COLOR, attachment, self._zeros)

    @contextmanager
    def scissored(self, rectangle: Rectangle) -> Iterator[None]:
        """Draw and clear only within a rectangle."""
        self.scissor(*rectangle)
        self.enable(GL_SCISSOR_TEST)
        try:
            yield
        finally:
            self.disable(GL_SCISSOR_TEST)
