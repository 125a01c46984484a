"""Results in half floats: those of float32, rounded to nearest, ties to even, as NumPy rounds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_draw import padding, same_bits
from tiers import tiered

from glinfer.errors import InputError
from glinfer.tensors.device import Device
from glinfer.tensors.ops import Ops
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import normal

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
MOVES = {"astype"}
"""Kernels whose ``dtype`` is another matter, which tests/tensors/test_movement.py looks at."""
Run = Callable[[Any, Tensor, Tensor, Any], Any]
RUNS: dict[str, Run] = {
    "add": lambda o, x, y, d: o.add(x, y, dtype=d),
    "subtract": lambda o, x, y, d: o.subtract(x, y, dtype=d),
    "multiply": lambda o, x, y, d: o.multiply(x, y, dtype=d),
    "divide": lambda o, x, y, d: o.divide(x, y, dtype=d),
    "add_bias": lambda o, x, y, d: o.add_bias(x, y[0], dtype=d),
    "residual_add": lambda o, x, y, d: o.residual_add(x, y, dtype=d),
    "scale": lambda o, x, y, d: o.scale(x, 1e4, dtype=d),
    "activate": lambda o, x, y, d: o.activate(x, "none", dtype=d),
    "silu": lambda o, x, y, d: o.silu(x, dtype=d),
    "gelu": lambda o, x, y, d: o.gelu(x, dtype=d),
    "gelu_new": lambda o, x, y, d: o.gelu_new(x, dtype=d),
    "gate": lambda o, x, y, d: o.gate(x, y, activation="gelu", dtype=d),
    "silu_gate": lambda o, x, y, d: o.silu_gate(x[:, :6], dtype=d),
    "gelu_gate": lambda o, x, y, d: o.gelu_gate(x[:, :6], dtype=d),
    "gelu_new_gate": lambda o, x, y, d: o.gelu_new_gate(x, y, dtype=d),
    "matmul": lambda o, x, y, d: o.matmul(x, o.transpose(y), residual=o.matmul(x, o.transpose(y)), dtype=d),
    "linear": lambda o, x, y, d: o.linear(x, y, activation="silu", dtype=d),
    "dot": lambda o, x, y, d: o.dot(x, o.transpose(y).reshape(1, 7, 5), dtype=d),
    "attention_scores": lambda o, x, y, d: o.attention_scores(x, y, causal=True, dtype=d),
    "attention_values": lambda o, x, y, d: o.attention_values(o.softmax(x[:, :5]), y, dtype=d),
    "attention": lambda o, x, y, d: o.attention(x, y, y, dtype=d),
    "layer_norm": lambda o, x, y, d: o.layer_norm(x, y[0], y[1], dtype=d),
    "rms_norm": lambda o, x, y, d: o.rms_norm(x, y[0], dtype=d),
    "add_rms_norm": lambda o, x, y, d: o.add_rms_norm(x, y, dtype=d),
    "softmax": lambda o, x, y, d: o.softmax(x, dtype=d),
    "log_softmax": lambda o, x, y, d: o.log_softmax(x, dtype=d),
    "sum": lambda o, x, y, d: o.sum(x, dtype=d),
    "max": lambda o, x, y, d: o.max(x, keepdims=True, dtype=d),
    "cross_entropy": lambda o, x, y, d: o.cross_entropy(x, x.device.tensor([1, 0, 3, 6, 7]), dtype=d),
    "lookup": lambda o, x, y, d: o.lookup(x.device.tensor([5, 0, -1]), y, dtype=d),
    "dequantize": lambda o, x, y, d: o.dequantize(
        x.device.tensor(np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32), "Q8_ROW"), dtype=d
    ),
    "add_positions": lambda o, x, y, d: o.add_positions(x, y, dtype=d),
    "rope": lambda o, x, y, d: o.rope(x[:, :6], dtype=d),
    "causal_conv": lambda o, x, y, d: o.causal_conv(x, y, dtype=d),
    "gated_delta_rule": lambda o, x, y, d: o.gated_delta_rule(
        *(each.reshape(7, 1, 5) for each in (x, y, x)),
        *(each.reshape(7, 5)[:, :1] for each in (x, y)),
        norm_eps=1e-6,
        dtype=d,
    ),
    "top_k": lambda o, x, y, d: o.top_k(x, 3, dtype=d)[0],
}


def test_every_kernel_of_floats_is_here() -> None:
    methods = dict(inspect.getmembers(Ops, inspect.isfunction))
    has = {name for name, method in methods.items() if "dtype" in inspect.signature(method).parameters}
    assert {name for name in has if not name.startswith("_")} == RUNS.keys() | MOVES


@tiered("kernel", RUNS, keep=[[*RUNS].index(name) for name in ("add", "gate", "linear", "softmax", "top_k")])
def test_a_result_in_half_floats_is_the_result_rounded(dev: Device, kernel: str) -> None:
    rng = np.random.default_rng(1)
    x, y = dev.tensor(normal(rng, 5, 7, scale=30.0)), dev.tensor(normal(rng, 5, 7, scale=30.0))
    exact, rounded = (RUNS[kernel](dev.ops, x, y, dtype) for dtype in ("float32", np.float16))
    several = exact if isinstance(exact, tuple) else (exact,)
    for one, other in zip(several, rounded if isinstance(rounded, tuple) else (rounded,), strict=True):
        wanted = one.numpy()
        assert wanted.dtype == np.float32
        with np.errstate(over="ignore"):
            assert same_bits(other.numpy(), wanted.astype(np.float16))
        assert not padding(other).any()


def around_halves() -> Array:
    """Every half float, the places in the middle between two, and their neighbours in float32; infinities and NaN."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = np.append((halves[1:] + halves[:-1]) / 2, np.float32(65520))
    beside = [np.nextafter(middles, np.float32(end)) for end in (0, np.inf)]
    sizes = np.concatenate([halves, middles, *beside, np.float32([1e-8, 1e-40, 7e4, 3e38, np.inf, np.nan])])
    return np.concatenate([sizes, -sizes])


def test_rounding_is_numpys_for_every_half(dev: Device) -> None:
    """A renderer that rounds by itself for a target of half floats may cut off, and stop at 65504."""
    numbers = around_halves()
    with np.errstate(over="ignore"):
        wanted = numbers.astype(np.float16)
    with dev.ops.scale(dev.tensor(numbers), 1.0, dtype="float16") as y:
        found = y.numpy()
    numeric = ~np.isnan(numbers)
    assert np.array_equal(found[numeric].view(np.uint16), wanted[numeric].view(np.uint16))
    assert np.isnan(found[~numeric]).all()


def test_bad_types_are_refused(dev: Device) -> None:
    x = dev.zeros((2, 3))
    for dtype, said in (("int32", "int32"), ("float64", "float64"), ("Q8_ROW", "'Q8_ROW'"), (None, "None")):
        with pytest.raises(InputError) as raised:
            dev.ops.add(x, x, dtype=dtype)
        assert str(raised.value) == f"add: dtype is {said}; expected float32 or float16"
    with pytest.raises(InputError, match=r"\Aadd: out is \[2, 3\] of float32; the result is \[2, 3\] of float16\Z"):
        dev.ops.add(x, x, out=dev.zeros((2, 3)), dtype="float16")
    assert dev.memory().tensors == 1
