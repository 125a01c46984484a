"""Jais 2 (Inception, MBZUAI and Cerebras 2025): a Nemotron with biases that rotates whole heads."""

from dataclasses import replace

from glinfer.families import nemotron
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import Fields, HuggingFace
from glinfer.families.settings import Settings


def _biases(settings: Settings, fields: Fields) -> Fields:
    """The biases, which a file may turn off."""
    return {name: settings.flag(name, default=True) for name in ("attention_bias", "mlp_bias")}


FAMILY = replace(
    nemotron.FAMILY,
    name="jais2",
    norm_offset=0.0,
    usual={"attention_bias": True, "mlp_bias": True},
    huggingface=HuggingFace(sizes=(150272, 3328, 26624, 32, 26, 0, 0, 8192), eps=1e-5, more=_biases),
    gguf=Gguf("jais2"),
)
