"""Small random models as Hugging Face directories, of the same bits with every NumPy and without PyTorch."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.formats import weight_shapes
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.layouts import file_shape
from glinfer.formats.tensors import stored_tensors

from .given import SIZES

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]

STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

VOCAB, CONTEXT = 151, 220
COMMON = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
ROTARY = {
    **COMMON,
    "pad_token_id": 0,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
# Few shapes, since each has shaders of its own: an odd one, and an even one, in Gemma with heads wider than the stream.
ODD = {**ROTARY, "hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 101}
EVEN = {**ROTARY, "hidden_size": 64, "num_key_value_heads": 2}
GPT2 = {**COMMON, "model_type": "gpt2", "n_positions": CONTEXT, "n_embd": 48, "n_layer": 2, "n_head": 3}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 30, "max_window_layers": 1}


@dataclass(frozen=True)
class Made:
    """A model to make: its config.json, the seed of its numbers, and the type that they are stored in."""

    settings: dict[str, Any]
    seed: int = 0
    dtype: str = "float32"


def made(kind: str, *groups: dict[str, Any], seed: int = 0, **settings: Any) -> Made:
    """A model of the ``model_type`` kind with the settings of all groups."""
    found = {name: value for group in groups for name, value in group.items()}
    return Made({**found, "model_type": kind, **settings}, seed)


GRANITE = {
    # None is 1, and branches weigh enough beside the embeddings that the order of tokens shows.
    "embedding_multiplier": 1.7,
    "attention_multiplier": 0.31,
    "residual_multiplier": 0.62,
    "logits_scaling": 8.0,
}
EXPERTS = {"moe_intermediate_size": 70, "intermediate_size": 70, "num_experts_per_tok": 3}
LATENT = {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10, "num_key_value_heads": 6}
LATENTS = {
    **LATENT,
    **{"n_routed_experts": 7, "num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 101},
}
"""Widths of latents, experts, and a layer without them."""
GPT_OSS = {**ODD, **EXPERTS, "model_type": "gpt_oss", "head_dim": 20, "num_local_experts": 6}
DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
}
SCAN = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_hidden_layers": 3,
    "mamba_n_heads": 6,
    "mamba_d_head": "auto",
    "mamba_d_state": 20,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
}
FACTORS = [1.0, 1.25, 1.5, 2.0, 3.0, 4.5]
GEMMA = {**EVEN, "model_type": "gemma", "head_dim": 20}
GEMMA2 = {**GEMMA, "num_hidden_layers": 3, "query_pre_attn_scalar": 40}
GEMMA3 = {**GEMMA2, "sliding_window": 30}
GEMMA4 = {
    **{**GEMMA, "sliding_window": 30, "head_dim": 10, "global_head_dim": 12},
    **{"num_hidden_layers": 6, "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2},
    "vocab_size_per_layer_input": VOCAB,
    "final_logit_softcapping": 6.0,
}
MODELS = {
    "llama": made("llama", ODD),
    "llama3-biases-tied": made(
        "llama", EVEN, seed=4, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "mistral": made("mistral", ODD, sliding_window=50),
    "qwen2": made("qwen2", ODD),
    "qwen2-windows": made("qwen2", EVEN, SLIDING, tie_word_embeddings=True),
    "qwen3": made("qwen3", ODD, seed=3, head_dim=10, attention_bias=True, rms_norm_eps=1e-4),
    "gemma": Made(GEMMA),
    "gemma2": made(
        "gemma2", GEMMA2, seed=1, sliding_window=50, attn_logit_softcapping=2.0, final_logit_softcapping=0.6
    ),
    "gemma3": made("gemma3_text", GEMMA3, seed=1, sliding_window_pattern=2),
    "gemma3-scaled": made(
        "gemma3_text",
        GEMMA3,
        {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
            }
        },
        {"final_logit_softcapping": 6.0, "attention_bias": True, "tie_word_embeddings": False},
        seed=2,
    ),
    "gemma4": made(
        "gemma4_text", GEMMA4, seed=2, hidden_size_per_layer_input=12, num_kv_shared_layers=3, use_double_wide_mlp=True
    ),
    "gemma4-dense": made(
        "gemma4_text",
        GEMMA4,
        {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {"attention_bias": True},
        seed=5,
    ),
    "gemma4_moe": made(
        "gemma4_text",
        GEMMA4,
        {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 70},
        {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        seed=2,
    ),
    "smollm3": made("smollm3", ODD, seed=1, num_hidden_layers=3, no_rope_layer_interval=2),
    "olmo2": made("olmo2", ODD, seed=3, rms_norm_eps=1e-4),
    "ministral": made(
        "ministral", ODD, seed=1, head_dim=10, sliding_window=30, layer_types=["full_attention", "sliding_attention"]
    ),
    "ministral3": made(
        "ministral3",
        ODD,
        {"head_dim": 10},
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 16},
                **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
                "llama_4_scaling_beta": 0.3,
            }
        },
        seed=3,
    ),
    "seed_oss": made("seed_oss", ODD, seed=0, head_dim=20, mlp_bias=True),
    "ernie4_5": made("ernie4_5", ODD, seed=3, head_dim=20, rope_theta=5e4),
    "exaone4": made(
        "exaone4", ODD, seed=3, num_hidden_layers=5, sliding_window=30, sliding_window_pattern=3, rope_theta=5e4
    ),
    "hunyuan_v1_dense": made(
        "hunyuan_v1_dense",
        ODD,
        {"head_dim": 20, "attention_bias": True},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "alpha": 7.0, "factor": 1.0}},
        seed=7,
    ),
    "apertus": made("apertus", ODD, seed=4, head_dim=20),
    "olmo3": made(
        "olmo3",
        ODD,
        {"num_hidden_layers": 5, "sliding_window": 30, "rope_theta": 5e4},
        {
            "rope_scaling": {
                **{"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
                **{"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.2},
            }
        },
        seed=0,
    ),
    "qwen3_vl": made(
        "qwen3_vl_text",
        ODD,
        {"head_dim": 20, "tie_word_embeddings": True},
        {
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 5e3},
                **{"mrope_section": [4, 3, 3], "mrope_interleaved": True},
            }
        },
        seed=1,
    ),
    "arcee": made("arcee", ODD, seed=3, head_dim=10, attention_bias=True, mlp_bias=True),
    "nemotron": made("nemotron", ODD, seed=1, hidden_size=72, norm_eps=1e-4),
    "starcoder2": made("starcoder2", ODD, seed=0, sliding_window=30, tie_word_embeddings=False),
    "stablelm": made("stablelm", EVEN, seed=9, use_qkv_bias=True, partial_rotary_factor=0.25),
    "glm": made("glm", EVEN, seed=1, head_dim=20, rms_norm_eps=1e-4),
    "glm4": made("glm4", ODD, seed=4, head_dim=20, rope_theta=5e3),
    "cohere": made("cohere", EVEN, seed=4, attention_bias=True, tie_word_embeddings=False),
    "cohere2": made(
        "cohere2",
        ODD,
        {"num_hidden_layers": 5, "sliding_window": 30, "sliding_window_pattern": 3, "logit_scale": 0.25},
        {"tie_word_embeddings": False},
        seed=0,
    ),
    "exaone": made("exaone", ODD, seed=3, num_layers=2, rope_theta=5e4),
    "gpt_neox": made("gpt_neox", EVEN, seed=5, num_key_value_heads=4, rotary_pct=0.5, rotary_emb_base=5e3),
    "bitnet": made(
        "bitnet",
        ODD,
        {"rope_theta": 5e4},
        {
            "quantization_config": {
                **{"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
            }
        },
        seed=3,
    ),
    "phi": made("phi", ODD, seed=0, hidden_size=72, partial_rotary_factor=0.5, layer_norm_eps=1e-4),
    "phi3": made(
        "phi3",
        ROTARY,
        {"hidden_size": 64, "num_key_value_heads": 2, "partial_rotary_factor": 0.75},
        {"rope_scaling": {"type": "longrope", "short_factor": FACTORS[::-1], "long_factor": FACTORS}},
        {"original_max_position_embeddings": 64},
    ),
    "granite": made("granite", EVEN, GRANITE, seed=2),
    # As the published files have it, and with everything else that a file may say.
    "lfm2": made(
        "lfm2",
        {name: value for name, value in ODD.items() if name != "intermediate_size"},
        {"num_hidden_layers": 4, "full_attn_idxs": [2], "block_ff_dim": 150, "block_multiple_of": 7, "rope_theta": 1e6},
        {"tie_embedding": True},
        seed=5,
    ),
    "lfm2-biases": made(
        "lfm2",
        EVEN,
        {"num_hidden_layers": 3, "layer_types": ["full_attention", "conv", "conv"], "conv_L_cache": 5},
        {"conv_bias": True, "norm_eps": 1e-4, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
        seed=2,
    ),
    "lfm3": made(
        "lfm3",
        ODD,
        {"head_dim": 20, "num_hidden_layers": 5},
        {"layer_types": ["conv", "sliding_attention", "full_attention", "conv", "sliding_attention"]},
        {"sliding_window": 30, "conv_L_cache": 5},
        seed=0,
    ),
    "lfm2_moe": made(
        "lfm2_moe",
        ODD,
        {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
        {"moe_intermediate_size": 70, "num_dense_layers": 1, "num_experts": 9, "num_experts_per_tok": 3},
        {"routed_scaling_factor": 1.3, "rope_theta": 1e6},
        seed=2,
    ),
    # A period of four layers, and one of the shapes that a file may have; states last for tens of tokens.
    "qwen3_5": made(
        "qwen3_5_text",
        ODD,
        DELTA,
        {"head_dim": 16, "num_hidden_layers": 4},
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e5,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            }
        },
        seed=4,
    ),
    "qwen3_5-shared": made(
        "qwen3_5_text",
        EVEN,
        DELTA,
        {"head_dim": 24, "layer_types": ["full_attention", "linear_attention"], "linear_num_key_heads": 2},
        {"linear_key_head_dim": 20, "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-4, "attention_bias": True},
        {"tie_word_embeddings": True},
        seed=3,
    ),
    "qwen2_moe": made("qwen2_moe", ODD, EXPERTS, seed=0, num_experts=9, shared_expert_intermediate_size=130),
    "qwen3_moe": made("qwen3_moe", ODD, EXPERTS, seed=4, head_dim=10, num_experts=9, norm_topk_prob=True),
    "mixtral": made("mixtral", ODD, seed=1, num_local_experts=6, num_experts_per_tok=3),
    "glm4_moe": made(
        "glm4_moe",
        ODD,
        EXPERTS,
        {"head_dim": 20, "attention_bias": True, "n_routed_experts": 7, "num_hidden_layers": 3},
        {"routed_scaling_factor": 1.3, "n_shared_experts": 2, "intermediate_size": 101},
        seed=3,
    ),
    "dots1": made(
        "dots1",
        ODD,
        EXPERTS,
        {"head_dim": 20, "n_routed_experts": 7, "n_shared_experts": 1, "num_hidden_layers": 3},
        {"first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
        seed=5,
    ),
    "deepseek_v2": made("deepseek_v2", ODD, EXPERTS, LATENTS, q_lora_rank=None),
    "deepseek_v2-scaled": made(
        "deepseek_v2",
        ODD,
        EXPERTS,
        LATENTS,
        {"q_lora_rank": 18, "routed_scaling_factor": 1.7, "n_shared_experts": 1, "first_k_dense_replace": 0},
        {"topk_method": "group_limited_greedy", "n_routed_experts": 9, "n_group": 3, "topk_group": 2},
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 0.707},
                "original_max_position_embeddings": 55,
            }
        },
        seed=5,
    ),
    "youtu": made("youtu", ODD, LATENT, seed=2, q_lora_rank=18, tie_word_embeddings=False),
    "minicpm3": made(
        "minicpm3",
        EVEN,
        LATENT,
        {"num_key_value_heads": 4, "q_lora_rank": 18, "scale_emb": 1.7, "scale_depth": 0.9, "dim_model_base": 16},
        seed=1,
        tie_word_embeddings=False,
    ),
    "internlm3": made("internlm3", ODD, head_dim=10, rope_scaling={"rope_type": "dynamic", "factor": 6.0}),
    "iquestcoder": made("iquestcoder", ODD, head_dim=10),
    "cwm": made("cwm", EVEN, seed=1, head_dim=16, num_hidden_layers=3, sliding_window=30),
    "helium": made("helium", ODD, head_dim=10, tie_word_embeddings=True),
    "hyperclovax": made("hyperclovax", EVEN, {**GRANITE, "logits_scaling": 0.4, "head_dim": 20}, seed=5, mlp_bias=True),
    "jais2": made("jais2", ODD, seed=1, head_dim=10),
    "vaultgemma": made("vaultgemma", GEMMA2, seed=4, sliding_window=50, attn_logit_softcapping=2.0),
    "exaone_moe": made(
        "exaone_moe",
        EVEN,
        EXPERTS,
        {"num_experts": 8, "n_group": 4, "topk_group": 2, "num_shared_experts": 2, "intermediate_size": 101},
        {"num_hidden_layers": 4, "sliding_window": 30, "sliding_window_pattern": 3},
        seed=4,
    ),
    "solar_open": made("solar_open", ODD, EXPERTS, seed=1, head_dim=20, n_routed_experts=8, n_group=2, topk_group=1),
    "deepseek_v3": made(
        "deepseek_v3", ODD, EXPERTS, LATENTS, q_lora_rank=18, n_routed_experts=12, n_group=4, topk_group=2, seed=1
    ),
    "glm4_moe_lite": made(
        "glm4_moe_lite",
        {**EVEN, **EXPERTS, **LATENTS, "num_key_value_heads": 4, "q_lora_rank": 20, "first_k_dense_replace": 1},
        mlp_layer_types=["dense", "sparse", "sparse"],
        seed=1,
    ),
    "minimax_m2": made(
        "minimax_m2", ODD, seed=0, head_dim=20, rotary_dim=12, num_local_experts=7, num_experts_per_tok=3
    ),
    "ernie4_5_moe": made(
        "ernie4_5_moe",
        ODD,
        EXPERTS,
        {"head_dim": 20, "moe_k": 3, "moe_num_experts": 7, "num_hidden_layers": 3, "intermediate_size": 101},
        {"rope_theta": 5e4},
        seed=3,
    ),
    "hunyuan_v1_moe": made(
        "hunyuan_v1_moe",
        ODD,
        {"head_dim": 20, "attention_bias": True, "num_experts": 7, "moe_topk": [3, 3]},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "alpha": 7.0, "factor": 1.0}},
        seed=4,
    ),
    "qwen3_5_moe": made(
        "qwen3_5_moe_text",
        EVEN,
        EXPERTS,
        DELTA,
        {"head_dim": 16, "num_experts": 7, "shared_expert_intermediate_size": 70},
        {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2},
        seed=2,
    ),
    "qwen3_next": made(
        "qwen3_next",
        EVEN,
        EXPERTS,
        DELTA,
        {"head_dim": 16, "num_experts": 9, "shared_expert_intermediate_size": 70},
        {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "norm_topk_prob": False},
        seed=1,
    ),
    "olmoe": made("olmoe", EVEN, EXPERTS, seed=3, num_experts=8),
    "granitemoe": made("granitemoe", EVEN, EXPERTS, GRANITE, seed=4, num_local_experts=6),
    "granitemoehybrid": made(
        "granitemoehybrid", ODD, SCAN, GRANITE, seed=0, num_local_experts=0, shared_intermediate_size=101
    ),
    "granitemoehybrid_moe": made(
        "granitemoehybrid",
        EVEN,
        SCAN,
        EXPERTS,
        GRANITE,
        {"num_local_experts": 6, "layer_types": ["full_attention", "linear_attention"], "num_hidden_layers": 2},
        {"mamba_n_heads": 8, "shared_intermediate_size": 90, "mamba_conv_bias": False},
        {"position_embedding_type": "rope"},
        seed=3,
    ),
    "nemotron_h": made(
        "nemotron_h",
        ODD,
        {"head_dim": 10, "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"]},
        {"num_hidden_layers": 5, "mamba_num_heads": 6, "mamba_head_dim": 12, "ssm_state_size": 20, "n_groups": 3},
        seed=0,
    ),
    "nemotron_h_moe": made(
        "nemotron_h",
        ODD,
        EXPERTS,
        {"head_dim": 10, "intermediate_size": 90},
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"], "num_hidden_layers": 5},
        {"mamba_num_heads": 6, "mamba_head_dim": 12, "ssm_state_size": 20, "n_groups": 3, "n_routed_experts": 7},
        {"moe_shared_expert_intermediate_size": 50, "routed_scaling_factor": 2.5},
        seed=0,
    ),
    "falcon_h1": made(
        "falcon_h1",
        ODD,
        {"rope_theta": 1e6, "head_dim": 20, "mamba_d_ssm": 72, "mamba_n_heads": 6, "mamba_d_head": "auto"},
        {"mamba_d_state": 20, "mamba_n_groups": 2, "embedding_multiplier": 1.7, "lm_head_multiplier": 0.8},
        {"mlp_multipliers": [0.7, 0.6], "key_multiplier": 0.4, "attention_in_multiplier": 1.1},
        {"attention_out_multiplier": 0.9, "ssm_multipliers": [0.7, 0.5, 0.35, 1.2, 1.4], "ssm_in_multiplier": 1.3},
        {"ssm_out_multiplier": 0.8},
        seed=0,
    ),
    "falcon_h1-norms": made(
        "falcon_h1",
        EVEN,
        {"tie_word_embeddings": True, "mamba_d_ssm": None, "mamba_expand": 1, "mamba_n_heads": 4, "mamba_d_head": 16},
        {"mamba_d_state": 12, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2},
        seed=1,
    ),
    "mamba2": made(
        "mamba2",
        COMMON,
        {"hidden_size": 60, "num_hidden_layers": 3, "num_heads": 10, "head_dim": 12, "state_size": 20, "n_groups": 2},
        {"pad_token_id": 0, "use_conv_bias": False, "max_position_embeddings": CONTEXT},
        seed=3,
    ),
    # As the published files have it but for the matrices' type, and with everything else that a file may say.
    "gpt_oss": Made(GPT_OSS, seed=1),
    "gpt_oss-limits": made(
        "gpt_oss",
        EVEN,
        EXPERTS,
        {"head_dim": 10, "num_local_experts": 5, "num_hidden_layers": 3},
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 30},
        {"swiglu_limit": 0.7, "swiglu_alpha": 1.4},
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False},
                "original_max_position_embeddings": 64,
            }
        },
        {"tie_word_embeddings": True},
        seed=0,
    ),
    "gpt2": Made(GPT2),
    "gpt2-untied": made(
        "gpt2", GPT2, seed=2, tie_word_embeddings=False, n_inner=70, activation_function="gelu", layer_norm_epsilon=1e-4
    ),
}
"""Every family that transformers has, in float32."""
LONGROPE = made("phi3", MODELS["phi3"].settings, max_position_embeddings=96, original_max_position_embeddings=32)
"""A model with other angles for texts of more than 32 tokens."""
LONGROPE_PROMPTS = (1, 24, 31, 32, 33, 45)
"""Tokens of the prompts that it goes on with; the texts that it scores are as long."""
HALVES = {
    "gemma-bfloat16": Made(GEMMA, dtype="bfloat16"),
    "gemma-float16": Made(GEMMA, dtype="float16"),
    "gpt2-bfloat16": Made(GPT2, dtype="bfloat16"),
    "gpt_oss-bfloat16": Made(GPT_OSS, seed=1, dtype="bfloat16"),
    "gpt_oss-float16": Made(GPT_OSS, seed=1, dtype="float16"),
}
"""Models whose files hold rounded weights."""
GIFT = ModelConfig(
    VOCAB,
    60,
    6,
    2,
    CONTEXT,
    intermediate_size=101,
    hidden_act="gelu",
    model_type="gift_of_gab",
    tie_word_embeddings=True,
    mlp_bias=True,
)
"""Second-generation Gab, which transformers does not have."""


class Numbers:
    """Uniform numbers out of the raw bits of PCG64, which NumPy promises to keep; only exact arithmetic follows."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, shape: tuple[int, ...], scale: float) -> Array:
        """The next float32 numbers between -scale and scale, each one of 65,536."""
        count = math.prod(shape)
        words = self._bits.random_raw(-(-count // 4)).astype("<u8").view("<u2")[:count]
        found: Array = ((2.0 * words - 65535.0) * (scale / 65536.0)).astype(np.float32)
        return found.reshape(shape)


def random_tensors(shapes: Shapes, seed: int, *, gain: float = 1.0, embedding: float = 0.26) -> dict[str, Array]:
    """Numbers for every tensor: those of norms lie around ``gain``, biases are small, convolutions and sinks large.

    Attention is sharp at this scale: logits depend on every rotation and on every head.
    """
    numbers, tensors = Numbers(seed), {}
    for name, shape in shapes.items():
        if len(shape) == 3 and ".conv" in name:
            tensors[name] = numbers.uniform(shape, 0.9)
        elif name.endswith(".A_log"):  # states last for some tokens, or for hundreds
            tensors[name] = numbers.uniform(shape, 1.5) - np.float32(3.5)
        elif len(shape) >= 2:
            embeds = any(part in name for part in ("embed", "wte", "wpe")) and "per_layer" not in name
            tensors[name] = numbers.uniform(shape, embedding if embeds else 0.26)
        elif name.endswith(".layer_scalar"):
            tensors[name] = numbers.uniform(shape, 0.3) + np.float32(0.8)
        elif name.endswith(".sinks"):
            tensors[name] = numbers.uniform(shape, 5.0)
        elif "norm" in name or ".ln_" in name:
            around = 1.0 if ".linear_attn." in name else gain
            tensors[name] = numbers.uniform(shape, 0.5) + np.float32(around if name.endswith("weight") else 0.0)
        else:
            tensors[name] = numbers.uniform(shape, 0.17)
    return tensors


def gpt2_shapes(settings: dict[str, Any]) -> Shapes:
    """The tensors of a GPT-2 as Hugging Face stores them: matrices [in, out], those of q, k and v as one."""
    width, prefix = settings["n_embd"], "transformer."
    inner = settings.get("n_inner") or 4 * width
    shapes: Shapes = {"wte.weight": (settings["vocab_size"], width), "wpe.weight": (settings["n_positions"], width)}
    for block in range(settings["n_layer"]):
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, inner),
            ("mlp.c_proj", inner, width),
        ):
            shapes |= {f"h.{block}.{name}.weight": (rows, columns), f"h.{block}.{name}.bias": (columns,)}
        for norm in (f"h.{block}.ln_1", f"h.{block}.ln_2"):
            shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    shapes = {prefix + name: shape for name, shape in shapes.items()}
    if not settings.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (settings["vocab_size"], width)
    return shapes


