"""LFM2 (Liquid AI 2025), and LFM2.5: most layers have a gated short convolution in place of attention.

Defaults follow Lfm2Config in Hugging Face's transformers 5. The published models have 10 layers with a
convolution over three tokens, and 6 with attention whose heads are normalised.
"""

from dataclasses import replace

from glinfer.families.record import GGUF_NAMES, Family, Gguf, HuggingFace, Names

FAMILY = Family(
    "lfm2",
    names=Names(
        attention_norm="operator_norm",
        head_norm="self_attn.{}_layernorm",
        output="self_attn.out_proj",
        mlp_norm="ffn_norm",
        gate="feed_forward.w1",
        up="feed_forward.w3",
        down="feed_forward.w2",
        final_norm="model.embedding_norm",
    ),
    rope_theta=1e6,
    head_norms="head",
    convolves=True,
    usual={
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "conv_L_cache": 3,
        "layer_types": ("conv", "conv", "full_attention") * 3 + ("conv", "full_attention") * 3,
    },
    huggingface=HuggingFace(
        sizes=(65536, 2560, 12288, 32, 32, 8, 0, 128000),
        eps=1e-5,
        eps_key="norm_eps",
        tied=True,
        null_heads=False,
        window="conv",
    ),
    gguf=Gguf("lfm2", attention_bias=False, names=replace(GGUF_NAMES, final_norm="token_embd_norm")),
)
