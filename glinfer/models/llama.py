"""Llama, and what is the same with other settings: Mistral, Qwen 2, Qwen 3, Gemma.

RMSNorm, rotary positions that turn elements half a head apart, heads that share keys and values, an MLP with a gate
(Touvron et al. 2023; Jiang et al. 2023; Qwen Team 2024, 2025; Gemma Team 2024). Sliding windows, biases and tied
embeddings are settings of the configuration, what is normalised is in :data:`glinfer.formats.families.FAMILIES`. Names
and mathematics are those of the models of these names in Hugging Face's transformers.
"""

from glinfer.formats.families import GEMMA, LLAMA, MISTRAL, QWEN2, QWEN3
from glinfer.models.decoder import Style

STYLES = {
    LLAMA: Style(),
    MISTRAL: Style(),
    QWEN2: Style(),
    QWEN3: Style(),
    GEMMA: Style(norm_offset=1.0, scaled_embeddings=True),
}
"""What the models of each of these families compute."""
