"""GPT-2 (Radford et al. 2019): Gab's passes, with biases in the attention and none in the head.

Defaults follow GPT2Config in Hugging Face's transformers, whose "Conv1D" matrices are [in, out]; one of them,
``c_attn``, has query, key and value.
"""

from dataclasses import replace

from glinfer.families.gab import NAMES
from glinfer.families.record import GGUF_NAMES, TANH, Family, Gguf, HuggingFace

FAMILY = Family(
    "gpt2",
    names=NAMES,
    norm="layer",
    positions="learned",
    gated=False,
    biases=("q", "k", "v", "o", "up", "down"),
    published=True,
    usual={"tie_word_embeddings": True},
    huggingface=HuggingFace(
        sizes=(50257, 768, 0, 12, 12, 0, 0, 1024),
        activation="gelu_new",
        activations={"activation_function": {"gelu_new": "gelu_new", TANH: "gelu_new", "gelu": "gelu"}},
        eps=1e-5,
        eps_key="layer_norm_epsilon",
        tied=True,
        keys={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
            "intermediate_size": ("n_inner",),
        },
        old_keys={"max_position_embeddings": "n_ctx"},
        # reorder_and_upcast_attn only changes the precision and order of the same computation.
        only={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        names=replace(NAMES, projection="attn.c_attn", output="attn.c_proj", up="mlp.c_fc", down="mlp.c_proj"),
        prefix="transformer.",
        transposed=True,
        buffers=r"h\.\d+\.attn\.(masked_)?bias",
    ),
    gguf=Gguf("gpt2", activation="gelu_new", names=replace(GGUF_NAMES, projection="attn_qkv")),
)
