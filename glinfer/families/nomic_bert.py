"""Nomic's BERT (Nussbaum et al. 2024): norms over the sums as in BERT, rotary positions, gated SiLU, and no biases.

Defaults follow NomicBertConfig in Hugging Face's transformers; older files use GPT-2's names of settings.
"""

from dataclasses import replace

from glinfer.families.record import ACTIVATIONS, GGUF_SUM_NAMES, Family, Gguf, HuggingFace, Names

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

FAMILY = Family(
    "nomic_bert",
    names=NAMES,
    norm="layer",
    norms="sum",
    rope_theta=1000.0,
    looks="both",
    token_types=True,
    embedding_norm=True,
    usual={"tie_word_embeddings": True, "type_vocab_size": 2, "pooling": "mean"},
    huggingface=HuggingFace(
        sizes=(30528, 768, 3072, 12, 12, 0, 0, 2048),
        activation="silu",
        activations={"hidden_act": ACTIVATIONS, "activation_function": {"swiglu": "silu"}},
        eps=1e-12,
        eps_key="layer_norm_eps",
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
        names=replace(NAMES, projection="attn.Wqkv"),
        prefix="",
        buffers=r"(.*\.)?rotary_emb\..*|.*position_ids|pooler\..*|cls\..*",
    ),
    gguf=Gguf("nomic-bert", attention_bias=False, names=GGUF_SUM_NAMES),
)