def stored(array: Array, dtype: str) -> Array:
    """Float32 numbers as they are stored: bfloat16 as uint16, their upper halves, rounded to the nearest even one."""
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def save_tensors(tensors: dict[str, Array], path: Path, dtype: str = "float32") -> None:
    """Write a safetensors file as transformers does, byte for byte: by name, the header a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, start = [stored(tensors[name], dtype).tobytes() for name in sorted(tensors)], 0
    for name, part in zip(sorted(tensors), data, strict=True):
        place = [start, start + len(part)]
        header[name] = {"dtype": STORED[dtype], "shape": list(tensors[name].shape), "data_offsets": place}
        start += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def model_tensors(made: Made, config: Path) -> dict[str, Array]:
    """The numbers of a model, in float32, under the names that Hugging Face has for them."""
    if made.settings["model_type"] == "gpt2":
        return random_tensors(gpt2_shapes(made.settings), made.seed)
    gemma = made.settings["model_type"].startswith("gemma")
    read = read_config(config)
    # Gains that 1 is added to; and embeddings that are scaled and tied would say the last token again.
    gain, embedding = 1.0 - read.family.norm_offset, 0.026 if gemma else 0.26
    stored = stored_tensors(read, read.family.in_huggingface.names or read.family.names)
    shapes = {each.name: file_shape(read, each) for each in stored}
    found = random_tensors(shapes, made.seed, gain=gain, embedding=embedding)
    for name in [name for name in found if name.endswith(".alpha_p")]:  # transformers has constants beside them
        found |= {
            name.replace("alpha_p", part): np.array(number, np.float32)
            for part, number in (("beta", 0.5), ("eps", -1e-6))
        }
    return found


def write_model(made: Made, folder: Path, shards: int = 1) -> Path:
    """Write a model as a Hugging Face directory; its files depend on nothing but ``made`` and ``shards``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made.settings), "utf-8")
    tensors = model_tensors(made, folder / "config.json")
    if shards == 1:
        save_tensors(tensors, folder / "model.safetensors", made.dtype)
        return folder
    placed: dict[str, str] = {}
    for number in range(shards):
        part = {name: tensors[name] for name in [*tensors][number::shards]}
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_tensors(part, folder / file, made.dtype)
        placed |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}), "utf-8")
    return folder


