"""Matrices that are rectangles of one texture, and the rules for draws that sample the texture that they render to.

A pass starts sooner if it renders to the framebuffer of the previous pass. So tensors may be regions of one texture
with one framebuffer. OpenGL then defines a pass under two conditions (OpenGL 4.6 core,
section 9.3.1, "Rendering Feedback Loops"): it reads and writes different texels, and a texture barrier stands between
it and every earlier pass that wrote a texel that it reads, or read a texel that it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glinfer.errors import PlanError
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.gl.texture import Framebuffer, Texture


class Region(Texture):
    """A matrix in a rectangle of another texture; it is released with that texture, which has another owner.

    Attributes:
        whole: the texture.
        at: texel of the texture where the matrix begins.
    """

    def __init__(self, whole: Texture, layout: TexelLayout, name: str, at: tuple[int, int]) -> None:
        """A view of ``whole``, without its own GL object; PlanError for another format or no such rectangle."""
        whole.require_alive()
        x, y, outer = *at, whole.layout
        if layout.format != outer.format:
            raise PlanError(f"region {name} is {layout.format.name}; {whole.name} is {outer.format.name}")
        if min(at) < 0 or x + layout.width > outer.width or y + layout.height > outer.height:
            raise PlanError(
                f"region {name} is {layout.width}×{layout.height} texels from ({x}, {y}) on; {whole.name} has "
                f"{outer.width}×{outer.height}"
            )
        self.device, self.layout, self.name, self.whole, self.at = whole.device, layout, name, whole, at
        self.gl, self.form = whole.gl, whole.form
        self._framebuffer = RegionFramebuffer(self)

    def release(self) -> None:
        """Give up the view; harmless when repeated."""
        self.gl = None


class RegionFramebuffer(Framebuffer):
    """The framebuffer of a whole texture, as the target of one region."""

    def __init__(self, region: Region) -> None:
        """A view of the framebuffer, without its own GL object."""
        whole = region.whole.framebuffer
        self.device, self.textures, self.part = region.device, (region,), region.rectangle
        self.gl, self._read_format = whole.gl, whole._read_format


def overlaps(one: Texture, other: Texture) -> bool:
    """Whether two matrices share a texel."""
    if one.gl is not other.gl:
        return False
    (x, y, width, height), (left, bottom, across, up) = one.rectangle, other.rectangle
    return x < left + across and left < x + width and y < bottom + up and bottom < y + height


def check_feedback(draw: str, targets: Iterable[Texture], sampled: Sequence[Texture]) -> None:
    """Raise a PlanError for a draw that samples a texel that it renders to."""
    for target in targets:
        for texture in sampled:
            if overlaps(target, texture):
                raise PlanError(f"draw {draw} samples {texture.name}, which has texels of its target {target.name}")


class Barriers:
    """Finds the draws that need a texture barrier before them; call :meth:`before` for each draw, in order.

    Every run begins with a barrier (see :func:`glinfer.gl.replay.replay`), at whichever draw of the plan it starts.
    """

    def __init__(self) -> None:
        """Start as after a barrier."""
        self._read: list[Texture] = []
        self._written: list[Texture] = []

    def before(self, targets: Sequence[Texture], sampled: Iterable[Texture]) -> bool:
        """Whether the next draw needs a barrier; only draws that render to a region do."""
        reads = [texture for texture in sampled if isinstance(texture, Region)]
        writes = [texture for texture in targets if isinstance(texture, Region)]
        pairs = [(self._written, reads), (self._read, writes)]
        needed = bool(writes) and any(overlaps(old, new) for olds, news in pairs for old in olds for new in news)
        if needed:
            self._read.clear()
            self._written.clear()
        self._read += reads
        self._written += writes
        return needed
