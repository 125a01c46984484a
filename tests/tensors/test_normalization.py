"""LayerNorm, RMSNorm and softmax of rows: against float64, of any shape, and of awkward numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flat_draw import FlatPlan, padding
from one_draw import normal
from tiers import tiered

from glinfer.gl.context import Device as Context
from glinfer.kernels.flat.normalize import NORMS, Norm, normalized
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Pass
from glinfer.program.oracle import relative_error, rounded_rows
from glinfer.tensors.device import Device
from qa.kernels.cases.normalization import layer_norm, rms_norm

pytestmark = pytest.mark.gl

INF, NAN, LARGEST = np.inf, np.nan, float(np.finfo(np.float32).max)


# Softmax


AWKWARD = {
    "all masked": ([-INF] * 5, [0.2] * 5),
    "all -1e30": ([-1e30] * 5, [0.2] * 5),
    "masked or lowest": ([-INF, -LARGEST, -INF, -LARGEST, -INF], [0, 0.5, 0, 0.5, 0]),
    "some -1e30": ([-1e30, 1, -1e30, -1e30, 1], [0, 0.5, 0, 0, 0.5]),
    "far apart": ([LARGEST, -LARGEST, 0, 0, 0], [1, 0, 0, 0, 0]),
    "far below 0": ([-1000, -1000, -5000, -5000, -5000], [0.5, 0.5, 0, 0, 0]),
    "NaN": ([0, 1, NAN, 2, 3], [NAN] * 5),
    "Inf": ([0, 1, 2, INF, 3], [NAN] * 5),
    "NaN and masked": ([-INF, NAN, -INF, -INF, -INF], [NAN] * 5),
}


@tiered("spread", [1, 131], ids=["in one texel", "over parts"], keep=(1,))
def test_softmax_of_awkward_rows(dev: Device, spread: int) -> None:
    """``spread`` repeats every element, which divides what each gets."""
    given, wanted = zip(*AWKWARD.values(), strict=True)
    x = np.repeat(np.array(given, dtype=np.float32), spread, axis=1)
    y, logarithm = dev.ops.softmax(dev.tensor(x)), dev.ops.log_softmax(dev.tensor(x))
    assert not padding(y).any()
    assert not padding(logarithm).any()
    exact = x.astype(np.float64)
    exact[(x == -INF).all(axis=1)] = 0.0  # which is any number
    with np.errstate(invalid="ignore", over="ignore"):
        exact -= exact.max(axis=1, keepdims=True)
        likely = (exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))).astype(np.float32)
    for row, name in enumerate(AWKWARD):
        expected = np.repeat(np.array(wanted[row]) / spread, spread)
        np.testing.assert_allclose(y.numpy()[row], expected, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(logarithm.numpy()[row], likely[row], rtol=1e-6, err_msg=name)


# Norms


@tiered("cols", [7, 770])
def test_layer_norm_far_from_zero(dev: Device, cols: int) -> None:
    """Mean of squares minus square of the mean would lose every digit here; so would a mean in float32."""
    for offset, scale in ((1e4, 1.0), (1e6, 3.0), (-1e5, 0.5), (1e-12, 1e-3)):
        x = normal(1, 5, cols, scale=scale, offset=offset)
        assert relative_error(dev.ops.layer_norm(dev.tensor(x)).numpy(), layer_norm(x)) < 1e-6, (offset, scale)


@tiered("cols", [7, 770])
def test_equal_elements_become_the_bias(dev: Device, cols: int) -> None:
    weight, bias = dev.tensor(normal(1, cols)), normal(2, cols)
    for value in (0.0, 0.1, -12345.678, 1e30):
        found = dev.ops.layer_norm(dev.full((5, cols), np.float32(value)), weight, dev.tensor(bias)).numpy()
        np.testing.assert_array_equal(found, np.stack([bias] * 5), err_msg=str(value))


def test_norms_of_rows_with_nan_and_infinities(dev: Device) -> None:
    x = normal(1, 5, 7)
    x[0, 1], x[1, 6], x[2, 0], x[2, 5] = NAN, INF, INF, -INF
    weight, bias = dev.tensor(np.ones(7, dtype=np.float32)), dev.tensor(np.zeros(7, dtype=np.float32))
    with np.errstate(invalid="ignore"):
        layer, rms = layer_norm(x), rms_norm(x)
    for y, expected in (
        (dev.ops.layer_norm(dev.tensor(x), weight, bias), layer),
        (dev.ops.rms_norm(dev.tensor(x), weight), rms),
        (dev.ops.add_rms_norm(dev.tensor(x), dev.tensor(np.zeros_like(x)), weight)[1], rms),
    ):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)
        assert not padding(y).any()


# In plans


def test_rounded_norms_in_a_plan(device: Context) -> None:
    """Each row in 255 levels up to its largest element: BitNet's inputs of 8 bits, without numbers near two of them."""
    plan, x = FlatPlan(device), normal(3, 9, 131)
    weight = plan.input("weight", normal(2, 1, 131))
    norm = Norm("rms", weight=weight, eps=1e-3, rounded=True)
    out = plan.scratch("out", 9, 131)
    draws = normalized(Pass("draw", KernelOptions()), plan.input("x", x), out, norm, scratch=plan.scratch)
    plan.builder.draw(*draws)
    found, near = rounded_rows(rms_norm(x, eps=1e-3) * plan.arrays["weight"])
    assert not near.any()
    assert max(plan.errors().values()) < 1e-6
    assert max(len(np.unique(np.rint(row * 127 / np.abs(row).max()))) for row in found) > 60


