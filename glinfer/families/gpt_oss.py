"""gpt-oss (OpenAI 2025): experts with biases and bounded gates, windows in every other layer, and attention sinks.

A sink is a learned logit of each head without a value, which absorbs a part of the softmax (Xiao et al. 2024). Defaults
follow GptOssConfig in Hugging Face's transformers 5. The published files have the experts' matrices in MXFP4.
They join gate and up in alternating rows; floats are stored as [in, out].
"""

from dataclasses import replace

from glinfer.families.qwen3_moe import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.record import SAME_MATHS, ExpertSettings, Family, Gguf, HuggingFace

_LIMIT, _SLOPE = 7.0, 1.702
_NAMES = replace(EXPERT_NAMES, router="mlp.router", sinks="self_attn.sinks")
_PARTS = {f"{role}.{part}": end for role in ("gate", "up", "down") for part, end in (("weight", ""), ("bias", "_bias"))}
FAMILY = Family(
    "gpt_oss",
    names=_NAMES,
    rope_theta=150_000.0,
    sinks=True,
    experts=True,
    biases=("q", "k", "v", "o", "router", "gate", "up", "down"),
    usual={
        "hidden_act": "silu",
        "norm_topk_prob": True,
        "rope_theta": 150_000.0,
        "sliding_window": 128,
        "layer_types": ("sliding_attention", "full_attention"),
        "swiglu_limit": _LIMIT,
        "swiglu_alpha": _SLOPE,
    },
    huggingface=HuggingFace(
        sizes=(201088, 2880, 2880, 36, 64, 8, 64, 131072),
        activations={"hidden_act": {"silu": "silu"}},
        eps=1e-5,
        window="listed",
        period=2,
        usual_window=128,
        usual_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        only={**SAME_MATHS, "attention_bias": (True,)},
        names=replace(
            _NAMES,
            gate="mlp.experts.gate_up_proj",
            up="mlp.experts.gate_up_proj",
            down="mlp.experts.down_proj",
            endings={"sinks.weight": "", **_PARTS},
        ),
        experts=ExpertSettings(
            128,
            4,
            keys=("num_local_experts", "num_experts"),
            normed=None,
            limit=_LIMIT,
            slope=_SLOPE,
            turned=True,
        ),
        quantized=("mxfp4",),
    ),
    gguf=Gguf(
        "gpt-oss",
        names=replace(GGUF_EXPERT_NAMES, mlp_norm="post_attention_norm"),
        period=2,
        inner_key="expert_feed_forward_length",
        fixed={"swiglu_limit": _LIMIT, "swiglu_alpha": _SLOPE},
        whole_pairs=False,
    ),
)
