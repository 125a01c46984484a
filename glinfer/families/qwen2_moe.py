"""Qwen 2 with experts (Qwen Team 2024): many small MLPs in a layer, and a wider one that all tokens share."""

from dataclasses import replace

from glinfer.families import qwen3_moe
from glinfer.families.gguf import SHARED_WIDTH, windows
from glinfer.families.huggingface import Fields, shared_expert
from glinfer.families.layer import LayerConfig
from glinfer.families.names import EXPERT_NAMES
from glinfer.families.settings import Keys, Settings


def _more(settings: Settings, fields: Fields) -> Fields:
    """The width of the shared expert, and whether queries, keys and values have biases."""
    biased = settings.flag("qkv_bias", default=True)
    return {**shared_expert(settings, fields, usual=5632), "attention_bias": biased}


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """The width of the shared expert, in older files that of a layer; weights of experts are parts of all."""
    width = keys.integer(SHARED_WIDTH, keys.integer("feed_forward_length", fields["intermediate_size"]))
    return {**windows(keys, fields), "norm_topk_prob": False, "shared_expert_intermediate_size": width}


FAMILY = replace(
    qwen3_moe.FAMILY,
    name="qwen2_moe",
    names=replace(EXPERT_NAMES, shared_router="mlp.shared_expert_gate"),
    layer=LayerConfig(),
    attention_biases=("q", "k", "v"),
    usual={"attention_bias": True, "shared_expert_intermediate_size": 5632},
    huggingface=replace(
        qwen3_moe.FAMILY.in_huggingface,
        sizes=(151936, 2048, 1408, 24, 16, 16, 0, 32768),
        experts=(60, 4, False),
        more=_more,
    ),
    gguf=replace(qwen3_moe.FAMILY.in_gguf, architecture="qwen2moe", head="own", attention_bias=True, more=_of_metadata),
)
