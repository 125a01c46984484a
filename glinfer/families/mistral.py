"""Mistral (Jiang et al. 2023): a Llama without biases whose tokens may see a sliding window, in all layers.

Its GGUF files are Llama's, and read as such.
"""

from glinfer.families.huggingface import HuggingFace, window_of_all
from glinfer.families.llama import GGUF
from glinfer.families.record import Family

FAMILY = Family(
    "mistral",
    huggingface=HuggingFace(
        sizes=(32000, 4096, 14336, 32, 32, 8, 0, 4096 * 32), windows=window_of_all, wrapped=("mistral3",)
    ),
    gguf=GGUF,
)
