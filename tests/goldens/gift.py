"""Second-generation Gab in float64, as its description has it; no other engine here runs it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glinfer.config import ModelConfig

from .figures import logsumexp

Array = np.ndarray[Any, Any]


def log_softmax(logits: Array) -> Array:
    return np.asarray(logits - logsumexp(logits)[..., None])


def gift_logits(config: ModelConfig, tensors: dict[str, Array], ids: list[int]) -> Array:
    """The logits [tokens, vocab] after each token, computed one pair of rotated elements after the other."""
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    dim, places = config.head_dim, np.arange(len(ids))

    def norm(x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + config.layer_norm_eps) * weights[name])

    def rotated(x: Array) -> Array:
        """Neighbours as complex numbers, rotated by position × theta^(−2i / dim)."""
        speeds = config.rope_theta ** (-2.0 * np.arange(dim // 2) / dim)
        points = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * places[:, None] * speeds)
        return np.stack([points.real, points.imag], axis=-1).reshape(x.shape)

    x = weights["model.embed_tokens.weight"][ids]
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        normed = norm(x, f"{layer}.input_layernorm.weight")
        q, k, v = (normed @ weights[f"{layer}.self_attn.{letter}_proj.weight"].T for letter in "qkv")
        heads = []
        for head in range(config.num_attention_heads):
            part = slice(head * dim, (head + 1) * dim)
            scores = rotated(q[:, part]) @ rotated(k[:, part]).T / math.sqrt(dim)
            scores[places[None, :] > places[:, None]] = -np.inf
            heads.append(np.exp(log_softmax(scores)) @ v[:, part])
        x = x + np.concatenate(heads, axis=1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        normed = norm(x, f"{layer}.post_attention_layernorm.weight")
        inner = normed @ weights[f"{layer}.mlp.up_proj.weight"].T + weights[f"{layer}.mlp.up_proj.bias"]
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = x + inner @ weights[f"{layer}.mlp.down_proj.weight"].T
    return np.asarray(norm(x, "model.norm.weight") @ weights["model.embed_tokens.weight"].T)
