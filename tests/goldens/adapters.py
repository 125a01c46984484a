"""LoRA adapters of the models in models.py, in PEFT's directories, of the same bits with every NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glinfer.formats.huggingface.config import read_config
from glinfer.formats.tensors import stored_tensors

from .models import random_tensors, save_tensors

RANK = 4
_PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ADAPTED: dict[str, dict[str, Any]] = {
    "llama": {"lora_alpha": 8},
    "gpt2": {"lora_alpha": 6, "use_rslora": True, "fan_in_fan_out": True},
    "phi3": {"lora_alpha": 8, "alpha_pattern": {"qkv_proj": 3}},
    "qwen3": {"lora_alpha": 5, "rank_pattern": {"q_proj": 2}},
    "gemma2": {"lora_alpha": 8},
    "qwen3_moe": {"lora_alpha": 6, "target_parameters": [*_PARAMETERS, "mlp.gate.weight"]},
    "gpt_oss": {"lora_alpha": 8, "target_parameters": _PARAMETERS},
    "qwen3_5-shared": {"lora_alpha": 6, "rank_pattern": {"in_proj_b": 2}},
    "qwen3_next": {"lora_alpha": 8, "alpha_pattern": {"in_proj_qkvz": 5}},
}
"""The models that have an adapter, and the settings of its adapter_config.json."""
_ROLES = ("projection", "output", "delta_in", "delta_out", "gate", "up", "down")


def write_adapter(name: str, model: Path, folder: Path) -> Path:
    """Write the adapter of a model whose directory was written before."""
    config, settings = read_config(model / "config.json"), ADAPTED[name]
    shapes, inner = {}, config.intermediate_size
    for layer in range(config.num_hidden_layers) if "target_parameters" in settings else ():
        ranks, module = config.num_experts * RANK, f"base_model.model.model.layers.{layer}.mlp"
        # One parameter of a module is wrapped around the other.
        sizes = {"experts.base_layer": (config.hidden_size, 2 * inner), "experts": (inner, config.hidden_size)}
        for part, (inputs, outputs) in sizes.items():
            shapes[f"{module}.{part}.lora_A.weight"] = ranks, inputs
            shapes[f"{module}.{part}.lora_B.weight"] = outputs, ranks
        if "mlp.gate.weight" in settings["target_parameters"]:
            shapes[f"{module}.gate.lora_A.weight"] = RANK, config.hidden_size
            shapes[f"{module}.gate.lora_B.weight"] = config.num_experts, RANK
    roles = _ROLES[: 4 if config.family.experts else None]
    for stored in stored_tensors(config, config.family.in_huggingface.names or config.family.names):
        if len(stored.shape) == 2 and stored.tensors[0].role in roles:
            module = stored.name.removesuffix(".weight")
            rank = settings.get("rank_pattern", {}).get(module.rpartition(".")[2], RANK)
            shapes[f"base_model.model.{module}.lora_A.weight"] = rank, stored.shape[1]
            shapes[f"base_model.model.{module}.lora_B.weight"] = stored.shape[0], rank
    modules = sorted({key.split(".lora_")[0].rpartition(".")[2] for key in shapes if ".mlp.experts" not in key})
    modules = [module for module in modules if module != "gate"]
    config_of = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "target_modules": modules, **settings}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config_of), "utf-8")
    save_tensors(random_tensors(shapes, 21), folder / "adapter_model.safetensors")
    return folder
