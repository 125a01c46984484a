"""Llama (Touvron et al. 2023): RMSNorm, rotary positions, heads that share keys and values, an MLP with a gate.

Defaults are those of LlamaConfig in Hugging Face's transformers 5.
"""

from __future__ import annotations

from glinfer.families.record import Family, Gguf, HuggingFace

GGUF = Gguf("llama", pairs_together=True)
FAMILY = Family(
    "llama",
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    usual={"hidden_act": "silu"},
    huggingface=HuggingFace(
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 0,
            "head_dim": 0,
            "max_position_embeddings": 2048,
        }
    ),
    gguf=GGUF,
)
