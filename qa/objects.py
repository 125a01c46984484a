"""Counts the objects that the driver itself holds, to find those that were not released."""

from __future__ import annotations

from glinfer.gl.context import Device

_MIN_NAMES = 1 << 14
"""Fewest names of each kind that are asked for."""


def driver_objects(device: Device) -> dict[str, int]:
    """Number of objects of each kind that the driver itself holds.

    Every name up to the newest is asked for, since drivers may never reuse a name.
    """
    device.activate()
    newest_texture = device.gl.texture((1, 1), 4)
    newest_framebuffer = device.gl.framebuffer([newest_texture])
    device.gl.screen.use()  # what is bound cannot be released
    textures, framebuffers = (max(_MIN_NAMES, each.glo) for each in (newest_texture, newest_framebuffer))
    newest_framebuffer.release()
    newest_texture.release()
    raw = device.raw
    asked = {
        "texture": (raw.is_texture, textures),
        "framebuffer": (raw.is_framebuffer, framebuffers),
        "program": (raw.is_program, _MIN_NAMES),
        "vertex array": (raw.is_vertex_array, _MIN_NAMES),
        "buffer": (raw.is_buffer, _MIN_NAMES),
    }
    return {kind: sum(map(bool, map(is_one, range(1, last + 1)))) for kind, (is_one, last) in asked.items()}
