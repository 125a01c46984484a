"""Random models of every family, with matrices in the formats of files, opened without a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from family_layers import layers_of
from tiny_models import packed_as

from glinfer.config import ModelConfig
from glinfer.engine.loading import prepare
from glinfer.engine.model import Model
from glinfer.families import FAMILIES
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.gl.context import open_device
from glinfer.kernels.options import KernelOptions
from qa.kernels.cases.embedding import random_blocks

Array = np.ndarray[Any, Any]
OF_RANGE = 1e-5
"""Of the logits' range, between two ways to compute the same."""
VOCAB = 301
IDS: list[int] = np.random.default_rng(5).integers(0, VOCAB, 200).tolist()
FORMS = ["Q4_0", "Q8_0", "", "F16", "Q5_1", "BF16", "Q8_ROW"]
"""Formats to deal to the matrices of one model, floats among them."""


def opened(
    checkpoint: Checkpoint,
    plan: str = "fast",
    weights: str = "file",
    cache: str = "f32",
    kernels: KernelOptions | None = None,
    **options: Any,
) -> Model:
    """A model of a checkpoint that is in no file; ``options`` are those of open_device, or ``device``, which stays."""
    shared = options.pop("device", None)
    device = shared or open_device(**options)
    try:
        engine = prepare(checkpoint, device, plan, weights, kernels, cache).bind(device)
        return Model(engine, owns_device=shared is None)
    except BaseException:
        if shared is None:
            device.close()
        raise


def fresh(model: Model, ids: Sequence[int]) -> Array:
    """The logits after some tokens, from empty caches."""
    with model.session() as session:
        session.prefill(ids)
        return session.logits()


def worst(found: Array, expected: Array) -> float:
    """The largest difference, as a part of the range of what was expected."""
    return float(np.abs(found - expected).max() / np.ptp(expected))


def of_family(family: str, width: int = 64, **changes: Any) -> Checkpoint:
    """A random model of 2 layers and 4 heads, of which rotary families have 2 of keys and values."""
    gpt2 = family == "gpt2"
    config = ModelConfig(
        VOCAB,
        width,
        4,
        2,
        48,
        2 * width,
        model_type=family,
        tie_word_embeddings=gpt2,
        num_key_value_heads=2 if FAMILIES[family].rotary else 4,
        **{"hidden_act": "silu" if FAMILIES[family].gated else "gelu_new", **layers_of(family)},
    )
    return random_checkpoint(dataclasses.replace(config, **changes), scale=0.6 / np.sqrt(width) + 0.05)


def packed(floats: Checkpoint, choose: Callable[[str], str]) -> Checkpoint:
    """The same model with its matrices, but for positions, in the formats that are chosen by name; "" for floats."""
    made = {}
    for name, tensor in floats.tensors.items():
        form = choose(name) if tensor.ndim == 2 and "wpe" not in name else ""
        if form:
            made[name] = packed_as(tensor, form, partial(random_blocks, np.random.default_rng(len(made))))
    rest = {name: tensor for name, tensor in floats.tensors.items() if name not in made}
    return Checkpoint(floats.config, rest, "packed", made)


def mixed(family: str) -> Checkpoint:
    """A model whose matrices have :data:`FORMS` in turn: query, key and value, gate and up, the layers differ."""
    floats = of_family(family)
    names = [*floats.tensors]
    return packed(floats, lambda name: FORMS[names.index(name) % len(FORMS)])
