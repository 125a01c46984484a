"""LFM2 with experts (Liquid AI 2025): an LFM2 whose layers, after the first ones, have many small MLPs.

Experts are weighted by sigmoids, and chosen by these plus a learned number (Wang et al. 2024).
"""

from dataclasses import replace

from glinfer.families import lfm2
from glinfer.families.huggingface import Fields
from glinfer.families.names import GGUF_EXPERT_NAMES
from glinfer.families.settings import Settings


def _experts(settings: Settings, fields: Fields) -> Fields:
    """The first layers, which have no experts, and how those of the others are chosen."""
    return {
        "num_dense_layers": settings.integer("num_dense_layers", 2, least=0),
        "use_expert_bias": settings.flag("use_expert_bias", default=True),
        "routed_scaling_factor": settings.number("routed_scaling_factor", 1.0),
        "tie_word_embeddings": settings.flag("tie_embedding", default=fields["tie_word_embeddings"]),
    }


FAMILY = replace(
    lfm2.FAMILY,
    name="lfm2_moe",
    sigmoid_router=True,
    share_eps=1e-6,
    names=replace(
        lfm2.FAMILY.names,
        gate="feed_forward.experts.{}.w1",
        up="feed_forward.experts.{}.w3",
        down="feed_forward.experts.{}.w2",
        router="feed_forward.gate",
        expert_bias="feed_forward.expert_bias",
        dense_gate="feed_forward.w1",
        dense_up="feed_forward.w3",
        dense_down="feed_forward.w2",
    ),
    usual={
        **lfm2.FAMILY.usual,
        "norm_topk_prob": True,
        "num_dense_layers": 2,
        "dense_intermediate_size": 7168,
        "layer_types": ("conv", "conv")
        + ("full_attention", "conv", "conv", "conv") * 4
        + ("full_attention", "conv", "conv") * 2,
    },
    huggingface=replace(
        lfm2.FAMILY.in_huggingface,
        sizes=(65536, 2048, 1792, 32, 32, 8, 0, 128000),
        keys={"layer_norm_eps": ("norm_eps",), "intermediate_size": ("moe_intermediate_size",)},
        experts=(32, 4, True),
        more=_experts,
    ),
    gguf=replace(
        lfm2.FAMILY.in_gguf,
        architecture="lfm2moe",
        names=replace(GGUF_EXPERT_NAMES, final_norm="token_embd_norm"),
        inner_key="expert_feed_forward_length",
    ),
)
