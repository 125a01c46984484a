"""BitNet b1.58 (Ma et al. 2024, 2025): ternary matrices, each behind a norm that rounds to 8 bits, and ReLU squared.

Rounding follows the class ``autobitlinear`` of transformers. llama.cpp computes its GGUF files with SiLU and without
rounding, so that these have no peer.
"""

from glinfer.families.huggingface import TERNARY, HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.names import Names
from glinfer.families.record import Family

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
)
