"""Qwen 3.5's own settings and tensors, in Hugging Face directories and in the files that they become."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from family_layers import layers_of
from goldens.models import Made, model_tensors, save_tensors, write_model
from settings_files import config_with

from glinfer.config import ModelConfig
from glinfer.families.layer import DeltaRule, Experts
from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.formats.gguf.config import config_of
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.tensors import weight_shapes

PUBLISHED: dict[str, Any] = json.loads("""{
    "model_type": "qwen3_5_text", "attention_bias": false, "attn_output_gate": true, "full_attention_interval": 4,
    "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3584,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1, "num_attention_heads": 8, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_parameters":
    {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta":
    10000000, "rope_type": "default"},
    "tie_word_embeddings": true, "vocab_size": 248320
}""")
"""Settings as a published file of this family has them."""
HEADS = {"linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 8}
SMALL: dict[str, Any] = {
    **{**PUBLISHED, **HEADS, "head_dim": 16, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 40},
    **{"num_attention_heads": 4, "num_hidden_layers": 4, "vocab_size": 50},
}
FEW_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False}
FEW_EXPERTS |= {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}


def test_the_settings_of_a_file_are_those_of_the_record(tmp_path: Path) -> None:
    found = config_with(tmp_path, PUBLISHED)
    shape = "dim=1024,heads=8,kv_heads=2,head_dim=256,blocks=24,inner=3584,vocab=248320,context=262144"
    assert found == ModelConfig.from_options(f"family=qwen3_5_text,{shape}")
    assert [layer for layer in range(24) if found.layer(layer).attends] == [3, 7, 11, 15, 19, 23]
    assert found.layer(0).delta == DeltaRule(16, 16, 128, 128)
    assert (found.layer(0).taps, found.rotary_dim, found.layer(3).gated) == (4, 64, True)
    listed = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(24)]
    assert config_with(tmp_path, PUBLISHED, full_attention_interval=..., layer_types=listed) == found
    assert ModelConfig.from_json(found.to_json()) == found
    # Embeddings and the last norm; two norms and three matrices a layer; 9 tensors of a rule, 6 of attention.
    assert len(weight_shapes(found)) == 2 + 24 * 5 + 18 * 9 + 6 * 6


def test_what_is_left_out_is_as_in_transformers(tmp_path: Path) -> None:
    found = config_with(tmp_path, {"model_type": "qwen3_5_text"})
    assert (found.hidden_size, found.num_hidden_layers, found.intermediate_size) == (4096, 32, 12288)
    assert (found.tie_word_embeddings, found.rope_theta, found.rotary_dim) == (False, 1e4, 64)
    assert found.layer(0).delta == DeltaRule(16, 32, 128, 128)
    assert found.layer(3).attends


EXPERTS: dict[str, Any] = {
    **{name: value for name, value in PUBLISHED.items() if name not in ("intermediate_size", "tie_word_embeddings")},
    **{"model_type": "qwen3_5_moe_text", "hidden_size": 2048, "linear_num_value_heads": 32, "num_hidden_layers": 40},
    **{"moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8},
    **{"shared_expert_intermediate_size": 512, "tie_word_embeddings": False},
}
"""Settings as published files with experts have them."""
NEXT: dict[str, Any] = {
    **{
        **EXPERTS,
        "model_type": "qwen3_next",
        "decoder_sparse_step": 1,
        "intermediate_size": 5120,
        "mlp_only_layers": [],
    },
    **{"norm_topk_prob": True, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48},
    "vocab_size": 151936,
}


@each_case(
    ("settings", "sizes"),
    [
        (EXPERTS, "blocks=40,vocab=248320,experts=256,experts_used=8"),
        (NEXT, "blocks=48,vocab=151936,experts=512,experts_used=10"),
    ],
)
def test_the_settings_of_files_with_experts(tmp_path: Path, settings: dict[str, Any], sizes: str) -> None:
    found = config_with(tmp_path, settings)
    shape = f"dim=2048,heads=16,kv_heads=2,head_dim=256,inner=512,context=262144,{sizes}"
    assert found == ModelConfig.from_options(f"family={settings['model_type']},{shape}")
    count, used = settings["num_experts"], settings["num_experts_per_tok"]
    for layer in (0, 3):
        assert found.layer(layer).experts == Experts(count, used, normed=True, shared=True)
    assert found.layer(0).delta == DeltaRule(16, 32, 128, 128)
    assert ModelConfig.from_json(found.to_json()) == found
    left_out = config_with(tmp_path, {"model_type": settings["model_type"]})
    assert (left_out.num_experts, left_out.num_experts_per_tok, left_out.intermediate_size) == (count, used, 512)


def test_experts_of_a_model_that_sees_are_read(tmp_path: Path) -> None:
    small = {**SMALL, **FEW_EXPERTS, "model_type": "qwen3_5_moe_text"}
    made = load_checkpoint(write_model(Made(small, seed=1), tmp_path / "text"))
    first = "model.layers.0.mlp."
    joined = model_tensors(Made(small, seed=1), tmp_path / "text" / "config.json")[f"{first}experts.gate_up_proj"]
    assert joined.shape == (4, 48, 64)
    assert np.array_equal(made.floats(f"{first}experts.3.gate_proj.weight"), joined[3, :24])
    assert np.array_equal(made.floats(f"{first}experts.3.up_proj.weight"), joined[3, 24:])
    assert made.floats(f"{first}shared_expert_gate.weight").shape == (1, 64)
    settings = {"model_type": "qwen3_5_moe", "text_config": small}
    (tmp_path / "text" / "config.json").write_text(json.dumps(settings))
    assert load_checkpoint(tmp_path / "text").config == made.config


@each_case("dtype", ["float32", "bfloat16"])
def test_rows_by_heads_of_keys_are_put_in_order(tmp_path: Path, dtype: str) -> None:
    """Of each of two heads of keys 16 queries, 16 keys, and 8 values and gates of each of two heads."""
    small = {**SMALL, **FEW_EXPERTS, "model_type": "qwen3_next"}
    folder = write_model(Made(small, seed=1, dtype=dtype), tmp_path / "next")
    made, first = load_checkpoint(folder), "model.layers.0.linear_attn."
    tensors = model_tensors(Made(small, seed=1), folder / "config.json")
    wide, few = tensors[f"{first}in_proj_qkvz.weight"], tensors[f"{first}in_proj_ba.weight"]
    assert (wide.shape, few.shape) == ((128, 64), (8, 64))
    heads = [range(64 * head, 64 * (head + 1)) for head in (0, 1)]
    parts = {
        "qkv": [row for start, end in ((0, 16), (16, 32), (32, 48)) for head in heads for row in head[start:end]],
        "z": [row for head in heads for row in head[48:]],
    }
    for letter, rows in parts.items():
        found, expected = made.floats(f"{first}in_proj_{letter}.weight"), wide[rows]
        assert np.abs(found - expected).max() <= (0.0 if dtype == "float32" else 0.004 * np.abs(expected).max())
    for letter, rows in {"b": [0, 1, 4, 5], "a": [2, 3, 6, 7]}.items():
        found, expected = made.floats(f"{first}in_proj_{letter}.weight"), few[rows]
        assert np.abs(found - expected).max() <= (0.0 if dtype == "float32" else 0.004 * np.abs(expected).max())
    save_checkpoint(made, tmp_path / "again.safetensors", dtype="float32")
    again = load_checkpoint(tmp_path / "again.safetensors")
    assert again.config == made.config
    assert all(np.array_equal(again.floats(name), made.floats(name)) for name in weight_shapes(made.config))


@each_case("dtype", ["float32", "bfloat16"])
def test_a_directory_becomes_another_file_and_back(tmp_path: Path, dtype: str) -> None:
    """Decays, and the weights of convolutions, are floats whatever the others are; GGUF has factors of decays."""
    settings = {**SMALL, "linear_value_head_dim": 16, "linear_num_value_heads": 2}
    made = load_checkpoint(write_model(Made(settings, seed=1, dtype=dtype), tmp_path / "hf"))
    assert made.tensors["model.layers.0.linear_attn.conv1d.weight"].shape == (96, 1, 4)
    assert made.tensors["model.layers.0.linear_attn.A_log"].shape == (2,)
    assert ("model.layers.0.linear_attn.in_proj_a.weight" in made.packed) == (dtype == "bfloat16")
    for end in ("safetensors", "gguf"):
        save_checkpoint(made, tmp_path / f"model.{end}", dtype="float32")
        found = load_checkpoint(tmp_path / f"model.{end}")
        assert found.config == made.config
        for name in weight_shapes(made.config):
            error = np.abs(found.floats(name) - made.floats(name)).max()
            assert error <= (1e-6 if end == "gguf" and (name.endswith("A_log") or "norm" in name) else 0.0), name


NEXT_EXPERTS = {"model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}


def gguf_file(folder: Path, **changes: Any) -> Any:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    equal: dict[str, Any] = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_value_head_dim": 36}
    given = {"model_type": "qwen3_5_text", **layers_of("qwen3_5_text"), **equal, **changes}
    config = ModelConfig(50, 64, 4, 4, 40, 96, hidden_act="silu", num_key_value_heads=2, head_dim=16, **given)
    save_checkpoint(random_checkpoint(config), folder / "model.gguf")
    return read_gguf_file(folder / "model.gguf")


def test_a_gguf_file_has_llama_cpps_names(tmp_path: Path) -> None:
    file = gguf_file(tmp_path)
    assert file.metadata["qwen35.full_attention_interval"] == 2
    assert file.metadata["qwen35.rope.dimension_sections"] == [3, 3, 2, 0]
    assert file.tensors["blk.0.ssm_conv1d.weight"].shape == (216, 3)
    assert (file.tensors["blk.0.ssm_a"].data.view("<f4") < 0).all()
    names = {"blk.0.attn_qkv.weight", "blk.0.attn_gate.weight", "blk.2.ssm_dt.bias", "blk.1.attn_q.weight"}
    assert names <= set(file.tensors)


def test_the_shared_expert_may_have_another_width(tmp_path: Path) -> None:
    file = gguf_file(tmp_path, **NEXT_EXPERTS)
    assert file.metadata["qwen3next.expert_shared_feed_forward_length"] == 96
    key = "qwen3next.expert_shared_feed_forward_length"
    assert not config_of(file).shared_expert_intermediate_size
    changed = dataclasses.replace(file, metadata={**file.metadata, key: 48})
    assert config_of(changed).shared_expert_intermediate_size == 48
    assert config_with(tmp_path, EXPERTS, shared_expert_intermediate_size=256).layer(0).experts == Experts(
        256, 8, normed=True, shared=True, apart=True
    )


def test_of_a_model_that_sees_the_part_of_texts_is_read(tmp_path: Path) -> None:
    """Its settings are ``text_config``; what sees, and what guesses several tokens, is passed over."""
    folder = write_model(Made(SMALL, seed=1), tmp_path / "text")
    wanted, tensors = load_checkpoint(folder), model_tensors(Made(SMALL, seed=1), folder / "config.json")
    seen = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    seen["model.visual.patch_embed.proj.weight"] = np.zeros((4, 4), np.float32)
    seen["mtp.layers.0.mlp.up_proj.weight"] = np.zeros((4, 4), np.float32)
    whole = tmp_path / "whole"
    whole.mkdir()
    settings = {"model_type": "qwen3_5", "text_config": SMALL, "vision_config": {"depth": 1}}
    (whole / "config.json").write_text(json.dumps(settings))
    save_tensors(seen, whole / "model.safetensors")
    found = load_checkpoint(whole)
    assert found.config == wanted.config
    assert found.tensors.keys() == wanted.tensors.keys()
    name = "model.layers.1.linear_attn.out_proj.weight"
    assert np.array_equal(found.floats(name), wanted.floats(name))
