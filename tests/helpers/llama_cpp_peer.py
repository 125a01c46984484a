"""A NumPy model of how llama.cpp rounds, and files that it quantises.

The NumPy model (float64, from the file's own weights unpacked) computes a GPT-2 or a Llama twice over: exactly, and
with what llama.cpp does to the activations on a CPU. Source of the roundings: ``type_traits_cpu`` in ggml-cpu.c (which
format the activations take for each format of a matrix), ``quantize_row_q8_0_ref`` and ``quantize_row_q8_K_ref`` in
ggml-quants.c, ``ggml_vec_gelu_f32`` in vec.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from goldens.llama import THREADS, llama_cpp

from glinfer.families import FAMILIES
from glinfer.formats import Checkpoint
from glinfer.formats.tensors import head_weight

Array = np.ndarray[Any, Any]


def quantise(source: Path, target: Path, kind: str, *, pure: bool) -> None:
    """Write a GGUF file's matrices in another format, by llama.cpp; ``pure`` for one format throughout."""
    llama = llama_cpp()
    options = llama.llama_model_quantize_default_params()
    options.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}")
    options.nthread, options.pure, options.allow_requantize = THREADS, pure, False
    assert llama.llama_model_quantize(str(source).encode(), str(target).encode(), options) == 0


# How llama.cpp rounds activations


def to_half(x: Array) -> Array:
    """Half floats, the activations of an F16 matrix."""
    return x.astype(np.float16).astype(np.float64)


def to_q8_0(x: Array) -> Array:
    """8-bit integers in blocks of 32 with a half-float scale."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    integers = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return np.asarray((integers * to_half(scale)).reshape(x.shape))


def to_q8_k(x: Array) -> Array:
    """8-bit integers in blocks of 256 with a float scale, so that the number furthest from 0 becomes -127."""
    blocks = x.reshape(*x.shape[:-1], -1, 256)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    integers = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return np.asarray((integers * scale).reshape(x.shape))


ROUNDED: dict[str, Callable[[Array], Array]] = {
    "F32": lambda x: x,
    "F16": to_half,
    "Q8_0": to_q8_0,
    "Q4_0": to_q8_0,
    "Q4_K": to_q8_k,
    "Q6_K": to_q8_k,
}
"""What a product with a matrix of each format does to the activations."""


@dataclass
class Arithmetic:
    """A model computed in float64 from a checkpoint's weights; ``rounding`` as llama.cpp does on a CPU."""

    checkpoint: Checkpoint
    rounding: bool = False

    def __post_init__(self) -> None:
        """Unpack the weights once."""
        self.config, self.formats = self.checkpoint.config, self.checkpoint.formats()
        self.weights = {name: self.checkpoint.floats(name).astype(np.float64) for name in self.formats}

    def linear(self, x: Array, name: str) -> Array:
        """x · weightᵀ + bias."""
        whole = name if name.endswith(".weight") else f"{name}.weight"
        x = ROUNDED[self.formats[whole]](x) if self.rounding else x
        return np.asarray(x @ self.weights[whole].T + self.weights.get(f"{name}.bias", 0.0))

    def gelu(self, x: Array) -> Array:
        """The tanh form, which llama.cpp looks up in a table from half floats to half floats."""

        def exact(x: Array) -> Array:
            return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))

        if not self.rounding:
            return exact(x)
        return np.where(x <= -10, 0.0, np.where(x >= 10, x, to_half(exact(to_half(x)))))

    def norm(self, x: Array, name: str) -> Array:
        """LayerNorm where the norm has a bias, otherwise RMSNorm."""
        bias = self.weights.get(f"{name}.bias")
        x = x if bias is None else x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.layer_norm_eps)
        return np.asarray(scaled * self.weights[f"{name}.weight"] + (0.0 if bias is None else bias))

    def turn(self, x: Array) -> Array:
        """Rotary positions: element i of a head with the one half a head further on; x [heads, tokens, D]."""
        half = self.config.head_dim // 2
        turns = np.arange(x.shape[1])[:, None] * self.config.rope_theta ** (-np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(turns), np.sin(turns)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def attention(self, q: Array, k: Array, v: Array) -> Array:
        """Causal attention over heads side by side, [tokens, heads · D] each."""
        tokens, dim, rotary = len(q), self.config.head_dim, FAMILIES[self.config.model_type].rotary
        q, k, v = (x.reshape(tokens, -1, dim).swapaxes(0, 1) for x in (q, k, v))
        if rotary:
            q, k = self.turn(q), self.turn(k)
        shared = len(q) // len(k)
        k, v = np.repeat(k, shared, axis=0), np.repeat(v, shared, axis=0)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(dim) + np.triu(np.full((tokens, tokens), -np.inf), 1)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray((probs / probs.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(tokens, -1))

    def logits(self, ids: list[int]) -> Array:
        """The logits [tokens, vocab] after each token."""
        rotary = FAMILIES[self.config.model_type].rotary
        layer = self._llama_layer if rotary else self._gpt2_layer
        x = self.weights["model.embed_tokens.weight" if rotary else "transformer.wte.weight"][ids]
        if not rotary:
            x = x + self.weights["transformer.wpe.weight"][: len(ids)]
        for index in range(self.config.num_hidden_layers):
            x = layer(x, index)
        return self.linear(self.norm(x, "model.norm" if rotary else "transformer.ln_f"), head_weight(self.config))

    def _gpt2_layer(self, x: Array, index: int) -> Array:
        prefix = f"transformer.h.{index}"
        normed = self.norm(x, f"{prefix}.ln_1")
        mixed = self.attention(*(self.linear(normed, f"{prefix}.attn.{letter}_proj") for letter in "qkv"))
        x = x + self.linear(mixed, f"{prefix}.attn.out_proj")
        inner = self.gelu(self.linear(self.norm(x, f"{prefix}.ln_2"), f"{prefix}.mlp.fc_in"))
        return x + self.linear(inner, f"{prefix}.mlp.fc_out")

    def _llama_layer(self, x: Array, index: int) -> Array:
        prefix = f"model.layers.{index}"
        normed = self.norm(x, f"{prefix}.input_layernorm")
        mixed = self.attention(*(self.linear(normed, f"{prefix}.self_attn.{letter}_proj") for letter in "qkv"))
        x = x + self.linear(mixed, f"{prefix}.self_attn.o_proj")
        normed = self.norm(x, f"{prefix}.post_attention_layernorm")
        gate = self.linear(normed, f"{prefix}.mlp.gate_proj")
        inner = gate / (1 + np.exp(-gate)) * self.linear(normed, f"{prefix}.mlp.up_proj")
        return x + self.linear(inner, f"{prefix}.mlp.down_proj")
