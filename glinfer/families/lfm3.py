"""LFM3 (Liquid AI 2026): an LFM2 with norms after the branches, a gate for each head, and windows.

Layers with a window have their own angles; in the others half of the pairs is rotated.
"""

from dataclasses import replace
from functools import partial

from glinfer.families import lfm2
from glinfer.families.huggingface import SAME_MATHS, Fields, angles_by_kind, nothing
from glinfer.families.layer import CONV, FULL, LONGEST_CONVOLUTION, SLIDING, LayerConfig, shortest_pattern
from glinfer.families.scans import kinds_of
from glinfer.families.settings import Settings

_LOCAL_THETA, _SHARE = 10000.0, 0.5


def _layers(settings: Settings, fields: Fields) -> Fields:
    """The kind of each layer, the window, and the length of convolutions in positions."""
    layers = fields["num_hidden_layers"]
    usual = [FULL if each % 4 == 2 else CONV if each % 4 or not each else SLIDING for each in range(layers)]
    kinds = kinds_of(settings, "layer_types", layers, {each: each for each in (FULL, SLIDING, CONV)}, usual)
    found: Fields = {"layer_types": shortest_pattern(kinds)}
    if SLIDING in kinds:
        found["sliding_window"] = settings.integer("sliding_window", 256)
    if CONV in kinds:
        length = settings.integer("conv_L_cache", 7, least=2, most=LONGEST_CONVOLUTION)
        found |= {"conv_L_cache": length, "conv_bias": settings.flag("conv_bias")}
    return found


FAMILY = replace(
    lfm2.FAMILY,
    name="lfm3",
    names=replace(
        lfm2.FAMILY.names,
        attention_post_norm="post_operator_norm",
        head_norm="self_attn.{}_norm",
        output="self_attn.o_proj",
        head_gate="self_attn.gate_proj",
        mlp_post_norm="post_ffn_norm",
    ),
    layer=LayerConfig(norms="both", head_norms="head", head_gates=True),
    attention_biases=("q", "k", "v", "o"),
    usual={
        "rope_local_base_freq": _LOCAL_THETA,
        "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": _SHARE},
        "sliding_window": 256,
        "conv_L_cache": 7,
        "layer_types": (CONV, CONV, FULL, CONV) + (SLIDING, CONV, FULL, CONV) * 5,
    },
    huggingface=replace(
        lfm2.FAMILY.in_huggingface,
        sizes=(128000, 2048, 7680, 24, 16, 4, 128, 128000),
        only={**SAME_MATHS, "use_sandwich_norm": (True,), "use_attention_gate": (True,)},
        windows=_layers,
        rope=partial(angles_by_kind, local_theta=_LOCAL_THETA, share=_SHARE),
        more=nothing,
    ),
    gguf=None,
)
