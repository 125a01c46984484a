"""Models, adapters and image encoders of several files, zip files and images."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from glinfer.errors import GlinferError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint
from glinfer.formats.adapters.merge import merged, read_adapter
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.tensors import stored_tensors
from glinfer.formats.vision import Vision, read_vision
from glinfer.formats.zipped import is_model_zip
from glinfer.text.images import decoded, squares_of
from qa.fuzz import seeds
from qa.fuzz.mutate import build_gguf, build_zip, parse_gguf
from qa.fuzz.reads import Files, put, root, use_checkpoint, with_errors
from qa.fuzz.seeds import written
from tests.goldens.pictures import TEXT, picture, write_mmproj, write_smolvlm
from tests.helpers.made_adapters import made_pairs, write_gguf_adapter, write_peft
from tests.helpers.tiny_embedders import write_embedder

# GGUF in parts

PARTS = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")


def parts() -> Files:
    """A model in two parts, as gguf-split makes them."""
    whole = parse_gguf(seeds.ggufs()[0])
    tensors = whole["tensors"]
    found: Files = {}
    for number, name in enumerate(PARTS):
        numbers = ("split.no", 2, number), ("split.count", 2, 2), ("split.tensors.count", 5, len(tensors))
        entries, placed, data = [*([] if number else whole["entries"]), *map(list, numbers)], [], b""
        for tensor, shape, kind, offset in tensors[number::2]:
            end = min((at for *_, at in tensors if at > offset), default=len(whole["data"]))
            placed.append([tensor, shape, kind, len(data)])
            data += whole["data"][offset:end]
        found[name] = build_gguf({**whole, "entries": entries, "tensors": placed, "data": data})
    return found


def split(path: Path) -> None:
    """Both parts stand for the model."""
    with_errors(lambda: load_checkpoint(path.with_name(PARTS[1])))
    use_checkpoint(load_checkpoint(path.with_name(PARTS[0])))


# LoRA adapters

ADAPTED = seeds.config_of("llama")
PEFT = ("adapter_config.json", "adapter_model.safetensors")


def peft() -> Files:
    """What PEFT saves, with a norm of the model."""
    pairs = made_pairs(ADAPTED, rank=1)
    made = written(lambda folder: write_peft(folder, pairs, rank_pattern={}, alpha_pattern={}))
    norm = {"base_model.model.model.norm.weight": _base().tensors["model.norm.weight"]}
    return {PEFT[0]: made[PEFT[0]], PEFT[1]: save({**load(made[PEFT[1]]), **norm})}


@cache
def _base() -> Checkpoint:
    return random_checkpoint(ADAPTED)


def adapted(path: Path) -> None:
    """Read an adapter, and add it to a model."""
    for scale in (1.0, -0.5):
        adapter = read_adapter(path, ADAPTED, scale, base=_base())
        with np.errstate(all="ignore"):
            changed = merged(_base(), [adapter])
        with_errors(lambda changed=changed: use_checkpoint(changed))  # type: ignore[misc]


def gguf_adapters() -> Files:
    """What convert_lora_to_gguf.py writes."""

    def made(rank: int) -> bytes:
        pairs = made_pairs(ADAPTED, rank=rank)
        return written(lambda folder: write_gguf_adapter(folder / "a.gguf", ADAPTED, pairs, 2.0))["a.gguf"]

    return {"a.gguf": [made(1), made(2)]}


# sentence-transformers

SENTENCE = (
    "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "config.json",
    "config_sentence_transformers.json", "sentence_bert_config.json",
)  # fmt: skip


def sentence() -> Files:
    """A BERT with pooling, a dense layer and prompts."""
    small: dict[str, Any] = {
        "num_hidden_layers": 1,
        "hidden_size": 12,
        "intermediate_size": 8,
        "max_position_embeddings": 8,
        "most": 6,
    }
    prompts = {"query": "q: ", "document": ""}
    return {**written(lambda folder: write_embedder(folder, dense=(4,), prompts=prompts, **small))}


def embedder(path: Path) -> None:
    use_checkpoint(load_checkpoint(root(path, "modules.json")))


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


def mxfp4() -> Files:
    """A directory of gpt-oss, whose experts are blocks and scales."""
    arrays = {}
    experts = _OSS["num_local_experts"]
    with tempfile.TemporaryDirectory() as folder:
        config = read_config(put(Path(folder), "config.json", seeds.compact(_OSS)))
    for stored in stored_tensors(config, config.family.in_huggingface.names or config.family.names):
        name, shape = stored.name, stored.shape
        if name.endswith(("gate_up_proj", "down_proj")):
            rows, inputs = shape[0] // experts, shape[1]
            arrays[f"{name}_blocks"] = np.zeros((experts, rows, inputs // 32, 16), np.uint8)
            arrays[f"{name}_scales"] = np.zeros((experts, rows, inputs // 32), np.uint8)
        elif name.endswith("_proj_bias") and "experts" in name:
            arrays[name] = np.ones((experts, shape[0] // experts), np.float16)
        else:
            arrays[name] = np.ones(shape, np.float16)
    return {"model.safetensors": save(arrays), "config.json": seeds.compact(_OSS)}


# Image encoders and images

ENCODER = ("mmproj.gguf", "config.json", "preprocessor_config.json")


def encoders() -> Files:
    """A directory of SmolVLM, and llama.cpp's file of its encoder."""
    return {**written(lambda folder: (write_smolvlm(folder), write_mmproj(folder / ENCODER[0])))}


def encoder(path: Path) -> None:
    """An encoder, and squares for it."""
    found = read_vision(path.parent, TEXT, path if path.name == ENCODER[0] else None)
    if isinstance(found, Vision):
        found.checkpoint.check_finite()
        squares_of(picture(9, 9), found.form)


def images() -> Files:
    """An image in each format."""
    found = []
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        picture(9, 7).save(data := io.BytesIO(), form)
        found.append(data.getvalue())
    return {"image": found}


def image(path: Path) -> None:
    decoded(path)


# Zip files

_FILE = (stat.S_IFREG | 0o644) << 16


def small_zip(folder: str = "m/", method: int = zipfile.ZIP_STORED) -> bytes:
    """A model in a zip file, in a folder of it."""
    files = {**seeds.huggingface(), "more/readme.md": b"# x\n"}
    if folder:
        files = {"": b"", **files}
    return build_zip([[folder + name, method, _FILE, data] for name, data in files.items()])


def zips() -> Files:
    return {"m.zip": [small_zip("", zipfile.ZIP_DEFLATED), small_zip()]}


def read_zip(path: Path) -> None:
    """Unpack it and use the model; what is refused leaves nothing in the cache."""
    cached, before = path.with_name("cache"), Path.cwd()
    os.environ["GLINFER_CACHE"] = str(cached)
    os.chdir(path.parent)  # folders are removed by relative names, which the watch takes for files of here
    try:
        is_model_zip(path)
        try:
            checkpoint = load_checkpoint(path)
        except GlinferError:
            assert not list(cached.rglob("*")), "what was refused has left something"
            raise
        use_checkpoint(checkpoint)
    finally:
        os.environ["GLINFER_CACHE"] = ""
        shutil.rmtree(cached, ignore_errors=True)
        os.chdir(before)
