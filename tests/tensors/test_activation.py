"""Activations by themselves, and the gates of gated MLPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flat_draw import check_sizes, check_timed, drawn, holds, padding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import tiered

from glinfer.errors import InputError, PlanError
from glinfer.models.oracle import relative_error
from glinfer.ops.flat.activate import activation as activation_draw
from glinfer.ops.flat.activate import gate as gate_draw
from glinfer.ops.published.linear import ACTIVATIONS
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.activation import CASES, expected
from qa.kernels.cases.case import normal

pytestmark = pytest.mark.gl


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(13)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_kernel_is_right(dev: Device, rng: np.random.Generator, case: Any) -> None:
    check_sizes(dev, rng, case, ((1, 1), (5, 1), (1, 66), (257, 36)))


@tiered("case", CASES, ids=lambda case: case.kernel, keep=(0, 3))
def test_a_kernel_with_small_textures(small: Device, rng: np.random.Generator, case: Any) -> None:
    for form in case.forms[-2:]:
        for found, wanted in case.check(small, rng, 41, 77, form):
            assert relative_error(found, wanted) <= case.tolerance


@pytest.mark.slow
def test_what_is_timed_releases_its_results(dev: Device, rng: np.random.Generator) -> None:
    check_timed(dev, rng, CASES)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    leading=st.lists(st.integers(1, 4), max_size=3),
    width=st.integers(1, 13),
    gate_first=st.booleans(),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
)
def test_gates_that_lie_in_one_row(
    dev: Device, leading: list[int], width: int, gate_first: bool, activation: str
) -> None:
    rng = np.random.default_rng(width)
    gate, up = normal(rng, *leading, width, scale=3.0), normal(rng, *leading, width)
    halves = [gate, up] if gate_first else [up, gate]
    wanted = expected(gate, activation) * up
    with dev.tensor(np.concatenate(halves, axis=-1)) as x:
        with dev.ops.gate(x, activation=activation, gate_first=gate_first) as y:
            assert y.shape == wanted.shape
            assert not padding(y).any()
            assert relative_error(y.numpy(), wanted) <= 1e-5
        with dev.tensor(gate) as first, dev.tensor(up) as second:
            found = dev.ops.gate(first, second, activation=activation)
            assert relative_error(found.numpy(), wanted) <= 1e-5


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


@tiered("name", ["silu_gate", "gelu_gate", "gelu_new_gate"])
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
    assert holds(dev.ops.gate(dev.tensor(gate), dev.tensor(up), activation="none"), gate * up)


def test_out_and_draws(dev: Device, rng: np.random.Generator) -> None:
    x, out = dev.tensor(normal(rng, 3, 6)), dev.tensor(np.zeros((3, 3), np.float32))
    before = dev.draws_issued
    assert dev.ops.silu_gate(x, out=out) is out
    with dev.ops.silu_gate(x) as y:
        assert holds(y, out.numpy())
    assert dev.draws_issued == before + 2


# In plans


@pytest.mark.parametrize("gate_first", [True, False])
def test_draws_in_plans_agree_with_their_oracles(dev: Device, rng: np.random.Generator, gate_first: bool) -> None:
    x, up = normal(rng, 6, 14, scale=3.0), normal(rng, 6, 14)
    options = {"activation": "gelu", "kernels": dev.kernels, "rows": 4}
    for build, arrays, cols in (
        (lambda a, out: gate_draw("d", "d", a, out, gate_first=gate_first, **options), {"x": x}, 7),
        (lambda a, b, out: gate_draw("d", "d", a, out, up=b, **options), {"x": x, "up": up}, 14),
        (lambda a, out: activation_draw("d", "d", a, out, **options), {"x": x}, 14),
    ):
        found, wanted = drawn(dev, build, arrays, (6, cols))
        assert wanted.shape == (4, cols)
        assert relative_error(found, wanted) <= 1e-5


def test_what_no_draw_can_be_built_of(dev: Device) -> None:
    x = np.zeros((2, 7), np.float32)
    options = {"activation": "silu", "kernels": dev.kernels}
    with pytest.raises(PlanError, match=r"\Adraw d: x is \[2, 7\]; expected \[2, 6\]\Z"):
        drawn(dev, lambda a, out: gate_draw("d", "d", a, out, **options), {"x": x}, (2, 3))
    with pytest.raises(PlanError, match=r"\Adraw d: up is \[2, 7\]; expected \[1, 7\]\Z"):
        drawn(dev, lambda a, b, out: gate_draw("d", "d", a, out, up=b, **options), {"x": x[:1], "up": x}, (1, 7))
    for build in (gate_draw, activation_draw):
        with pytest.raises(PlanError, match="draw d: activation 'relu'; known: none, gelu_new, gelu, silu, tanh"):
            drawn(
                dev,
                lambda a, out, b=build: b("d", "d", a, out, activation="relu", kernels=dev.kernels),
                {"x": x},
                (2, 7),
            )


REFUSED: list[tuple[Callable[[Any, Tensor, Tensor, Tensor], object], str]] = [
    (
        lambda o, x, y, i: o.gate(x, y, activation="relu"),
        "gate: there is no activation 'relu'; known: none, gelu_new, gelu, silu, tanh",
    ),
    (
        lambda o, x, y, i: o.activate(x, "relu"),
        "activate: there is no activation 'relu'; known: none, gelu_new, gelu, silu, tanh",
    ),
    (lambda o, x, y, i: o.silu_gate(x, y), "gate: x is [2, 3] and up is [3, 2]; expected one shape"),
    (lambda o, x, y, i: o.silu_gate(x, i), "gate: up is [2, 3] of int32; expected float32 or float16"),
    (lambda o, x, y, i: o.silu(i), "activate: x is [2, 3] of int32; expected float32 or float16"),
    (
        lambda o, x, y, i: o.gelu_gate(x),
        "gate: x is [2, 3]; without up expected [..., 2·N], the gate and what it lets by",
    ),
    (lambda o, x, y, i: o.gelu_new_gate(y, out=x), "gate: out is [2, 3] of float32; the result is [3, 1] of float32"),
]


def test_what_is_refused(dev: Device) -> None:
    x, y = (dev.tensor(np.zeros(shape, np.float32)) for shape in ((2, 3), (3, 2)))
    whole = dev.tensor(np.zeros((2, 3), np.int32))
    for run, message in REFUSED:
        with pytest.raises(InputError) as raised:
            run(dev.ops, x, y, whole)
        assert str(raised.value) == message
