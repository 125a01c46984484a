"""Gemma 3's text models (Gemma Team 2025): a Gemma 2 with normalised heads, and a window in five layers of six.

Layers with a window have their own rotary angles. Defaults follow Gemma3TextConfig in Hugging Face's transformers
5, whose models ignore a file's bound for scores.
"""

from glinfer.families.gemma2 import NAMES
from glinfer.families.record import ACTIVATIONS, TANH, Family, Gguf, HuggingFace

_LOCAL = 10000.0
FAMILY = Family(
    "gemma3_text",
    names=NAMES,
    norms="both",
    norm_offset=1.0,
    rope_theta=1e6,
    head_norms="head",
    scaled_embeddings=True,
    attention_biases=("q", "k", "v", "o"),
    usual={
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "rope_local_base_freq": _LOCAL,
        "sliding_window": 512,
        "layer_types": ("sliding_attention",) * 5 + ("full_attention",),
    },
    huggingface=HuggingFace(
        sizes=(262208, 2304, 9216, 26, 8, 4, 256, 131072),
        activation=TANH,
        activations={"hidden_activation": ACTIVATIONS},
        tied=True,
        null_heads=False,
        window="listed",
        period=6,
        period_key="sliding_window_pattern",
        local_theta=_LOCAL,
        both_ways="gemma_embedding",
        scalars={"final_logit_softcapping": 0.0, "query_pre_attn_scalar": 256.0},
        wrapped=("gemma3",),
    ),
    gguf=Gguf(
        "gemma3",
        activation="gelu_new",
        attention_bias=False,
        period=6,
        local_theta=_LOCAL,
        scalars={"final_logit_softcapping": ("final_logit_softcapping", 0.0)},
        scaled_by_width=62,
    ),
)
