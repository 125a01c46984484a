"""InternLM3 (Shanghai AI Laboratory 2025): a Llama whose files have other names for its biases, which are refused.

Its GGUF files are Llama's, and read as such.
"""

from glinfer.families.huggingface import SAME_MATHS, HuggingFace
from glinfer.families.llama import GGUF
from glinfer.families.record import Family

FAMILY = Family(
    "internlm3",
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    huggingface=HuggingFace(
        sizes=(128512, 4096, 10240, 48, 32, 2, 128, 32768),
        eps=1e-5,
        only={**SAME_MATHS, "qkv_bias": (False, None), "bias": (False, None)},
    ),
    gguf=GGUF,
)
