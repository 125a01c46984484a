"""Gab's second generation, "Gift of Gab": RMSNorm, rotary positions with adjacent pairs, an MLP without a gate.

Source: the browser engine of Gab 100M and the script that packs its weights. Version 1 of its files had other pairs.
"""

from glinfer.families.record import Family

SHAPE = {"vocab": 10000, "dim": 768, "heads": 12, "blocks": 13, "context": 2048}
"""The published shape under the names of ``--config``."""
FAMILY = Family(
    "gift_of_gab",
    positions="neighbours",
    gated=False,
    activation="gelu",
    mlp_biases=("up",),
    usual={"tie_word_embeddings": True, "mlp_bias": True},
    manifest={
        "model_type": "gift_of_gab",
        "rope_style": "interleaved",
        "rope_scaling": None,
        "hidden_act": "gelu",
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    stops=("<|end|>", "<|endoftext|>"),
)
