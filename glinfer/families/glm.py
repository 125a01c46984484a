"""GLM-4 9B and GLM Edge (GLM Team 2024): a Llama that rotates a half of each head, in adjacent pairs."""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace, with_biases
from glinfer.families.names import GGUF_NAMES, Names
from glinfer.families.record import Family

FAMILY = Family(
    "glm",
    positions="neighbours",
    attention_biases=("q", "k", "v"),
    usual={"attention_bias": True, "partial_rotary_factor": 0.5},
    huggingface=HuggingFace(
        sizes=(151552, 4096, 13696, 40, 32, 2, 128, 131072),
        eps=1.5625e-07,
        more=with_biases,
        names=replace(Names(), gate="mlp.gate_up_proj", up="mlp.gate_up_proj"),
    ),
    gguf=Gguf(
        "chatglm", partial_rotary=True, names=replace(GGUF_NAMES, projection="attn_qkv", gate="ffn_up", up="ffn_up")
    ),
)
