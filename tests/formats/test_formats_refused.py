"""Settings that no plan can run: in a config.json, in a configuration, and in GGUF's metadata."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from family_layers import layers_of
from goldens.gguf_models import CONFIGS, LLAMA3, config
from goldens.models import MODELS
from settings_files import config_with

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError, FormatError, InputError
from glinfer.families import FAMILIES
from glinfer.families.settings import quoted
from glinfer.formats import random_checkpoint, write_gguf
from glinfer.formats.gguf.config import ROPE_FREQS, config_from, metadata_of
from glinfer.formats.tensors import stored_tensors

Settings = dict[str, Any]
GPT2: Settings = {"model_type": "gpt2", "vocab_size": 7, "n_embd": 4, "n_head": 2, "n_layer": 2, "n_positions": 5}
GEMMA4, LFM2 = MODELS["gemma4"].settings, {"model_type": "lfm2", "full_attn_idxs": [1]}
V3 = {"model_type": "deepseek_v3", "n_routed_experts": 64, "num_experts_per_tok": 6}
BITNET, YARN = MODELS["bitnet"].settings["quantization_config"], {"rope_type": "yarn", "factor": 4.0}
LINEAR, LONG = {"rope_type": "linear", "factor": 2.0}, {"type": "longrope", "short_factor": [-1.0]}
TURNED = {"rope_type": "proportional", "partial_rotary_factor": 2}
BOTH, HEADS = ["sliding_attention", "full_attention"], {"head_dim": 12}
NO = ", which is not supported"
EXPECTED: dict[str, list[tuple[str | Settings, str, Any]]] = {
    "; expected a number above 0": [
        *(("gpt2", "layer_norm_epsilon", float("nan")), ("llama", "rope_theta", 0), ("gpt_oss", "swiglu_limit", 0)),
        *(("gemma2", "query_pre_attn_scalar", 0), ("gemma2", "final_logit_softcapping", -3.0)),
        *(("gemma3_text", "rope_local_base_freq", 0), ("lfm2", "block_ffn_dim_multiplier", "1")),
        ("gpt_oss", "swiglu_alpha", -1),
    ],
    "; expected an integer of at least 1": [
        *(("gpt2", "n_layer", 0), ("gpt2", "n_embd", True), ("gpt2", "vocab_size", 7.0), ("qwen3", "head_dim", 0)),
        *(("mistral", "sliding_window", 0), ("gemma3_text", "sliding_window_pattern", 0)),
        *(("lfm2", "block_multiple_of", 0), ("qwen3_5_text", "full_attention_interval", 0)),
        *(("qwen3_5_text", "linear_value_head_dim", "8"), ("deepseek_v2", "kv_lora_rank", 0)),
    ],
    "; expected an integer from 1 to 1024": [("qwen3_5_text", "full_attention_interval", 2000)],
    "; expected an integer from 1 to 16777216": [("gpt2", "vocab_size", 10**4000)],
    "; expected an integer from 2 to 64": [
        (LFM2, "conv_L_cache", 65),
        ("qwen3_5_text", "linear_conv_kernel_dim", 65),
    ],
    "; expected a multiple of 4": [("qwen3_5_text", "linear_key_head_dim", 6), ("deepseek_v2", "qk_rope_head_dim", 6)],
    "; expected an even number": [("llama", "head_dim", 5)],
    "; expected true or false": [
        *(("gpt2", "tie_word_embeddings", "no"), (LFM2, "conv_bias", 1), ("lfm2", "tie_embedding", "yes")),
    ],
    f"{NO}; expected true": [
        *(("gpt2", "scale_attn_weights", False), ("llama", "is_causal", False), ("gpt_oss", "attention_bias", False)),
    ],
    f"{NO}; expected false": [
        *(("gpt2", "scale_attn_by_inverse_layer_idx", True), ("gpt2", "add_cross_attention", True)),
        *(("bert", "is_decoder", True), ("bert", "add_cross_attention", True), ("phi", "qk_layernorm", True)),
        *(("phi", "tie_word_embeddings", True), ("deepseek_v2", "attention_bias", True)),
        *(("deepseek_v2", "norm_topk_prob", True), ("hunyuan_v1_moe", "use_cla", True)),
        ("gemma", "use_bidirectional_attention", True),
    ],
    f"{NO}; expected none": [
        *(
            ("llama", "per_layer_config", [{}]),
            ("olmoe", "clip_qkv", 8.0),
            (GEMMA4, "use_bidirectional_attention", "all"),
        ),
    ],
    f"{NO}; expected []": [("qwen3_moe", "mlp_only_layers", [1]), ("qwen3_next", "mlp_only_layers", [1])],
    f"{NO}; expected 1": [
        *((name, "decoder_sparse_step", 2) for name in ("qwen3_moe", "qwen3_next", "qwen2_moe")),
        *(
            ("llama", "partial_rotary_factor", 0.5),
            ("ernie4_5_moe", "moe_layer_interval", 2),
        ),
    ],
    f"{NO}; expected one of": [("gpt2", "activation_function", "relu"), ("gpt_oss", "hidden_act", "gelu")],
    f"{NO}; expected one of silu, swish": [("llama", "hidden_act", "relu")],
    f"{NO}; expected -1, or 27": [("ernie4_5_moe", "moe_layer_end_index", 20)],
    f"{NO}; expected greedy, or group_limited_greedy": [("deepseek_v2", "topk_method", "noaux_tc")],
    ": a mixture of experts, which is not supported": [
        *((name, "num_experts", 9) for name in ("qwen2", "lfm2", "qwen3_5_text", GEMMA4)),
        ("llama", "num_local_experts", 8),
    ],
    "; expected none": [
        *(("qwen3_moe", "shared_expert_intermediate_size", 64), ("qwen3_5_moe_text", "n_shared_experts", 1)),
    ],
    "; expected none in a model of family llama": [("llama", "sliding_window", 7)],
    "; expected 1": [("hunyuan_v1_moe", "num_shared_expert", 2), ("hunyuan_v1_moe", "moe_intermediate_size", 96)],
    "; expected 151, as vocab_size is": [(GEMMA4, "vocab_size_per_layer_input", 7)],
    "; expected the same number for every layer": [*(("hunyuan_v1_moe", "moe_topk", each) for each in ([8, 4], []))],
    "; expected fewer than the 32 layers": [("lfm2_moe", "num_dense_layers", 32)],
    "; expected a list of 26 names": [("gemma2", "layer_types", BOTH[:1])],
    "; expected a list of 32 names": [("qwen2", "layer_types", BOTH[:1]), ("lfm2", "layer_types", ["conv"] * 15)],
    "; expected a list of numbers of layers": [*(("lfm2", "full_attn_idxs", each) for each in ([2, 32], 2))],
    "; expected head_dim and num_key_value_heads of every": [(GEMMA4, "per_layer_config", {"2": HEADS})],
    "; expected the same settings for every": [(GEMMA4, "per_layer_config", {"2": HEADS, "5": {"head_dim": 14}})],
    " of 6 layers; expected a layer of each kind before": [*((GEMMA4, "num_kv_shared_layers", n) for n in (4, 6))],
    "; expected 47 names, dense for the first": [("glm4_moe_lite", "mlp_layer_types", ["sparse", "dense"])],
    "; expected settings": [("llama", "rope_scaling", [2]), ("gemma3_text", "rope_parameters", {"rope_theta": 3.0})],
    "; expected no classifier": [("nomic_bert", "architectures", ["NomicBertForSequenceClassification"])],
}
"""What is said after the name of a setting and its value: the family by its defaults, or settings; name and value."""
CASES = [
    (base, {name: value}, f"{name} is {quoted(value)}{rest}")
    for rest, cases in EXPECTED.items()
    for base, name, value in cases
]
UNKNOWN = f"found model_type '{{}}'{NO}; expected one of the families known: g"
NEEDED = {"longcat_flash": "two attentions", "phimoe": "experts chosen", "llama4_text": "attention in chunks"}
NEEDED |= {"kimi_linear": "Kimi's delta", "bloom": "positions as biases", "deepseek_v32": "sparse attention"}
NEEDED |= {"jamba": "the scan of Mamba-1"}
CASES += [
    ({}, {}, "found no model_type; expected one of the families known: gpt2"),
    ({}, {"model_type": ["gpt2"]}, f"found model_type ['gpt2']{NO}; expected"),
    *((name, {}, UNKNOWN.format(name)) for name in ("opt", "gemma3n", "mellum")),
    *((name, {}, f"found model_type '{name}'{NO}, as it needs {needs}") for name, needs in NEEDED.items()),
    ("llama", {"hidden_size": 6, "num_attention_heads": 2}, "hidden_size / num_attention_heads is 3; expected an even"),
    (GPT2, {"n_head": 3}, "it describes no possible model: hidden_size 4 is not a multiple of num_attention_heads 3"),
    ("llama", {"num_key_value_heads": 3}, "num_attention_heads 32 is not a multiple of num_key_value_heads 3"),
    ("gemma", {"hidden_activation": "gelu"}, "hidden_activation is 'gelu' and hidden_act 'gelu_new'"),
    ("llama", {"rope_scaling": {"type": "su"}}, f"rope_scaling: rope_type is 'su'{NO}; expected"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: found no factor; expected a number above 0"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling: factor is '2'; expected a number"),
    ("llama", {"rope_scaling": {**YARN, "attention_factor": 0}}, "rope_scaling: attention_factor is 0; expected a"),
    ("llama", {"rope_scaling": {**LONG, "short_factor": [1.0] * 3}}, "rope_scaling: short_factor is [1.0, 1.0, 1.0]; "),
    ("llama", {"head_dim": 2, "rope_scaling": LONG}, "rope_scaling: short_factor[0] is -1.0; expected a number above"),
    ("qwen3", {"rope_parameters": {"full_attention": {}}}, "rope_parameters: found settings of its own for 'full_"),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": LINEAR}}, "sliding_attention: rope_type is 'linear'"),
    ("hunyuan_v1_dense", {"rope_parameters": YARN}, "rope_parameters: rope_type is 'yarn'; expected another one, as"),
    (
        GEMMA4,
        {"rope_parameters": {"full_attention": TURNED}},
        "full_attention: partial_rotary_factor is 2; expected at",
    ),
    ("qwen2", {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}, "layer_types has 'linear_attention'"),
    ("qwen2", {"num_hidden_layers": 1, "layer_types": BOTH[:1]}, "layer_types has sliding_attention, but there is"),
    (
        "qwen3",
        {"num_hidden_layers": 2, "layer_types": BOTH, "use_sliding_window": True},
        f"layer_types is {BOTH}; expected all of full_attention before all of",
    ),
    ("qwen3_5_text", {"layer_types": ["conv"] * 32}, f"layer_types has 'conv'{NO}; expected full_attention or lin"),
    ("qwen3_5_text", {"linear_num_value_heads": 24}, "linear_num_value_heads is 24 and linear_num_key_heads 16; exp"),
    ("qwen3_moe", {"num_experts": 8, "num_local_experts": 9}, "num_local_experts is 9; expected 8, as num_experts"),
    ("gpt_oss", {"num_experts": 5, "num_local_experts": 4}, "num_local_experts is 4; expected 5, as num_experts"),
    ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5; expected"),
    ("qwen3_moe", {"num_experts": 10**9}, "num_experts is 1000000000; expected a"),
    (V3, {"n_group": 5}, "n_group is 5; expected at most 32 groups, with two or more of 64 experts"),
    (V3, {"n_group": 64, "topk_group": 9}, "n_group is 64; expected at most 32 groups"),
    (V3, {"n_group": 32, "topk_group": 2}, "topk_group is 2; expected enough of the 32 groups for the 6 experts"),
    (V3, {"n_group": 2, "topk_group": 3}, "topk_group is 3; expected an integer from 1 to 2"),
    (V3, {"n_group": 0}, "n_group is 0; expected an integer of at least 1"),
    ("ernie4_5_moe", {"moe_layer_start_index": 28}, "num_dense_layers is 28; expected fewer than the 28 layers"),
    ("hunyuan_v1_moe", {"moe_topk": ["8"]}, "moe_topk is '8'; expected an integer of at least 1"),
    ("gpt2", {"quantization_config": {"bits": 4}}, f"quantization_config is set{NO}; expected a model that is not"),
    (
        "gpt_oss",
        {"quantization_config": {"quant_method": "gptq"}},
        f"quantization_config is set{NO}; expected a model that is not quantised, or quantised by the method mxfp4",
    ),
    *(
        ("bitnet", {"quantization_config": {**BITNET, name: value}}, f"quantization_config: {name} is {said}")
        for name, value, said in (
            ("quant_method", "gptq", "'gptq'; expected bitnet"),
            ("linear_class", "bitlinear", "'bitlinear'; expected autobitlinear"),
            ("quantization_mode", "x", "'x'; expected online or offline"),
            ("use_rms_norm", True, f"True{NO}"),
        )
    ),
    ("bitnet", {}, "quantization_config: quant_method is left out; expected bitnet"),
    ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}, f"classifier_pooling is 'late'{NO}; exp"),
    (
        "xlm-roberta",
        {"lora_adaptations": ["retrieval.query"], "position_embedding_type": "rotary"},
        f"lora_adaptations is ['retrieval.query']{NO}",
    ),
]


@each_case(("settings", "changes", "message"), CASES)
def test_a_directory(tmp_path: Path, settings: str | Settings, changes: Settings, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        config_with(tmp_path, settings, **changes)
    said = str(caught.value).removeprefix(f"{tmp_path / 'config.json'}: ")
    assert said.removeprefix("it describes no possible model: ").startswith(message) or said.startswith(message)
    assert len(said) < 150 + 10 * len(FAMILIES)  # one lists every family


def test_a_family_that_begins_like_a_known_one(tmp_path: Path) -> None:
    for name, near in (("gemma4_unified", "gemma"), ("lfm2_vl", "lfm2"), ("qwen3_omni", "qwen3"), ("mellum", "")):
        with pytest.raises(FormatError) as caught:
            config_with(tmp_path, name)
        assert str(caught.value).endswith(f"({near} is another family)") == bool(near)


@each_case(
    ("family", "changes", "message"),
    [
        ("lfm2", {"model_type": "llama"}, "layer_types has 'conv'; no layer of llama convolves"),
        ("lfm2", {"conv_L_cache": 0}, "conv_L_cache is 0; expected an integer from 2 to 64"),
        (
            "lfm2",
            {"pooling": "mean"},
            "layer_types has 'conv', and pooling is 'mean'; a model that embeds texts can have",
        ),
        ("lfm2", {"layer_types": (), "model_type": "llama"}, "conv_L_cache is 3; no layer of llama convolves"),
        (
            "qwen3_5_text",
            {"model_type": "llama"},
            "layer_types has 'linear_attention'; no layer of llama has the delta",
        ),
        (
            "qwen3_5_text",
            {"pooling": "mean"},
            "layer_types has 'linear_attention', and pooling is 'mean'; a model that",
        ),
        (
            "qwen3_5_text",
            {"layer_types": (), "model_type": "llama"},
            "linear_num_value_heads is 4; no layer of llama has the delta",
        ),
        (
            "qwen3_5_text",
            {"linear_num_key_heads": 0},
            "linear_num_key_heads 0; expected a multiple of the heads of keys",
        ),
        ("llama", {"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input is 8; no layer of llama has embedd"),
        ("llama", {"swiglu_limit": 7.0}, "swiglu_limit is 7; no layer of llama has experts"),
        ("llama", {"kv_lora_rank": 8}, "kv_lora_rank is 8; no layer of llama has latents"),
        ("youtu", {"v_head_dim": 0}, "v_head_dim is 0; expected the elements of a latent, of a value"),
        ("youtu", {"qk_rope_head_dim": 0}, "qk_rope_head_dim is 0; expected the elements of a latent, of a value"),
    ],
)
def test_a_configuration(family: str, changes: Settings, message: str) -> None:
    made = ModelConfig(9, 8, 2, 2, 8, model_type=family, hidden_act=FAMILIES[family].activation, **layers_of(family))
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(made, **changes)


FACTORS = np.ones(24, np.float32)


@each_case(
    ("name", "values", "message"),
    [
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2, 0]}, r"is \[0, 2, 0\]; expected 4 numbers, 0 or the same one"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2, 0, 4]}, r"is \[0, 2, 0, 4\]; expected 4 numbers"),
        ("lfm2", {"lfm2.attention.sliding_window": 16}, "is 16; expected none in a model whose layers convolve"),
        ("lfm2", {"lfm2.shortconv.l_cache": 0}, "is 0; expected an integer of at least 1"),
        ("lfm2", {"lfm2.shortconv.l_cache": 65}, "conv_L_cache is 65; expected an integer from 2 to 64"),
        ("qwen35", {"qwen35.ssm.time_step_rank": 3}, "is 3; expected a multiple of the 2 of ssm.group_count"),
        ("qwen35", {"qwen35.ssm.inner_size": 73}, "is 73; expected a multiple of the 2 heads"),
        ("qwen35", {"qwen35.full_attention_interval": 2000}, "is 2000; expected an integer from 1 to 1024"),
        ("qwen35", {"qwen35.nextn_predict_layers": 5}, "is 5; expected an integer below the 5 blocks"),
        (
            "qwen35",
            {"qwen35.ssm.state_size": 300},
            "linear_key_head_dim is 300; expected a multiple of 4 from 4 to 256",
        ),
        ("gemma4", {"gemma4.feed_forward_length": [96] * 5 + [200]}, "expected 96, or twice that in the last 3 layers"),
        (
            "gemma4",
            {"gemma4.attention.head_count_kv": [2, 1, 2, 2, 2, 2]},
            "expected a list with one number for the lay",
        ),
        ("gemma4", {"gemma4.attention.value_length_swa": 8}, "value_length_swa is 8; expected 32, the width of a head"),
        ("gemma4", {"gemma4.rope.scaling.factor": 8.0}, "none of them, as rope_freqs.weight scales"),
        ("gemma4", {ROPE_FREQS: 2 * FACTORS}, "other factors than 1 for the first pairs"),
        ("gemma4", {ROPE_FREQS: FACTORS * np.arange(1, 25, dtype=np.float32)}, "other factors than 1"),
        (
            "ernie4_5-moe",
            {"ernie4_5-moe.interleave_moe_layer_step": 2},
            "step is 2, which is not supported; expected 1",
        ),
    ],
)
def test_metadata_of_gguf(name: str, values: Settings, message: str) -> None:
    made = CONFIGS[name]
    given, factors = metadata_of(made)
    stored = stored_tensors(made, made.family.in_gguf.names)
    factors |= {key: values[key] for key in values if key == ROPE_FREQS}
    with pytest.raises(FormatError, match=message):
        config_from({**given, **values}, made.family, stored, factors, "m")


DELTA = {"linear_num_value_heads": 4}


@each_case(
    ("made", "changes", "message"),
    [
        (config("gift_of_gab", hidden_act="gelu"), {}, "its family is 'gift_of_gab'; expected one of gpt2, llama"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', and the architecture llama computes 'silu'"),
        ("qwen3", {"attention_bias": True}, "the architecture qwen3 has no biases in its attention"),
        (
            "qwen2",
            {"sliding_window": 4, "max_window_layers": 1},
            "layer 0: window is 0, but 4 in the architecture qwen2",
        ),
        ("llama", {"rotary_layers": (1, 0)}, "layer 1: rope.theta is None, but 500000.0 in the architecture llama"),
        (config("smollm3", num_hidden_layers=4), {}, "layer 3: rope.theta is 10000.0, but None in the architecture"),
        ("llama", {"embedding_multiplier": 2.0}, "embedding_multiplier is 2.0, but 1.0 in the architecture llama"),
        ("qwen2", {"rope_scaling": LLAMA3}, "qwen2 has no such rope scaling of type 'llama3'"),
        ("lfm2", {"conv_bias": True}, "the architecture lfm2 has no biases in its convolutions"),
        (
            "gemma4, dense",
            {"num_global_key_value_heads": 2},
            "one_projection is True, but False in the architecture gem",
        ),
        ("qwen35", DELTA, "layer 0: delta.in_turn is False, but True in the architecture qwen35"),
        (
            "qwen3next",
            {**DELTA, "linear_keys_in_turn": True},
            "layer 0: delta.in_turn is True, but False in the architecture qwen3next",
        ),
        ("qwen35", {"linear_value_head_dim": 8}, "the architecture qwen35 has values as long as keys"),
        (
            "qwen35",
            {"layer_types": ("full_attention", "linear_attention")},
            "layer 1: mixing is delta, but attention in the architecture qwen35",
        ),
        ("gpt-oss", {"swiglu_limit": 6.0}, "layer 0: experts.limit is 6.0, but 7.0 in the architecture gpt-oss"),
        ("gpt-oss", {"swiglu_alpha": 1.0}, "experts.slope is 1.0, but 1.702 in the architecture gpt-oss"),
        ("gpt-oss", {"norm_topk_prob": False}, "experts.normed is False, but True in the architecture gpt-oss"),
        ("gpt-oss", {"rope_scaling": YARN}, "truncate is True, but False in"),
        ("gpt-oss", {"layer_types": BOTH[::-1]}, "layer 0: window is 0, but 5 in"),
    ],
)
def test_models_that_gguf_cannot_hold(tmp_path: Path, made: ModelConfig | str, changes: Settings, message: str) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    changed = dataclasses.replace(CONFIGS[made] if isinstance(made, str) else made, **changes)
    with pytest.raises(InputError, match=f"a GGUF file cannot hold this model: .*{message}"):
        write_gguf(random_checkpoint(changed), tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())
