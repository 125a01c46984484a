"""What the models of each family compute, and what their tensors are called: one record a family.

Llama and what is the same with other settings: RMSNorm, rotary positions that turn elements half a head apart, heads
that share keys and values, an MLP with a gate (Touvron et al. 2023; Jiang et al. 2023; Qwen Team 2024, 2025; Gemma Team
2024). Sliding windows, biases and tied embeddings are settings of the configuration; what is normalised and gated is in
:data:`glinfer.formats.families.FAMILIES`. Names and mathematics are those of the models of these names in Hugging
Face's transformers.

Gab and GPT-2 (Radford et al. 2019): LayerNorm, learned positions, an MLP without a gate. Gab's second generation has
RMSNorm, rotary positions that turn neighbours, and an MLP without a gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glinfer.formats.families import GAB, GEMMA, GIFT_OF_GAB, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3


@dataclass(frozen=True)
class Style:
    """What the models of a family compute, and what their tensors are called.

    Attributes:
        norm: ``rms`` or ``layer``, which has a bias too.
        norm_offset: what is added to the weights of norms.
        interleaved: whether rotary positions turn neighbours, and not elements half a head apart.
        scaled_embeddings: whether embeddings are multiplied with the square root of the width.
        embeddings, positions: names of tables; no positions where they are rotary.
        layer: beginning of the names of a layer, which then go on with those that follow, without ``.weight``.
    """

    norm: str = "rms"
    norm_offset: float = 0.0
    interleaved: bool = False
    scaled_embeddings: bool = False
    embeddings: str = "model.embed_tokens.weight"
    positions: str = ""
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    final_norm: str = "model.norm"
    projection: str = "self_attn.{}_proj"
    output: str = "self_attn.o_proj"
    head_norm: str = "self_attn.{}_norm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"


_GPT2 = Style(
    norm="layer",
    embeddings="transformer.wte.weight",
    positions="transformer.wpe.weight",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    final_norm="transformer.ln_f",
    projection="attn.{}_proj",
    output="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
)
STYLES: Mapping[str, Style] = {
    GAB: _GPT2,
    GPT2: _GPT2,
    GIFT_OF_GAB: Style(interleaved=True),
    LLAMA: Style(),
    MISTRAL: Style(),
    QWEN2: Style(),
    QWEN3: Style(),
    GEMMA: Style(norm_offset=1.0, scaled_embeddings=True),
}
"""What the models of each family compute."""
