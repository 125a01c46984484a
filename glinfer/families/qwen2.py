"""Qwen 2 (Qwen Team 2024): a Llama whose queries, keys and values have biases; a window in its last layers."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import Fields, HuggingFace, later_windows
from glinfer.families.record import Family
from glinfer.families.settings import Settings


def _biases(settings: Settings, fields: Fields) -> Fields:
    """As in transformers, models have their biases whatever the file says."""
    return {"attention_bias": True}


FAMILY = Family(
    "qwen2",
    attention_biases=("q", "k", "v"),
    usual={"attention_bias": True},
    huggingface=HuggingFace(sizes=(151936, 4096, 22016, 32, 32, 32, 0, 32768), windows=later_windows, more=_biases),
    gguf=Gguf("qwen2"),
)
