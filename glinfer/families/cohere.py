"""Command R and Aya 23 (Cohere 2024): attention and MLP in parallel after one LayerNorm without a bias."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.names import Names
from glinfer.families.record import Family
from glinfer.families.settings import Settings

_SCALE = 0.0625


def divided_logits(settings: Settings, fields: Fields) -> Fields:
    """The divisor of the logits; files have a factor."""
    return {"logits_scaling": 1 / settings.number("logit_scale", _SCALE)}


FAMILY = Family(
    "cohere",
    names=Names(mlp_norm=""),
    norm="layer",
    norm_biases=False,
    layer=LayerConfig(parallel=True),
    positions="neighbours",
    rope_theta=500_000.0,
    attention_biases=("q", "k", "v", "o"),
    usual={"logits_scaling": 1 / _SCALE},
    huggingface=HuggingFace(
        sizes=(256000, 8192, 22528, 40, 64, 0, 0, 8192),
        eps=1e-5,
        tied=True,
        only={**SAME_MATHS, "use_qk_norm": (False, None)},
        more=divided_logits,
    ),
    gguf=Gguf(
        "command-r", head="tied", scalars={"logits_scaling": ("logit_scale", 1 / _SCALE)}, inverted=("logits_scaling",)
    ),
)
