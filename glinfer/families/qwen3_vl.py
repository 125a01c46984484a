"""Qwen 3-VL's text models (Qwen Team 2025): a Qwen 3 whose positions have sections, which are equal in text.

:mod:`glinfer.families.qwen3_vl_vision` has the encoder of its images.
"""

from dataclasses import replace

from glinfer.families import qwen3
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace

FAMILY = replace(
    qwen3.FAMILY,
    name="qwen3_vl_text",
    rope_theta=500_000.0,
    huggingface=HuggingFace(sizes=(151936, 4096, 22016, 32, 32, 32, 128, 128000), wrapped=("qwen3_vl",)),
    gguf=Gguf("qwen3vl", attention_bias=False, sections=(24, 20, 20)),
    rerank_prompt="",
)
