"""Youtu-LLM (Tencent 2025): DeepSeek-V3's attention over a latent, and one MLP in each layer."""

from dataclasses import replace
from typing import Any

from glinfer.families import deepseek_v3
from glinfer.families.huggingface import SAME_MATHS, HuggingFace
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family


def _metadata(config: Any) -> dict[str, Any]:
    """The keys of a GGUF file; llama.cpp asks for those of experts too."""
    layers, inner = config.num_hidden_layers, config.intermediate_size
    experts = {"leading_dense_block_count": layers, "expert_feed_forward_length": inner, "expert_shared_count": 0}
    return {**deepseek_v3.metadata_of_latents(config), **experts}


FAMILY = Family(
    "youtu",
    names=deepseek_v3.with_latents(Names()),
    positions="neighbours",
    usual=deepseek_v3.USUAL,
    huggingface=HuggingFace(
        sizes=(128256, 2048, 6144, 32, 16, 0, 192, 131072),
        tied=True,
        keys={"head_dim": ("qk_head_dim",)},
        only={**SAME_MATHS, "rope_interleave": (True, None), "attention_bias": (False, None)},
        more=deepseek_v3.latents,
    ),
    gguf=replace(
        deepseek_v3.FAMILY.in_gguf,
        names=replace(GGUF_NAMES, letters=deepseek_v3.GGUF_LETTERS),
        inner_key="feed_forward_length",
        marked_by="",
        marks=(),
        more=deepseek_v3.latents_of_metadata,
        further=_metadata,
    ),
)
