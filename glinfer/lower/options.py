"""The options that all plans of one model share."""

from __future__ import annotations

from dataclasses import dataclass

from glinfer.config import ModelConfig
from glinfer.kernels.options import KernelOptions
from glinfer.lower.weights.low_rank import NO_ADAPTERS, AdapterRanks
from glinfer.lower.weights.recipe import Formats
from glinfer.quant.formats import DEFAULT_CACHE


@dataclass(frozen=True)
class ImageInputs:
    """How prompts take rows of images.

    Attributes:
        deep: further vectors of each token of an image, added to the stream after one of the first layers each.
        sections: the rotary pairs with the angles of a token's time, row and column in an image, which are interleaved;
            empty where tokens of images have the angles of their positions in the prompt.
    """

    deep: int = 0
    sections: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlanOptions:
    """How the plans of a model are built on one renderer.

    Attributes:
        config: the shape of the model.
        weights: the format that weights are kept in: ``file``, or a key of
            :data:`glinfer.quant.formats.WEIGHT_FORMATS`.
        kernels: how passes are shaped.
        max_texture_size: limit of the renderer, in texels a side.
        formats: the format of each tensor in the file; None for float32.
        cache: the format of keys and values, a key of :data:`glinfer.quant.formats.CACHE_FORMATS`.
        adapters: the LoRA adapters that run next to the weights.
        images: how prompts take rows of images; None where they have none.
    """

    config: ModelConfig
    weights: str
    kernels: KernelOptions
    max_texture_size: int
    formats: Formats | None = None
    cache: str = DEFAULT_CACHE
    adapters: AdapterRanks = NO_ADAPTERS
    images: ImageInputs | None = None

    @property
    def sections(self) -> tuple[int, ...]:
        """The sections of rotary pairs, see :class:`ImageInputs`; empty without."""
        return () if self.images is None else self.images.sections

    @property
    def deep(self) -> int:
        """The number of further vectors of images, see :class:`ImageInputs`."""
        return 0 if self.images is None else self.images.deep
