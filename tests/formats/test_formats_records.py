"""Settings of families that are little more than a record, in Hugging Face directories."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from settings_files import config_with
from tiny_models import tiny

from glinfer.errors import FormatError
from glinfer.families.layer import Experts
from glinfer.formats import random_checkpoint, save_checkpoint
from glinfer.formats.gguf.model import checkpoint_of
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.tensors import weight_shapes


def test_hunyuan_has_a_larger_base_of_angles(tmp_path: Path) -> None:
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0, "beta_fast": 32}
    found = config_with(tmp_path, "hunyuan_v1_dense", head_dim=128, rope_theta=1e4, rope_scaling=scaling)
    assert found.rope_theta == pytest.approx(11158840.0, rel=1e-6)  # as llama.cpp's converter has it
    assert not found.rope_scaling
    assert config_with(tmp_path, "hunyuan_v1_dense", rope_theta=5e3).rope_theta == 5e3


def test_hunyuan_with_experts_lists_numbers_of_layers(tmp_path: Path) -> None:
    published = {
        **{"num_experts": 64, "moe_topk": [8] * 32, "moe_intermediate_size": [3072] * 32, "intermediate_size": 3072},
        **{"num_shared_expert": [1] * 32, "use_cla": False, "cla_share_factor": 2, "use_mixed_mlp_moe": True},
    }
    found = config_with(tmp_path, "hunyuan_v1_moe", **published)
    assert found.layer(0).experts == Experts(64, 8, normed=True)
    assert (found.intermediate_size, found.shared_intermediate_size) == (3072, 3072)


def test_ernie_has_experts_in_all_layers_after_the_first(tmp_path: Path) -> None:
    found = config_with(tmp_path, "ernie4_5_moe", moe_layer_start_index=3, moe_num_experts=32, moe_k=8)
    assert [found.layer(index).experts is None for index in range(5)] == [True] * 3 + [False] * 2
    assert found.experts == Experts(32, 8, normed=True, biased=True)
    assert (found.intermediate_size, found.dense_intermediate_size) == (1536, 12288)
    assert found.shared_intermediate_size == 3072
    assert config_with(tmp_path, "ernie4_5_moe", moe_num_shared_experts=0).shared_intermediate_size == 0


def test_ernie_without_an_mlp_beside_experts_is_read_from_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    config = dataclasses.replace(tiny("ernie4_5_moe"), norm_topk_prob=True, routed_scaling_factor=1.0)
    made = random_checkpoint(dataclasses.replace(config, shared_intermediate_size=0), seed=3)
    save_checkpoint(made, tmp_path / "a.gguf")
    file = read_gguf_file(tmp_path / "a.gguf")
    found = checkpoint_of(file)
    assert (found.config.shared_intermediate_size, found.tensors.keys()) == (0, made.tensors.keys())


def test_qwen2_moe_has_a_shared_expert_of_another_width(tmp_path: Path) -> None:
    found = config_with(tmp_path, "qwen2_moe", moe_intermediate_size=1408, num_experts=60, qkv_bias=False)
    assert found.layer(0).experts == Experts(60, 4, normed=False, shared=True, apart=True)
    assert found.shared_expert_intermediate_size == 5632
    assert not found.attention_bias


def test_older_files_of_nomic_have_other_names_of_settings(tmp_path: Path) -> None:
    found = config_with(tmp_path, "nomic_bert", rotary_emb_base=500, layer_norm_epsilon=1e-5)
    assert (found.rope_theta, found.layer_norm_eps) == (500.0, 1e-5)
    usual = config_with(tmp_path, "nomic_bert")
    assert (usual.rope_theta, usual.layer_norm_eps) == (1000.0, 1e-12)


def test_phi_shares_one_norm_and_is_refused_with_another(tmp_path: Path) -> None:
    found = config_with(tmp_path, "phi")
    assert (found.rotary_dim, found.head_dim, found.hidden_act) == (32, 64, "gelu_new")
    names = list(weight_shapes(found))
    assert len(names) == len(set(names)) == 1 + 24 * 14 + 2 + 2


def test_apertus_lists_the_numbers_of_its_activation_in_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    made = random_checkpoint(tiny("apertus"), seed=3)
    save_checkpoint(made, tmp_path / "a.gguf")
    file = read_gguf_file(tmp_path / "a.gguf")
    name = "model.layers.1.mlp.act_fn.alpha_n"
    assert file.metadata["xielu.alpha_n"][1] == made.floats(name)[0]
    assert not [each for each in file.tensors if "alpha" in each]
    assert np.array_equal(checkpoint_of(file).floats(name), made.floats(name))
    for key, value, words in (
        ("xielu.beta", [0.5, 0.6], r"xielu.beta is \[0.5, 0.6\]; expected 0.5 for every layer"),
        ("xielu.alpha_p", None, "xielu.alpha_p is None; expected a list of numbers, one a layer"),
    ):
        with pytest.raises(FormatError, match=words):
            checkpoint_of(dataclasses.replace(file, metadata={**file.metadata, key: value}))


def test_hyperclovax_multiplies_logits_and_has_norms_after_branches(tmp_path: Path) -> None:
    made = config_with(tmp_path, "hyperclovax", logits_scaling=0.25, attention_multiplier=None)
    assert (made.logits_scaling, made.attention_multiplier) == (4.0, 0.0)
    assert config_with(tmp_path, "hyperclovax", attention_multiplier=0.5).layer(0).score_scale == 0.5
    with pytest.raises(FormatError, match=r"use_post_norm is False, which is not supported; expected true"):
        config_with(tmp_path, "hyperclovax", use_post_norm=False)


def test_solar_open_has_experts_in_all_layers(tmp_path: Path) -> None:
    assert config_with(tmp_path, "solar_open", first_k_dense_replace=0).num_dense_layers == 0
    with pytest.raises(FormatError, match=r"first_k_dense_replace is 3, which is not supported; expected 0"):
        config_with(tmp_path, "solar_open", first_k_dense_replace=3)


def test_k_exaone_turns_layers_with_windows_and_lists_those_without_experts(tmp_path: Path) -> None:
    made = config_with(tmp_path, "exaone_moe", mlp_layer_types=["dense"] * 2 + ["sparse"] * 30, num_shared_experts=2)
    assert (made.num_dense_layers, made.shared_intermediate_size, made.rotary_layers) == (2, 2048, (1, 1, 1, 0))
    with pytest.raises(FormatError, match=r"mlp_layer_types is .* expected 32 names, dense for the first layers"):
        config_with(tmp_path, "exaone_moe", mlp_layer_types=["sparse", "dense"])


def test_jais_has_biases_unless_a_file_turns_them_off(tmp_path: Path) -> None:
    assert config_with(tmp_path, "jais2").mlp_bias
    assert not config_with(tmp_path, "jais2", attention_bias=False).attention_bias
