"""The files of small models as bytes, as a repository of a hub has them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from goldens.gguf_file import write_gguf_file
from safetensors.numpy import save
from template_models import CHATML, byte_library

from glinfer.config import ModelConfig
from glinfer.formats import Checkpoint, random_checkpoint, save_checkpoint
from glinfer.formats.gguf.split import read_gguf_file

SHAPE = "family=llama,vocab=258,dim=32,heads=4,kv_heads=2,blocks=2,context=96,inner=64"
CONFIG = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 258, "hidden_size": 32},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 96},
    **{"intermediate_size": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
}


def small(seed: int = 3) -> Checkpoint:
    """A small Llama with random weights."""
    return random_checkpoint(ModelConfig.from_options(SHAPE), seed=seed)


def small_gguf(dtype: str, seed: int = 3) -> bytes:
    """The same as a GGUF file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        save_checkpoint(small(seed), path, dtype=dtype.lower())
        return path.read_bytes()


def split_gguf(data: bytes, count: int) -> list[bytes]:
    """The parts of a GGUF file, see :func:`split_file`."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.gguf"
        whole.write_bytes(data)
        return [part.read_bytes() for part in split_file(whole, count)]


def split_file(
    path: Path,
    count: int,
    *,
    changes: Mapping[int, Mapping[str, Any]] | None = None,
    order: int = 1,
    twice: bool = False,
) -> list[Path]:
    """The parts of a file as gguf-split makes them: all metadata in the first, tensors dealt in turns.

    ``changes`` are of the metadata of a part, None to leave a value out. With ``twice`` one tensor is in two parts.
    """
    file = read_gguf_file(path)
    names, parts = list(file.tensors)[::order], list[Path]()
    for number in range(count):
        values: dict[str, Any] = dict(file.metadata) if number == 0 else {}
        values |= {"split.no": number, "split.count": count, "split.tensors.count": len(names)}
        values |= (changes or {}).get(number, {})
        own = (*names[number::count], *(names[:1] if twice and number == 1 else ()))
        tensors = {name: file.tensors[name] for name in own}
        parts.append(path.with_name(f"{path.stem}-{number + 1:05}-of-{count:05}.gguf"))
        write_gguf_file(parts[-1], file.metadata["general.architecture"], values, tensors)
    return parts


def small_gab() -> bytes:
    """A small Gab."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gab"
        made = random_checkpoint(ModelConfig.from_options("vocab=300,dim=32,heads=4,blocks=1,context=64"), seed=1)
        save_checkpoint(made, path)
        return path.read_bytes()


def letters() -> str:
    """A ``tokenizer.json`` whose tokens are the bytes."""
    return str(byte_library().to_str())


def hugging_face_files(shards: int = 1, **changes: Any) -> dict[str, bytes]:
    """The files of a directory of Hugging Face's transformers; ``changes`` are settings of config.json."""
    tensors = {name: np.ascontiguousarray(array) for name, array in small().tensors.items()}
    return {
        "config.json": json.dumps({**CONFIG, **changes}).encode(),
        "generation_config.json": json.dumps({"temperature": 0.5, "do_sample": True}).encode(),
        "tokenizer.json": letters().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>", "chat_template": CHATML}).encode(),
        **_weights(tensors, shards),
    }


def _weights(tensors: Mapping[str, Any], shards: int) -> dict[str, bytes]:
    if shards == 1:
        return {"model.safetensors": save(dict(tensors))}
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    placed = {name: names[number % shards] for number, name in enumerate(sorted(tensors))}
    index = {"metadata": {}, "weight_map": placed}
    held = {file: save({name: tensors[name] for name, place in placed.items() if place == file}) for file in names}
    return {"model.safetensors.index.json": json.dumps(index).encode(), **held}
