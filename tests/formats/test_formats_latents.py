"""Files of families whose keys and values are products of a latent."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from goldens.models import MODELS, model_tensors, save_tensors, write_model
from settings_files import config_with

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats import load_checkpoint

LITE: dict[str, Any] = {
    **{"model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944},
    **{"moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16},
    **{"n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    **{"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    **{"topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "moe_layer_freq": 1},
    "max_position_embeddings": 163840,
    "rope_scaling": {
        **{"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707},
        "original_max_position_embeddings": 4096,
    },
}
"""The settings of DeepSeek-V2-Lite."""
V3 = {"model_type": "deepseek_v3"}


def test_the_settings_of_published_models(tmp_path: Path) -> None:
    lite = config_with(tmp_path, LITE)
    assert (lite.head_dim, lite.kv_lora_rank, lite.q_lora_rank, lite.rotary_dim, lite.v_head_dim) == (
        192,
        512,
        0,
        64,
        128,
    )
    assert (lite.num_dense_layers, lite.dense_intermediate_size, lite.shared_intermediate_size) == (1, 10944, 2816)
    layer = lite.layer(3)
    assert (layer.kv_heads, layer.head_dim) == (1, 576)
    assert layer.score_scale == pytest.approx(192**-0.5 * (1 + 0.0707 * 3.6888794541139363) ** 2)  # ln 40
    assert ModelConfig.from_json(lite.to_json()) == lite
    assert (lite.n_group, lite.topk_group) == (0, 0)
    for changes, groups in (
        ({**V3, "n_group": ..., "topk_group": ...}, (8, 4)),
        ({**V3, "n_group": 4, "topk_group": 4}, (0, 0)),
        ({"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}, (8, 3)),
        ({"n_group": 8, "topk_group": 3}, (0, 0)),
    ):
        grouped = config_with(tmp_path, LITE, **changes)
        assert (grouped.n_group, grouped.topk_group) == groups == (grouped.experts.groups, grouped.experts.kept)
        assert ModelConfig.from_json(grouped.to_json()) == grouped
    flash = config_with(tmp_path, "glm4_moe_lite", mlp_layer_types=["dense"] + ["sparse"] * 46)
    assert (flash.head_dim, flash.q_lora_rank, flash.v_head_dim, flash.num_dense_layers) == (256, 768, 256, 1)
    assert ModelConfig.from_mapping(flash.to_dict()) == flash
    assert flash.layer(0).score_scale == 256**-0.5
    assert config_with(tmp_path, "minicpm3").residual_multiplier == pytest.approx(1.4 / 62**0.5)
    assert config_with(tmp_path, "cwm").layer_types == ("full_attention", *["sliding_attention"] * 3)


def test_layers_that_predict_later_tokens_are_skipped(tmp_path: Path) -> None:
    made = MODELS["glm4_moe_lite"]
    folder = write_model(made, tmp_path)
    tensors = model_tensors(made, folder / "config.json")
    save_tensors(
        {**tensors, "model.layers.3.eh_proj.weight": tensors["model.norm.weight"]}, folder / "model.safetensors"
    )
    with pytest.raises(FormatError, match=r"unknown tensor 'model.layers.3.eh_proj.weight'"):
        load_checkpoint(folder)
    made = dataclasses.replace(made, settings={**made.settings, "num_nextn_predict_layers": 1})
    (folder / "config.json").write_text(json.dumps(made.settings), "utf-8")
    assert load_checkpoint(folder).tensors.keys() == tensors.keys()
