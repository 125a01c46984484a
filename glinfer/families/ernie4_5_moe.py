"""ERNIE 4.5 with experts (Baidu 2025): after the first layers many small MLPs, and one more that all tokens use.

Experts are chosen by their part of a softmax plus a learned number.
"""

from dataclasses import replace

from glinfer.families import ernie4_5, experts
from glinfer.families.huggingface import Fields
from glinfer.families.names import GGUF_EXPERT_NAMES
from glinfer.families.settings import Keys, Settings

_DENSE, _FORM = ernie4_5.FAMILY, ernie4_5.FAMILY.in_huggingface


def _experts(settings: Settings, fields: Fields) -> Fields:
    """The layers with experts, their number, and the width of the MLP of all tokens."""
    settings.only("moe_layer_end_index", (-1, fields["num_hidden_layers"] - 1))
    shared = settings.integer("moe_num_shared_experts", 2, least=0)
    return {
        "num_experts": settings.integer("moe_num_experts", fields["num_experts"]),
        "num_experts_per_tok": settings.integer("moe_k", fields["num_experts_per_tok"]),
        "num_dense_layers": settings.integer("moe_layer_start_index", 1, least=0),
        "shared_intermediate_size": shared * fields["intermediate_size"],
    }


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """Models without experts in some later layers are refused."""
    keys.only("interleave_moe_layer_step", (1,))
    return {}


FAMILY = replace(
    _DENSE,
    name="ernie4_5_moe",
    names=replace(experts.NAMES, expert_bias="mlp.moe_statics.e_score_correction_bias"),
    usual={
        **_DENSE.usual,
        "norm_topk_prob": True,
        "num_dense_layers": 1,
        "dense_intermediate_size": 12288,
        "shared_intermediate_size": 3072,
    },
    huggingface=replace(
        _FORM,
        sizes=(103424, 2560, 1536, 28, 20, 4, 0, 131072),
        keys={"intermediate_size": ("moe_intermediate_size",)},
        only={**_FORM.only, "moe_layer_interval": (1,), "moe_norm_min": (1e-12,)},
        experts=(64, 6, None),
        more=_experts,
        layouts={"expert_bias": "row"},
    ),
    gguf=replace(
        _DENSE.in_gguf,
        architecture="ernie4_5-moe",
        names=GGUF_EXPERT_NAMES,
        inner_key="expert_feed_forward_length",
        more=_of_metadata,
        further=lambda config: {
            "interleave_moe_layer_step": 1,
            "expert_shared_count": config.shared_intermediate_size // config.intermediate_size,
        },
    ),
)
