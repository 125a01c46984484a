"""EmbeddingGemma (Gemma Team 2025): a Gemma 3 whose tokens also see later tokens.

Its files are those of Gemma 3 with ``use_bidirectional_attention``. A window of n tokens has n // 2 on each side.
"""

from dataclasses import replace

from glinfer.families import gemma3
from glinfer.families.record import SAME_MATHS, Gguf

_LOCAL = 10000.0

FAMILY = replace(
    gemma3.FAMILY,
    name="gemma_embedding",
    looks="both",
    usual={**gemma3.FAMILY.usual, "pooling": "mean"},
    huggingface=replace(
        gemma3.FAMILY.in_huggingface,
        both_ways="",
        only={**SAME_MATHS, "is_causal": (False, None), "use_bidirectional_attention": (True,)},
    ),
    gguf=Gguf("gemma-embedding", activation="gelu_new", attention_bias=False, period=6, local_theta=_LOCAL),
)
