"""Normalisations along the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import Check, Found, KernelCase, Timed, normal
from qa.kernels.cases.reduction import FORMS, log_softmax


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
        with device.tensor(x) as tensor, getattr(device.ops, name)(tensor) as y:
            return [(y.numpy(), np.exp(expected) if name == "softmax" else expected)]

    return check


def _check_layer_norm(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x = normal(rng, rows, cols, offset=30.0).astype(form)
    weight, bias = normal(rng, cols).astype(form), normal(rng, cols).astype(form)
    expected = layer_norm(x, weight.astype(np.float64), bias.astype(np.float64))
    with (
        device.tensor(x) as tensor,
        device.tensor(weight) as w,
        device.tensor(bias) as b,
        device.ops.layer_norm(tensor, w, b) as y,
        device.ops.layer_norm(tensor, eps=1e-3) as bare,
    ):
        return [(y.numpy(), expected), (bare.numpy(), layer_norm(x, eps=1e-3))]


def _check_rms_norm(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x, weight = normal(rng, rows, cols, scale=3.0).astype(form), normal(rng, cols, scale=0.1).astype(form)
    expected = rms_norm(x, weight.astype(np.float64) + 1.0)
    with (
        device.tensor(x) as tensor,
        device.tensor(weight) as w,
        device.ops.rms_norm(tensor, w, offset=1.0) as y,
        device.ops.rms_norm(tensor, eps=1e-3) as bare,
    ):
        return [(y.numpy(), expected), (bare.numpy(), rms_norm(x, eps=1e-3))]


def _check_add_rms_norm(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    x, residual = normal(rng, rows, cols).astype(form), normal(rng, rows, cols, scale=3.0)
    weight = normal(rng, cols, offset=1.0).astype(form)
    with device.tensor(x) as tensor, device.tensor(residual) as other, device.tensor(weight) as w:
        total, y = device.ops.add_rms_norm(tensor, other, w)
        with total, y:
            expected = x.astype(np.float64) + residual
            return [(total.numpy(), expected), (y.numpy(), rms_norm(expected, weight.astype(np.float64)))]


def _timed_softmax(name: str) -> Timed:
    def timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        x = device.tensor(normal(rng, 512, 2048, scale=4.0))
        return lambda: getattr(device.ops, name)(x).release()

    return timed


def _timed_layer_norm(device: Device, rng: np.random.Generator) -> Callable[[], object]:
    x, weight, bias = (device.tensor(normal(rng, *shape)) for shape in ((512, 2048), (2048,), (2048,)))
    return lambda: device.ops.layer_norm(x, weight, bias).release()


def _timed_rms_norm(device: Device, rng: np.random.Generator) -> Callable[[], object]:
    x, weight = device.tensor(normal(rng, 512, 2048)), device.tensor(normal(rng, 2048))
    return lambda: device.ops.rms_norm(x, weight).release()


def _timed_add_rms_norm(device: Device, rng: np.random.Generator) -> Callable[[], object]:
    x, residual, weight = (device.tensor(normal(rng, *shape)) for shape in ((512, 2048), (512, 2048), (2048,)))

    def run() -> None:
        for result in device.ops.add_rms_norm(x, residual, weight):
            result.release()

    return run


def _case(kernel: str, check: Check, timed: Timed) -> KernelCase:
    shaders = ("row_stats", "merge_stats", "normalize")
    return KernelCase(kernel, "normalization", shaders, FORMS, check, timed, "512×2048")


CASES = [
    _case("softmax", _check_softmax("softmax"), _timed_softmax("softmax")),
    _case("log_softmax", _check_softmax("log_softmax"), _timed_softmax("log_softmax")),
    _case("layer_norm", _check_layer_norm, _timed_layer_norm),
    _case("rms_norm", _check_rms_norm, _timed_rms_norm),
    _case("add_rms_norm", _check_add_rms_norm, _timed_add_rms_norm),
]
