"""A sentinel: a texel that tells whether the driver ran a draw.

Some drivers drop a long draw without an error, and the target keeps its old texels. So one draw of a run is watched: a
number that no pass writes is put into the first texel of its target right before it, and must be gone when results are
read back. The cost is a clear and a readback of one texel.
"""

from __future__ import annotations

import struct
from ctypes import c_uint32
from typing import TYPE_CHECKING, NamedTuple

from glinfer.errors import GLError
from glinfer.gl.raw import GL_COLOR_ATTACHMENT0, GL_FRAMEBUFFER, READ_TYPES

if TYPE_CHECKING:
    from glinfer.gl.texture import Framebuffer

_BITS = 0xF1A5C0DE
_NUMBER = struct.unpack("<f", struct.pack("<I", _BITS))[0]  # -1.6e30
NBYTES = 16
"""Bytes of a texel."""


class Sentinel(NamedTuple):
    """The watched texel (x, y) of a draw's first target, four floats or their bits."""

    draw: str
    framebuffer: Framebuffer
    x: int
    y: int

    def plant(self) -> None:
        """Overwrite the texel; the framebuffer is bound."""
        kind = self.framebuffer.textures[0].form.kind
        value = _BITS if kind == "u" else _NUMBER
        self.framebuffer.device.raw.clear_color(0, value, kind, [(self.x, self.y, 1, 1)])
        self.framebuffer.device.sentinel = self

    def fetch(self, address: int | None) -> None:
        """Read the texel into memory, or to this offset of the bound buffer, and stop watching."""
        device = self.framebuffer.device
        device.sentinel = None
        device.sentinels_read += 1
        device.raw.bind_framebuffer(GL_FRAMEBUFFER, self.framebuffer.gl.glo)
        device.raw.read_buffer(GL_COLOR_ATTACHMENT0)
        types = READ_TYPES[self.framebuffer.textures[0].form.kind]
        device.raw.read_pixels(self.x, self.y, 1, 1, *types, address)

    def check(self, texel: bytes) -> None:
        """Raise an error if the texel is still there.

        Raises:
            GLError: the driver dropped the draw.
        """
        if texel == struct.pack("<4I", *[_BITS] * 4):
            raise GLError(
                f"pass {self.draw} wrote nothing: {self.framebuffer.device.renderer} dropped it without an error, "
                "perhaps because it took too long; choose another device (--device)"
            )

    def look(self) -> None:
        """Read the texel back and check it.

        Raises:
            GLError: the driver dropped the draw.
        """
        words = (c_uint32 * 4)()
        self.fetch(words)  # type: ignore[arg-type]
        self.check(bytes(words))
