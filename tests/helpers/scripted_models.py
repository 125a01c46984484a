"""Small models made for tests: random ones, and ones whose every word is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from glinfer.config import ModelConfig
from glinfer.formats import BpeModel, Checkpoint, random_checkpoint, save_checkpoint, weight_shapes

SMALL = "vocab=300,dim=32,heads=4,blocks=2,context=64"
SMALL_DRAWS = 2 * (8 + 4 * 4) + 4
"""Of the reference plan."""
FAST_SMALL_DRAWS = 2 * 6 + 3
FAST_TAIL_DRAWS = 6 + 2
"""Of the fast plan's draws for a token, those that a chunk leaves for its last one: the last layer's and the head's."""

BYTES = BpeModel((), tuple(bytes([value]) for value in range(256)))
"""A tokenizer whose tokens are the single bytes."""


def random_file(path: Path, options: str, seed: int = 1) -> Path:
    """Write a seeded random model of the shape ``options``; returns its path."""
    save_checkpoint(random_checkpoint(ModelConfig.from_options(options), seed=seed), path)
    return path


def scripted(
    script: Sequence[int], *, vocab: int, context: int = 64, gelu: str = "tanh", dim: int = 0, blocks: int = 1
) -> Checkpoint:
    """A model that gives ``script[p]`` after a sequence of p + 1 tokens, whatever the tokens are.

    A position's embedding is the unit vector, or its negative, of the token that comes then. Blocks add nothing, and
    the head gives that token all but e^-30 of the probability. Positions beyond the script give token 46, a full stop.
    Of the rest, tokens that are nowhere in the script have most: all embeddings share a part that they have not.
    """
    dim = dim or context
    config = ModelConfig.from_options(f"vocab={vocab},dim={dim},heads=4,blocks={blocks},context={context}")
    tensors = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    for name in tensors:
        if ".ln_" in name and name.endswith(".weight"):
            tensors[name] += 1
    head, positions, shared = tensors["lm_head.weight"], tensors["transformer.wpe.weight"], dim - 1
    tokens = [*script[:context], *[ord(".")] * (context - len(script))]
    for place, token in enumerate(dict.fromkeys(tokens)):
        axis, sign = place % shared, 1 if place < shared else -1
        assert place < 2 * shared, f"more than {2 * shared} tokens"
        head[token, axis], head[token, shared] = sign * 40 / dim**0.5, 4 / dim**0.5
        positions[[each == token for each in tokens], axis] = sign * 8
    positions[:, shared] = -4
    return Checkpoint(config.with_gelu(gelu), tensors, "scripted")


def saying(ids: Sequence[int], *, after: int, vocab: int = 256, context: int = 64) -> Checkpoint:
    """A scripted model that continues a prompt of ``after`` tokens with exactly ``ids``, then full stops."""
    return scripted([ord("?")] * (after - 1) + list(ids), vocab=vocab, context=context)
