"""LoRA adapters of small models, in the files of PEFT and of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from glinfer.config import ModelConfig
from glinfer.formats.huggingface.config import form_of
from glinfer.formats.tensors import stored_tensors

Array = np.ndarray[Any, Any]
ALL = ("projection", "output", "delta_in", "delta_out", "gate", "up", "down")


def made_pairs(
    config: ModelConfig, rank: int = 3, roles: Iterable[str] = ALL, seed: int = 0, size: float = 0.3
) -> dict[str, tuple[Array, Array]]:
    """A [rank, in] and B [out, rank] of each matrix with such a role, by its name in a directory."""
    random, wanted = np.random.default_rng(seed), set(roles)
    if config.family.experts:  # which are not adapted
        wanted -= {"gate", "up", "down"}
    names = form_of(config.family).names or config.family.names
    found = {}
    for stored in stored_tensors(config, names):
        if len(stored.shape) == 2 and stored.tensors[0].role in wanted:
            rows, columns = stored.shape
            down = (random.standard_normal((rank, columns)) * size).astype(np.float32)
            up = (random.standard_normal((rows, rank)) * size).astype(np.float32)
            found[stored.name.removesuffix(".weight")] = down, up
    return found


def write_peft(folder: Path, pairs: dict[str, tuple[Array, Array]], **settings: Any) -> Path:
    """The directory that PEFT's ``save_pretrained`` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = len(next(iter(pairs.values()))[0]) if pairs else 1
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "use_dora": False, **settings}
    config.setdefault("target_modules", sorted({name.rpartition(".")[2] for name in pairs}))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_gguf_adapter(
    path: Path, config: ModelConfig, pairs: dict[str, tuple[Array, Array]], alpha: float, **changes: Any
) -> Path:
    """The file that convert_lora_to_gguf.py writes; ``pairs`` as of :func:`made_pairs`."""
    import gguf

    from glinfer.formats.gguf.config import form_of as gguf_form
    from glinfer.formats.gguf.model import rows_for_file

    form = gguf_form(config.family)
    writer = gguf.GGUFWriter(path, changes.get("architecture", form.architecture))
    writer.add_type(changes.get("type", "adapter"))
    writer.add_string("adapter.type", changes.get("kind", "lora"))
    writer.add_float32("adapter.lora.alpha", alpha)
    own = form_of(config.family).names or config.family.names
    for stored in stored_tensors(config, own):
        name = stored.name.removesuffix(".weight")
        if name not in pairs:
            continue
        down, up = pairs[name]
        by_file: dict[str, list[Array]] = {}
        for tensor, rows in stored.split(up):
            by_file.setdefault(tensor.name(form.names), []).append(rows_for_file(config, tensor, rows))
        for target, parts in by_file.items():
            writer.add_tensor(f"{target}.lora_a", np.ascontiguousarray(down))
            writer.add_tensor(f"{target}.lora_b", np.ascontiguousarray(np.concatenate(parts)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
