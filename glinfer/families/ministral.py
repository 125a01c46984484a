"""Ministral (Mistral AI 2024): a Mistral whose file lists the layers with a window.

Its GGUF files are Llama's, and read as such.
"""

from glinfer.families.huggingface import HuggingFace, listed_windows
from glinfer.families.llama import GGUF
from glinfer.families.record import Family

FAMILY = Family(
    "ministral",
    huggingface=HuggingFace(sizes=(32000, 4096, 14336, 32, 32, 8, 0, 4096 * 32), windows=listed_windows),
    gguf=GGUF,
)
