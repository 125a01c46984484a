"""Textures that hold matrices, and the framebuffers that render to them and read them back.

Every texture is NEAREST and CLAMP_TO_EDGE: moderngl's default LINEAR makes 32-bit float textures incomplete in
OpenGL ES, and an incomplete texture silently reads as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import c_int32, c_uint32, c_void_p
from typing import Any

import moderngl
import numpy as np
import numpy.typing as npt

from glinfer.errors import GLError, PlanError
from glinfer.gl.context import Device, GLObject
from glinfer.gl.faults import no_room
from glinfer.gl.integer_targets import STORED
from glinfer.gl.layouts.blocks import BlockLayout, copied_rectangles
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import Layout, TexelLayout
from glinfer.gl.raw import (
    GL_COLOR_ATTACHMENT0,
    GL_FRAMEBUFFER,
    GL_IMPLEMENTATION_COLOR_READ_FORMAT,
    GL_IMPLEMENTATION_COLOR_READ_TYPE,
    GL_PACK_ALIGNMENT,
    GL_RED,
    GL_RED_INTEGER,
    READ_TYPES,
    Rectangle,
)
from glinfer.gl.sentinel import NBYTES

_MAX_NAMES = 1 << 16


class Texture(GLObject):
    """One matrix [rows, cols] in one texture; see :mod:`glinfer.gl.layouts.matrix` for its elements' positions.

    All methods but :meth:`release` raise PlanError after the release, or for another part than the matrix has.

    Attributes:
        form: the format of its texels: the layout's, or the one that holds the bits of its floats (integer targets).
    """

    kind = "texture"
    at = 0, 0
    """Texel where the matrix begins; see :class:`glinfer.gl.region.Region`."""

    def __init__(self, device: Device, layout: TexelLayout, name: str, texels: npt.NDArray[Any] | None = None) -> None:
        """Allocate the texture and fill it with ``texels`` [height, width], or leave it undefined.

        Raises:
            PlanError: the layout is larger than the device's limit, or ``texels`` are of another size.
            GLError: the driver refused the texture (out of memory, for example); nothing of it is kept.
        """
        edge = device.limits.max_texture_size
        if max(layout.width, layout.height) > edge:
            raise PlanError(
                f"texture {name} needs {layout.width}×{layout.height} texels; {device.renderer} allows {edge} a side"
            )
        self.device, self.layout, self.name = device, layout, name
        self.form = layout.format if device.limits.float_targets else STORED[layout.format.name]
        self._framebuffer: Framebuffer | None = None
        doing = f"creating texture {name} ({layout.width}×{layout.height} {layout.format.name})"
        if texels is not None and texels.nbytes != layout.nbytes:
            raise PlanError(f"{doing}: data size mismatch: found {texels.nbytes} bytes; expected {layout.nbytes}")
        try:
            with self._making():
                self.gl = device.gl.texture(
                    (layout.width, layout.height),
                    self.form.channels,
                    None if texels is None else np.ascontiguousarray(texels),
                    alignment=4,
                    dtype=self.form.short_dtype,
                )
                self.gl.filter = (moderngl.NEAREST, moderngl.NEAREST)
                self.gl.repeat_x = self.gl.repeat_y = False
                device.check(doing, nbytes=layout.nbytes)
        except (moderngl.Error, MemoryError) as error:
            device.check(doing, nbytes=layout.nbytes, thorough=True)
            raise GLError(f"{doing}: {no_room(layout.nbytes)}: {error or 'Python has no memory left'}") from None

    @property
    def framebuffer(self) -> Framebuffer:
        """The framebuffer that renders only to this texture; made once, released with the texture."""
        if self._framebuffer is None:
            self._framebuffer = Framebuffer(self.device, [self])
        return self._framebuffer

    @property
    def rectangle(self) -> Rectangle:
        """The texels of the matrix."""
        return *self.at, self.layout.width, self.layout.height

    def upload(self, matrix: npt.NDArray[Any]) -> None:
        """Overwrite the first ``len(matrix)`` rows with a [≤ rows, cols] matrix of the layout's type.

        If rows share lines of texels, as in blocks, the other rows on these lines become zero.
        """
        try:
            texels = self.layout.pack(matrix)
        except PlanError as error:
            raise PlanError(f"{self.name}: {error}") from None
        # A wrapped matrix may end inside a line of texels; the rest of that line belongs to the rows after it.
        width = self.layout.width
        lines, rest = divmod(matrix.size, width) if isinstance(self.layout, Layout) else (texels.shape[0], 0)
        if lines:
            self.upload_lines(0, texels[:lines])
        if rest:
            self.upload_lines(lines, texels[lines : lines + 1, :rest])

    def upload_lines(self, first: int, texels: npt.NDArray[Any], column: int = 0) -> None:
        """Overwrite lines from ``first`` on, each from ``column`` on; texels [lines, width] or [lines, width, 4]."""
        self.require_alive()
        if self.device.uploads_overtake:
            self.device.raw.finish()
        (x, y), (lines, width) = self.at, texels.shape[:2]
        self.gl.write(texels, viewport=(x + column, y + first, width, lines), alignment=4)
        self.device.check(f"uploading {self.name}")

    def read(self, rows: int | None = None, cols: int | None = None) -> npt.NDArray[Any]:
        """Read [0:rows, 0:cols] back through a framebuffer, bit for bit (default: the whole matrix)."""
        rows = self.layout.rows if rows is None else rows
        cols = self.layout.cols if cols is None else cols
        try:
            width, height = self.layout.region(rows, cols)
        except PlanError as error:
            raise PlanError(f"{self.name}: {error}") from None
        return self.layout.unpack(self.framebuffer.read(0, width, height), rows, cols)

    def read_lines(self, first: int, count: int) -> npt.NDArray[Any]:
        """Read lines [first, first + count) of texels back, padding included: [count, width], or [count, width, 4]."""
        if not (first >= 0 and 1 <= count <= self.layout.height - first):
            raise PlanError(f"{self.name} has no lines {first} to {first + count - 1}; it has {self.layout.height}")
        return self.framebuffer.read(0, self.layout.width, count, 0, first)

    def read_rows(self, first: int, rows: int) -> npt.NDArray[Any]:
        """Read rows [first, first + rows) of the matrix back, transferring few other texels."""
        layout = self.layout
        if not (first >= 0 and 1 <= rows <= layout.rows - first):
            raise PlanError(f"{self.name} has no rows {first} to {first + rows - 1}; it has {layout.rows}")
        if isinstance(layout, BlockLayout):
            x, y = layout.texels_of(rows, first)
            left, bottom = int(x.min()), int(y.min())
            width, height = int(x.max()) - left + 1, int(y.max()) - bottom + 1
            texels = self.framebuffer.read(0, width, height, left, bottom)
            return layout.elements(texels[y - bottom, x - left])
        if not isinstance(layout, (Layout, FlatLayout)):
            return self.read()[first : first + rows]
        # Texels are numbered line by line; those before the first row on its line are dropped.
        each = layout.row_texels
        bottom, left = divmod(first * each, layout.width)
        height = -(-(left + rows * each) // layout.width)
        texels = self.framebuffer.read(0, layout.width, height, 0, bottom)
        lanes = texels.reshape(layout.width * height, -1)[left : left + rows * each]
        return lanes.reshape(rows, -1)[:, : layout.cols]

    def copy_from(self, other: Texture) -> None:
        """Copy every texel of a texture of the same layout (a copy, not a draw)."""
        if other.layout != self.layout:
            raise PlanError(f"{self.name} and {other.name} have different layouts; only equal ones are copied")
        self._copy(other, [(0, 0, 0, 0, self.layout.width, self.layout.height)])

    def copy_rows(self, other: Texture, source: int, target: int, rows: int) -> None:
        """Copy ``rows`` rows, from row ``source`` of another texture to row ``target`` here, without blocks aside.

        Both layouts are made by :meth:`BlockLayout.by_block`.
        """
        self._copy(other, copied_rectangles(other.layout, self.layout, source, target, rows))

    def _copy(self, other: Texture, rectangles: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        other.require_alive()
        self.require_alive()
        (x, y), (to_x, to_y) = other.at, self.at
        moved = [(x + a, y + b, to_x + c, to_y + d, width, height) for a, b, c, d, width, height in rectangles]
        self.device.raw.copy_color(other.framebuffer.gl.glo, self.framebuffer.gl.glo, moved)
        self.device.check(f"copying {other.name}")

    def fill(self, value: float) -> None:
        """Set every texel to ``value`` (a clear, not a draw)."""
        self.framebuffer.fill(value)

    def require_alive(self) -> None:
        """Make the device current, or raise a PlanError if the texture was released."""
        self.device.activate()
        if self.gl is None:
            raise PlanError(f"texture {self.name} was released; bind the plan again")

    def _delete(self) -> None:
        if self._framebuffer is not None:
            self._framebuffer.release()
            self._framebuffer = None
        self.gl.release()


class Framebuffer(GLObject):
    """Render targets in attachment order; in ES also the only way to read a texture."""

    kind = "framebuffer"
    part: Rectangle | None = None
    """The texels that belong to it; None for all."""

    def __init__(self, device: Device, textures: Sequence[Texture]) -> None:
        """Attach ``textures`` (all of one size) at attachments 0, 1, …

        Raises:
            PlanError: the textures differ in size, or the driver calls the combination incomplete.
            GLError: the driver refused the framebuffer (out of memory, for example); nothing of it is kept.
        """
        self.device, self.textures = device, tuple(textures)
        self._read_format: dict[int, int] = {}
        for texture in textures:
            texture.require_alive()
        names = ", ".join(texture.name for texture in textures)
        if len({(texture.layout.width, texture.layout.height) for texture in textures}) != 1:
            raise PlanError(f"one framebuffer cannot hold textures of different sizes: {names}")
        doing, nbytes = f"creating the framebuffer of {names}", sum(texture.layout.nbytes for texture in textures)
        try:
            with self._making():
                self.gl = device.gl.framebuffer([texture.gl for texture in textures])
                self.gl.use()  # the first use tells OpenGL which attachments are drawn to
                device.check(doing, nbytes=nbytes)
        except moderngl.Error as error:
            incomplete = _delete_stray(device)
            device.check(doing, nbytes=nbytes, thorough=True)
            if not incomplete:
                raise GLError(f"{doing}: {no_room(nbytes)}: {error}") from None
            raise PlanError(
                f"{device.renderer} cannot render to {names}: {error}; choose another device (--device)"
            ) from None

    def read(self, attachment: int, width: int, height: int, x: int = 0, y: int = 0) -> npt.NDArray[Any]:
        """Texels [height, width] from (x, y) on of one attachment, [height, width, 4] of a four-channel format.

        Half floats come back as float16, and bytes as int8, exactly: integers are read in 32 bits. OpenGL ES guarantees
        float readback only as RGBA; the driver is asked once per attachment for single-channel readback, and without it
        the red channel of RGBA is used.
        """
        texture, form = self.textures[attachment], self.textures[attachment].form
        raw = self.device.raw
        texture.require_alive()
        raw.bind_framebuffer(GL_FRAMEBUFFER, self.gl.glo)
        raw.read_buffer(GL_COLOR_ATTACHMENT0 + attachment)
        (four, gl_type), single = READ_TYPES[form.kind], GL_RED_INTEGER if form.is_integer else GL_RED
        if form.channels == 4:
            self._read_format[attachment] = four
        elif attachment not in self._read_format:
            direct = self.device.api == "desktop" or (
                raw.integer(GL_IMPLEMENTATION_COLOR_READ_FORMAT) == single
                and raw.integer(GL_IMPLEMENTATION_COLOR_READ_TYPE) == gl_type
            )
            self._read_format[attachment] = single if direct else four
        gl_format = self._read_format[attachment]
        channels = 1 if gl_format == single else 4
        texels = np.empty((height, width, channels), dtype=f"{form.kind}4")
        raw.pixel_store(GL_PACK_ALIGNMENT, 4)
        left, bottom = texture.at
        raw.read_pixels(left + x, bottom + y, width, height, gl_format, gl_type, texels.ctypes.data)
        for sentinel in self.device.take_sentinels():
            watched = np.empty(NBYTES, np.uint8)
            sentinel.fetch(raw, watched.ctypes.data)
            sentinel.check(watched.tobytes(), self.device.renderer)
        self.device.check(f"reading {texture.name} back", thorough=True)
        texels = texels[:, :, 0] if form.channels == 1 else texels.astype(form.dtype, copy=False)
        return texels.view(texture.layout.format.dtype) if form is not texture.layout.format else texels

    def fill(self, value: float) -> None:
        """Set every texel of every attachment to ``value``; NaN also turns bytes with scales into NaN."""
        self.textures[0].require_alive()
        self.gl.use()
        for attachment, texture in enumerate(self.textures):
            form, number = texture.layout.format, value
            if form.is_integer:
                number = -1 if np.isnan(value) else int(value)  # the bits of a scale that is NaN
            elif texture.form.is_integer:
                number = int(np.array(value, form.dtype).view(texture.form.dtype))
            parts = None if self.part is None else [self.part]
            self.device.raw.clear_color(attachment, number, texture.form.kind, parts)
        self.device.check(f"clearing {self.textures[0].name}")

    def _delete(self) -> None:
        for key in [key for key in self.device.sentinels if key[0] == self.gl.glo]:
            del self.device.sentinels[key]
        if self.device.gl.fbo is self.gl:
            # After making a framebuffer, moderngl binds again the one that it believes bound; in ES,
            # binding a deleted name makes a new framebuffer of that name.
            self.device.gl.screen.use()
        self.gl.release()


def _delete_stray(device: Device) -> bool:
    """Delete the framebuffer that moderngl leaves behind when it is incomplete; returns whether there was one.

    moderngl does not report its name. The name is below the next one that the driver gives, whether that is the lowest
    free name or a new one.
    """
    function, name = device.raw.function, (c_uint32 * 1)()
    delete = function("glDeleteFramebuffers", None, c_int32, c_void_p)
    function("glGenFramebuffers", None, c_int32, c_void_p)(1, name)
    next_name = name[0]
    delete(1, name)
    known = {item.gl.glo for item in device.owned("framebuffer") if item.gl is not None}
    for stray in range(next_name - 1, max(0, next_name - _MAX_NAMES), -1):
        if stray not in known and device.raw.is_framebuffer(stray):
            name[0] = stray
            delete(1, name)
            return True
    return False
