"""Keeps the fastest measured :class:`KernelOptions` of this machine from run to run.

There is one small JSON file for each renderer, driver, model shape and weight format, in the folder ``kernels`` of the
cache folder (:func:`glinfer.formats.files.memory_folder`). A damaged file, or one of another version or subject, counts
as absent, and the default is used. An empty environment variable GLINFER_CACHE turns reading and keeping off.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import GlinferError, InputError
from glinfer.formats.files import memory_folder, opened, reason, replacing
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_EDGE
from glinfer.gl.quirks import exact_derivatives
from glinfer.kernels.options import KernelOptions, default_kernels, without_blending
from glinfer.quant.threads import cores

VERSION = 3
"""Version of the files and of the passes that were measured; files with another version are ignored."""

_MAX_BYTES = 1 << 16
_MAX_NUMBER = 1 << 12  # above any sensible field of KernelOptions
_MAX_UNROLL = 64  # for fields that a shader writes out as steps, which a driver has to compile
_MAX_MILLISECONDS = 1e9
_THREADS = "LP_NUM_THREADS"  # how many threads llvmpipe draws with; default: one a core


@dataclass(frozen=True)
class TuningKey:
    """The subject of a measurement, for which alone its choice holds."""

    renderer: str
    driver: str
    shape: str

    @classmethod
    def of(cls, device: Device, config: ModelConfig, weights: str) -> TuningKey:
        """The key of a model in one weight format on an open device."""
        limits = device.limits
        driver = [device.version, device.api, f"textures {limits.max_texture_size}"]
        if not points_fit(device):
            driver.append("no points")
        if "llvmpipe" in device.renderer.lower():  # its name says nothing of the cores that do the drawing
            driver.append(f"threads {os.environ.get(_THREADS) or cores()}")
        fields = {
            "vocab": config.vocab_size,
            "width": config.hidden_size,
            "heads": config.num_attention_heads,
            "blocks": config.num_hidden_layers,
            "inner": config.intermediate_size,
            "context": config.max_position_embeddings,
            "weights": weights,
        }
        shape = ",".join(f"{name}={value}" for name, value in fields.items())
        return cls(device.renderer, " · ".join(driver), shape)

    @property
    def file_name(self) -> str:
        """A readable name, and a hash of the whole key."""
        whole = json.dumps([VERSION, self.renderer, self.driver, self.shape]).encode()
        readable = re.sub(r"[^a-z0-9]+", "-", self.renderer.lower())[:40].strip("-") or "renderer"
        weights = re.sub(r"[^a-z0-9]+", "", self.shape.rpartition("=")[2].lower())[:12]
        return f"{readable}-{weights}-{hashlib.sha256(whole).hexdigest()[:16]}.json"


@dataclass(frozen=True)
class Tuned:
    """A measured choice with its time and the default's, in milliseconds a token, measured interleaved."""

    kernels: KernelOptions
    milliseconds: float
    default_milliseconds: float


MANY_UNITS = 32
"""Texture units with which passes without blending read eight rows and add to eight others."""


def kernels_for(device: Device, config: ModelConfig, weights: str) -> KernelOptions:
    """The options to run a model with: tuned ones if they were kept, else a good default."""
    tuned = load_tuned(TuningKey.of(device, config, weights))
    return default_for(device, weights) if tuned is None or not runs_on(device, tuned.kernels) else tuned.kernels


def default_for(device: Device, weights: str = "f32") -> KernelOptions:
    """Good options for a device that was not tuned, within what the device turns out to support."""
    kernels = default_kernels(device.renderer, device.limits.max_point_size, weights)
    kernels = dataclasses.replace(
        kernels, rows_per_draw=min(kernels.rows_per_draw, 8 if device.limits.max_draw_buffers >= 8 else 4)
    )
    if device.texture_barrier is None:
        kernels = dataclasses.replace(kernels, one_state=False)
    if not runs_on(device, kernels):
        rows = kernels.rows_per_draw
        kernels = without_blending(kernels)
        if device.limits.max_texture_units >= MANY_UNITS:
            kernels = dataclasses.replace(kernels, rows_per_draw=rows)
    if kernels.quad and not exact_derivatives(device):
        kernels = dataclasses.replace(kernels, quad=False)
    return kernels


def points_fit(device: Device) -> bool:
    """Whether the device draws points as large as a block."""
    return device.limits.max_point_size >= BLOCK_EDGE


def runs_on(device: Device, kernels: KernelOptions) -> bool:
    """Whether a device has the point size, float blending, texture barrier and draw buffers that the options need."""
    blending = (
        kernels.part_steps > 0 or kernels.split_norms or kernels.split_inner or kernels.split_values or kernels.blends
    )
    return (
        (points_fit(device) or kernels.cover != "points")
        and (device.blends_floats or not blending)
        and (device.texture_barrier is not None or not kernels.one_state)
        and kernels.rows_per_draw <= device.limits.max_draw_buffers
    )


def kernels_file(key: TuningKey) -> Path | None:
    """The file of a key's choice; None where the user turned keeping off, or has no folder for it."""
    folder = memory_folder("kernels")
    return None if folder is None else folder / key.file_name


def load_tuned(key: TuningKey) -> Tuned | None:
    """The kept choice of a key, with its times; None where there is no usable file."""
    path = kernels_file(key)
    if path is None:
        return None
    try:
        with opened(path) as (file, size):
            found = json.loads(file.read(_MAX_BYTES)) if size <= _MAX_BYTES else None
        return _tuned(found, key)
    except (GlinferError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _tuned(found: Any, key: TuningKey) -> Tuned | None:
    about = {"version": VERSION, **dataclasses.asdict(key)}
    if not isinstance(found, dict) or {name: found.get(name) for name in about} != about:
        return None
    times = [float(found[name]) for name in ("milliseconds", "default_milliseconds")]
    if not all(0 < milliseconds < _MAX_MILLISECONDS for milliseconds in times):
        return None
    return Tuned(_kernels(found["kernels"]), *times)


def _kernels(values: Mapping[str, Any]) -> KernelOptions:
    """KernelOptions from JSON, which must have every field, of its type and of a sensible size."""
    fields = {field.name: field.default for field in dataclasses.fields(KernelOptions)}
    if not isinstance(values, dict) or set(values) != set(fields):
        raise ValueError("other fields than KernelOptions has")
    for name, default in fields.items():
        value = values[name]
        most = _MAX_UNROLL if name in ("unroll", "part_steps") else _MAX_NUMBER
        if type(value) is not type(default) or (isinstance(value, int) and not 0 <= value <= most):
            raise ValueError(f"{name} is {value!r}")
    return KernelOptions(**values)


def file_to_write(key: TuningKey) -> Path | None:
    """The file of a key's choice, None as :func:`kernels_file`; InputError if its folder cannot be written to."""
    path = kernels_file(key)
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InputError(
            f"{path.parent}: cannot write to this folder: {reason(error)}; "
            "set GLINFER_CACHE to another one, or to nothing"
        ) from None
    return path


def save_kernels(key: TuningKey, tuned: Tuned) -> Path | None:
    """Keep a choice for the next load; returns the file, or None as :func:`kernels_file`. FormatError if it cannot."""
    path = file_to_write(key)
    if path is None:
        return None
    values = {"version": VERSION, **dataclasses.asdict(key), **dataclasses.asdict(tuned)}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
