"""Qwen 3.5's text models with experts (Qwen Team 2026): many small MLPs in a layer, and one that all tokens share.

The files have the matrices of all experts of a layer in one tensor, gate above up.
"""

from dataclasses import replace
from functools import partial

from glinfer.families import qwen3_5
from glinfer.families.huggingface import shared_expert
from glinfer.families.names import EXPERT_NAMES, GGUF_EXPERT_NAMES

NAMES = replace(EXPERT_NAMES, shared_router="mlp.shared_expert_gate")
_JOINED = "mlp.experts.gate_up_proj"
_GGUF = qwen3_5.FAMILY.in_gguf


FAMILY = replace(
    qwen3_5.FAMILY,
    name="qwen3_5_moe_text",
    names=NAMES,
    usual={
        **qwen3_5.FAMILY.usual,
        "tie_word_embeddings": False,
        "norm_topk_prob": True,
        "linear_num_value_heads": 32,
    },
    huggingface=replace(
        qwen3_5.FAMILY.in_huggingface,
        sizes=(248320, 2048, 512, 40, 16, 2, 256, 32768),
        keys={"intermediate_size": ("moe_intermediate_size",)},
        names=replace(
            NAMES,
            gate=_JOINED,
            up=_JOINED,
            down="mlp.experts.down_proj",
            endings={f"{role}.weight": "" for role in ("gate", "up", "down")},
        ),
        experts=(256, 8, None),
        more=partial(shared_expert, usual=512),
        wrapped=("qwen3_5_moe",),
    ),
    gguf=replace(
        _GGUF,
        architecture="qwen35moe",
        names=replace(GGUF_EXPERT_NAMES, mlp_norm=_GGUF.names.mlp_norm, letters=_GGUF.names.letters),
        inner_key="expert_feed_forward_length",
    ),
)
