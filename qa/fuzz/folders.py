"""Models and adapters of several files, one of them damaged: GGUF in parts, PEFT, sentence-transformers, MXFP4.

The first byte of a case chooses the file, the rest is what it holds; the others are as they should be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from glinfer.config import ModelConfig
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint
from glinfer.formats.adapters.merge import merged, read_adapter
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.tensors import stored_tensors
from qa.fuzz import seeds
from qa.fuzz.mutate_gguf import GgufParts, parse_gguf
from qa.fuzz.reads import Files, put, put_one, use_checkpoint, with_errors
from tests.helpers.made_adapters import made_pairs, write_gguf_adapter, write_peft
from tests.helpers.tiny_embedders import write_embedder


def written(write: Callable[[Path], object]) -> dict[str, bytes]:
    """The files that a function writes into a folder, by their paths in it."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        found = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _split_off(files: Files, names: tuple[str, ...]) -> tuple[Files, Files]:
    """The files that are damaged, in this order, and all others."""
    return {name: files[name] for name in names}, {name: data for name, data in files.items() if name not in names}


# GGUF in parts

PARTS = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")


@cache
def parts() -> Files:
    """A model in two parts, as gguf-split makes them."""
    whole = parse_gguf(seeds.ggufs()[0])
    found = {}
    for number, name in enumerate(PARTS):
        made = GgufParts(entries=[] if number else list(whole.entries))
        placed = whole.tensors[number::2]
        for key, kind, value in (("split.no", 2, number), ("split.count", 2, 2), ("split.tensors.count", 5, 0)):
            entry = seeds.gguf_entry(key, value or len(whole.tensors) * (key == "split.tensors.count"))
            entry.kind = kind
            made.entries.append(entry)
        for tensor, shape, kind, offset in placed:
            later = [at for _, _, _, at in whole.tensors if at > offset]
            made.tensors.append((tensor, shape, kind, len(made.data)))
            made.data += whole.data[offset : min(later, default=len(whole.data))]
        found[name] = made.build()
    return found


def split(data: bytes, folder: Path) -> None:
    """Both parts stand for the model."""
    put_one(parts(), data, folder)
    with_errors(lambda: load_checkpoint(folder / PARTS[1]))
    use_checkpoint(load_checkpoint(folder / PARTS[0]))


# LoRA adapters

ADAPTED = ModelConfig(**seeds.SIZES, model_type="llama", hidden_act="silu")
PEFT = ("adapter_config.json", "adapter_model.safetensors")


@cache
def peft() -> Files:
    """What PEFT saves."""

    def write(folder: Path) -> None:
        path = write_peft(folder, made_pairs(ADAPTED, rank=1), rank_pattern={}, alpha_pattern={}) / PEFT[1]
        copy = {"base_model.model.model.norm.weight": _base().tensors["model.norm.weight"]}
        save_file({**load_file(path), **copy}, path)

    return _split_off(written(write), PEFT)[0]


@cache
def _base() -> Checkpoint:
    return random_checkpoint(ADAPTED)


def _adapted(path: Path) -> None:
    for scale in (1.0, -0.5):
        adapter = read_adapter(path, ADAPTED, scale, base=_base())
        with np.errstate(all="ignore"):
            changed = merged(_base(), [adapter])
        with_errors(lambda changed=changed: use_checkpoint(changed))  # type: ignore[misc]


def peft_adapter(data: bytes, folder: Path) -> None:
    """Read the directory, and add it to a model."""
    put_one(peft(), data, folder)
    _adapted(folder)


@cache
def gguf_adapters() -> list[bytes]:
    """What convert_lora_to_gguf.py writes."""
    found = []
    for rank in (1, 2):
        pairs = made_pairs(ADAPTED, rank=rank)
        made = written(lambda folder, pairs=pairs: write_gguf_adapter(folder / "a.gguf", ADAPTED, pairs, 2.0))  # type: ignore[misc]
        found.append(made["a.gguf"])
    return found


def gguf_adapter(data: bytes, folder: Path) -> None:
    """Read it, and add it to a model."""
    _adapted(put(folder, "a.gguf", data))


# sentence-transformers

SENTENCE = (
    "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "config.json",
    "config_sentence_transformers.json", "sentence_bert_config.json",
)  # fmt: skip


@cache
def sentence() -> tuple[Files, Files]:
    """A BERT with pooling, a dense layer and prompts: the files that are damaged, and the others."""
    files = written(
        lambda folder: write_embedder(
            folder, dense=(4,), prompts={"query": "q: ", "document": ""}, num_hidden_layers=1, hidden_size=12,
            intermediate_size=8, max_position_embeddings=8, most=6,
        )
    )  # fmt: skip
    return _split_off(files, SENTENCE)


def embedder(data: bytes, folder: Path) -> None:
    """Read the directory, and make its plan and arrays."""
    damaged, others = sentence()
    put_one(damaged, data, folder, others)
    use_checkpoint(load_checkpoint(folder))


# MXFP4, as gpt-oss comes

_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "attention_bias": True, "experts_per_token": 2, "head_dim": 4, "hidden_act": "silu",
    "hidden_size": 32, "initial_context_length": 64, "intermediate_size": 32, "layer_types": ["sliding_attention"],
    "max_position_embeddings": 8, "num_attention_heads": 2, "num_experts_per_tok": 2, "num_hidden_layers": 1,
    "num_key_value_heads": 1, "num_local_experts": 2, "rope_theta": 150000, "sliding_window": 4, "swiglu_limit": 7.0,
    "vocab_size": 6, "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": False,
                     "original_max_position_embeddings": 64},
}  # fmt: skip


@cache
def mxfp4() -> Files:
    """A directory of gpt-oss, whose experts are blocks and scales."""
    with tempfile.TemporaryDirectory() as folder:
        config = read_config(put(Path(folder), "config.json", seeds.compact(_OSS)))
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    experts = _OSS["num_local_experts"]
    for stored in stored_tensors(config, config.family.in_huggingface.names or config.family.names):
        name, shape = stored.name, stored.shape
        if name.endswith(("gate_up_proj", "down_proj")):
            rows, inputs = shape[0] // experts, shape[1]
            arrays[f"{name}_blocks"] = ("U8", (experts, rows, inputs // 32, 16))
            arrays[f"{name}_scales"] = ("U8", (experts, rows, inputs // 32))
        elif name.endswith("_proj_bias") and "experts" in name:
            arrays[name] = ("BF16", (experts, shape[0] // experts))
        else:
            arrays[name] = ("BF16", shape)
    return {"model.safetensors": seeds.safetensors(arrays), "config.json": seeds.compact(_OSS)}


def blocks(data: bytes, folder: Path) -> None:
    """Read the directory, and make its plan and arrays."""
    put_one(mxfp4(), data, folder)
    use_checkpoint(load_checkpoint(folder))
