"""Qwen 3.5's text models (Qwen Team 2026): three of four layers have the gated delta rule in place of attention.

Attention has output gates, and a quarter of each of its heads is rotated. All norms but the one after the delta rule
add 1 to their gains.
"""

from dataclasses import replace

from glinfer.families.gguf import Gguf, windows
from glinfer.families.huggingface import Fields, HuggingFace, layer_kinds
from glinfer.families.layer import DELTA, FULL, LONGEST_PERIOD, LayerConfig, every, shortest_pattern
from glinfer.families.names import GGUF_NAMES
from glinfer.families.record import Family
from glinfer.families.scans import rule_metadata
from glinfer.families.settings import Keys, Settings

_SIZES = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_PERIOD = "full_attention_interval"


def _delta_layers(settings: Settings, fields: Fields) -> Fields:
    """The layers with the delta rule, and its sizes."""
    kinds, layers = layer_kinds(settings, fields, DELTA), fields["num_hidden_layers"]
    if kinds is not None:
        pattern = shortest_pattern(kinds)
    else:
        pattern = every(settings.integer(_PERIOD, 4, most=LONGEST_PERIOD), layers, DELTA, FULL)
    if DELTA not in pattern:
        return {}
    return {"layer_types": pattern, **{name: settings.integer(name, usual) for name, usual in _SIZES.items()}}


def _delta_metadata(keys: Keys, fields: Fields) -> Fields:
    """The layers with the delta rule in a GGUF file, and its sizes."""
    pattern = every(keys.integer(_PERIOD, 4, most=LONGEST_PERIOD), fields["num_hidden_layers"], DELTA, FULL)
    if DELTA not in pattern:
        return windows(keys, fields)
    return {**windows(keys, fields), "layer_types": pattern, **rule_metadata(keys)}


FAMILY = Family(
    "qwen3_5_text",
    norm_offset=1.0,
    layer=LayerConfig(head_norms="head", gated=True),
    attention_biases=("q", "k", "v", "o"),
    usual={
        "layer_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "layer_types": ("linear_attention",) * 3 + ("full_attention",),
        **_SIZES,
        "linear_num_value_heads": 16,
    },
    huggingface=HuggingFace(
        sizes=(248320, 4096, 12288, 32, 16, 4, 256, 32768),
        windows=_delta_layers,
        buffers=r"(.*\.)?rotary_emb\.inv_freq|mtp\..*",
        wrapped=("qwen3_5",),
    ),
    gguf=Gguf(
        "qwen35",
        attention_bias=False,
        partial_rotary=True,
        sections=(11, 11, 10),
        more=_delta_metadata,
        names=replace(
            GGUF_NAMES,
            mlp_norm="post_attention_norm",
            letters={"qkv": "attn_qkv", "z": "attn_gate", "a": "ssm_alpha", "b": "ssm_beta"},
        ),
    ),
)
