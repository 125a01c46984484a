"""SigLIP's image encoder (Zhai et al. 2023), as in SmolVLM and Idefics 3: patches that all see each other.

The table of embeddings has the learned position of each patch, to which the product of its pixels is added. After the
last norm, neighbouring patches are joined, and one product makes them vectors of the language model.
"""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.names import Names
from glinfer.families.record import Family

NAMES = Names(
    embeddings="vision_model.embeddings.position_embedding",
    patches="vision_model.embeddings.patch_embedding",
    layer="vision_model.encoder.layers.{}.",
    attention_norm="layer_norm1",
    projection="self_attn.{}_proj",
    output="self_attn.out_proj",
    mlp_norm="layer_norm2",
    gate="",
    up="mlp.fc1",
    down="mlp.fc2",
    final_norm="vision_model.post_layernorm",
    head="",
    dense="connector.modality_projection.proj",
)
FAMILY = Family(
    "siglip",
    names=NAMES,
    norm="layer",
    positions="neighbours",  # none is rotated: ``rotary_layers`` is (0,)
    gated=False,
    activation="gelu_new",
    encodes=True,
    biases=("q", "k", "v", "o", "up", "down", "patches"),
    usual={"rotary_layers": (0,)},
    huggingface=HuggingFace(sizes=(0, 1152, 3072, 12, 16, 0, 0, 0)),
    gguf=Gguf(
        "clip",
        names=replace(
            NAMES,
            embeddings="v.position_embd",
            patches="v.patch_embd",
            layer="v.blk.{}.",
            attention_norm="ln1",
            projection="attn_{}",
            output="attn_out",
            mlp_norm="ln2",
            up="ffn_up",
            down="ffn_down",
            final_norm="v.post_ln",
            dense="mm.model.fc",
        ),
    ),
)
