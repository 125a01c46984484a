"""ERNIE 4.5 without experts (Baidu 2025): a Llama whose rotary positions rotate adjacent elements."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS, HuggingFace
from glinfer.families.record import Family

FAMILY = Family(
    "ernie4_5",
    positions="neighbours",
    rope_theta=500_000.0,
    huggingface=HuggingFace(
        sizes=(103424, 1024, 3072, 18, 16, 2, 128, 131072),
        eps=1e-5,
        tied=True,
        only={**SAME_MATHS, "use_bias": (False, None)},
    ),
    gguf=Gguf("ernie4_5", attention_bias=False),
)
