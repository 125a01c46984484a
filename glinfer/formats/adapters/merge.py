"""Adapters read by what a path holds, and added to the weights of their model for good."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats.adapters.adapter import Adapter, FloatArray, LowRank
from glinfer.formats.adapters.gguf import read_gguf_adapter
from glinfer.formats.adapters.peft import CONFIG, WEIGHTS, read_peft
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.files import AnyPath, is_directory, shown
from glinfer.formats.gguf.file import is_gguf

_ROWS = 1 << 22
"""Numbers of a matrix that are added in float64 together."""


def read_adapter(path: AnyPath, config: ModelConfig, scale: float = 1.0, *, base: Checkpoint | None = None) -> Adapter:
    """Read the adapter at ``path``: a directory of PEFT, a file in it, or a GGUF file.

    Args:
        path: where it is.
        config: the shape of the model that it is for.
        scale: a factor of all that it adds, besides its own.
        base: the model that it is for, with which copies of its matrices in the adapter are compared; without it, an
            adapter with copies is refused.

    Raises:
        FormatError: it cannot be read, is damaged or no plain LoRA, or belongs to another model.
        InputError: ``scale`` is no number; a GGUF file, and the package gguf is not installed.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise InputError(f"the scale of an adapter is {scale!r}; expected a number")
    if config.embeds:
        raise InputError("adapters are for models that continue texts; this one embeds them")
    found = _found(path, config, base)
    if scale == 1.0:
        return found
    matrices = {name: replace(change, scale=scale * change.scale) for name, change in found.matrices.items()}
    return replace(found, matrices=MappingProxyType(matrices))


def _found(path: AnyPath, config: ModelConfig, base: Checkpoint | None) -> Adapter:
    if is_directory(path):
        return read_peft(path, config, base)
    if Path(os.fsdecode(path)).name in (CONFIG, WEIGHTS):
        return read_peft(Path(os.fsdecode(path)).parent, config, base)
    if is_gguf(path):
        return read_gguf_adapter(path, config)
    if not os.path.lexists(path):
        raise FormatError(f"{shown(path)}: there is no such adapter; expected a directory of PEFT, or a GGUF file")
    raise FormatError(f"{shown(path)}: found no adapter; expected a directory of PEFT, or a GGUF file")


def merged(checkpoint: Checkpoint, adapters: Iterable[Adapter]) -> Checkpoint:
    """The model with adapters added to its matrices, W + scale · B @ A, each sum in float64 and rounded once.

    The changed matrices are float32, whatever the file has them in; all others stay as they are.

    Raises:
        FormatError: a sum is no finite float32.
    """
    tensors, packed = dict(checkpoint.tensors), dict(checkpoint.packed)
    files = list(checkpoint.files)
    for adapter in adapters:
        for name, change in adapter.matrices.items():
            floats = packed.pop(name).floats() if name in packed else tensors[name]
            tensors[name] = _sum(floats, change)
            if not np.isfinite(tensors[name]).all():
                raise FormatError(f"{adapter.source}: with it, a weight of {name!r} is beyond float32; scale it down")
        files += adapter.files
    # In the order of the model, as files are written.
    order = {name: place for place, name in enumerate((*checkpoint.tensors, *checkpoint.packed))}
    tensors = {name: tensors[name] for name in sorted(tensors, key=order.__getitem__)}
    return replace(checkpoint, tensors=MappingProxyType(tensors), packed=MappingProxyType(packed), files=tuple(files))


def _sum(floats: FloatArray, change: LowRank) -> FloatArray:
    found = np.empty(floats.shape, dtype=np.float32)
    down = change.down.astype(np.float64) * change.scale
    together = max(1, _ROWS // floats.shape[1])
    with np.errstate(over="ignore"):
        for first in range(0, len(floats), together):
            rows = slice(first, first + together)
            found[rows] = floats[rows] + change.up[rows].astype(np.float64) @ down
    return found
