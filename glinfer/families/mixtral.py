"""Mixtral (Jiang et al. 2024): a Mistral whose layers have eight MLPs, of which each token uses two.

Its GGUF files are Llama's with experts.
"""

from dataclasses import replace
from functools import partial

from glinfer.families import mistral
from glinfer.families.huggingface import window_of_all
from glinfer.families.llama import GGUF
from glinfer.families.names import GGUF_EXPERT_NAMES, Names

NAMES = Names(
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
    router="block_sparse_moe.gate",
)
FAMILY = replace(
    mistral.FAMILY,
    name="mixtral",
    rope_theta=1e6,
    names=NAMES,
    usual={"norm_topk_prob": True},
    huggingface=replace(
        mistral.FAMILY.in_huggingface,
        eps=1e-5,
        windows=partial(window_of_all, usual=0),
        wrapped=(),
        experts=(8, 2, None),
    ),
    gguf=replace(GGUF, names=GGUF_EXPERT_NAMES, marked_by="expert_count", attention_bias=False),
)
