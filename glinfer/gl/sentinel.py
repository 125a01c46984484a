"""A sentinel: a texel that tells whether the driver ran a draw.

Some drivers drop a long draw without an error, and the target keeps its old texels. So one draw of some runs is
watched: a number that no pass writes is put into the first texel of its target right before it, and must be gone when
results are read back. The cost is a clear and a readback of one texel.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from glinfer.errors import GLError
from glinfer.gl.raw import GL_COLOR_ATTACHMENT0, GL_FRAMEBUFFER, READ_TYPES, RawGL

_BITS = 0xF1A5C0DE
_NUMBER = struct.unpack("<f", struct.pack("<I", _BITS))[0]  # -1.6e30
NBYTES = 16
"""Bytes of a texel."""


class Sentinel(NamedTuple):
    """The watched texel (x, y) of a draw's first target, four floats or their bits.

    Attributes:
        draw: the draw's name.
        framebuffer: OpenGL's name of its framebuffer.
        kind: the kind of its target's format, ``f`` or ``u``.
        x, y: the texel.
    """

    draw: str
    framebuffer: int
    kind: str
    x: int
    y: int

    def plant(self, raw: RawGL) -> None:
        """Overwrite the texel; the framebuffer is bound."""
        raw.clear_color(0, _BITS if self.kind == "u" else _NUMBER, self.kind, [(self.x, self.y, 1, 1)])

    def fetch(self, raw: RawGL, address: int) -> None:
        """Read the texel into memory, or to this offset of the bound buffer."""
        raw.bind_framebuffer(GL_FRAMEBUFFER, self.framebuffer)
        raw.read_buffer(GL_COLOR_ATTACHMENT0)
        raw.read_pixels(self.x, self.y, 1, 1, *READ_TYPES[self.kind], address)

    def check(self, texel: bytes, renderer: str) -> None:
        """Raise an error if the texel is still there.

        Raises:
            GLError: the driver dropped the draw.
        """
        if texel == struct.pack("<4I", *[_BITS] * 4):
            raise GLError(
                f"pass {self.draw} wrote nothing: {renderer} dropped it without an error, perhaps because it took too "
                "long; choose another device (--device)"
            )
