"""Small models of every family, in floats and in every format that a file may have its matrices in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.families import DECODERS, FAMILIES
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.formats.adapters.adapter import Adapter, LowRank
from glinfer.formats.packed import PACKED_FORMATS, PackedTensor, block_weights
from glinfer.formats.tensors import weight_shapes
from glinfer.quant.formats import BLOCK_FORMATS, F16, F32, GROUP_FORMS, block_format
from glinfer.quant.ggml import pack
from qa.kernels.cases.embedding import random_blocks as kernel_blocks
from tests.helpers.family_layers import layers_of

Array = np.ndarray[Any, Any]
ROTARY = sorted(name for name, family in DECODERS.items() if family.rotary)
NORMS_OF_LAYERS = {
    **dict.fromkeys(DECODERS, (0, 2, 0)),
    **dict.fromkeys(
        ("qwen3", "qwen3_vl_text", "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), (1, 2, 0)
    ),
    **dict.fromkeys(
        ("apertus", "dots1", "exaone_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "lfm2", "lfm2_moe"), (1, 2, 0)
    ),
    **dict.fromkeys(
        ("minimax_m2", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "minicpm3"), (1, 2, 0)
    ),
    **dict.fromkeys(("gemma3_text", "gemma4_text", "gemma4_moe", "lfm3"), (1, 2, 2)),
    **dict.fromkeys(("gemma2", "glm4", "hyperclovax"), (0, 2, 2)),
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), (1, 0, 2)),
}
"""Norms of a layer of each family: of heads together (a pass), before branches, and behind them (a pass each)."""
POSITIONS = "transformer.wpe.weight"
assert set(PACKED_FORMATS) == {F16, "BF16", "Q8_ROW", "Q16_ROW", *GROUP_FORMS} == {F16, *BLOCK_FORMATS}


def tiny(family: str, head_dim: int = 8, **changes: Any) -> ModelConfig:
    """Two layers of two heads, for 48 tokens."""
    plain = not FAMILIES[family].rotary
    given: dict[str, Any] = {
        "vocab_size": 31,
        "hidden_size": 2 * head_dim if plain else 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 48,
        "intermediate_size": 24,
        "hidden_act": "silu" if FAMILIES[family].gated else "gelu",
        "model_type": family,
        "head_dim": 0 if plain else head_dim,
        **layers_of(family),
        **changes,
    }
    return ModelConfig(**given)


def off_centre(config: ModelConfig, seed: int = 5) -> dict[str, Array]:
    """Random weights with everything that folding takes out or in: gains and biases far from trivial, and means.

    Only LayerNorm takes a mean away; behind RMSNorm it would drown the rest.
    """
    random = np.random.default_rng(seed)
    tensors = random_checkpoint(config, seed=seed, scale=0.2).tensors
    mean = 0.0 if FAMILIES[config.model_type].rotary else 0.5
    return {
        name: (
            tensor
            + (random.standard_normal(tensor.shape) * 0.5 if tensor.ndim == 1 else random.standard_normal() * mean)
        ).astype(np.float32)
        for name, tensor in tensors.items()
    }


def in_floats(config: ModelConfig, seed: int = 5) -> Checkpoint:
    """A model of such weights."""
    return Checkpoint(config, off_centre(config, seed), "test")


def random_blocks(name: str, rows: int, inputs: int, seed: int) -> Array:
    """Rows of random bytes in a format, but for scales that give weights of about one."""
    random, form = np.random.default_rng(seed), block_format(name)
    blocks = random.integers(0, 256, (rows, form.row_bytes(inputs)), dtype=np.uint8)
    start, count = form.scales
    by_block = blocks.reshape(rows, -1, form.nbytes)
    if not count:  # scales that are no half floats in one place
        scales = (-0.01, -0.005, 0.005, 0.01)
        return kernel_blocks(random, name, rows, inputs, scales if name == "IQ1_M" else None)
    factor = {"Q3_K": 1 / 64, "Q6_K": 1 / 512, "Q4_K": 1 / 64, "Q5_K": 1 / 64, "IQ4_NL": 1 / 16, "IQ4_XS": 1 / 256}
    factor |= {"IQ3_S": 1 / 16, "IQ3_XXS": 1 / 16, "IQ2_S": 1 / 8, "IQ2_XS": 1 / 8, "IQ2_XXS": 1 / 8}
    scales = (random.uniform(-0.1, 0.1, (*by_block.shape[:2], count)) * factor.get(name, 1.0)).astype("<f2")
    by_block[:, :, start : start + 2 * count] = scales.view(np.uint8).reshape(*by_block.shape[:2], -1)
    return blocks


def packed_as(tensor: Array, form: str, blocks: Callable[[str, int, int], Array]) -> PackedTensor:
    """A matrix in a format; in blocks of 256 those that ``blocks`` makes in the format, of the same shape."""
    if form == F16:
        return PackedTensor(form, np.ascontiguousarray(tensor.astype("<f2")).view(np.uint8))
    return PackedTensor(form, blocks(form, *tensor.shape) if block_weights(form) == 256 else pack(tensor, form))


def in_formats(config: ModelConfig, formats: str | Mapping[str, str], seed: int = 5) -> Checkpoint:
    """A model whose matrices are in a format, or each as its name says.

    Those whose rows hold no whole block are floats, and positions too unless they are named.
    """
    tensors, packed = off_centre(config, seed), {}
    for place, (name, shape) in enumerate(weight_shapes(config).items()):
        form = formats.get(name) if isinstance(formats, Mapping) else formats if name != POSITIONS else None
        if form and form != F32 and len(shape) == 2 and shape[1] % block_weights(form) == 0:
            packed[name] = packed_as(tensors.pop(name), form, partial(random_blocks, seed=seed + place))
    return Checkpoint(config, tensors, "test", packed)


def unpacked(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with all its tensors in floats, exactly."""
    floats = {name: tensor.floats() for name, tensor in checkpoint.packed.items()}
    return Checkpoint(checkpoint.config, {**checkpoint.tensors, **floats}, "test")


def adapters_of(config: ModelConfig) -> dict[str, Adapter]:
    """Two adapters, of ranks 2 and 5, that change every matrix of a model."""
    random, found = np.random.default_rng(6), {}
    matrices = {name: shape for name, shape in weight_shapes(config).items() if len(shape) == 2}
    for name, rank in (("a", 2), ("b", 5)):
        down = {each: random.standard_normal((rank, shape[1]), np.float32) for each, shape in matrices.items()}
        up = {each: random.standard_normal((shape[0], rank), np.float32) for each, shape in matrices.items()}
        found[name] = Adapter({each: LowRank(down[each], up[each], 0.5) for each in matrices}, "test")
    return found
