"""The choices that all plans of one model share, and the limits of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glinfer.config import ModelConfig
from glinfer.models.transforms.recipe import DEFAULT_CACHE, Formats
from glinfer.ops.kernels import Kernels


@dataclass(frozen=True)
class PlanOptions:
    """How the plans of a model are built.

    Attributes:
        config: the shape of the model.
        weights: the format that weights are kept in, a key of
            :data:`glinfer.models.transforms.recipe.WEIGHT_FORMATS`.
        kernels: how passes are shaped.
        formats: the format of each tensor in the file; None for float32.
        cache: the format of keys and values.
    """

    config: ModelConfig
    weights: str
    kernels: Kernels
    formats: Formats | None = None
    cache: str = DEFAULT_CACHE

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of :func:`glinfer.models.choice.plan_for` and of the builders of fast plans."""
        return {"weights": self.weights, "cache": self.cache, "formats": self.formats, "kernels": self.kernels}


@dataclass(frozen=True)
class SchedulerOptions:
    """How many sequences a scheduler runs at once, and how long they may be; None leaves a number to the scheduler.

    Attributes:
        slots: sequences at once at most.
        memory: bytes of texture memory for their caches.
        longest: tokens of the longest sequence, prompt and continuation together.
        piece: tokens of prompts in one step.
    """

    slots: int | None = None
    memory: int | None = None
    longest: int | None = None
    piece: int | None = None
