"""GGUF files of models that embed texts, as llama.cpp's converters write them.

Names of tensors are those that the package gguf has for the names in Hugging Face's files, so that they are not
glinfer's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.gguf_file import write_gguf_file

Array = np.ndarray[Any, Any]
MEAN, CLS, LAST, RANK = 1, 2, 3, 4
CONTROL, NORMAL = 3, 1
PHANTOM = "\u2581"


def write_embedder(
    path: Path, architecture: str, tensors: Mapping[str, Array], keys: Mapping[str, Any], dtype: str = "F32"
) -> Path:
    """A GGUF file of tensors under their names in Hugging Face's files; matrices in ``dtype``, if whole blocks."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], int(keys["block_count"]))
    kind, stored = gguf.GGMLQuantizationType[dtype], dict[str, Any]()
    for name, tensor in tensors.items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        matrix = tensor.ndim > 1 and not found.startswith(("position_embd", "token_types"))
        stored[found] = np.ascontiguousarray(tensor, np.float32)
        if matrix and dtype != "F32" and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            stored[found] = gguf.quants.quantize(stored[found], kind), dtype
    values = {key if key.startswith("tokenizer.") else f"{architecture}.{key}": each for key, each in keys.items()}
    return write_gguf_file(path, architecture, values, stored)


def word_pieces(vocabulary: Sequence[str]) -> dict[str, Any]:
    """The metadata of a vocabulary of WordPiece: ``▁`` before words in place of ``##`` before what goes on one."""
    control = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    ids = {text: number for number, text in enumerate(vocabulary)}
    phantom = [t if t in control else t[2:] if t.startswith("##") else PHANTOM + t for t in vocabulary]
    named = {"bos": "[CLS]", "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]", "mask": "[MASK]"}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": phantom,
        "tokenizer.ggml.token_type": [CONTROL if text in control else NORMAL for text in vocabulary],
        **{f"tokenizer.ggml.{name}_token_id": ids[text] for name, text in named.items()},
    }
