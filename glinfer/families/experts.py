"""Settings of experts that several families share, under the names of GLM-4.5 and DeepSeek-V3."""

from dataclasses import replace
from typing import Any

from glinfer.families.huggingface import Fields
from glinfer.families.names import EXPERT_NAMES
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
    kept = settings.integer("topk_group", kept, most=count)
    return {"n_group": count, "topk_group": kept} if kept < count else {}


def from_settings(
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


def from_metadata(keys: Keys, fields: Fields) -> Fields:
    """How experts are weighted in a GGUF file, and their groups, which older files lack."""
    count = keys.integer(_GROUPS, 1, least=0)
    kept = keys.integer(_KEPT, least=1, most=count) if count > 1 else count
    weighted = {"norm_topk_prob": keys.flag(_NORMED), "routed_scaling_factor": keys.number(_SCALE, 1.0)}
    return weighted | ({"n_group": count, "topk_group": kept} if kept < count else {})


def to_metadata(config: Any) -> dict[str, Any]:
    """The keys of experts for a GGUF file."""
    return {
        _NORMED: config.norm_topk_prob,
        _SCALE: config.routed_scaling_factor,
        "expert_shared_count": config.shared_intermediate_size // config.intermediate_size,
        **({_GROUPS: config.n_group, _KEPT: config.topk_group} if config.n_group else {}),
    }
