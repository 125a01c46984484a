"""Gemma 4's own settings and tensors, in Hugging Face directories and in GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from each_case import each_case
from goldens.gguf_models import CONFIGS
from goldens.models import MODELS, model_tensors, save_tensors, write_model
from settings_files import config_with

from glinfer.config import ModelConfig
from glinfer.formats import load_checkpoint, random_checkpoint, write_gguf
from glinfer.formats.gguf.config import config_from, metadata_of
from glinfer.formats.tensors import stored_tensors, weight_shapes

E2B = MODELS["gemma4"].settings
DENSE = MODELS["gemma4-dense"].settings
WIDE_HEADS = {"head_dim": 12}


def test_layers_use_the_keys_and_values_of_the_last_of_their_kind(tmp_path: Path) -> None:
    found = config_with(tmp_path, E2B)
    layers = [found.layer(layer) for layer in range(6)]
    assert [layer.source for layer in layers] == [None, None, None, 1, 1, 2]
    assert [(layer.head_dim, layer.window) for layer in layers] == [(10, 30), (10, 30), (12, 0)] * 2
    assert [layer.inner for layer in layers] == [100] * 3 + [200] * 3
    assert found.producing_layers == 3
    assert len(weight_shapes(found)) == 103
    assert ModelConfig.from_json(found.to_json()) == found


@each_case(("settings", "own"), [(E2B, WIDE_HEADS), (DENSE, {**WIDE_HEADS, "num_key_value_heads": 1})])
def test_both_forms_of_wide_heads(tmp_path: Path, settings: dict[str, Any], own: dict[str, Any]) -> None:
    saved = {name: value for name, value in settings.items() if "global" not in name}
    found = config_with(tmp_path, saved, per_layer_config={"2": own, "5": own})
    assert found == config_with(tmp_path, settings)


def test_the_last_layer_never_has_a_window(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    found = config_with(tmp_path, E2B, layer_types=[*kinds, *kinds, *kinds[:1] * 2])
    assert found.layer(5).window == 0


def test_unused_keys_and_a_model_that_sees_are_read(tmp_path: Path) -> None:
    folder = write_model(MODELS["gemma4"], tmp_path / "text")
    made = load_checkpoint(folder)
    tensors = model_tensors(MODELS["gemma4"], folder / "config.json")
    table = tensors["model.embed_tokens_per_layer.weight"]
    assert table.shape == (151, 72)
    assert np.array_equal(made.floats("model.embed_tokens_per_layer.4.weight"), table[:, 48:60])
    parts = {"k_proj": (20, 64), "v_proj": (20, 64), "k_norm": (10,)}
    unused = {f"model.layers.3.self_attn.{part}.weight": np.ones(shape, np.float32) for part, shape in parts.items()}
    seen = {name.replace("model.", "model.language_model.", 1): array for name, array in (tensors | unused).items()}
    seen["model.audio_tower.w"] = seen["model.embed_vision.w"] = np.ones(3, np.float32)
    save_tensors(seen, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": E2B}))
    again = load_checkpoint(folder)
    assert again.config == made.config
    assert again.tensors.keys() == made.tensors.keys()


def test_all_pairs_turn_without_factors() -> None:
    made, (values, _) = CONFIGS["gemma4"], metadata_of(CONFIGS["gemma4"])
    found = config_from(values, made.family, stored_tensors(made, made.family.in_gguf.names), {}, "m")
    assert dict(found.rope_scaling)["partial_rotary_factor"] == 1.0


@each_case(("dtype", "form"), [("float16", "F16"), ("q8_0", "Q8_0"), ("q4_k", "F32")])
def test_embeddings_of_layers_keep_their_blocks(tmp_path: Path, dtype: str, form: str) -> None:
    """Blocks of 256 weights hold the embeddings of several layers here, so they are written in another format."""
    made = random_checkpoint(CONFIGS["gemma4"], seed=3)
    write_gguf(made, tmp_path / "m.gguf", dtype=dtype)
    again, name = load_checkpoint(tmp_path / "m.gguf"), "model.embed_tokens_per_layer.5.weight"
    assert (form == "F32") or again.packed[name].format == form
    assert np.allclose(again.floats(name), made.floats(name), atol=0.02)
