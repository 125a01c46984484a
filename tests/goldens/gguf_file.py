"""GGUF files by the package gguf's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glinfer.formats.gguf.file import GgufTensor


def write_gguf_file(path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Any] = {}) -> Path:
    """Write metadata by whole key, None for no value, and tensors: arrays, those of a file, or (blocks, type)."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    writer = gguf.GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in values.items():
        if value is not None and key != "general.architecture":
            add.get(type(value), writer.add_array)(key, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, GgufTensor):
            weights, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.type]]
            shape = (*tensor.shape[:-1], tensor.shape[-1] // weights * nbytes)
            tensor = np.ascontiguousarray(tensor.data).reshape(shape), tensor.type
        array, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, array, raw_dtype=None if kind is None else gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
