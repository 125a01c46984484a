"""Activations by themselves, and the gates of gated MLPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_draw import drawn, holds, padding

from glinfer.errors import InputError, PlanError
from glinfer.models.oracle import relative_error
from glinfer.ops.flat.activate import activation as activation_draw
from glinfer.ops.flat.activate import gate as gate_draw
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.activation import expected
from qa.kernels.cases.case import normal

pytestmark = pytest.mark.gl


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(13)


def test_products_beyond_half_precision_stay_finite(dev: Device) -> None:
    """``silu(300) * 60000`` is 1.8e7; a half float ends at 65504."""
    gate = np.array([[300, -300, 65504, 8, 0, 1]], np.float16)
    up = np.array([[60000, 60000, 65504, -65504, 65504, 6e-8]], np.float16)
    wanted = expected(gate, "silu") * up.astype(np.float64)
    with dev.ops.silu_gate(dev.tensor(gate), dev.tensor(up)) as y:
        assert relative_error(y.numpy(), wanted) <= 1e-6
        assert y.numpy().max() > 4e9
    with dev.ops.silu_gate(dev.tensor(np.concatenate([up, gate], 1)), gate_first=False) as y:
        assert relative_error(y.numpy(), wanted) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silu_gate", "gelu_new_gate"])
def test_extreme_gates(dev: Device, name: str) -> None:
    """Large gates are themselves or nothing; a NaN stays where it is; nothing reaches the padding."""
    gate = np.array([1e30, -1e30, 200, -200, np.nan, 0, np.inf], np.float32)
    up = np.array([2, 1e8, -1, 1e4, 1, np.nan, 1], np.float32)
    for y in (
        getattr(dev.ops, name)(dev.tensor(gate), dev.tensor(up)),
        getattr(dev.ops, name)(dev.tensor(np.concatenate([gate, up]))),
    ):
        found = y.numpy()
        assert found[[0, 2, 6]].tolist() == [np.float32(2e30), -200.0, np.inf]
        assert found[1] == 0
        assert abs(found[3]) < 1e-20
        assert np.isnan(found[[4, 5]]).all()
        assert not padding(y).any()


def test_gate_without_an_activation_is_a_product(dev: Device, rng: np.random.Generator) -> None:
    gate, up = normal(rng, 3, 6), normal(rng, 3, 6)
    out, before = dev.zeros((3, 6)), dev.draws_issued
    assert dev.ops.gate(dev.tensor(gate), dev.tensor(up), activation="none", out=out) is out
    assert holds(out, gate * up)
    assert dev.draws_issued == before + 1


# In plans


def test_draws_that_do_not_fit_are_refused(dev: Device) -> None:
    x, options = np.zeros((2, 7), np.float32), {"activation": "silu", "kernels": dev.kernels}
    unknown = {**options, "activation": "relu"}
    names = "none, gelu_new, gelu, silu, tanh"
    for build, arrays, out, message in (
        (lambda a, y: gate_draw("d", "d", a, y, **options), {"x": x}, (2, 3), r"x is \[2, 7\]; expected \[2, 6\]"),
        (
            lambda a, b, y: gate_draw("d", "d", a, y, up=b, **options),
            {"x": x[:1], "up": x},
            (1, 7),
            r"up is \[2, 7\]; expected \[1, 7\]",
        ),
        (lambda a, y: gate_draw("d", "d", a, y, **unknown), {"x": x}, (2, 7), f"activation 'relu'; known: {names}"),
        (lambda a, y: activation_draw("d", "d", a, y, **unknown), {"x": x}, (2, 7), f"activation 'relu'; .*{names}"),
    ):
        with pytest.raises(PlanError, match=rf"\Adraw d: {message}"):
            drawn(dev, build, arrays, out)


REFUSED: list[tuple[Callable[[Any, Tensor, Tensor, Tensor], object], str]] = [
    (
        lambda o, x, y, i: o.gate(x, y, activation="relu"),
        "gate: there is no activation 'relu'; known: none, gelu_new, gelu, silu, tanh",
    ),
    (
        lambda o, x, y, i: o.activate(x, "relu"),
        "activate: there is no activation 'relu'; known: none, gelu_new, gelu, silu, tanh",
    ),
    (lambda o, x, y, i: o.silu_gate(x, y), "silu_gate: x is [2, 3] and up is [3, 2]; expected one shape"),
    (lambda o, x, y, i: o.silu_gate(x, i), "silu_gate: up is [2, 3] of int32; expected float32 or float16"),
    (lambda o, x, y, i: o.silu(i), "silu: x is [2, 3] of int32; expected float32 or float16"),
    (
        lambda o, x, y, i: o.gelu_gate(x),
        "gelu_gate: x is [2, 3]; without up expected [..., 2·N], the gate and the gated values",
    ),
    (
        lambda o, x, y, i: o.gelu_new_gate(y, out=x),
        "gelu_new_gate: out is [2, 3] of float32; the result is [3, 1] of float32",
    ),
]


def test_bad_calls_are_refused(dev: Device) -> None:
    x, y = (dev.tensor(np.zeros(shape, np.float32)) for shape in ((2, 3), (3, 2)))
    whole = dev.tensor(np.zeros((2, 3), np.int32))
    for run, message in REFUSED:
        with pytest.raises(InputError) as raised:
            run(dev.ops, x, y, whole)
        assert str(raised.value) == message
