"""Qwen 3.5's text models (Qwen Team 2026): three of four layers have the gated delta rule in place of attention.

Defaults follow Qwen3_5TextConfig in Hugging Face's transformers 5. Attention has output gates, and a quarter of
each of its heads is rotated. All norms but the one after the delta rule add 1 to their gains.
"""

from dataclasses import replace

from glinfer.families.record import GGUF_NAMES, SAME_MATHS, Family, Gguf, HuggingFace

FAMILY = Family(
    "qwen3_5_text",
    norm_offset=1.0,
    head_norms="head",
    delta_rule=True,
    gated_attention=True,
    attention_biases=("q", "k", "v", "o"),
    usual={
        "hidden_act": "silu",
        "layer_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "layer_types": ("linear_attention",) * 3 + ("full_attention",),
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
    huggingface=HuggingFace(
        sizes=(248320, 4096, 12288, 32, 16, 4, 256, 32768),
        window="delta",
        partial_rotary=True,
        rotary_share=0.25,
        only={name: values for name, values in SAME_MATHS.items() if name != "partial_rotary_factor"},
        buffers=r"(.*\.)?rotary_emb\.inv_freq|mtp\..*",
        wrapped=("qwen3_5",),
    ),
    gguf=Gguf(
        "qwen35",
        attention_bias=False,
        partial_rotary=True,
        sections=True,
        names=replace(
            GGUF_NAMES,
            mlp_norm="post_attention_norm",
            letters={"qkv": "attn_qkv", "z": "attn_gate", "a": "ssm_alpha", "b": "ssm_beta"},
        ),
    ),
)
