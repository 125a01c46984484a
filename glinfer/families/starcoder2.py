"""StarCoder 2 (Lozhkov et al. 2024): LayerNorm, rotary positions, an MLP without a gate, and biases everywhere."""

from functools import partial

from glinfer.families.gguf import Gguf, windows
from glinfer.families.huggingface import SAME_MATHS, HuggingFace, window_of_all
from glinfer.families.names import Names
from glinfer.families.record import Family

FAMILY = Family(
    "starcoder2",
    names=Names(up="mlp.c_fc", down="mlp.c_proj"),
    norm="layer",
    gated=False,
    activation="gelu_new",
    biases=("q", "k", "v", "o", "up", "down"),
    huggingface=HuggingFace(
        sizes=(49152, 3072, 12288, 30, 24, 2, 0, 4096),
        eps=1e-5,
        tied=True,
        keys={"layer_norm_eps": ("norm_epsilon",)},
        only={**SAME_MATHS, "use_bias": (True,)},
        windows=partial(window_of_all, usual=0),
    ),
    gguf=Gguf("starcoder2", more=windows),
)