@tiered(("name", "cols", "lookup"), [("rms", 53, False), *((name, 1030, True) for name in NORMS)])
def test_norms_in_a_plan(device: Context, name: str, cols: int, lookup: bool) -> None:
    """9 rows, with a weight and a bias, and for RMSNorm a residual; 1030 columns are three parts."""
    kernels = KernelOptions(lookup_texture=lookup)
    plan = FlatPlan(device)
    x = plan.input("x", normal(1, 9, cols, offset=0.5))
    weight, bias = plan.input("weight", normal(2, 1, cols)), plan.input("bias", normal(3, 1, cols))
    residual = plan.input("residual", normal(4, 9, cols).astype(np.float16)) if name == "rms" else None
    added = plan.scratch("added", 9, cols) if name == "rms" else None
    norm = Norm(name, weight=weight, bias=bias, eps=1e-3, offset=0.5, residual=residual, added=added)
    out = plan.scratch("out", 9, cols)
    plan.builder.draw(*normalized(Pass("norm", kernels), x, out, norm, scratch=plan.scratch))
    errors = plan.errors()
    assert list(errors) == ["norm.stats", "norm"]
    assert max(errors.values()) < 1e-6, errors


def test_draws_that_do_not_fit_are_refused(device: Context) -> None:
    for wrong, message in (
        (lambda x, y, z: Norm("batch"), "there is no norm 'batch'; known: layer, rms, softmax, log_softmax"),
        (lambda x, y, z: Norm("rms", residual=x), "residual and added must be given together"),
        (lambda x, y, z: Norm("rms", eps=-1.0), "eps is -1.0 and offset 0.0; expected numbers, eps ≥ 0"),
        (lambda x, y, z: Norm("rms", weight=y), r"draw n: weight is \[6, 4\]; expected \[1, 8\]"),
        (lambda x, y, z: Norm("rms", residual=y, added=z), r"draw n.stats: residual is \[6, 4\]; expected \[6, 8\]"),
    ):
        plan = FlatPlan(device)
        x, y = plan.input("x", normal(1, 6, 8)), plan.input("y", normal(1, 6, 4))
        out, z = plan.scratch("out", 6, 8), plan.scratch("z", 6, 8)

        def make(norm: Any = wrong, given: Any = (x, y, z), plan: Any = plan, out: Any = out) -> Any:
            stats, last = normalized(Pass("n", KernelOptions()), given[0], out, norm(*given), scratch=plan.scratch)
            plan.builder.draw(stats)
            return last

        plan.refuses(make, message)
