"""A setting that is null counts as missing, in config.json of every family and in what lies inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from settings_files import config_with

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.formats.huggingface.config import recognised

ANYWHERE = """
    architectures attention_bias block_auto_adjust_ff_dim block_ff_dim block_multiple_of conv_L_cache conv_bias
    full_attention_interval full_attn_idxs global_attn_every_n_layers global_rope_theta id2label is_causal layer_types
    linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
    local_attention local_rope_theta max_window_layers mlp_bias no_rope_layer_interval no_rope_layers norm_topk_prob
    num_dense_layers num_experts num_experts_per_tok num_labels num_local_experts original_max_position_embeddings
    partial_rotary_factor per_layer_config qkv_bias quantization_config rope_local_base_freq rope_parameters
    rope_scaling rope_theta routed_scaling_factor sentence_transformers shared_expert_intermediate_size
    sliding_window_pattern swiglu_alpha swiglu_limit tie_embedding tie_word_embeddings type_vocab_size
    n_group topk_group use_bidirectional_attention use_expert_bias use_sliding_window
""".split()  # noqa: SIM905


NEEDED = {
    "nemotron_h": {"layers_block_type": ["linear_attention"]},
    "glm4_moe": {"num_attention_heads": 64},
    "hunyuan_v1_moe": {"num_experts": 64},
    "bitnet": {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear"}},
}
"""Settings without which transformers would make a model that is refused."""


def read(folder: Path, family: str, **values: Any) -> ModelConfig:
    return config_with(folder, family, **{**NEEDED.get(family, {}), **values})


@each_case("family", recognised())
def test_every_optional_setting_may_be_null(tmp_path: Path, family: str) -> None:
    form, usual = FAMILIES[family].in_huggingface, read(tmp_path, family)
    names = {*ANYWHERE, *form.only, *form.activations, "n_ctx"}
    names |= {key for keys in form.keys.values() for key in keys} | {"head_dim", "intermediate_size", "vocab_size"}
    names |= set(form.scalars) - {"attn_logit_softcapping", "final_logit_softcapping"}
    assert read(tmp_path, family, **dict.fromkeys(names - NEEDED.get(family, {}).keys())) == usual


def test_so_may_settings_inside_of_others(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    nulls = ("type", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "rope_theta")
    for name in ("rope_scaling", "rope_parameters"):
        usual = read(tmp_path, "llama", **{name: yarn})
        assert read(tmp_path, "llama", **{name: {**yarn, **dict.fromkeys(nulls)}}) == usual
    plain = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {}}
    nulls = {"full_attention": {"rope_theta": 5e5, "rope_type": None, "factor": None}, "sliding_attention": None}
    usual = read(tmp_path, "gemma3_text", rope_parameters=plain)
    assert read(tmp_path, "gemma3_text", rope_parameters=nulls) == usual
    text = {"rope_parameters": nulls, "hidden_size": None, "model_type": None, "attention_bias": None}
    assert read(tmp_path, "gemma3", text_config=text) == usual


def test_null_keeps_the_meaning_that_transformers_gives_it(tmp_path: Path) -> None:
    assert read(tmp_path, "mistral").sliding_window == 4096
    assert read(tmp_path, "mistral", sliding_window=None).sliding_window == 0
    assert read(tmp_path, "mistral", num_key_value_heads=None).num_key_value_heads == 32
    assert read(tmp_path, "gemma2").attn_logit_softcapping == 50
    assert read(tmp_path, "gemma2", attn_logit_softcapping=None).attn_logit_softcapping == 0
    with pytest.raises(FormatError, match=r"rope_scaling: found no factor"):
        read(tmp_path, "llama", rope_scaling={"rope_type": "linear", "factor": None})
