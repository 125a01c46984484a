"""Small models whose plans are run end to end: Gab's in every weight format, and families in the formats of files."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from family_layers import layers_of
from tiny_models import packed_as

from glinfer.config import ModelConfig
from glinfer.families import FAMILIES
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.formats.packed import PackedTensor, block_weights
from glinfer.gl.context import Device
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.fold import FoldedWeights
from qa.kernels.cases.embedding import random_blocks

# Nothing is a multiple of 4 or 16, and the context takes more than one slot of scores.
ODD = ModelConfig(37, 15, 3, 2, 70)
EVEN = ModelConfig(37, 16, 2, 2, 64)
"""A context that fills its cache."""
MIXED = ("Q4_0", "Q8_0", "Q5_1", "Q5_0", "Q4_1")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model in a weight format."""

    checkpoint: Checkpoint
    weights: str

    @property
    def config(self) -> ModelConfig:
        """Its shape."""
        return self.checkpoint.config

    def options(self, kernels: KernelOptions, device: Device) -> PlanOptions:
        """What its plans are made by."""
        edge = device.limits.max_texture_size
        return PlanOptions(self.config, self.weights, kernels, edge, self.checkpoint.formats())

    @cached_property
    def folded(self) -> dict[str, Array]:
        """The weights of its fast plans."""
        return dict(FoldedWeights(self.checkpoint, self.weights))


def gab(weights: str, config: ModelConfig = ODD, gelu: str = "tanh") -> Subject:
    """A model of Gab's first generation."""
    tensors = random_checkpoint(config, seed=11, scale=0.3).tensors
    return Subject(Checkpoint(config.with_gelu(gelu), tensors, "random"), weights)


def of_family(family: str, form: str) -> Subject:
    """A model whose matrices are in a format of files, in turn in several that are ``mixed``, or floats for "".

    Heads of rotary families share keys, and those of Mistral and Qwen3 see a window of 20 tokens.
    """
    wide, info = form not in ("", "mixed") and block_weights(form) == 256, FAMILIES[family]
    shape: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 64 if wide else 16} if info.rotary else {}
    config = ModelConfig(
        37,
        256 if wide else 64,
        4,
        2,
        70,
        256 if wide else 96,
        model_type=family,
        sliding_window=20 if family in ("mistral", "qwen3") else 0,
        **shape,
        **{"hidden_act": "silu" if info.gated else "gelu_new", **layers_of(family)},
    )
    floats = random_checkpoint(config, seed=11, scale=0.15)
    turns = itertools.cycle(MIXED if form == "mixed" else [form])
    made = {
        name: packed(tensor, next(turns))
        for name, tensor in floats.tensors.items()
        if form and tensor.ndim == 2 and name != f"{info.names.positions}.weight"
    }
    rest = {name: tensor for name, tensor in floats.tensors.items() if name not in made}
    return Subject(Checkpoint(config, rest, "random", made), "file" if form else "f32")


def packed(matrix: Array, form: str) -> PackedTensor:
    """A matrix in a format; random blocks of 256."""
    # About 0.1 a weight at most: over larger ones two layers make much of errors of rounding.
    least = 2e-5 if form == "Q6_K" else 1e-4
    scales, random = (-2 * least, -least, least, 2 * least), np.random.default_rng(matrix.size)
    return packed_as(matrix, form, lambda *of: random_blocks(random, *of, scales))
