"""Which plan a model runs with, and in which format its weights are: the names that users choose by."""

from __future__ import annotations

from collections.abc import Mapping

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.models.fast import fast_plan
from glinfer.models.fold import WEIGHT_FORMATS, fold
from glinfer.models.gab import MAX_DRAWS, reference_plan
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import Array

PLANS = ("fast", "reference")
"""Every plan by the name that ``plan=`` and ``--plan`` take."""
DEFAULT_PLAN = "fast"
DEFAULT_WEIGHTS = "f32"
"""What ``weights=`` and ``--weights`` mean when they are left out: a key of WEIGHT_FORMATS."""
AUTO = "auto"
"""The weight format that is chosen for the model when it is loaded, see :mod:`glinfer.generation.auto_weights`."""
USUAL_TEXTURE_SIZE = 16384
"""Texels a side that nearly every renderer allows: for plans that are only counted."""


def check_choice(plan: str, weights: str) -> None:
    """Refuse a plan or a weight format that there is not, or that do not go together.

    Raises:
        InputError: saying which.
    """
    if plan not in PLANS:
        raise InputError(f"there is no plan {plan!r}; expected one of {', '.join(PLANS)}")
    if weights == AUTO and plan == "fast":
        raise InputError(f"{AUTO} is a choice for running a model; name a format here: {', '.join(WEIGHT_FORMATS)}")
    if weights not in (*WEIGHT_FORMATS, AUTO):
        raise InputError(f"there is no weight format {weights!r}; expected one of {', '.join(WEIGHT_FORMATS)}")
    if plan == "reference" and weights != "f32":
        raise InputError(
            f"the reference plan keeps its weights in f32, found {weights}; leave weights out or use the fast plan"
        )


def plan_for(
    config: ModelConfig,
    name: str,
    *,
    weights: str = DEFAULT_WEIGHTS,
    kernels: Kernels | None = None,
    max_texture_size: int = USUAL_TEXTURE_SIZE,
) -> Plan:
    """The plan called ``name`` for a model of this shape; what follows the name concerns the fast plan alone.

    Args:
        config: the model's shape.
        name: one of :data:`PLANS`.
        weights: a key of WEIGHT_FORMATS.
        kernels: how its passes are shaped, which changes no count of draws; left out, the plainest.
        max_texture_size: of the renderer, in texels.

    Raises:
        InputError: there is no such plan or format, or they do not go together.
        PlanError: it does not fit such textures, or would have absurdly many draws.
    """
    check_choice(name, weights)
    if name == "reference":
        return reference_plan(config)
    if config.num_hidden_layers > MAX_DRAWS // 6:
        raise PlanError(
            f"{config.num_hidden_layers} blocks need {6 * config.num_hidden_layers + 3} draws; "
            f"expected at most {MAX_DRAWS}"
        )
    return fast_plan(config, weights=weights, kernels=kernels or Kernels(), max_texture_size=max_texture_size)


def weights_for(checkpoint: Checkpoint, name: str, weights: str = DEFAULT_WEIGHTS) -> Mapping[str, Array]:
    """The arrays that :func:`plan_for` with the same name and format uploads, by tensor name.

    Raises:
        PlanError: a weight is missing, or beyond the range of the format.
    """
    return checkpoint.tensors if name == "reference" else fold(checkpoint.config, checkpoint.tensors, weights)


def fast_session(checkpoint: Checkpoint, device: Device, weights: str, kernels: Kernels) -> Session:
    """The fast plan of a checkpoint, bound.

    Raises:
        PlanError: it does not fit the renderer, or a weight is missing or beyond the range of the format.
    """
    edge = device.limits.max_texture_size
    plan = plan_for(checkpoint.config, "fast", weights=weights, kernels=kernels, max_texture_size=edge)
    return Session(plan, weights_for(checkpoint, "fast", weights), device)
