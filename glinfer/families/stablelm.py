"""StableLM 3B and StableLM 2 1.6B (Stability AI 2023): LayerNorm, heads rotated in part, and a gated MLP."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.record import Family
from glinfer.families.settings import Settings


def _biases(settings: Settings, fields: Fields) -> Fields:
    """The biases of queries, keys and values, under the family's own name."""
    return {"attention_bias": settings.flag("use_qkv_bias")}


FAMILY = Family(
    "stablelm",
    norm="layer",
    attention_biases=("q", "k", "v"),
    usual={"partial_rotary_factor": 0.25},
    huggingface=HuggingFace(
        sizes=(50304, 2560, 6912, 32, 32, 32, 0, 4096),
        eps=1e-5,
        only={**SAME_MATHS, "use_parallel_residual": (False,), "qk_layernorm": (False,)},
        more=_biases,
    ),
    gguf=Gguf("stablelm", head="own", partial_rotary=True),
)
