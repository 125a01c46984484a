"""Gemma 2 (Gemma Team 2024): norms on both sides of each branch, alternating windows, bounded scores and logits."""

from functools import partial

from glinfer.families.gguf import Gguf, scores_by_width, windows
from glinfer.families.huggingface import ACTIVATIONS, Fields, HuggingFace, listed_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.names import Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys

NAMES = Names(mlp_norm="pre_feedforward_layernorm")
_SCALARS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """GGUF files do not say that every other layer has a window, nor how the scores of the largest are scaled."""
    return {**windows(keys, fields, period=2, usual=4096), **scores_by_width(fields, 46)}


FAMILY = Family(
    "gemma2",
    names=NAMES,
    activation="gelu_new",
    layer=LayerConfig(norms="both"),
    norm_offset=1.0,
    uneven_gains=True,
    scaled_embeddings=True,
    attention_biases=("q", "k", "v", "o"),
    usual={"sliding_window": 4096, "layer_types": ("sliding_attention", "full_attention"), **_SCALARS},
    huggingface=HuggingFace(
        sizes=(256000, 2304, 9216, 26, 8, 4, 256, 8192),
        activations={"hidden_activation": ACTIVATIONS},
        tied=True,
        null_heads=False,
        windows=partial(listed_windows, period=2),
        scalars={**_SCALARS, "query_pre_attn_scalar": 256.0},
    ),
    gguf=Gguf(
        "gemma2",
        head="tied",
        attention_bias=False,
        scalars={name: (name, usual) for name, usual in _SCALARS.items()},
        more=_of_metadata,
    ),
)
