"""Helium (Kyutai 2025): a Llama that rotates adjacent pairs."""

from dataclasses import replace

from glinfer.families import llama

FAMILY = replace(
    llama.FAMILY,
    name="helium",
    positions="neighbours",
    rope_theta=1e5,
    huggingface=replace(
        llama.FAMILY.in_huggingface, sizes=(48000, 2560, 7040, 24, 20, 20, 128, 4096), eps=1e-8, wrapped=()
    ),
    gguf=None,
)
