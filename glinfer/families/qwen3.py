"""Qwen 3 (Qwen Team 2025): a Llama whose heads of queries and keys are normalised; a window in its last layers.

Defaults are those of Qwen3Config in Hugging Face's transformers 5.
"""

from __future__ import annotations

from glinfer.families.record import Family, Gguf, HuggingFace

FAMILY = Family(
    "qwen3",
    head_norms=True,
    attention_biases=("q", "k", "v", "o"),
    usual={"hidden_act": "silu"},
    huggingface=HuggingFace(
        {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
        },
        window="later",
    ),
    gguf=Gguf("qwen3", attention_bias=False),
)
