"""gpt-oss (OpenAI 2025): experts with biases and bounded gates, windows in every other layer, and attention sinks.

A sink is a learned logit of each head without a value, which absorbs a part of the softmax (Xiao et al. 2024). The
published files have the experts' matrices in MXFP4. They join gate and up in alternating rows; floats are stored as
[in, out].
"""

from dataclasses import replace
from functools import partial

from glinfer.families.gguf import Gguf, windows
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace, angles, listed_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.names import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.record import Family
from glinfer.families.settings import Keys, Settings

_GATE = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_NAMES = replace(EXPERT_NAMES, router="mlp.router", sinks="self_attn.sinks")
_EXPERTS = ("gate", "up", "down")
_PARTS = {f"{role}.{part}": end for role in _EXPERTS for part, end in (("weight", ""), ("bias", "_bias"))}


def _gates(settings: Settings, fields: Fields) -> Fields:
    """The bound and slope of the experts' gates."""
    return {name: settings.number(name, usual) for name, usual in _GATE.items()}


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """GGUF files do not have the gates' numbers, nor that YaRN's ramp does not end at whole pairs."""
    scaling = fields["rope_scaling"]
    if scaling.get("rope_type") == "yarn":
        scaling = {**scaling, "truncate": False}
    return {**windows(keys, fields, period=2), **_GATE, "rope_scaling": scaling}


FAMILY = Family(
    "gpt_oss",
    names=_NAMES,
    rope_theta=150_000.0,
    layer=LayerConfig(sinks=True),
    biases=("q", "k", "v", "o", "router", "gate", "up", "down"),
    usual={
        "norm_topk_prob": True,
        "sliding_window": 128,
        "layer_types": ("sliding_attention", "full_attention"),
        **_GATE,
    },
    huggingface=HuggingFace(
        sizes=(201088, 2880, 2880, 36, 64, 8, 64, 131072),
        activations={"hidden_act": {"silu": "silu"}},
        eps=1e-5,
        experts=(128, 4, None),
        only={**SAME_MATHS, "attention_bias": (True,)},
        windows=partial(listed_windows, period=2, usual=128),
        rope=partial(angles, usual=_YARN),
        more=_gates,
        names=replace(
            _NAMES,
            gate="mlp.experts.gate_up_proj",
            up="mlp.experts.gate_up_proj",
            down="mlp.experts.down_proj",
            endings={"sinks.weight": "", **_PARTS},
        ),
        layouts=dict.fromkeys(_EXPERTS, "alternating"),
    ),
    gguf=Gguf(
        "gpt-oss",
        head="own",
        names=replace(GGUF_EXPERT_NAMES, mlp_norm="post_attention_norm"),
        inner_key="expert_feed_forward_length",
        more=_of_metadata,
    ),
)
