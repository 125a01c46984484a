"""IQuest-Coder (IQuest 2026): a Llama in another size. Its GGUF files are Llama's, and read as such."""

from dataclasses import replace

from glinfer.families import llama

FAMILY = replace(
    llama.FAMILY,
    name="iquestcoder",
    huggingface=replace(
        llama.FAMILY.in_huggingface, sizes=(76800, 5120, 27648, 80, 40, 8, 128, 131072), eps=1e-5, wrapped=()
    ),
)
