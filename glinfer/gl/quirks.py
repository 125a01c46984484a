"""Tests of renderer behaviour that OpenGL leaves to the implementation."""

from __future__ import annotations

from glinfer.errors import ShaderError
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture

_EDGE = 8


def exact_derivatives(device: Device) -> bool:
    """Whether derivatives are the exact difference of two neighbouring fragments, in every row and column.

    OpenGL allows one difference for all four fragments of a quad. The test is one small draw and a readback; a driver
    that refuses the shader counts as inexact.
    """
    target = Texture(device, Layout.of((_EDGE, _EDGE), "r32f", device.limits.max_texture_size), "probe")
    program = None
    try:
        program = Program(device, "probe_quad", {}, [])
        replay(device, [Draw("probe", program, target.framebuffer)], {})
        return bool((target.read() == 1.0).all())
    except ShaderError:
        return False
    finally:
        if program is not None:
            program.release()
        target.release()
