"""Phi-1, Phi-1.5 and Phi-2 (Microsoft 2023): attention and MLP read the stream in parallel, after one LayerNorm.

A part of each head is rotated, and every matrix has a bias.
"""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.names import Names
from glinfer.families.record import Family

FAMILY = Family(
    "phi",
    names=Names(
        mlp_norm="", output="self_attn.dense", up="mlp.fc1", down="mlp.fc2", final_norm="model.final_layernorm"
    ),
    norm="layer",
    layer=LayerConfig(parallel=True),
    gated=False,
    activation="gelu_new",
    biases=("q", "k", "v", "o", "up", "down", "head"),
    usual={"partial_rotary_factor": 0.5},
    huggingface=HuggingFace(
        sizes=(51200, 2048, 8192, 24, 32, 0, 0, 2048),
        eps=1e-5,
        only={**SAME_MATHS, "qk_layernorm": (False, None), "tie_word_embeddings": (False, None)},
    ),
    gguf=Gguf("phi2", head="own", partial_rotary=True),
)
