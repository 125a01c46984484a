"""Gab: learned positions, LayerNorm, an MLP with biases and the tanh form of GELU, no biases in the attention.

Tensor names are those of GPT-J in Hugging Face's transformers, plus ``wpe``. Source: the original engine.
"""

from glinfer.families.names import Names
from glinfer.families.record import Family

SHAPE = {"vocab": 5256, "dim": 512, "heads": 8, "blocks": 6, "context": 2048}
"""Gab's own shape under the names of the GAB1 header."""
NAMES = Names(
    embeddings="transformer.wte",
    positions="transformer.wpe",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    projection="attn.{}_proj",
    output="attn.out_proj",
    mlp_norm="ln_2",
    up="mlp.fc_in",
    down="mlp.fc_out",
    final_norm="transformer.ln_f",
)
FAMILY = Family(
    "gab",
    names=NAMES,
    norm="layer",
    positions="learned",
    gated=False,
    activation="gelu_new",
    biases=("up", "down", "head"),
    gab1=True,
    gguf_as="gpt2",
    stops=("<|end|>",),
)
