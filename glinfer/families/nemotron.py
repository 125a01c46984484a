"""Nemotron 4 and Minitron (NVIDIA 2024): LayerNorm whose gains are 1 more, heads rotated in part, and ReLU squared."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.record import Family

FAMILY = Family(
    "nemotron",
    norm="layer",
    norm_offset=1.0,
    gated=False,
    activation="relu2",
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("up", "down"),
    usual={"partial_rotary_factor": 0.5},
    huggingface=HuggingFace(
        sizes=(256000, 6144, 24576, 32, 48, 0, 0, 4096),
        eps=1e-5,
        keys={"layer_norm_eps": ("norm_eps",)},
    ),
    gguf=Gguf("nemotron", head="own", partial_rotary=True),
)
