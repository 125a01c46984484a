"""LoRA adapters of small models, in the files of PEFT and of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from glinfer.config import ModelConfig
from glinfer.formats.tensors import stored_tensors
from tests.goldens.gguf_file import write_gguf_file

Array = np.ndarray[Any, Any]
EXPERTS = ("router", "shared_router", "shared_gate", "shared_up", "shared_down", "dense_gate", "dense_up", "dense_down")
ALL = ("projection", "output", "delta_in", "delta_out", "gate", "up", "down", *EXPERTS)


def made_pairs(
    config: ModelConfig, rank: int = 3, roles: Iterable[str] = ALL, seed: int = 0, size: float = 0.3
) -> dict[str, tuple[Array, Array]]:
    """A [rank, in] and B [out, rank] of each matrix with such a role, by its name in a directory.

    Of a tensor with the matrices of several experts they are [experts, rank, in] and [experts, out, rank].
    """
    random, wanted = np.random.default_rng(seed), set(roles)
    names = config.family.in_huggingface.names or config.family.names
    found = {}
    for stored in stored_tensors(config, names):
        if len(stored.shape) == 2 and stored.tensors[0].role in wanted:
            *several, rows, columns = stored.stacked_shape
            down = (random.standard_normal((*several, rank, columns)) * size).astype(np.float32)
            up = (random.standard_normal((*several, rows, rank)) * size).astype(np.float32)
            found[stored.name.removesuffix(".weight")] = down, up
    return found


def as_parameter(name: str, down: Array, up: Array) -> tuple[str, Array, Array]:
    """The module that PEFT has for a parameter with the matrices of all experts, and A and B as it stores them.

    Gate and up of gpt-oss take turns there, whose parameters are wrapped in the order of their names.
    """
    experts, rows, rank = up.shape
    module = name
    if name.endswith("_proj"):
        module = name.rpartition(".")[0] + (".base_layer" if name.endswith("gate_up_proj") else "")
    stored = up.transpose(1, 2, 0).reshape(rows, rank * experts)
    return module, down.reshape(experts * rank, -1), np.ascontiguousarray(stored)


def in_turn(up: Array) -> Array:
    """Rows of gate and up in turn, [experts, out, rank]."""
    return up.reshape(len(up), 2, -1, up.shape[2]).swapaxes(1, 2).reshape(up.shape)


def write_peft(
    folder: Path, pairs: dict[str, tuple[Array, Array]], *, alternate: bool = False, **settings: Any
) -> Path:
    """The directory that PEFT's ``save_pretrained`` writes; ``alternate`` as a family's files have gate and up."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = next(iter(pairs.values()))[0].shape[-2] if pairs else 1
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "use_dora": False, **settings}
    config.setdefault("target_modules", sorted({name.rpartition(".")[2] for name in pairs}))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for name, (down, up) in pairs.items():
        if down.ndim == 3:
            name, down, up = as_parameter(name, down, in_turn(up) if alternate and "gate" in name else up)
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_gguf_adapter(
    path: Path, config: ModelConfig, pairs: dict[str, tuple[Array, Array]], alpha: float, **changes: Any
) -> Path:
    """The file that convert_lora_to_gguf.py writes; ``pairs`` as of :func:`made_pairs`."""
    from glinfer.formats.gguf.model import rows_for_file

    form = config.family.in_gguf
    values = {"general.type": changes.get("type", "adapter"), "adapter.type": changes.get("kind", "lora")}
    own = config.family.in_huggingface.names or config.family.names
    by_file: dict[str, list[tuple[Array, Array]]] = {}
    tensors: dict[str, Array] = {}
    for stored in stored_tensors(config, own):
        name = stored.name.removesuffix(".weight")
        if name not in pairs:
            continue
        down, up = pairs[name]
        for tensor, rows in stored.split(up.reshape(-1, up.shape[-1])):
            each = down[int(tensor.letter)] if down.ndim == 3 else down
            by_file.setdefault(tensor.name(form.names), []).append((each, rows_for_file(config, tensor, rows)))
    for target, parts in by_file.items():
        downs, ups = [each for each, _ in parts], [each for _, each in parts]
        experts = "_exps" in target  # which have an edge more
        tensors[f"{target}.lora_a"] = np.ascontiguousarray(np.stack(downs) if experts else downs[0])
        tensors[f"{target}.lora_b"] = np.stack(ups) if experts else np.concatenate(ups)
    architecture = changes.get("architecture", form.architecture)
    return write_gguf_file(path, architecture, {**values, "adapter.lora.alpha": alpha}, tensors)
