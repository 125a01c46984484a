"""Activations and gates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glinfer.kernels.published.linear import ACTIVATIONS, activate
from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import FLOATS, Check, Found, KernelCase, normal, result, timed

GATE_FORMS = (*FLOATS, "packed float32", "packed float16", "up first float32")


def _check(name: str) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        x = _inputs(rng, rows, cols, form)
        return [(result(device, name, x), expected(x, name))]

    return check


def _inputs(rng: np.random.Generator, rows: int, cols: int, form: str) -> Array:
    """Numbers around 0, the first positive: the largest result, to which errors are relative, is then not near 0."""
    x = normal(rng, rows, cols, scale=5.0)
    x[0, 0] = abs(x[0, 0])
    return x.astype(form)


def expected(x: Array, name: str) -> Array:
    """Apply the activation ``name`` in float64."""
    return activate(x.astype(np.float64), ACTIVATIONS[name])


def _check_gate(kernel: str, activation: str) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        packing, _, dtype = form.rpartition(" ")
        gate = _inputs(rng, rows, cols, dtype)
        up = normal(rng, rows, cols, scale=1e4).astype(dtype)  # the products go beyond the range of float16
        wanted = expected(gate, activation) * up.astype(np.float64)
        if not packing:
            return [(result(device, kernel, gate, up), wanted)]
        gate_first = packing == "packed"
        halves = np.concatenate([gate, up] if gate_first else [up, gate], axis=1)
        return [(result(device, kernel, halves, gate_first=gate_first), wanted)]

    return check


def _cases(name: str) -> list[KernelCase]:
    gate, at, family = f"{name}_gate", (512, 2048), "activation"
    return [
        KernelCase(name, family, ("activation",), FLOATS, _check(name), timed(name, at), "512×2048"),
        KernelCase(gate, family, ("gate",), GATE_FORMS, _check_gate(gate, name), timed(gate, at, at), "512×2048"),
    ]


CASES = [case for made in zip(*map(_cases, ("silu", "gelu", "gelu_new")), strict=True) for case in made]
