"""Bit patterns that careless code changes, stored in a texture and read back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture

SPECIAL_BITS: dict[str, tuple[int, ...]] = {
    "NaN payloads": (0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7FFFFFFF, 0x7F800001, 0xFFABCDEF),
    "infinities": (0x7F800000, 0xFF800000),
    "negative zero": (0x80000000,),
    "denormals": (0x00000001, 0x80000001, 0x00400000, 0x007FFFFF, 0x807FFFFF),
    "extremes": (0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF),
}
"""Float32 bit patterns that careless code changes, by class."""


@dataclass(frozen=True)
class SpecialCheck:
    """One class of special values: whether its bits survive storage, and a fragment pass that copies them."""

    name: str
    stored: bool
    through_a_draw: bool


def verify_special_values(device: Device) -> list[SpecialCheck]:
    """Store every special bit pattern in an R32F texture, and read back it and a copy made by a draw.

    Storage must keep every bit. OpenGL ES lets a draw flush denormals and change NaN bits, so the copy is reported but
    cannot fail.
    """
    bits = np.array([pattern for group in SPECIAL_BITS.values() for pattern in group], dtype=np.uint32)
    layout = Layout.of((1, bits.size), "r32f", device.limits.max_texture_size)
    source = Texture(device, layout, "special values", layout.pack(bits.view(np.float32)[None, :]))
    target = Texture(device, layout, "their copy")
    program = Program(device, "copy", {"COLS": bits.size}, ["x"])
    try:
        draw = Draw("copy", program, target.framebuffer, (source,))
        replay(device, [draw], {})
        stored = np.ascontiguousarray(source.read()).view(np.uint32)[0]
        copied = np.ascontiguousarray(target.read()).view(np.uint32)[0]
    finally:
        for item in (program, target, source):
            item.release()
    ends = np.cumsum([len(patterns) for patterns in SPECIAL_BITS.values()])[:-1]
    same = (np.split(held == bits, ends) for held in (stored, copied))
    results = zip(SPECIAL_BITS, *same, strict=True)
    return [SpecialCheck(name, bool(kept.all()), bool(through.all())) for name, kept, through in results]
