"""Granite 3 with experts (IBM 2024): a Granite whose files hold gate and up of all experts of a layer in one tensor."""

from dataclasses import replace

from glinfer.families import granite
from glinfer.families.huggingface import HuggingFace
from glinfer.families.qwen3_moe import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.record import Family

FAMILY = Family(
    "granitemoe",
    names=EXPERT_NAMES,
    attention_biases=("q", "k", "v", "o"),
    usual={"norm_topk_prob": True},
    huggingface=HuggingFace(
        sizes=(32000, 4096, 11008, 32, 32, 0, 0, 2048),
        scalars=granite.FAMILY.in_huggingface.scalars,
        names=replace(
            EXPERT_NAMES,
            gate="block_sparse_moe.input_linear",
            up="block_sparse_moe.input_linear",
            down="block_sparse_moe.output_linear",
            router="block_sparse_moe.router.layer",
        ),
        experts=(8, 2, None),
    ),
    gguf=replace(granite.FAMILY.in_gguf, architecture="granitemoe", names=GGUF_EXPERT_NAMES),
)
