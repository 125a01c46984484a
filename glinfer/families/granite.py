"""Granite 3 (IBM 2024): a Llama with four factors, of embeddings, scores, branches and logits."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.record import Family

FAMILY = Family(
    "granite",
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    huggingface=HuggingFace(
        sizes=(32000, 4096, 11008, 32, 32, 0, 0, 2048),
        scalars={
            "embedding_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
    ),
    gguf=Gguf(
        "granite",
        pairs_together=True,
        scalars={
            "embedding_multiplier": ("embedding_scale", 1.0),
            "attention_multiplier": ("attention.scale", 0.0),
            "residual_multiplier": ("residual_scale", 1.0),
            "logits_scaling": ("logit_scale", 1.0),
        },
    ),
)
