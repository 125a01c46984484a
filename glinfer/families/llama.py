"""Llama (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query attention, a gated MLP."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.record import Family

GGUF = Gguf("llama", pairs_together=True)
FAMILY = Family(
    "llama",
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    huggingface=HuggingFace(sizes=(32000, 4096, 11008, 32, 32, 0, 0, 2048), wrapped=("smolvlm", "idefics3")),
    gguf=GGUF,
)
