"""Qwen 2 (Qwen Team 2024): a Llama whose queries, keys and values have biases; a window in its last layers.

Defaults are those of Qwen2Config in Hugging Face's transformers 5, whose models have the biases whatever a file says.
"""

from __future__ import annotations

from glinfer.families.record import Family, Gguf, HuggingFace

FAMILY = Family(
    "qwen2",
    attention_biases=("q", "k", "v"),
    usual={"hidden_act": "silu", "attention_bias": True},
    huggingface=HuggingFace(
        {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 0,
            "max_position_embeddings": 32768,
        },
        always_biased=True,
        window="later",
    ),
    gguf=Gguf("qwen2"),
)
