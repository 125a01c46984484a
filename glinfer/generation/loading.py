"""From a checkpoint's file to its plan bound to a device: what a model is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.formats import Checkpoint, find_model, load_checkpoint
from glinfer.formats.checkpoint import with_context
from glinfer.formats.families import FAMILIES
from glinfer.generation.auto_weights import choose_weights
from glinfer.generation.decoder import WholeSequences
from glinfer.generation.engine import DecoderEngine, Engine, FoldedEngine, WholeEngine
from glinfer.generation.stops import default_stops
from glinfer.generation.tokenizer import Tokenizer, find_tokenizer
from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.choice import (
    AUTO,
    DEFAULT_WEIGHTS,
    WEIGHTS,
    DecoderPlans,
    check_choice,
    decoder_plans,
    is_decoder,
    plan_for,
    usual_kernels,
    weights_for,
    weights_named,
)
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.models.tuning import kernels_for
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import Array

USUAL_CONTEXT = 4096
"""Tokens of the longest sequence of a model with rotary positions, which may have many more, where nobody says."""


@dataclass(frozen=True)
class Loaded:
    """The parts of a model.

    Attributes:
        engine: the plan, bound to a device, and what runs it.
        tokenizer: the tokenizer that fits it, or None.
        no_tokenizer_reason: why there is none.
        stop_ids: the ids that end a text where nobody says which.
        owns_device: whether the device was opened for this model.
    """

    engine: Engine
    tokenizer: Tokenizer | None
    no_tokenizer_reason: str
    stop_ids: tuple[int, ...]
    owns_device: bool


def read_model(
    path: str | PathLike[str], *, gelu: str | None = None, context: int | None = None
) -> tuple[str | PathLike[str], Checkpoint]:
    """A checkpoint as it is going to be run, with the path of its file.

    Args:
        path: a file, a directory, or the name of a bundled model.
        gelu: ``tanh`` or ``erf`` to override the checkpoint's own form.
        context: tokens of the longest sequence; left out, all positions of the model, or :data:`USUAL_CONTEXT`.

    Raises:
        GlinferError: a bad file, or one without such a form or so many positions.
    """
    path = find_model(path)
    checkpoint = load_checkpoint(path)
    config = checkpoint.config.with_gelu(gelu)
    positions = usual_context(config, context).max_position_embeddings
    return path, with_context(dataclasses.replace(checkpoint, config=config), positions)


def usual_context(config: ModelConfig, context: int | None) -> ModelConfig:
    """The shape for sequences of so many tokens; left out, of all positions of the model, or :data:`USUAL_CONTEXT`.

    Raises:
        ConfigError: the model has no such positions.
    """
    if context is None and FAMILIES[config.model_type].rotary:
        context = min(config.max_position_embeddings, USUAL_CONTEXT)
    return config.with_context(context)


def load_parts(
    path: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str] | Tokenizer | None,
    plan: str,
    weights: str,
    kernels: Kernels | None,
    gelu: str | None,
    context: int | None,
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
    path, checkpoint = read_model(path, gelu=gelu, context=context)
    checkpoint.check_finite()
    config = checkpoint.config
    found, reason = find_tokenizer(path, tokenizer, config)
    stop_ids = default_stops(path, found, config)
    opened = device if isinstance(device, Device) else open_device(device, api=api, limits=limits)
    try:
        if weights == AUTO:
            if is_decoder(config, checkpoint.formats()):
                raise InputError(
                    f"weights {AUTO!r} is for models that are folded (gab, and gpt2 in floats); "
                    f"name one of {', '.join(WEIGHTS)} for this {config.model_type}"
                )
            weights = choose_weights(checkpoint, opened, kernels or kernels_for(opened, config, "f32"))
        prepared = prepare(checkpoint, opened, plan, weights, kernels)
        del checkpoint  # folded weights are a copy, and textures may be a third one in the same memory
        engine = prepared.bind(opened, shader_root=shader_root, on_upload=on_upload)
    except BaseException:
        if opened is not device:
            opened.close()
        raise
    return Loaded(engine, found, reason, stop_ids, opened is not device)


@dataclass(frozen=True)
class Prepared:
    """A plan and the arrays that it uploads, ready to be bound; the checkpoint itself is needed no more.

    Attributes:
        config: the model's shape.
        plan: what is going to be bound.
        arrays: its weights, by tensor name.
        weights: their format.
        kernels: how passes are shaped.
        decoder: the other plans of a decoder, None for models that are folded.
    """

    config: ModelConfig
    plan: Plan
    arrays: Mapping[str, Array]
    weights: str
    kernels: Kernels
    decoder: DecoderPlans | None

    def bind(
        self,
        device: Device,
        *,
        shader_root: Path | None = None,
        on_upload: Callable[[int, int], None] | None = None,
    ) -> Engine:
        """Upload the weights and compile; ``on_upload`` is told (bytes uploaded so far, bytes in all).

        Raises:
            PlanError: the plan does not fit the device.
        """
        total = self.plan.texture_bytes(device.limits.max_texture_size, "weight")
        report = None if on_upload is None else _running_total(total, on_upload)
        bound = Session(self.plan, self.arrays, device, shader_root=shader_root, on_upload=report)
        if self.plan.name == "reference":
            return WholeEngine(self.config, bound, self.weights, self.kernels, self.decoder)
        if self.decoder is not None:
            return DecoderEngine(self.decoder, bound, self.weights)
        return FoldedEngine(self.config, bound, self.weights, self.kernels)


def prepare(
    checkpoint: Checkpoint, device: Device, plan: str, weights: str = DEFAULT_WEIGHTS, kernels: Kernels | None = None
) -> Prepared:
    """Choose and build the plan of a checkpoint for a device, and make its weights ready.

    Args:
        checkpoint: the model.
        device: where it is to run.
        plan: one of :data:`glinfer.models.choice.PLANS`.
        weights: one of :data:`glinfer.models.choice.WEIGHTS`.
        kernels: how passes are shaped; left out, a good choice for the device.

    Raises:
        PlanError: the plan does not fit the device, or a weight the format.
    """
    config, formats, edge = checkpoint.config, checkpoint.formats(), device.limits.max_texture_size
    weights = weights_named(weights, config, formats)
    kernels = kernels or usual_kernels(device, config, weights, formats)
    plans = None
    if is_decoder(config, formats):
        plans = decoder_plans(config, weights, formats, kernels, edge)
        shortest = WholeSequences.shortest(config.max_position_embeddings)
        made = plans.fast() if plan == "fast" else plans.reference(shortest)
    else:
        made = plan_for(config, plan, weights=weights, kernels=kernels, max_texture_size=edge)
    return Prepared(config, made, weights_for(checkpoint, plan, weights), weights, kernels, plans)


def bind(
    checkpoint: Checkpoint, device: Device, plan: str, weights: str = DEFAULT_WEIGHTS, kernels: Kernels | None = None
) -> Engine:
    """Bind a plan of a checkpoint to a device; see :func:`prepare`."""
    return prepare(checkpoint, device, plan, weights, kernels).bind(device)


def _running_total(total: int, report: Callable[[int, int], None]) -> Callable[[int], None]:
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    return add
