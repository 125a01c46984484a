"""Nemotron 3 Nano (NVIDIA 2025): a Nemotron-H with experts in place of most MLPs, and one more that all tokens use.

Experts have no gates. They are chosen by sigmoids plus a learned number (Wang et al. 2024).
"""

from dataclasses import replace

from glinfer.families import experts, nemotron_h
from glinfer.families.huggingface import Fields
from glinfer.families.layer import MOE
from glinfer.families.names import GGUF_EXPERT_NAMES
from glinfer.families.settings import Keys, Settings

_DENSE, _FORM, _GGUF = nemotron_h.FAMILY, nemotron_h.FAMILY.in_huggingface, nemotron_h.FAMILY.in_gguf
_GGUF_WIDTH = "expert_feed_forward_length"
_PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
NAMES = replace(
    nemotron_h.NAMES,
    up="mixer.experts.{}.up_proj",
    down="mixer.experts.{}.down_proj",
    router="mixer.gate",
    expert_bias="mixer.gate.e_score_correction_bias",
    dense_up="mixer.up_proj",
    dense_down="mixer.down_proj",
    shared_up="mixer.shared_experts.up_proj",
    shared_down="mixer.shared_experts.down_proj",
)


def _has_experts(settings: Settings) -> bool:
    """Whether some layers have experts; files of models without any may have settings of experts too."""
    listed, pattern = settings.value("layers_block_type"), settings.value("hybrid_override_pattern")
    found = listed if listed is not None else pattern
    return (isinstance(found, list) and MOE in found) or (isinstance(found, str) and "E" in found)


def _experts(settings: Settings, fields: Fields) -> Fields:
    """The widths of the other MLPs, and how experts are weighted."""
    return {
        "dense_intermediate_size": settings.integer("intermediate_size", 21504),
        "shared_intermediate_size": settings.integer("moe_shared_expert_intermediate_size", 7688),
        "routed_scaling_factor": settings.number("routed_scaling_factor", 1.0),
        **experts.groups(settings),
    }


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """The kinds of layers, and how experts are weighted."""
    keys.only("moe_latent_size", (0,))
    return {
        **nemotron_h.metadata_of_layers(keys, fields, wide=MOE),
        "intermediate_size": keys.integer(_GGUF_WIDTH),
        **experts.from_metadata(keys, fields),
    }


FAMILY = replace(
    _DENSE,
    name="nemotron_h_moe",
    names=NAMES,
    sigmoid_router=True,
    share_eps=1e-20,
    mlp_biases=(),
    usual={
        **_DENSE.usual,
        "layer_types": tuple({"M": "linear_attention", "E": MOE, "*": "full_attention"}[each] for each in _PATTERN),
        "linear_num_value_heads": 64,
        "norm_topk_prob": True,
        "shared_intermediate_size": 3712,
        "routed_scaling_factor": 2.5,
    },
    huggingface=replace(
        _FORM,
        sizes=(131072, 4096, 7688, 52, 32, 8, 128, 4096),
        keys={**_FORM.keys, "intermediate_size": ("moe_intermediate_size",)},
        only={**_FORM.only, "mlp_bias": (False,), "moe_latent_size": (None,)},
        unused=("n_shared_experts",),
        names=replace(NAMES, delta_in="mixer.in_proj"),
        experts=(8, 2, True),
        more=_experts,
        variant=(_DENSE.name, _has_experts),
    ),
    gguf=replace(
        _GGUF,
        architecture="nemotron_h_moe",
        names=replace(GGUF_EXPERT_NAMES, mlp_norm="attn_norm", letters=_GGUF.names.letters),
        inner_key=_GGUF_WIDTH,
        more=_of_metadata,
        further=lambda config: {**experts.to_metadata(config), "expert_shared_count": 1},
    ),
)
