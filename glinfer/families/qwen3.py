"""Qwen 3 (Qwen Team 2025): a Llama whose heads of queries and keys are normalised; a window in its last layers.

Defaults are those of Qwen3Config in Hugging Face's transformers 5.
"""

from glinfer.families.record import Family, Gguf, HuggingFace

FAMILY = Family(
    "qwen3",
    head_norms=True,
    attention_biases=("q", "k", "v", "o"),
    usual={"hidden_act": "silu"},
    huggingface=HuggingFace(sizes=(151936, 4096, 22016, 32, 32, 32, 128, 32768), window="later"),
    gguf=Gguf("qwen3", attention_bias=False),
)
