"""Reading an adapter of either format, and merging adapters into a model's weights."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
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
"""Weights that are summed in float64 at a time."""


def read_adapter(path: AnyPath, config: ModelConfig, scale: float = 1.0, *, base: Checkpoint | None = None) -> Adapter:
    """Read the adapter at ``path``: a PEFT directory, a file in it, or a GGUF file.

    Args:
        path: the adapter.
        config: the model's shape.
        scale: a factor for every update, on top of the adapter's own.
        base: the model, to compare with copies of its matrices in the adapter; without it, an adapter with copies is
            refused.

    Raises:
        FormatError: the adapter cannot be read, is damaged, is not plain LoRA, or belongs to another model.
        InputError: ``scale`` is not a finite number, or the package gguf is missing.
    """
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise InputError(f"the adapter's scale is {scale!r}; expected a finite number")
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
        raise FormatError(f"{shown(path)}: there is no such adapter; expected a PEFT directory, or a GGUF file")
    raise FormatError(f"{shown(path)}: found no adapter; expected a PEFT directory, or a GGUF file")


def task_folders(path: AnyPath) -> dict[str, Path]:
    """The adapters of tasks in the directory of an embedding model, by name."""
    return {each.parent.name: each.parent for each in sorted(Path(os.fsdecode(path)).glob(f"*/{CONFIG}"))}


def with_task(path: AnyPath, checkpoint: Checkpoint, given: Mapping[str, AnyPath]) -> Checkpoint:
    """Merge the adapter of an embedding model, which is named by its path or as a folder in the model's directory.

    Raises:
        FormatError: the adapter cannot be merged, see :func:`read_adapter`.
        InputError: several adapters are given, or none is found.
    """
    where, *others = given.values()
    if others:
        raise InputError(f"found {len(given)} adapters for a model that embeds texts; expected one; load it once each")
    tasks, name = task_folders(path), os.fsdecode(where)
    if name not in tasks and not os.path.lexists(name):
        own = f", or a task of this model: {', '.join(tasks)}" if tasks else "; this model's directory has none"
        raise InputError(f"there is no adapter {name!r}; expected the path of one{own}")
    return merged(checkpoint, [read_adapter(tasks.get(name, where), checkpoint.config, base=checkpoint)])


def merged(checkpoint: Checkpoint, adapters: Iterable[Adapter]) -> Checkpoint:
    """Merge adapters into the model's matrices: W + scale · B @ A, summed in float64 and rounded once.

    Changed matrices become float32, whatever their format was; the others are unchanged.
    """
    tensors, packed = dict(checkpoint.tensors), dict(checkpoint.packed)
    files = list(checkpoint.files)
    for adapter in adapters:
        for name, change in adapter.matrices.items():
            floats = packed.pop(name).floats() if name in packed else tensors[name]
            tensors[name] = _sum(floats, change)
            if not np.isfinite(tensors[name]).all():
                raise FormatError(f"{adapter.source}: it makes a weight of {name!r} exceed float32; scale it down")
        files += adapter.files
    # Keep the checkpoint's order, in which files are written.
    order = {name: index for index, name in enumerate((*checkpoint.tensors, *checkpoint.packed))}
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