def write_with_head(family: str, folder: Path, difference: float) -> tuple[Array, Array]:
    """Write a small tied model in float16 with a head all the same, the embedding but for one number; gives both."""
    made = Made({**SIZES, "model_type": family, "tie_word_embeddings": True}, dtype="float16")
    write_model(made, folder)
    tensors = model_tensors(made, folder / "config.json")
    head = tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    head[-1, -1] += difference
    save_tensors(tensors, folder / "model.safetensors", made.dtype)
    embedding = tensors["model.embed_tokens.weight"]
    return embedding.astype(np.float16).astype(np.float32), head.astype(np.float16).astype(np.float32)


def write_recorded(name: str, folder: Path) -> Path:
    """Write one of MODELS or HALVES, and check that it is the very file that its figures were computed with."""
    from . import check_digest, recorded

    write_model({**MODELS, **HALVES}[name], folder)
    figures = {**recorded("families"), **recorded("halves")}[name]
    check_digest(folder / "model.safetensors", {figures["sha256"]})
    return folder


def gift_tensors() -> dict[str, Array]:
    return random_tensors(weight_shapes(GIFT), seed=11)


def prompt(tokens: int, vocab: int = VOCAB) -> list[int]:
    """Token ids that follow no pattern."""
    words = np.random.PCG64(tokens).random_raw(tokens) >> np.uint64(32)
    ids: list[int] = (words % np.uint64(vocab)).tolist()
    return ids
