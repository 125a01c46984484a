"""Bit-exact comparison of textures with their uploads, special values included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glinfer.engine.progress import Progress, no_progress
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import Layout, TexelLayout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture
from glinfer.models.plan import Plan
from glinfer.models.session import weight_matrix
from glinfer.ops.spec import Array

Weights = Mapping[str, Array]

SPECIAL_BITS: dict[str, tuple[int, ...]] = {
    "NaN payloads": (0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7FFFFFFF, 0x7F800001, 0xFFABCDEF),
    "infinities": (0x7F800000, 0xFF800000),
    "negative zero": (0x80000000,),
    "denormals": (0x00000001, 0x80000001, 0x00400000, 0x007FFFFF, 0x807FFFFF),
    "extremes": (0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF),
}
"""Float32 bit patterns that a careless path changes, by class."""


@dataclass(frozen=True)
class TextureCheck:
    """One weight texture after upload and readback."""

    name: str
    width: int
    height: int
    format: str
    bytes: int
    identical: bool
    max_difference: float


@dataclass(frozen=True)
class SpecialCheck:
    """One class of special values: whether its bits survive storage, and a fragment pass that copies them."""

    name: str
    stored: bool
    through_a_draw: bool


def verify_textures(
    checkpoint: Checkpoint,
    plan: Plan,
    device: Device,
    *,
    weights: Weights | None = None,
    on_progress: Progress = no_progress,
) -> list[TextureCheck]:
    """Upload each weight of the plan, read it back through a framebuffer, and compare bit for bit.

    One texture exists at a time, so that a checkpoint may exceed texture memory.

    Args:
        checkpoint: the model.
        plan: names and layouts of the weights.
        device: the checked renderer.
        weights: the plan's weights by tensor name, if not the checkpoint's own: folded and packed by
            :func:`glinfer.models.transforms.fold.fold`, say. Packed weights are compared word for word.
        on_progress: receives (checked textures, textures).
    """
    arrays = checkpoint.tensors if weights is None else weights
    checks = []
    tensors = plan.of_kind("weight")
    for tensor in tensors:
        expected = np.ascontiguousarray(weight_matrix(tensor, arrays))
        layout = tensor.layout_within(device.limits.max_texture_size)
        texture = Texture(device, layout, tensor.name, layout.pack(expected))
        try:
            found = np.ascontiguousarray(texture.read())
        finally:
            texture.release()
        checks.append(_compare(tensor.name, layout, expected, found))
        on_progress(len(checks), len(tensors))
    return checks


def as_bits(array: Array) -> Array:
    """View the bits of each element as an unsigned integer of its size."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _compare(name: str, layout: TexelLayout, expected: Array, found: Array) -> TextureCheck:
    identical = found.dtype == expected.dtype and bool(np.array_equal(as_bits(expected), as_bits(found)))
    difference = 0.0
    if not identical:
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = np.abs(expected.astype(np.float64) - found.astype(np.float64))
        difference = float(np.max(np.where(np.isnan(gaps), np.inf, gaps)))
    return TextureCheck(name, layout.width, layout.height, layout.format.name, layout.nbytes, identical, difference)


def verify_special_values(device: Device) -> list[SpecialCheck]:
    """Store every special bit pattern in an R32F texture, and read back it and a copy made by a draw.

    Storage must keep every bit. OpenGL ES lets a draw flush denormals and change NaN bits, so the copy is reported but
    not judged.
    """
    bits = np.array([pattern for group in SPECIAL_BITS.values() for pattern in group], dtype=np.uint32)
    layout = Layout.of((1, bits.size), "r32f", device.limits.max_texture_size)
    source = Texture(device, layout, "special values", layout.pack(bits.view(np.float32)[None, :]))
    target = Texture(device, layout, "their copy")
    program = Program(device, "copy", {"COLS": bits.size}, ["x"])
    try:
        draw = Draw("copy", program, target.framebuffer, (source,), (), (), (1, int(bits.size)))
        replay(device, [draw], {})
        stored = np.ascontiguousarray(source.read()).view(np.uint32)[0]
        copied = np.ascontiguousarray(target.read()).view(np.uint32)[0]
    finally:
        for item in (program, target, source):
            item.release()
    checks, start = [], 0
    for name, patterns in SPECIAL_BITS.items():
        part = slice(start, start + len(patterns))
        checks.append(
            SpecialCheck(
                name,
                bool(np.array_equal(stored[part], bits[part])),
                bool(np.array_equal(copied[part], bits[part])),
            )
        )
        start += len(patterns)
    return checks
