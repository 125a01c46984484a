"""Gemma (Gemma Team 2024): a Llama with scaled embeddings, norms that multiply by 1 + weight, and tanh-form GELU.

Defaults are those of GemmaConfig in Hugging Face's transformers 5.
"""

from __future__ import annotations

from glinfer.families.record import ACTIVATIONS, TANH, Family, Gguf, HuggingFace

FAMILY = Family(
    "gemma",
    norm_offset=1.0,
    scaled_embeddings=True,
    attention_biases=("q", "k", "v", "o"),
    usual={"tie_word_embeddings": True},
    huggingface=HuggingFace(
        {
            "vocab_size": 256000,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
        },
        activation=TANH,
        # The first official files say "gelu", and mean its tanh form; transformers reads them so. Files may have both
        # settings: transformers 4 took the second, transformers 5 takes the first.
        activations={"hidden_act": {**ACTIVATIONS, "gelu": "gelu_new"}, "hidden_activation": ACTIVATIONS},
        tied=True,
        null_heads=False,
    ),
    gguf=Gguf("gemma", activation="gelu_new", attention_bias=False),
)
