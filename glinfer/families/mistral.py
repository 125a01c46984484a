"""Mistral (Jiang et al. 2023): a Llama without biases whose tokens may see a sliding window, in all layers.

Defaults are those of MistralConfig in Hugging Face's transformers 5. Its GGUF files are Llama's, and read as such.
"""

from __future__ import annotations

from glinfer.families.llama import GGUF
from glinfer.families.record import Family, HuggingFace

FAMILY = Family(
    "mistral",
    usual={"hidden_act": "silu"},
    huggingface=HuggingFace(
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 0,
            "max_position_embeddings": 4096 * 32,
        },
        window="all",
    ),
    gguf=GGUF,
)
