"""Fill textures of random sizes with random bits, read them back and compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glinfer.engine.textures import as_bits
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import Layout, TexelFormat
from glinfer.gl.texture import Texture
from glinfer.ops.spec import Array

SIZES = ("1×1", "odd", "widest", "highest", "any", "large")
"""Kinds of sizes: one texel; small odd edges; one edge as long as the renderer allows; anything; many texels."""
MAX_TEXTURE_BYTES = 256_000_000
"""Limit for a texture, and for each copy of it in memory."""
_READ_BYTES = 16  # a texel as it is read back, at most
_ODD, _THIN, _SOME = 101, 9, 1 << 18
_ANY_NAN = np.uint16(0x7E00)


@dataclass(frozen=True)
class RandomTexture:
    """A texture that was filled, read back and compared; ``difference`` is empty if the bits are the same."""

    name: str
    size: str
    bytes: int
    difference: str


def random_size(rng: np.random.Generator, which: str, edge: int) -> tuple[int, int]:
    """Width and height in texels of one of :data:`SIZES`, where textures may be ``edge`` texels a side."""
    most = min(MAX_TEXTURE_BYTES // _READ_BYTES, edge * edge)
    if which == "1×1":
        return 1, 1
    if which == "odd":
        width, height = (int(number) for number in 2 * rng.integers((min(_ODD, edge) + 1) // 2, size=2) + 1)
        return width, height
    if which in ("widest", "highest"):
        thin = int(rng.integers(1, min(_THIN, edge, most // edge) + 1))
        return (edge, thin) if which == "widest" else (thin, edge)
    fewest, most = (1, min(_SOME, most)) if which == "any" else (min(_SOME, most), most)
    area = int(np.exp(rng.uniform(np.log(fewest), np.log(most))))
    narrowest, widest = -(-area // edge), min(area, edge)
    width = int(np.exp(rng.uniform(np.log(narrowest), np.log(widest))))
    width = min(max(width, narrowest), widest)
    return width, max(1, area // width)


def random_texels(rng: np.random.Generator, width: int, height: int, form: TexelFormat) -> Array:
    """Texels [height, width, channels] of random bits, NaN of all kinds, infinities and denormals among them."""
    made = np.frombuffer(bytearray(rng.bytes(width * height * form.bytes_per_texel)), dtype=form.dtype)
    return made.reshape(height, width, form.channels)


def comparable(texels: Array) -> Array:
    """Give all NaN of half floats the same bits: reading back as float32 may change them. Other texels stay."""
    if texels.dtype != np.float16:
        return texels
    made = texels.copy()
    made.view(np.uint16)[np.isnan(made)] = _ANY_NAN
    return made


def check_texture(
    device: Device, rng: np.random.Generator, form: TexelFormat, which: str, meanwhile: Callable[[], None]
) -> RandomTexture:
    """Make a texture of one of :data:`SIZES`, fill it at once or in two parts, read it back and compare.

    ``meanwhile`` is called between the upload and the readback.
    """
    width, height = random_size(rng, which, device.limits.max_texture_size)
    texels, at_once = random_texels(rng, width, height, form), bool(rng.integers(2))
    layout = Layout(height, width, width, height, form)
    size = f"{width}×{height}"
    texture = Texture(device, layout, f"of random bits, {size}", texels if at_once else None)
    try:
        if not at_once:
            _write_in_parts(texture, texels, int(rng.integers(height + 1)))
        meanwhile()
        found = texture.framebuffer.read(0, width, height).reshape(texels.shape)
    finally:
        texture.release()
    return RandomTexture(which, size, texels.nbytes, difference(comparable(found), comparable(texels)))


def _write_in_parts(texture: Texture, texels: Array, lines: int) -> None:
    """Upload the first ``lines`` lines of texels after the others."""
    height, width, _ = texels.shape
    for first, end in ((lines, height), (0, lines)):
        if first < end:
            part = np.ascontiguousarray(texels[first:end])
            texture.gl.write(part, viewport=(0, first, width, end - first), alignment=4)
    texture.device.check(f"uploading {texture.name}")


def difference(found: Array, expected: Array) -> str:
    """First difference of texels [height, width, channels] and the number of different elements; empty if equal."""
    one, other = as_bits(found), as_bits(expected)
    if found.dtype == expected.dtype and np.array_equal(one, other):
        return ""
    places = np.argwhere(one != other)
    y, x, channel = (int(part) for part in places[0])
    digits = 2 * expected.dtype.itemsize
    bits = [f"0x{int(each[y, x, channel]):0{digits}X}" for each in (one, other)]
    return (
        f"{len(places):,} of {expected.size:,} elements differ, the first at texel ({x}, {y}), channel {channel}: "
        f"found {bits[0]}; expected {bits[1]}"
    )
