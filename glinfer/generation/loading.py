"""From a checkpoint's file to its plan bound to a device: what a model is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.formats import find_model, load_checkpoint
from glinfer.generation.auto_weights import choose_weights
from glinfer.generation.stops import default_stops
from glinfer.generation.tokenizer import Tokenizer, find_tokenizer
from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.choice import AUTO, check_choice, plan_for, weights_for
from glinfer.models.session import Session
from glinfer.models.tuning import kernels_for
from glinfer.ops.kernels import Kernels


@dataclass(frozen=True)
class Loaded:
    """The parts of a model.

    Attributes:
        config: the model's shape.
        tokenizer: the tokenizer that fits it, or None.
        no_tokenizer_reason: why there is none.
        stop_ids: the ids that end a text where nobody says which.
        bound: the plan, bound to the device.
        weights: the format of the weights; never ``auto``.
        kernels: how the fast plan's passes are shaped.
        owns_device: whether the device was opened for this model.
    """

    config: ModelConfig
    tokenizer: Tokenizer | None
    no_tokenizer_reason: str
    stop_ids: tuple[int, ...]
    bound: Session
    weights: str
    kernels: Kernels
    owns_device: bool


def load_parts(
    path: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str] | Tokenizer | None,
    plan: str,
    weights: str,
    kernels: Kernels | None,
    gelu: str | None,
    device: Device | str | int | None,
    api: str | None,
    limits: Limits | None,
    shader_root: Path | None,
    on_upload: Callable[[int, int], None] | None,
) -> Loaded:
    """Read a checkpoint, open a device, bind the plan; all as :func:`glinfer.generation.model.load_model` says."""
    if isinstance(device, Device) and (api is not None or limits is not None):
        raise InputError("api and limits belong to opening a device; an open Device has its own, so leave them out")
    check_choice(plan, "f32" if (plan, weights) == ("fast", AUTO) else weights)
    if plan == "reference" and kernels is not None:
        raise InputError("kernels shape the fast plan's passes; leave them out or use the fast plan")
    path = find_model(path)
    checkpoint = load_checkpoint(path)
    checkpoint.check_finite()
    config = checkpoint.config.with_gelu(gelu)
    found, reason = find_tokenizer(path, tokenizer, config)
    stop_ids = default_stops(path, found, config)
    opened = device if isinstance(device, Device) else open_device(device, api=api, limits=limits)
    try:
        edge = opened.limits.max_texture_size
        if weights == AUTO:
            shaped = dataclasses.replace(checkpoint, config=config)
            weights = choose_weights(shaped, opened, kernels or kernels_for(opened, config, "f32"))
            del shaped
        kernels = kernels or kernels_for(opened, config, weights)
        bound_plan = plan_for(config, plan, weights=weights, kernels=kernels, max_texture_size=edge)
        arrays = weights_for(checkpoint, plan, weights)
        del checkpoint  # folded weights are a copy, and textures may be a third one in the same memory
        bound = Session(
            bound_plan,
            arrays,
            opened,
            shader_root=shader_root,
            on_upload=None
            if on_upload is None
            else _running_total(bound_plan.texture_bytes(edge, "weight"), on_upload),
        )
    except BaseException:
        if opened is not device:
            opened.close()
        raise
    return Loaded(config, found, reason, stop_ids, bound, weights, kernels, opened is not device)


def _running_total(total: int, report: Callable[[int, int], None]) -> Callable[[int], None]:
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    return add
