"""LFM2's own settings and tensors, in Hugging Face directories and in GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from family_layers import convolutions_in, layers_of
from goldens.models import Made, write_model
from settings_files import config_with

from glinfer.config import ModelConfig
from glinfer.families.layer import Experts
from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.tensors import weight_shapes

PUBLISHED: dict[str, Any] = json.loads("""{
    "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "block_auto_adjust_ff_dim": true,
    "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
    "block_norm_eps": 1e-05, "block_use_swiglu": true, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "max_position_embeddings": 128000,
    "norm_eps": 1e-05, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "rope_theta": 1000000.0, "tie_embedding": true, "torch_dtype": "bfloat16", "vocab_size": 65536
}""")
"""The settings of LFM2-1.2B."""
SMALL = {
    **{name: value for name, value in PUBLISHED.items() if not name.startswith(("block_", "full_"))},
    **{"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3},
    **{"intermediate_size": 96, "block_auto_adjust_ff_dim": False, "max_position_embeddings": 40, "vocab_size": 50},
    "layer_types": ["conv", "full_attention", "conv"],
}


def test_the_published_settings_are_those_of_the_record(tmp_path: Path) -> None:
    """Two thirds of the named width, rounded up to a multiple, is that of the MLP."""
    found = config_with(tmp_path, PUBLISHED)
    shape = "dim=2048,heads=32,kv_heads=8,blocks=16,inner=8192,vocab=65536,context=128000"
    assert found == ModelConfig.from_options(f"family=lfm2,{shape}")
    assert [index for index in range(16) if not found.layer(index).convolves] == PUBLISHED["full_attn_idxs"]
    listed = ["full_attention" if index in PUBLISHED["full_attn_idxs"] else "conv" for index in range(16)]
    assert config_with(tmp_path, PUBLISHED, full_attn_idxs=..., layer_types=listed) == found
    assert ModelConfig.from_json(found.to_json()) == found
    assert len(weight_shapes(found)) == 1 + 10 * 8 + 6 * 11 + 1


def test_the_settings_of_experts(tmp_path: Path) -> None:
    given = {**SMALL, "model_type": "lfm2_moe", "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 2}
    found = config_with(tmp_path, given, num_dense_layers=1, routed_scaling_factor=2.0, tie_embedding=False)
    assert (found.intermediate_size, found.dense_intermediate_size, found.tie_word_embeddings) == (40, 96, False)
    chosen = Experts(6, 2, True, sigmoid=True, share_eps=1e-6, biased=True, scale=2.0)
    assert [found.layer(index).experts for index in range(3)] == [None, chosen, chosen]
    assert len(weight_shapes(found)) == 1 + 8 + (7 + 21) + (4 + 21) + 2


@each_case(
    ("changes", "inner"),
    [
        ({"block_ff_dim": 6656}, 4608),
        ({"block_ff_dim": ..., "intermediate_size": 6656}, 4608),
        ({"block_ff_dim": 6656, "block_ffn_dim_multiplier": 1.5}, 6656),
        ({"block_ff_dim": 6656, "block_ffn_dim_multiplier": None}, 4437),
        ({"block_ff_dim": 6656, "block_auto_adjust_ff_dim": False}, 6656),
        ({"block_ff_dim": ...}, 8192),
    ],
)
def test_the_width_of_the_mlp_is_adjusted_as_transformers_does_it(
    tmp_path: Path, changes: dict[str, Any], inner: int
) -> None:
    assert config_with(tmp_path, PUBLISHED, **changes).intermediate_size == inner


def test_what_is_left_out_is_as_in_transformers(tmp_path: Path) -> None:
    found = config_with(tmp_path, {"model_type": "lfm2"})
    assert (found.hidden_size, found.num_hidden_layers, found.intermediate_size) == (2560, 32, 8192)
    assert convolutions_in(found) == 0
    assert (found.tie_word_embeddings, found.rope_theta, found.layer_norm_eps) == (True, 1e6, 1e-5)
    assert not config_with(tmp_path, PUBLISHED, tie_embedding=False, tie_word_embeddings=True).tie_word_embeddings


@each_case("dtype", ["float32", "bfloat16"])
def test_a_directory_becomes_other_files_and_back(tmp_path: Path, dtype: str) -> None:
    """The weights of convolutions are floats whatever the others are."""
    made = load_checkpoint(write_model(Made(SMALL, seed=1, dtype=dtype), tmp_path / "hf"))
    name = "model.layers.0.conv.conv.weight"
    assert made.tensors[name].shape == (64, 1, 3)
    assert ("model.layers.0.conv.in_proj.weight" in made.packed) == (dtype == "bfloat16")
    for end in ("safetensors", "gguf"):
        path = tmp_path / f"model.{end}"
        save_checkpoint(made, path, dtype="float16" if end == "safetensors" else "q8_0")
        found = load_checkpoint(path)
        assert found.config == made.config
        rounding = 2.0**-11 if end == "safetensors" else 0.0
        assert np.abs(found.floats(name) - made.floats(name)).max() <= rounding
        assert np.array_equal(
            found.floats("model.embedding_norm.weight").astype("<f2"),
            made.floats("model.embedding_norm.weight").astype("<f2"),
        )


def test_a_gguf_file_lists_heads_and_has_llama_cpps_names(tmp_path: Path) -> None:
    config = ModelConfig(50, 64, 4, 3, 40, 96, hidden_act="silu", model_type="lfm2", tie_word_embeddings=True,
                         num_key_value_heads=2, **layers_of("lfm2"))  # fmt: skip
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    save_checkpoint(random_checkpoint(config), tmp_path / "model.gguf")
    file = read_gguf_file(tmp_path / "model.gguf")
    assert file.metadata["lfm2.attention.head_count_kv"] == [0, 2, 0]
    assert file.metadata["lfm2.shortconv.l_cache"] == 3
    assert file.tensors["blk.0.shortconv.conv.weight"].shape == (64, 3)
    assert file.tensors["blk.2.shortconv.conv.weight"].type == "F32"
    assert {"token_embd_norm.weight", "blk.0.shortconv.in_proj.weight", "blk.1.attn_q_norm.weight"} <= set(file.tensors)
