"""Gemma 4 with experts (Gemma Team 2026), such as 26B-A4B: layers have an MLP for all tokens, and experts next to it.

Router, MLP and experts have their own norms, and each expert a factor.
"""

from dataclasses import replace

from glinfer.families import gemma4
from glinfer.families.huggingface import Fields, marked
from glinfer.families.names import GGUF_EXPERT_NAMES
from glinfer.families.settings import Settings

_DENSE, _FORM, _GGUF = gemma4.FAMILY, gemma4.FAMILY.in_huggingface, gemma4.FAMILY.in_gguf
NAMES = replace(
    _DENSE.names,
    gate="experts.{}.gate_proj",
    up="experts.{}.up_proj",
    down="experts.{}.down_proj",
    router="router.proj",
    shared_gate="mlp.gate_proj",
    shared_up="mlp.up_proj",
    shared_down="mlp.down_proj",
    router_norm="router.norm",
    expert_norm="pre_feedforward_layernorm_2",
    shared_post_norm="post_feedforward_layernorm_1",
    expert_post_norm="post_feedforward_layernorm_2",
    expert_scale="router.per_expert_scale",
)
_WHOLE = ("router_norm", "gate", "up", "down")


def _more(settings: Settings, fields: Fields) -> Fields:
    """The width of the MLP of all tokens, and the experts of a token."""
    return {
        **gemma4.heads_and_layers(settings, fields),
        "shared_intermediate_size": settings.integer("intermediate_size", 9216),
        "num_experts": settings.integer("num_experts"),
        "num_experts_per_tok": settings.integer("top_k_experts"),
    }


FAMILY = replace(
    _DENSE,
    name="gemma4_moe",
    names=NAMES,
    usual={
        **_DENSE.usual,
        "sliding_window": 1024,
        "global_head_dim": 512,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "norm_topk_prob": True,
        "shared_intermediate_size": 2112,
    },
    huggingface=replace(
        _FORM,
        keys={"intermediate_size": ("moe_intermediate_size",)},
        only={**_FORM.only, "use_double_wide_mlp": (False,)},
        experts=(128, 8, None),
        more=_more,
        variant=(_DENSE.name, marked("enable_moe_block")),
        wrapped=(),
        names=replace(
            NAMES,
            per_layer_table=_FORM.names.per_layer_table if _FORM.names else "",
            gate="experts.gate_up_proj",
            up="experts.gate_up_proj",
            down="experts.down_proj",
            router_norm="router.scale",
            endings=dict.fromkeys((f"{role}.weight" for role in _WHOLE), ""),
        ),
    ),
    gguf=replace(
        _GGUF,
        names=replace(
            GGUF_EXPERT_NAMES,
            shared_gate="ffn_gate",
            shared_up="ffn_up",
            shared_down="ffn_down",
            router_norm="ffn_gate_inp",
            expert_norm="pre_ffw_norm_2",
            shared_post_norm="post_ffw_norm_1",
            expert_post_norm="post_ffw_norm_2",
            expert_scale="ffn_down_exps.scale",
            endings={"router_norm.weight": ".scale"},
        ),
        inner_key="expert_feed_forward_length",
        shared_key="feed_forward_length",
        marked_by="expert_count",
    ),
)
