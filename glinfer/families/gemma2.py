"""Gemma 2 (Gemma Team 2024): norms on both sides of each branch, alternating windows, bounded scores and logits.

Defaults follow Gemma2Config in Hugging Face's transformers 5.
"""

from glinfer.families.record import ACTIVATIONS, TANH, Family, Gguf, HuggingFace, Names

NAMES = Names(mlp_norm="pre_feedforward_layernorm")
_SCALARS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
FAMILY = Family(
    "gemma2",
    names=NAMES,
    norms="both",
    norm_offset=1.0,
    scaled_embeddings=True,
    attention_biases=("q", "k", "v", "o"),
    usual={
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "layer_types": ("sliding_attention", "full_attention"),
        **_SCALARS,
    },
    huggingface=HuggingFace(
        sizes=(256000, 2304, 9216, 26, 8, 4, 256, 8192),
        activation=TANH,
        activations={"hidden_activation": ACTIVATIONS},
        tied=True,
        null_heads=False,
        window="listed",
        period=2,
        scalars={**_SCALARS, "query_pre_attn_scalar": 256.0},
    ),
    gguf=Gguf(
        "gemma2",
        activation="gelu_new",
        attention_bias=False,
        period=2,
        window=4096,
        scalars={name: (name, usual) for name, usual in _SCALARS.items()},
        scaled_by_width=46,
    ),
)
