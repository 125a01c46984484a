"""Gemma (Gemma Team 2024): a Llama with scaled embeddings, norms that multiply by 1 + weight, and tanh-form GELU."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import ACTIVATIONS, HuggingFace
from glinfer.families.record import Family

FAMILY = Family(
    "gemma",
    activation="gelu_new",
    norm_offset=1.0,
    uneven_gains=True,
    scaled_embeddings=True,
    attention_biases=("q", "k", "v", "o"),
    huggingface=HuggingFace(
        sizes=(256000, 3072, 24576, 28, 16, 16, 256, 8192),
        # The first official files write "gelu" for its tanh form, and transformers reads them so. Files may have both
        # settings: transformers 4 used the second, transformers 5 uses the first.
        activations={"hidden_act": {**ACTIVATIONS, "gelu": "gelu_new"}, "hidden_activation": ACTIVATIONS},
        tied=True,
        null_heads=False,
    ),
    gguf=Gguf("gemma", head="tied", attention_bias=False),
)
