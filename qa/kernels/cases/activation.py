"""Activations and gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glinfer.kernels.published.linear import ACTIVATIONS, activate
from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from qa.kernels.cases.case import Check, Found, KernelCase, Timed, normal

GATE_FORMS = ("float32", "float16", "packed float32", "packed float16", "up first float32")


def _check(name: str) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        x = _inputs(rng, rows, cols, form)
        with device.tensor(x) as tensor, getattr(device.ops, name)(tensor) as y:
            return [(y.numpy(), expected(x, name))]

    return check


def _inputs(rng: np.random.Generator, rows: int, cols: int, form: str) -> Array:
    """Numbers around 0, the first positive: the largest result, to which errors are relative, is then not near 0."""
    x = normal(rng, rows, cols, scale=5.0)
    x[0, 0] = abs(x[0, 0])
    return x.astype(form)


def expected(x: Array, name: str) -> Array:
    """Apply the activation ``name`` in float64."""
    return activate(x.astype(np.float64), ACTIVATIONS[name])


def _timed(name: str) -> Timed:
    def timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        x = device.tensor(normal(rng, 512, 2048))
        return lambda: getattr(device.ops, name)(x).release()

    return timed


def _check_gate(kernel: str, activation: str) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        packing, _, dtype = form.rpartition(" ")
        gate = _inputs(rng, rows, cols, dtype)
        up = normal(rng, rows, cols, scale=1e4).astype(dtype)  # the products go beyond the range of float16
        run = getattr(device.ops, kernel)
        wanted = expected(gate, activation) * up.astype(np.float64)
        if not packing:
            with device.tensor(gate) as x, device.tensor(up) as other, run(x, other) as y:
                return [(y.numpy(), wanted)]
        gate_first = packing == "packed"
        halves = np.concatenate([gate, up] if gate_first else [up, gate], axis=1)
        with device.tensor(halves) as x, run(x, gate_first=gate_first) as y:
            return [(y.numpy(), wanted)]

    return check


def _timed_gate(kernel: str) -> Timed:
    def timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        x, up = device.tensor(normal(rng, 512, 2048)), device.tensor(normal(rng, 512, 2048))
        return lambda: getattr(device.ops, kernel)(x, up).release()

    return timed


CASES = [
    *(
        KernelCase(name, "activation", ("activation",), ("float32", "float16"), _check(name), _timed(name), "512×2048")
        for name in ("silu", "gelu", "gelu_new")
    ),
    *(
        KernelCase(
            f"{name}_gate",
            "activation",
            ("gate",),
            GATE_FORMS,
            _check_gate(f"{name}_gate", name),
            _timed_gate(f"{name}_gate"),
            "512×2048",
        )
        for name in ("silu", "gelu", "gelu_new")
    ),
]
