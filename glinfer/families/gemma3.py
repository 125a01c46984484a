"""Gemma 3's text models (Gemma Team 2025): a Gemma 2 with normalised heads, and a window in five layers of six.

Layers with a window have their own rotary angles. transformers ignores a file's bound for scores.
"""

from functools import partial

from glinfer.families.gemma2 import NAMES
from glinfer.families.gguf import Gguf, scores_by_width, windows
from glinfer.families.huggingface import ACTIVATIONS, Fields, HuggingFace, angles_by_kind, listed_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.record import Family
from glinfer.families.settings import Keys

LOCAL_THETA = 10000.0
"""The base of angles of layers with a window."""


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """GGUF files do not say which layers have a window, nor how the scores of the largest model are scaled."""
    return {**windows(keys, fields, period=6, local_theta=LOCAL_THETA), **scores_by_width(fields, 62)}


FAMILY = Family(
    "gemma3_text",
    names=NAMES,
    activation="gelu_new",
    layer=LayerConfig(norms="both", head_norms="head"),
    norm_offset=1.0,
    rope_theta=1e6,
    scaled_embeddings=True,
    attention_biases=("q", "k", "v", "o"),
    usual={
        "rope_local_base_freq": LOCAL_THETA,
        "sliding_window": 512,
        "layer_types": ("sliding_attention",) * 5 + ("full_attention",),
    },
    huggingface=HuggingFace(
        sizes=(262208, 2304, 9216, 26, 8, 4, 256, 131072),
        activations={"hidden_activation": ACTIVATIONS},
        tied=True,
        null_heads=False,
        windows=partial(listed_windows, period=6, period_key="sliding_window_pattern", local=True),
        rope=partial(angles_by_kind, local_theta=LOCAL_THETA),
        scalars={"final_logit_softcapping": 0.0, "query_pre_attn_scalar": 256.0},
        wrapped=("gemma3",),
    ),
    gguf=Gguf(
        "gemma3",
        attention_bias=False,
        scalars={"final_logit_softcapping": ("final_logit_softcapping", 0.0)},
        more=_of_metadata,
    ),
)
