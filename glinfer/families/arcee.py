"""Arcee's AFM (Arcee AI 2025): a Llama whose MLP has the square of ReLU and no gate."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.record import Family

FAMILY = Family(
    "arcee",
    gated=False,
    activation="relu2",
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("up", "down"),
    huggingface=HuggingFace(sizes=(32000, 2560, 18432, 32, 32, 0, 0, 4096), eps=1e-5),
    gguf=Gguf("arcee", pairs_together=True, attention_bias=False),
)
