"""Gemma 3's text models (Gemma Team 2025): a Gemma 2 with normalised heads, and a window in five layers of six.

Layers with a window have their own rotary angles. transformers ignores a file's bound for scores.
"""

from dataclasses import replace
from functools import partial

from glinfer.families import gemma2
from glinfer.families.gguf import scores_by_width, windows
from glinfer.families.huggingface import Fields, angles_by_kind, listed_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.settings import Keys

LOCAL_THETA = 10000.0
"""The base of angles of layers with a window."""


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """GGUF files do not say which layers have a window, nor how the scores of the largest model are scaled."""
    return {**windows(keys, fields, period=6, local_theta=LOCAL_THETA), **scores_by_width(fields, 62)}


FAMILY = replace(
    gemma2.FAMILY,
    name="gemma3_text",
    layer=LayerConfig(norms="both", head_norms="head"),
    rope_theta=1e6,
    usual={
        "rope_local_base_freq": LOCAL_THETA,
        "sliding_window": 512,
        "layer_types": ("sliding_attention",) * 5 + ("full_attention",),
    },
    huggingface=replace(
        gemma2.FAMILY.in_huggingface,
        sizes=(262208, 2304, 9216, 26, 8, 4, 256, 131072),
        windows=partial(listed_windows, period=6, period_key="sliding_window_pattern", local=True),
        rope=partial(angles_by_kind, local_theta=LOCAL_THETA),
        scalars={"final_logit_softcapping": 0.0, "query_pre_attn_scalar": 256.0},
        wrapped=("gemma3",),
    ),
    gguf=replace(
        gemma2.FAMILY.in_gguf,
        architecture="gemma3",
        head="either",
        scalars={"final_logit_softcapping": ("final_logit_softcapping", 0.0)},
        more=_of_metadata,
    ),
)
