"""BitNet b1.58 (Ma et al. 2024, 2025): ternary matrices, each after a norm that rounds to 8 bits, and ReLU squared.

Rounding follows the class ``autobitlinear`` of transformers. llama.cpp does not round. GGUF files without an activation
have SiLU, as there.
"""

from dataclasses import replace
from typing import Any

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import TERNARY, Fields, HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family
from glinfer.families.settings import Keys

_ACTIVATION = "hidden_activation"


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    return {"hidden_act": keys.one_of(_ACTIVATION, {"relu2": "relu2", "silu": "silu"}, "silu")}


def _metadata(config: Any) -> dict[str, Any]:
    return {_ACTIVATION: config.hidden_act}


FAMILY = Family(
    "bitnet",
    names=Names(output_norm="self_attn.attn_sub_norm", down_norm="mlp.ffn_sub_norm"),
    layer=LayerConfig(rounded=True),
    rope_theta=500_000.0,
    activation="relu2",
    attention_biases=("q", "k", "v", "o"),
    huggingface=HuggingFace(
        sizes=(128256, 2560, 6912, 30, 20, 5, 0, 2048),
        eps=1e-5,
        layouts=dict.fromkeys(("projection", "output", "gate", "up", "down"), TERNARY),
    ),
    gguf=Gguf(
        "bitnet",
        head="tied",
        attention_bias=False,
        names=replace(GGUF_NAMES, output_norm="attn_sub_norm", down_norm="ffn_sub_norm"),
        more=_of_metadata,
        further=_metadata,
    ),
)
