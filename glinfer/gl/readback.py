"""Reading a texture back without waiting for the GPU in between."""

from __future__ import annotations

from ctypes import c_float, string_at
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import GLError, PlanError
from glinfer.gl.context import GLObject
from glinfer.gl.raw import GL_COLOR_ATTACHMENT0, GL_FRAMEBUFFER, GL_PACK_ALIGNMENT, READ_TYPES
from glinfer.gl.sentinel import MOST, NBYTES, Sentinel
from glinfer.gl.texture import Texture


class Readback(GLObject):
    """A buffer that the GPU copies the first rows of a texture into, to be read later.

    :meth:`start` queues the copy after the draws issued so far, so later draws may overwrite the texture. :meth:`read`
    waits only for the copy, not for later draws.
    """

    kind = "buffer"

    def __init__(self, texture: Texture, rows: int) -> None:
        """Make the buffer for the first ``rows`` rows of a texture of four float32 channels."""
        if texture.layout.format.name != "rgba32f":
            raise PlanError(f"{texture.name} is {texture.layout.format.name}; expected rgba32f")
        self.texture, self.rows, self.device = texture, rows, texture.device
        self._size = texture.layout.region(rows, texture.layout.cols)
        self._nbytes = 16 * self._size[0] * self._size[1]
        self._sentinels: list[Sentinel] = []
        with self._making():
            self.gl = self.device.raw.new_read_buffer(self._nbytes + MOST * NBYTES)
            self.device.check(f"making a buffer to read {texture.name} back", nbytes=self._nbytes)

    def start(self) -> None:
        """Queue the copy."""
        texture, raw = self.texture, self.device.raw
        texture.require_alive()
        raw.bind_framebuffer(GL_FRAMEBUFFER, texture.framebuffer.gl.glo)
        raw.read_buffer(GL_COLOR_ATTACHMENT0)
        raw.pixel_store(GL_PACK_ALIGNMENT, 4)
        with raw.read_buffer_bound(self.gl):
            raw.read_pixels(*texture.at, *self._size, *READ_TYPES[texture.form.kind], None)
            self._sentinels = self.device.take_sentinels()
            for number, sentinel in enumerate(self._sentinels):
                sentinel.fetch(raw, self._nbytes + number * NBYTES)
        raw.flush()  # otherwise the driver may delay the draws until a read

    def read(self) -> npt.NDArray[Any]:
        """The rows [rows, cols] as they were when the copy was queued; waits for them."""
        texture, raw, doing = self.texture, self.device.raw, f"reading {self.texture.name} back"
        texture.require_alive()
        with raw.read_buffer_bound(self.gl):
            address = raw.map_read_buffer(self._nbytes + MOST * NBYTES)
            if not address:
                self.device.check(doing, thorough=True)
                raise GLError(f"{doing}: the driver did not map the buffer")
            width, height = self._size
            texels = np.ctypeslib.as_array((c_float * (self._nbytes // 4)).from_address(address)).copy()
            watched = string_at(address + self._nbytes, MOST * NBYTES)
            raw.unmap_read_buffer()
        for number, sentinel in enumerate(self._sentinels):
            sentinel.check(watched[number * NBYTES :], self.device.renderer)
        self.device.check(doing, thorough=True)
        return texture.layout.unpack(texels.reshape(height, width, 4), self.rows, texture.layout.cols)

    def _delete(self) -> None:
        self.device.raw.delete_buffer(self.gl)
