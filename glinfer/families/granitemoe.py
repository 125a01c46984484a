"""Granite 3 with experts (IBM 2024): a Granite whose files hold gate and up of all experts of a layer in one tensor."""

from dataclasses import replace

from glinfer.families import granite
from glinfer.families.names import EXPERT_NAMES, GGUF_EXPERT_NAMES

IN_FILE = replace(
    EXPERT_NAMES,
    gate="block_sparse_moe.input_linear",
    up="block_sparse_moe.input_linear",
    down="block_sparse_moe.output_linear",
    router="block_sparse_moe.router.layer",
)
FAMILY = replace(
    granite.FAMILY,
    name="granitemoe",
    names=EXPERT_NAMES,
    mlp_biases=(),
    usual={"norm_topk_prob": True},
    huggingface=replace(granite.FAMILY.in_huggingface, names=IN_FILE, experts=(8, 2, None)),
    gguf=replace(granite.FAMILY.in_gguf, architecture="granitemoe", names=GGUF_EXPERT_NAMES),
)
