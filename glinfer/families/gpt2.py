"""GPT-2 (Radford et al. 2019): Gab's passes, with biases in the attention and none in the head.

Its "Conv1D" matrices are [in, out] in Hugging Face's files; one of them, ``c_attn``, has query, key and value.
"""

from dataclasses import replace

from glinfer.families.gab import NAMES
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import TANH, Fields, HuggingFace
from glinfer.families.names import GGUF_NAMES
from glinfer.families.record import Family
from glinfer.families.settings import Settings

_POSITIONS = ("n_positions", "max_position_embeddings")


def _old_positions(settings: Settings, fields: Fields) -> Fields:
    """The number of positions in old files, which have it as ``n_ctx`` alone."""
    old = settings.integer("n_ctx", fields["max_position_embeddings"])
    return {} if any(map(settings.given, _POSITIONS)) else {"max_position_embeddings": old}


FAMILY = Family(
    "gpt2",
    names=NAMES,
    norm="layer",
    positions="learned",
    gated=False,
    biases=("q", "k", "v", "o", "up", "down"),
    activation="gelu_new",
    huggingface=HuggingFace(
        sizes=(50257, 768, 0, 12, 12, 0, 0, 1024),
        activations={"activation_function": {"gelu_new": "gelu_new", TANH: "gelu_new", "gelu": "gelu"}},
        eps=1e-5,
        tied=True,
        keys={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "max_position_embeddings": _POSITIONS,
            "intermediate_size": ("n_inner",),
            "layer_norm_eps": ("layer_norm_epsilon",),
        },
        # reorder_and_upcast_attn only changes the precision and order of the same computation.
        only={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        names=replace(NAMES, projection="attn.c_attn", output="attn.c_proj", up="mlp.c_fc", down="mlp.c_proj"),
        prefix="transformer.",
        more=_old_positions,
        layouts=dict.fromkeys(("projection", "output", "up", "down"), "transposed"),
        buffers=r"h\.\d+\.attn\.(masked_)?bias",
    ),
    gguf=Gguf("gpt2", names=replace(GGUF_NAMES, projection="attn_qkv")),
)
