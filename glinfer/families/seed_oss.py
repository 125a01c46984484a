"""Seed-OSS (ByteDance Seed 2025): a Llama whose queries, keys and values have biases."""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.names import GGUF_NAMES
from glinfer.families.record import Family
from glinfer.families.settings import Settings


def _biases(settings: Settings, fields: Fields) -> Fields:
    """The biases, which a file may turn off."""
    return {"attention_bias": settings.flag("attention_bias", default=True)}


FAMILY = Family(
    "seed_oss",
    attention_biases=("q", "k", "v"),
    mlp_biases=("gate", "up", "down"),
    usual={"attention_bias": True},
    huggingface=HuggingFace(
        sizes=(155136, 4096, 27648, 64, 80, 8, 128, 524288),
        only={**SAME_MATHS, "attention_out_bias": (False, None)},
        more=_biases,
    ),
    gguf=Gguf("seed_oss", names=replace(GGUF_NAMES, mlp_norm=GGUF_NAMES.attention_post_norm)),
)
