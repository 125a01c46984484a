"""Sentinels: texels that tell whether the driver ran a draw.

Some drivers drop a long draw without an error, or give zeros. The target of a dropped draw keeps its old texels. So a
draw is watched: right before it, texels of its target get a number that no pass writes, and results are read back with
these texels. The cost is a clear and a readback of 256 bytes. The first time, and when all of them are 0, they are also
drawn alone, which no driver drops, and must be the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import nullcontext
from ctypes import addressof, create_string_buffer
from typing import NamedTuple

from glinfer.errors import GLError
from glinfer.gl.raw import GL_COLOR_ATTACHMENT0, GL_FRAMEBUFFER, READ_TYPES, RawGL, Rectangle

_BITS = 0xF1A5C0DE
_NUMBER = struct.unpack("<f", struct.pack("<I", _BITS))[0]  # -1.6e30
_WORD = struct.pack("<I", _BITS)
_DROPPED = "dropped it without an error, perhaps because it took too long; choose another device (--device)"
EDGE = 4
"""Texels a side that are watched."""
NBYTES = 16 * EDGE * EDGE
"""Bytes of the texels."""
MOST = 8
"""Sentinels that one readback takes, the newest."""


class Sentinel(NamedTuple):
    """The watched texels of a draw's first target, four floats each or their bits.

    Attributes:
        draw: the draw's name.
        framebuffer: OpenGL's name of its framebuffer.
        kind: the kind of its target's format, ``f`` or ``u``.
        rectangle: (x, y, width, height) of the texels, at most 4 × 4.
        again: draws the texels alone and then all once more, as the first time, and compares.
    """

    draw: str
    framebuffer: int
    kind: str
    rectangle: Rectangle
    again: Callable[[], object]

    def plant(self, raw: RawGL) -> None:
        """Overwrite the texels; the framebuffer is bound."""
        raw.clear_color(0, _BITS if self.kind == "u" else _NUMBER, self.kind, [self.rectangle])

    def compare(self, raw: RawGL, render: Callable[[], None], renderer: str) -> None:
        """Draw only the texels, then all, and wait; GLError if the texels differ. The framebuffer is bound."""
        found = []
        for within in (raw.scissored(self.rectangle), nullcontext()):
            self.plant(raw)
            with within:
                render()
            texels = create_string_buffer(NBYTES)
            self.fetch(raw, addressof(texels))
            found.append(texels.raw)
        self._require_written(found[1], renderer)
        if found[0] != found[1]:
            raise GLError(f"pass {self.draw} wrote wrong numbers: {renderer} {_DROPPED}")

    def fetch(self, raw: RawGL, address: int) -> None:
        """Read the texels into memory, or to this offset of the bound buffer."""
        raw.bind_framebuffer(GL_FRAMEBUFFER, self.framebuffer)
        raw.read_buffer(GL_COLOR_ATTACHMENT0)
        raw.read_pixels(*self.rectangle, *READ_TYPES[self.kind], address)

    def check(self, texels: bytes, renderer: str) -> None:
        """Raise a GLError if the texels are unchanged, or 0 where a draw of them alone is not."""
        self._require_written(texels, renderer)
        if not any(texels[: self._nbytes]):
            self.again()

    def _require_written(self, texels: bytes, renderer: str) -> None:
        if texels[: self._nbytes] == _WORD * (self._nbytes // 4):
            raise GLError(f"pass {self.draw} wrote nothing: {renderer} {_DROPPED}")

    @property
    def _nbytes(self) -> int:
        return 16 * self.rectangle[2] * self.rectangle[3]
