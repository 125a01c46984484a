"""SmolLM3 (Hugging Face 2025): a Llama without rotary positions in every fourth layer.

Defaults follow SmolLM3Config in Hugging Face's transformers 5.
"""

from glinfer.families.record import Family, Gguf, HuggingFace

FAMILY = Family(
    "smollm3",
    rope_theta=2e6,
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    usual={"hidden_act": "silu", "tie_word_embeddings": True, "rope_theta": 2e6, "rotary_layers": (1, 1, 1, 0)},
    huggingface=HuggingFace(sizes=(128256, 2048, 11008, 36, 16, 4, 0, 32768), tied=True, no_rope=4),
    gguf=Gguf("smollm3", pairs_together=True, no_rope=4),
)
