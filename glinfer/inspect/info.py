"""Description of this machine's renderers, and of a model on one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from glinfer.engine.report import Report
from glinfer.errors import ContextError, GlinferError
from glinfer.formats import Checkpoint
from glinfer.gl import egl
from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.choice import (
    USUAL_DRAW_BUFFERS,
    USUAL_TEXTURE_SIZE,
    USUAL_TEXTURE_UNITS,
    plan_for,
    weights_named,
)
from glinfer.models.plan import PlanLimits
from glinfer.models.session import check_fits
from glinfer.models.tuning import kernels_for
from glinfer.ops.spec import KINDS

EXTENSIONS = {
    "GL_EXT_color_buffer_float": "passes can write 32-bit float textures (required)",
    "GL_EXT_float_blend": "float targets can be added into",
    "GL_EXT_disjoint_timer_query": "passes can be timed on the GPU",
    "GL_KHR_debug": "the driver explains its errors",
    "GL_KHR_robustness": "a lost context can be noticed",
}

_IN_DESKTOP_CORE = {"GL_EXT_color_buffer_float", "GL_EXT_float_blend", "GL_EXT_disjoint_timer_query"}
"""Features that desktop OpenGL 3.3 has in its core."""


@dataclass(frozen=True)
class DeviceEntry:
    """One EGL device; ``renderer`` is empty where it does not open."""

    index: int
    software: bool
    renderer: str
    usable: bool
    problem: str = ""


@dataclass(frozen=True)
class RendererReport(Report):
    """The renderer that glinfer would use."""

    derived = ("can_run",)

    can_run = True

    api: str
    renderer: str
    vendor: str
    version: str
    extensions: dict[str, bool]
    limits: Limits
    webgl2_minimum: Limits


def renderer_report(device: Device) -> RendererReport:
    """Describe an open device."""
    built_in = _IN_DESKTOP_CORE if device.api == "desktop" else set()
    return RendererReport(
        api=device.api,
        renderer=device.renderer,
        vendor=device.vendor,
        version=device.version,
        extensions={name: name in device.extensions or name in built_in for name in EXTENSIONS},
        limits=device.driver_limits,
        webgl2_minimum=Limits.webgl2_minimum(),
    )


def list_devices() -> list[DeviceEntry]:
    """Open every EGL device of this machine once.

    Raises:
        ContextError: EGL or a device is missing.
    """
    entries = []
    for found in egl.list_devices():
        try:
            with open_device(found.index, api="es") as device:
                entries.append(DeviceEntry(found.index, found.is_software, device.description, usable=True))
        except ContextError as error:
            entries.append(DeviceEntry(found.index, found.is_software, "", usable=False, problem=str(error)))
    return entries


def model_report(checkpoint: Checkpoint, plan: str, weights: str, cache: str, device: Device | None) -> dict[str, Any]:
    """Describe the shape, draws and texture memory of a checkpoint; a plan that does not fit is reported, not raised.

    Args:
        checkpoint: the model.
        plan: name of a plan.
        weights: weight format.
        cache: format of keys and values.
        device: the renderer; None for limits that nearly every renderer has.
    """
    edge, problem = USUAL_TEXTURE_SIZE if device is None else device.limits.max_texture_size, ""
    config, formats = checkpoint.config, checkpoint.formats()
    weights = weights_named(weights, formats)
    texture_bytes: dict[str, int] = {}
    draws = None
    try:
        kernels = None if device is None else kernels_for(device, config, weights)
        how: dict[str, Any] = {"weights": weights, "cache": cache, "formats": formats, "kernels": kernels}
        made = plan_for(config, plan, max_texture_size=edge, **how)
        draws = len(made.draws)
        if device is None:
            made.check_limits(PlanLimits(edge, USUAL_DRAW_BUFFERS, USUAL_TEXTURE_UNITS))
        else:
            check_fits(made, device)
        texture_bytes = {kind: made.texture_bytes(edge, kind) for kind in KINDS}
    except GlinferError as error:
        problem = str(error)
    return {
        "config": config.to_dict(),
        "formats": dict(Counter(formats.values()).most_common()),
        "parameters": checkpoint.parameter_count,
        "plan": plan,
        "weights": weights,
        "cache": cache,
        "draws": draws,
        "texture_bytes": texture_bytes,
        "fits": not problem,
        "problem": problem,
    }
