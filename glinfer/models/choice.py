"""Which plan a model runs with, and in which format its weights are: the names that users choose by."""

from __future__ import annotations

from collections.abc import Mapping

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.formats import Checkpoint
from glinfer.formats.families import FAMILIES, tensors_per_layer
from glinfer.gl.context import Device
from glinfer.models import gift_of_gab, gpt2, llama
from glinfer.models.decoder import FROM_FILE, DecoderWeights, Setting, Style, stored_formats
from glinfer.models.decoder_fast import decoder_plan
from glinfer.models.decoder_reference import reference_decoder_plan
from glinfer.models.fast import fast_plan
from glinfer.models.fold import WEIGHT_FORMATS, fold
from glinfer.models.gab import MAX_DRAWS, reference_plan
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.models.tuning import default_for, kernels_for
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import Array

PLANS = ("fast", "reference")
"""Every plan by the name that ``plan=`` and ``--plan`` take."""
DEFAULT_PLAN = "fast"
AUTO = "auto"
"""The weight format that is chosen for the model when it is loaded, see :mod:`glinfer.generation.auto_weights`."""
WEIGHTS = (*WEIGHT_FORMATS, FROM_FILE)
"""What ``weights=`` and ``--weights`` take, beside ``auto``."""
DEFAULT_WEIGHTS = FROM_FILE
"""What they mean when they are left out: as the file has them."""
USUAL_TEXTURE_SIZE = 16384
"""Texels a side that nearly every renderer allows: for plans that are only counted."""
USUAL_DRAW_BUFFERS, USUAL_TEXTURE_UNITS = 8, 16
"""Likewise targets of a draw, and textures that it samples."""
STYLES: Mapping[str, Style] = {**llama.STYLES, **gift_of_gab.STYLES, **gpt2.STYLES}
"""What the models of each family compute, of those that run as decoders."""

Formats = Mapping[str, str]
"""The format of each tensor of a file, see :meth:`glinfer.formats.checkpoint.Checkpoint.formats`."""


def is_decoder(config: ModelConfig, formats: Formats | None = None) -> bool:
    """Whether a model runs by the plans of :mod:`glinfer.models.decoder`: others are folded into Gab's."""
    packed = formats is not None and any(name != "F32" for name in formats.values())
    return FAMILIES[config.model_type].rotary or packed


def usual_kernels(device: Device, config: ModelConfig, weights: str, formats: Formats | None = None) -> Kernels:
    """How a model's passes are shaped on a device: of those that are folded, as was tuned."""
    return default_for(device) if is_decoder(config, formats) else kernels_for(device, config, weights)


def check_choice(plan: str, weights: str) -> None:
    """Refuse a plan or a weight format that there is not, or that do not go together.

    Raises:
        InputError: saying which.
    """
    if plan not in PLANS:
        raise InputError(f"there is no plan {plan!r}; expected one of {', '.join(PLANS)}")
    if weights == AUTO and plan == "fast":
        raise InputError(f"{AUTO} is a choice for running a model; name a format here: {', '.join(WEIGHTS)}")
    if weights not in (*WEIGHTS, AUTO):
        raise InputError(f"there is no weight format {weights!r}; expected one of {', '.join(WEIGHTS)}")
    if plan == "reference" and weights not in ("f32", FROM_FILE):
        raise InputError(
            f"the reference plan keeps its weights in f32, found {weights}; leave weights out or use the fast plan"
        )


def weights_named(weights: str, config: ModelConfig, formats: Formats | None = None) -> str:
    """What a weight format means for a model: ``file`` is ``f32`` for those that are folded."""
    return "f32" if weights == FROM_FILE and not is_decoder(config, formats) else weights


class DecoderPlans(Setting):
    """The plans of one decoder on one kind of renderer."""

    def fast(self, rows: int = 1, *, likelihoods: bool = False) -> Plan:
        """``rows`` tokens a run, see :func:`glinfer.models.decoder_fast.decoder_plan`."""
        return decoder_plan(self, rows=rows, likelihoods=likelihoods)

    def reference(self, rows: int) -> Plan:
        """Sequences of up to ``rows`` tokens, see :mod:`glinfer.models.decoder_reference`."""
        return reference_decoder_plan(self, rows=rows)


def decoder_plans(
    config: ModelConfig, weights: str, formats: Formats | None, kernels: Kernels, max_texture_size: int
) -> DecoderPlans:
    """The plans of a decoder whose file has its tensors in these formats.

    Raises:
        PlanError: there is no such weight format, or the layers are absurdly many.
    """
    if config.num_hidden_layers > MAX_DRAWS // (2 * tensors_per_layer(config)):
        raise PlanError(f"{config.num_hidden_layers} layers need more than {MAX_DRAWS} draws; expected fewer")
    stored = stored_formats(config, weights, formats)
    return DecoderPlans(config, STYLES[config.model_type], stored, kernels, max_texture_size)


def plan_for(
    config: ModelConfig,
    name: str,
    *,
    weights: str = DEFAULT_WEIGHTS,
    formats: Formats | None = None,
    kernels: Kernels | None = None,
    max_texture_size: int = USUAL_TEXTURE_SIZE,
) -> Plan:
    """The plan called ``name`` for a model of this shape; what follows the name hardly concerns the reference plan.

    Args:
        config: the model's shape.
        name: one of :data:`PLANS`.
        weights: one of :data:`WEIGHTS`.
        formats: what the file has; left out, float32.
        kernels: how its passes are shaped, which changes no count of draws of Gab's; left out, the plainest.
        max_texture_size: of the renderer, in texels.

    Raises:
        InputError: there is no such plan or format, or they do not go together.
        PlanError: it does not fit such textures, or would have absurdly many draws.
    """
    weights, kernels = weights_named(weights, config, formats), kernels or Kernels()
    check_choice(name, weights)
    if is_decoder(config, formats):
        plans = decoder_plans(config, weights, formats, kernels, max_texture_size)
        return plans.fast() if name == "fast" else plans.reference(config.max_position_embeddings)
    if name == "reference":
        return reference_plan(config)
    if config.num_hidden_layers > MAX_DRAWS // 6:
        raise PlanError(
            f"{config.num_hidden_layers} blocks need {6 * config.num_hidden_layers + 3} draws; "
            f"expected at most {MAX_DRAWS}"
        )
    return fast_plan(config, weights=weights, kernels=kernels, max_texture_size=max_texture_size)


def weights_for(checkpoint: Checkpoint, name: str, weights: str = DEFAULT_WEIGHTS) -> Mapping[str, Array]:
    """The arrays that :func:`plan_for` with the same name and format uploads, by tensor name.

    Raises:
        PlanError: a weight is missing, or beyond the range of the format.
    """
    config, formats = checkpoint.config, checkpoint.formats()
    weights = weights_named(weights, config, formats)
    if is_decoder(config, formats):
        return DecoderWeights(checkpoint, stored_formats(config, weights, formats))
    return checkpoint.tensors if name == "reference" else fold(config, checkpoint.tensors, weights)


def fast_session(checkpoint: Checkpoint, device: Device, weights: str, kernels: Kernels) -> Session:
    """The fast plan of a checkpoint, bound.

    Raises:
        PlanError: it does not fit the renderer, or a weight is missing or beyond the range of the format.
    """
    plan = plan_for(
        checkpoint.config,
        "fast",
        weights=weights,
        formats=checkpoint.formats(),
        kernels=kernels,
        max_texture_size=device.limits.max_texture_size,
    )
    return Session(plan, weights_for(checkpoint, "fast", weights), device)
