"""Normalisations along the last axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Check, Found, KernelCase, normal, result, timed
from qa.kernels.cases.reduction import log_softmax


def layer_norm(x: Array, weight: Array | float = 1.0, bias: Array | float = 0.0, eps: float = 1e-5) -> Array:
    """LayerNorm of rows, float64."""
    x = x.astype(np.float64)
    away = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(away / np.sqrt((away**2).mean(axis=-1, keepdims=True) + eps) * weight + bias)


def rms_norm(x: Array, weight: Array | float = 1.0, eps: float = 1e-6) -> Array:
    """RMSNorm of rows, float64."""
    x = x.astype(np.float64)
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight)


def _check_softmax(name: str) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        x = normal(rng, rows, cols, scale=4.0).astype(form)
        expected = log_softmax(x)
        return [(result(device, name, x), np.exp(expected) if name == "softmax" else expected)]

    return check


def _check_layer_norm(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x = normal(rng, rows, cols, offset=30.0).astype(form)
    weight, bias = normal(rng, cols).astype(form), normal(rng, cols).astype(form)
    expected = layer_norm(x, weight.astype(np.float64), bias.astype(np.float64))
    bare = result(device, "layer_norm", x, eps=1e-3), layer_norm(x, eps=1e-3)
    return [(result(device, "layer_norm", x, weight, bias), expected), bare]


def _check_rms_norm(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x, weight = normal(rng, rows, cols, scale=3.0).astype(form), normal(rng, cols, scale=0.1).astype(form)
    expected = rms_norm(x, weight.astype(np.float64) + 1.0)
    bare = result(device, "rms_norm", x, eps=1e-3), rms_norm(x, eps=1e-3)
    return [(result(device, "rms_norm", x, weight, offset=1.0), expected), bare]


def _check_add_rms_norm(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x, residual = normal(rng, rows, cols).astype(form), normal(rng, rows, cols, scale=3.0)
    weight = normal(rng, cols, offset=1.0).astype(form)
    total, y = result(device, "add_rms_norm", x, residual, weight)
    expected = x.astype(np.float64) + residual
    return [(total, expected), (y, rms_norm(expected, weight.astype(np.float64)))]


def _case(kernel: str, check: Check, *operands: tuple[int, ...]) -> KernelCase:
    shaders = ("row_stats", "merge_stats", "normalize")
    return KernelCase(kernel, "normalization", shaders, FLOATS, check, timed(kernel, *operands), "512×2048")


_AT = (512, 2048)
CASES = [
    *(_case(name, _check_softmax(name), _AT) for name in ("softmax", "log_softmax")),
    _case("layer_norm", _check_layer_norm, _AT, (2048,), (2048,)),
    _case("rms_norm", _check_rms_norm, _AT, (2048,)),
    _case("add_rms_norm", _check_add_rms_norm, _AT, _AT, (2048,)),
]
