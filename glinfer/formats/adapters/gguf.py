"""GGUF adapters, as llama.cpp's convert_lora_to_gguf.py writes them."""

from __future__ import annotations

import math
from functools import partial
from types import MappingProxyType
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.settings import quoted
from glinfer.formats.adapters.adapter import Adapter, FloatArray, LowRank, Pair, adaptable, low_ranks, refused_name
from glinfer.formats.files import AnyPath
from glinfer.formats.gguf.file import GgufTensor, read_gguf_part
from glinfer.formats.gguf.model import is_by_key, rows_from_file
from glinfer.formats.huggingface.layouts import rows_by_part
from glinfer.formats.packed import PACKED_FORMATS

_ENDS = {".weight.lora_a": "down", ".weight.lora_b": "up"}


def read_gguf_adapter(path: AnyPath, config: ModelConfig) -> Adapter:
    """Read an adapter from a GGUF file, for a model of this shape.

    The file has ``general.type`` ``adapter``, ``adapter.type`` ``lora`` and ``adapter.lora.alpha``. Each adapted tensor
    has two matrices: ``.lora_a`` [rank, in] and ``.lora_b`` [out, rank], with a leading dimension for experts if the
    tensor holds all of them. The scale is alpha / rank, or 1 if alpha is 0, as in llama.cpp. Rows of B are put in
    glinfer's order, like the rows of a GGUF model.
    """
    file = read_gguf_part(path)
    label, values = file.source, file.metadata
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if values.get(key) != wanted:
            raise FormatError(f"{label}: {key} is {quoted(values.get(key))}; expected {wanted!r}, a LoRA adapter")
    if config.family.gguf is None or values.get("general.architecture") != config.family.in_gguf.architecture:
        raise FormatError(
            f"{label}: found an adapter of {quoted(values.get('general.architecture'))}; this model is "
            f"{config.model_type}; the adapter belongs to another one"
        )
    alpha = values.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise FormatError(f"{label}: adapter.lora.alpha is {quoted(alpha)}; expected a number")
    form = config.family.in_gguf
    names = form.names
    known = adaptable(config, names)
    matrices: dict[str, LowRank] = {}
    for name, pair in _pairs(file.tensors, label).items():
        if name not in known:
            raise FormatError(f"{label}: {refused_name(name, config, names)}")
        scale = float(alpha) / pair.rank if alpha else 1.0
        where = f"{label}: tensor {quoted(name)}"
        stored = known[name]
        order = rows_by_part(stored, config) if is_by_key(config, stored) else None
        converted = partial(rows_from_file, config)
        in_turn = form.keys_in_turn
        matrices.update(
            low_ranks(config, stored, pair, scale, where, order=order, in_turn=in_turn, converted=converted)
        )
    if not matrices:
        raise FormatError(f"{label}: found no matrices lora_a and lora_b; expected an adapter")
    return Adapter(MappingProxyType(matrices), label, file.paths)


def _pairs(tensors: Any, label: str) -> dict[str, Pair]:
    """A and B of each adapted tensor, by its name in the file without ``.weight``."""
    pairs: dict[str, dict[str, FloatArray]] = {}
    for name, found in tensors.items():
        end = next((end for end in _ENDS if name.endswith(end)), None)
        if end is None:
            raise FormatError(
                f"{label}: tensor {quoted(name)} is not supported; expected only matrices lora_a and lora_b"
            )
        pairs.setdefault(name.removesuffix(end), {})[_ENDS[end]] = _floats(found, label)
    return {name: Pair(**parts) for name, parts in pairs.items()}


def _floats(found: GgufTensor, label: str) -> FloatArray:
    if found.type != "F32" and (found.type not in PACKED_FORMATS or len(found.shape) not in (2, 3)):
        raise FormatError(
            f"{label}: tensor {quoted(found.name)} is {found.type} {list(found.shape)}; expected a matrix of floats"
        )
    return found.floats()
