"""GLM-4.5 Air and its kind (Z.ai 2025): after the first layers many small MLPs, and one more that all tokens use.

Experts are chosen by sigmoids plus a learned number (Wang et al. 2024), and a half of each head is rotated. Defaults
follow Glm4MoeConfig in Hugging Face's transformers 5.
"""

from dataclasses import replace
from typing import Any

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.names import GGUF_NAMES
from glinfer.families.qwen3_moe import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_NORMED, _SCALE = "expert_weights_norm", "expert_weights_scale"
_GROUPS, _KEPT = "expert_group_count", "expert_group_used_count"
NAMES = replace(
    EXPERT_NAMES,
    expert_bias="mlp.gate.e_score_correction_bias",
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)


def groups(settings: Settings, count: int = 1, kept: int = 1) -> Fields:
    """The groups of experts, and how many of them a token uses; no fields if it uses all."""
    count = settings.integer("n_group", count)
    return _grouped(count, settings.integer("topk_group", kept, most=count))


def _grouped(count: int, kept: int) -> Fields:
    return {"n_group": count, "topk_group": kept} if kept < count else {}


def experts(
    settings: Settings,
    fields: Fields,
    *,
    shared: int = 1,
    dense: int = 1,
    scale: float = 1.0,
    grouping: tuple[int, int] | None = (1, 1),
) -> Fields:
    """The number of layers without experts, the width of the shared expert, the factor of weights, and the groups.

    ``shared``, ``dense``, ``scale`` and ``grouping`` (groups, and those a token uses) are defaults of missing settings;
    without ``grouping`` experts have no groups.
    """
    shared = settings.integer("n_shared_experts", shared, least=0)
    return {
        "num_dense_layers": settings.integer("first_k_dense_replace", dense, least=0),
        "shared_intermediate_size": shared * fields["intermediate_size"],
        "routed_scaling_factor": settings.number("routed_scaling_factor", scale),
        **(groups(settings, *grouping) if grouping else {}),
    }


def dense_layers(settings: Settings, fields: Fields) -> Fields:
    """The number of layers without experts, the first ones, of a file that lists the kinds of MLPs."""
    name, layers = "mlp_layer_types", fields["num_hidden_layers"]
    if not settings.given(name):
        return {}
    kinds = settings.values[name]
    dense = kinds.count("dense") if isinstance(kinds, list) else 0
    if kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise settings.refused(name, f"{layers} names, dense for the first layers and sparse for the others")
    return {"num_dense_layers": dense}


def metadata_of_experts(keys: Keys, fields: Fields) -> Fields:
    """How experts are weighted in a GGUF file, and their groups, which older files lack."""
    count = keys.integer(_GROUPS, 1, least=0)
    kept = keys.integer(_KEPT, least=1, most=count) if count > 1 else count
    weighted = {"norm_topk_prob": keys.flag(_NORMED), "routed_scaling_factor": keys.number(_SCALE, 1.0)}
    return weighted | _grouped(count, kept)


def metadata(config: Any) -> dict[str, Any]:
    """The keys of experts for a GGUF file."""
    return {
        _NORMED: config.norm_topk_prob,
        _SCALE: config.routed_scaling_factor,
        "expert_shared_count": config.shared_intermediate_size // config.intermediate_size,
        **({_GROUPS: config.n_group, _KEPT: config.topk_group} if config.n_group else {}),
    }


FAMILY = Family(
    "glm4_moe",
    names=NAMES,
    sigmoid_router=True,
    share_eps=1e-20,
    attention_biases=("q", "k", "v"),
    usual={
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "norm_topk_prob": True,
        "num_dense_layers": 1,
        "dense_intermediate_size": 10944,
        "shared_intermediate_size": 1408,
    },
    huggingface=HuggingFace(
        sizes=(151552, 4096, 1408, 46, 96, 8, 0, 131072),
        eps=1e-5,
        keys={"intermediate_size": ("moe_intermediate_size",)},
        only={**SAME_MATHS, "use_qk_norm": (False,)},
        unused=("n_shared_experts",),
        experts=(128, 8, True),
        more=experts,
    ),
    gguf=Gguf(
        "glm4moe",
        partial_rotary=True,
        names=replace(GGUF_EXPERT_NAMES, mlp_norm=GGUF_NAMES.attention_post_norm),
        inner_key="expert_feed_forward_length",
        more=metadata_of_experts,
        further=metadata,
    ),
)
