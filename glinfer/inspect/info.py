"""Description of this machine's renderers, and of a model on one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.report import Report
from glinfer.errors import ContextError, GlinferError
from glinfer.formats import Checkpoint
from glinfer.formats.files import AnyPath
from glinfer.formats.sampling import named_sampling
from glinfer.gl import egl
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.self_test import settle_targets
from glinfer.inspect.ceiling import multiply_add_rate
from glinfer.kernels.spec import KINDS
from glinfer.lower.plans import (
    USUAL_DRAW_BUFFERS,
    USUAL_TEXTURE_SIZE,
    USUAL_TEXTURE_UNITS,
    plan_for,
    same_draws,
    weights_named,
)
from glinfer.program.plan import PlanLimits
from glinfer.program.session import check_textures_fit
from glinfer.program.tuning import kernels_for
from glinfer.text.chat import TemplateChat, find_chat
from glinfer.text.stops import default_stops
from glinfer.text.templates import find_template
from glinfer.text.tokenizer import Tokenizer, find_tokenizer

EXTENSIONS = {
    "GL_EXT_color_buffer_float": "rendering to 32-bit float textures",
    "GL_EXT_float_blend": "blending into 32-bit float targets",
    "GL_EXT_disjoint_timer_query": "GPU timing of passes",
    "GL_KHR_debug": "error messages from the driver",
    "GL_KHR_robustness": "detection of a lost context",
}

SLOW = 5e10
"""Multiply-adds a second below which a GPU may be slower than the CPU, as on a Raspberry Pi 5."""
_IN_DESKTOP_CORE = {"GL_EXT_color_buffer_float", "GL_EXT_float_blend", "GL_EXT_disjoint_timer_query"}
"""Features in the core of desktop OpenGL 3.3."""


@dataclass(frozen=True)
class DeviceEntry:
    """One EGL device; ``renderer`` is empty if it does not open."""

    index: int
    software: bool
    renderer: str
    usable: bool
    problem: str = ""


@dataclass(frozen=True)
class RendererReport(Report):
    """The renderer that glinfer would use; ``self_test`` has the failed tests of its arithmetic."""

    derived = ("can_run",)

    api: str
    renderer: str
    vendor: str
    version: str
    extensions: dict[str, bool]
    limits: Limits
    webgl2_minimum: Limits
    self_test: dict[str, str]

    @property
    def can_run(self) -> bool:
        """Whether the renderer computes right."""
        return not self.self_test


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
        self_test=settle_targets(device),
    )


def software_device() -> int | None:
    """The index of the first EGL device that is a software renderer; None if there is none."""
    return next((found.index for found in egl.list_devices() if found.is_software), None)


def advice(device: Device) -> str:
    """Advice to try the software renderer, if this one is a slow GPU; empty otherwise."""
    index = None if device.in_main_memory or device.api != "es" else software_device()
    if index is None:
        return ""
    if multiply_add_rate(device, 0.001) > SLOW:
        return ""
    return f"this GPU may be slower than the CPU; try --device {index}, or time both with 'glinfer tune'"


def list_devices() -> list[DeviceEntry]:
    """Open every EGL device of this machine once; ContextError if EGL or a device is missing."""
    entries = []
    for found in egl.list_devices():
        try:
            with open_device(found.index, api="es") as device:
                entries.append(DeviceEntry(found.index, found.is_software, device.description, usable=True))
        except ContextError as error:
            entries.append(DeviceEntry(found.index, found.is_software, "", usable=False, problem=str(error)))
    return entries


def text_report(path: AnyPath, config: ModelConfig) -> dict[str, Any]:
    """Describe the tokenizer, chat form, end tokens and sampling defaults of a model's file or directory.

    Parts that cannot be used are reported, without an exception.
    """
    tokenizer, reason = find_tokenizer(path, None, config)
    report: dict[str, Any] = {"tokenizer": None, "chat": {"form": None, "problem": reason}, "end_tokens": []}
    if tokenizer is not None:
        report["tokenizer"] = {"kind": tokenizer.kind, "tokens": tokenizer.vocab_size}
        report["chat"] = _chat(path, tokenizer, config)
    else:
        report["tokenizer_problem"] = reason
    try:
        report["end_tokens"] = [
            {"id": token, "text": "" if tokenizer is None else tokenizer.token_bytes(token).decode("utf-8", "replace")}
            for token in default_stops(path, tokenizer, config)
        ]
    except GlinferError as error:
        report["end_tokens_problem"] = str(error)
    try:
        report["sampling"], _ = named_sampling(path)
    except GlinferError as error:
        report["sampling"], report["sampling_problem"] = {}, str(error)
    return report


def _chat(path: AnyPath, tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    """Describe a model's chat form (a template and its source, or Gab's turns), or why it has none."""
    try:
        form = find_chat(path, tokenizer, config)
        template = find_template(path) if isinstance(form, TemplateChat) else None
    except GlinferError as error:
        return {"form": None, "problem": str(error)}
    if template is None:
        return {"form": "Gab's turns", "from": "the tokenizer's control tokens"}
    return {"form": "Jinja template", "from": template.label}


def model_report(
    checkpoint: Checkpoint, positions: int, plan: str, weights: str, cache: str, device: Device | None
) -> dict[str, Any]:
    """Describe the shape, draws and texture memory of a checkpoint with the context that it would run with.

    A plan that does not fit is reported, not raised. ``positions`` are the model's own; without a ``device``, limits
    are typical ones.
    """
    edge, problem = USUAL_TEXTURE_SIZE if device is None else device.limits.max_texture_size, ""
    config, formats = checkpoint.config, checkpoint.formats()
    weights = weights_named(weights, formats, plan)
    texture_bytes: dict[str, int] = {}
    draws = None
    try:
        kernels = None if device is None else kernels_for(device, config, weights)
        how: dict[str, Any] = {"weights": weights, "cache": cache, "formats": formats, "kernels": kernels}
        draws = len(plan_for(config, plan, max_texture_size=edge, tokens=1, **how).draws)
        made = plan_for(config, plan, max_texture_size=edge, **how)
        usual = PlanLimits(edge, USUAL_DRAW_BUFFERS, USUAL_TEXTURE_UNITS)
        made.check_limits(usual if device is None else device.limits)
        if device is not None:
            check_textures_fit(made, device)
        texture_bytes = {kind: made.texture_bytes(edge, kind) for kind in KINDS}
    except GlinferError as error:
        problem = str(error)
    return {
        "config": {**config.to_dict(), "max_position_embeddings": positions},
        "context": config.max_position_embeddings,
        "formats": dict(Counter(formats.values()).most_common()),
        "parameters": checkpoint.parameter_count,
        "plan": plan,
        "weights": weights,
        "cache": cache,
        "draws": draws,
        "draws_are_an_estimate": device is None and not same_draws(config, plan, formats),
        "texture_bytes": texture_bytes,
        "fits": not problem,
        "problem": problem,
    }
