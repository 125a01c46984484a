"""Seed-OSS (ByteDance Seed 2025): a Llama whose queries, keys and values have biases."""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, HuggingFace, with_biases
from glinfer.families.names import GGUF_NAMES
from glinfer.families.record import Family

FAMILY = Family(
    "seed_oss",
    attention_biases=("q", "k", "v"),
    mlp_biases=("gate", "up", "down"),
    usual={"attention_bias": True},
    huggingface=HuggingFace(
        sizes=(155136, 4096, 27648, 64, 80, 8, 128, 524288),
        only={**SAME_MATHS, "attention_out_bias": (False, None)},
        more=with_biases,
    ),
    gguf=Gguf("seed_oss", names=replace(GGUF_NAMES, mlp_norm=GGUF_NAMES.attention_post_norm)),
)
