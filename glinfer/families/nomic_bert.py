"""Nomic's BERT (Nussbaum et al. 2024): norms over the sums as in BERT, rotary positions, gated SiLU, and no biases.

Older files use GPT-2's names of settings.
"""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import ACTIVATIONS, Fields, HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_SUM_NAMES, Names
from glinfer.families.record import Family
from glinfer.families.settings import Settings

NAMES = Names(
    embeddings="embeddings.word_embeddings",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    layer="encoder.layers.{}.",
    projection="attn.{}",
    output="attn.out_proj",
    attention_post_norm="norm1",
    gate="mlp.fc12",
    up="mlp.fc11",
    down="mlp.fc2",
    mlp_post_norm="norm2",
    final_norm="",
    head="",
)


def old_settings(settings: Settings, fields: Fields) -> Fields:
    """The epsilon and the base of angles under the names in older files."""
    return {
        "layer_norm_eps": settings.number("layer_norm_epsilon", fields["layer_norm_eps"]),
        "rope_theta": settings.number("rotary_emb_base", fields["rope_theta"]),
    }


FAMILY = Family(
    "nomic_bert",
    names=NAMES,
    norm="layer",
    layer=LayerConfig(norms="sum"),
    rope_theta=1000.0,
    encodes=True,
    usual={"type_vocab_size": 2},
    huggingface=HuggingFace(
        sizes=(30528, 768, 3072, 12, 12, 0, 0, 2048),
        activations={"hidden_act": ACTIVATIONS, "activation_function": {"swiglu": "silu"}},
        eps=1e-12,
        tied=True,
        keys={
            "hidden_size": ("n_embd", "hidden_size"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "max_position_embeddings": ("n_positions", "max_position_embeddings"),
            "intermediate_size": ("n_inner", "intermediate_size"),
        },
        only={
            "prenorm": (False,),
            "rotary_emb_interleaved": (False,),
            "rotary_emb_fraction": (1, 1.0),
            "qkv_proj_bias": (False,),
            "mlp_fc1_bias": (False,),
            "mlp_fc2_bias": (False,),
        },
        more=old_settings,
        names=replace(NAMES, projection="attn.Wqkv"),
        prefix="",
        buffers=r"(.*\.)?rotary_emb\..*|.*position_ids|pooler\..*|cls\..*",
    ),
    gguf=Gguf("nomic-bert", attention_bias=False, names=GGUF_SUM_NAMES),
)
