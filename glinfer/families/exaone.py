"""EXAONE 3 and 3.5 (LG AI Research 2024): a Llama whose files have GPT-2's names."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import ACTIVATIONS, HuggingFace
from glinfer.families.names import Names
from glinfer.families.record import Family

NAMES = Names(
    embeddings="transformer.wte",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    projection="attn.attention.{}_proj",
    output="attn.attention.out_proj",
    mlp_norm="ln_2",
    gate="mlp.c_fc_0",
    up="mlp.c_fc_1",
    down="mlp.c_proj",
    final_norm="transformer.ln_f",
)
FAMILY = Family(
    "exaone",
    names=NAMES,
    rope_theta=500_000.0,
    attention_biases=("q", "k", "v", "o"),
    mlp_biases=("gate", "up", "down"),
    huggingface=HuggingFace(
        sizes=(102400, 4096, 14336, 32, 32, 8, 0, 4096),
        activations={"activation_function": ACTIVATIONS, "hidden_act": ACTIVATIONS},
        eps=1e-5,
        keys={"num_hidden_layers": ("num_layers", "num_hidden_layers"), "layer_norm_eps": ("layer_norm_epsilon",)},
        prefix="transformer.",
        buffers=r"(.*\.)?rotary(_emb)?\.inv_freq",
    ),
    gguf=Gguf("exaone", slowed_pairs=True, attention_bias=False),
)
