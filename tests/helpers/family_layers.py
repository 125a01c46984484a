"""Small models of each family, and their layers where those of a record would all be of one kind in so few."""

from __future__ import annotations

import itertools
from typing import Any

from glinfer.config import ModelConfig
from glinfer.families import FAMILIES
from glinfer.formats.packed import block_weights
from glinfer.formats.tensors import weight_shapes

MIXED = ("Q4_0", "Q8_0", "Q5_1", "Q4_1")
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 36,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
}
"""A delta rule of four heads, of which two share keys."""


def layers_of(family: str) -> dict[str, Any]:
    """Fields of a configuration: attention in turn with a convolution or a delta rule, in families that have both.

    Gates of experts have a bound that random numbers reach, in families where they have one.
    """
    if FAMILIES[family].both:
        return {"layer_types": ("hybrid",), **DELTA, "linear_norm_groups": 2, "conv_bias": True}
    if FAMILIES[family].scans:
        other = ("moe" if FAMILIES[family].experts else "mlp") if FAMILIES[family].single else "full_attention"
        kinds = ("linear_attention", other) if FAMILIES[family].attends else ("linear_attention",)
        return {"layer_types": kinds, **DELTA, "linear_norm_groups": 2, "conv_bias": True}
    if FAMILIES[family].names.per_layer_table:
        return {
            "layer_types": ("sliding_attention", "full_attention"),
            **{"sliding_window": 5, "global_head_dim": 24, "hidden_size_per_layer_input": 32},
            **{"rope_scaling": FAMILIES[family].usual["rope_scaling"], "attention_multiplier": 1.0},
            **({"shared_intermediate_size": 512} if FAMILIES[family].experts else {}),
        }
    if FAMILIES[family].delta_rule:
        return {"layer_types": ("linear_attention", "full_attention"), **DELTA}
    shared = {"shared_intermediate_size": 512} if "shared_intermediate_size" in FAMILIES[family].usual else {}
    if FAMILIES[family].latent:
        latents = {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "head_dim": 20, "v_head_dim": 12}
        low = {} if family == "deepseek_v2" else {"q_lora_rank": 18}
        dense = {"num_dense_layers": 1, "dense_intermediate_size": 512} if FAMILIES[family].experts else {}
        dense |= {"n_group": 4, "topk_group": 2} if family.startswith("deepseek") else {}
        return {**latents, **low, **dense, **shared, "use_expert_bias": bool(FAMILIES[family].names.expert_bias)}
    if FAMILIES[family].names.expert_bias:
        dense = {"num_dense_layers": 1, "dense_intermediate_size": 512} if family != "minimax_m2" else {}
        layers = {"layer_types": ("conv", "full_attention"), "conv_L_cache": 3} if FAMILIES[family].convolves else {}
        return {**dense, **layers, **shared, "use_expert_bias": True, "routed_scaling_factor": 1.5}
    if FAMILIES[family].convolves:
        window = {"sliding_window": 5} if family == "lfm3" else {}
        return {
            "layer_types": ("conv", "sliding_attention" if window else "full_attention"),
            "conv_L_cache": 3,
            **window,
        }
    if FAMILIES[family].scaled_queries:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
        return {"rope_scaling": {**yarn, "llama_4_scaling_beta": 0.3}}
    if FAMILIES[family].encodes and FAMILIES[family].experts:
        return {"layer_types": ("full_attention", "moe"), "mlp_bias": True}
    if family == "apertus":
        return {"hidden_act": "xielu"}
    if family == "qwen2_moe":
        return {"shared_expert_intermediate_size": 512}
    limit = FAMILIES[family].usual.get("swiglu_limit", 0.0)
    return {"swiglu_limit": limit / 10, "swiglu_alpha": 1.5} if limit else shared


FURTHER = {"conv": -1, "delta": 6, "ssm": 8, "gated": 1, "none": -4}
"""Draws of a layer with a convolution, a delta rule, or gates, beyond one with attention alone."""
BESIDE = 12
"""Draws of a scan beside attention."""


def further_draws(config: ModelConfig, first: int = 0) -> int:
    """Draws of the fast plan from a layer on beyond those of as many layers with attention and without gates."""
    found = 0
    for layer in range(first, config.num_hidden_layers):
        of = config.layer(layer)
        found += FURTHER.get("gated" if of.gated or of.head_gates else of.mixing, 0) - 2 * (not of.mlp)
        found += 4 * (of.per_layer > 0) + of.scaled + 4 * of.rounded + BESIDE * (of.attends and of.delta is not None)
        # An activation, a shared expert, or one MLP where others have experts.
        own = of.experts is not None and (of.experts.apart or of.experts.own_norms)
        beside = of.experts is not None and config.shared_intermediate_size > 0 and not own
        found += (config.hidden_act == "xielu") + 4 * own + 2 * beside
        found -= 3 * (config.family.experts and of.experts is None)
    return found


def convolutions_in(config: ModelConfig) -> int:
    """How many layers of a model convolve."""
    return sum(config.layer(layer).convolves for layer in range(config.num_hidden_layers))


def of_family(family: str) -> ModelConfig:
    """A model whose rows are whole blocks of 256, its heads shared, padded and in windows where the family has them."""
    rotary = FAMILIES[family].rotary
    shape = {"head_dim": 40, "num_key_value_heads": 2} if rotary and not FAMILIES[family].latent else {}
    window = 40 if family in ("mistral", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "olmo3", "exaone4") else 0
    rotary = {"rotary_layers": (1, 0)} if family in ("olmo2", "qwen3", "smollm3") else {}
    values = {"linear_value_head_dim": 64} if FAMILIES[family].delta_rule else {}
    bounded = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} if family == "gemma2" else {}
    usual = {"hidden_act": "silu" if FAMILIES[family].gated else "gelu_new", "sliding_window": window}
    return ModelConfig(
        70,
        256,
        4,
        2,
        130,
        256,
        model_type=family,
        **bounded,
        **rotary,
        **shape,  # type: ignore[arg-type]
        **usual | layers_of(family) | values,  # type: ignore[arg-type]
    )


def formats_of(config: ModelConfig, form: str) -> dict[str, str]:
    """The formats of a file whose matrices are in one, or in turn in several that are ``mixed``; others are floats."""
    positions = f"{config.family.names.positions}.weight"
    turns, found = itertools.cycle(MIXED if form == "mixed" else (form,)), {}
    for name, shape in weight_shapes(config).items():
        if len(shape) == 2:
            kept = "F32" if name == positions else next(turns)
            found[name] = kept if kept == "F32" or shape[1] % block_weights(kept) == 0 else "F32"
    return found
