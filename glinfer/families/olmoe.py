"""OLMoE (Muennighoff et al. 2024): a Llama with experts, and all heads normalised together."""

from glinfer.families.gguf import Gguf, windows
from glinfer.families.huggingface import SAME_MATHS, Fields, HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.names import EXPERT_NAMES, GGUF_EXPERT_NAMES
from glinfer.families.record import Family
from glinfer.families.settings import Keys


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    """GGUF files do not say that the weights of the chosen experts do not add up to 1."""
    return {**windows(keys, fields), "norm_topk_prob": False}


FAMILY = Family(
    "olmoe",
    names=EXPERT_NAMES,
    layer=LayerConfig(head_norms="width"),
    attention_biases=("q", "k", "v", "o"),
    huggingface=HuggingFace(
        sizes=(50304, 2048, 2048, 16, 16, 0, 0, 4096),
        eps=1e-5,
        only={**SAME_MATHS, "clip_qkv": (None,)},
        experts=(64, 8, False),
    ),
    gguf=Gguf("olmoe", head="own", attention_bias=False, names=GGUF_EXPERT_NAMES, more=_of_metadata),
)
