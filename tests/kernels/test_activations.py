"""Every activation through every op that has one, over numbers of every exponent, against float64.

Arguments come in as biases of products of zeros, so that an infinite one meets no other number on its way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS, first_rows, over, product_draw, runs_of, with_kernels
from one_draw import OUT, Array, BlockDraw, Case, OneDraw, check
from published_draw import PublishedDraw
from tiers import tiered

from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.kernels.flat.activate import xielu
from glinfer.kernels.flat.product import STRATEGIES
from glinfer.kernels.fused.rowwise import xielu_rows
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.published.linear import ACTIVATIONS, activate, linear
from glinfer.kernels.spec import Pass
from glinfer.tensors.device import Device as TensorDevice

pytestmark = pytest.mark.gl

EXPONENTS = 2.0 ** np.arange(-126, 128)[:, None] * [1.0, 1.3837, 1.99]
SPECIAL = [0.0, 1e-45, 1e-42, 1.1e-38, 65504.0, 10.03, 13.0, 88.0, 3.4028234e38, np.inf]
MAGNITUDES = np.concatenate([EXPONENTS.reshape(-1), np.arange(0.01, 16, 0.02), np.arange(16, 100, 4), SPECIAL])
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES, [np.nan]]).astype(np.float32)
UPS = np.array([1e30, -2.0, 3.0], np.float32)
UP = UPS[np.arange(len(VALUES)) % 3]
"""What gates let through: large numbers show what is left of a gate that ought to be closed."""
CUT = 6e-37
"""Below it a result may be 0: SiLU is -5.3e-37 at -88, where exp is as large as float32 holds."""
RELATIVE = np.select([VALUES >= 5, VALUES >= 0, VALUES >= -4, VALUES >= -8], [2e-7, 5e-7, 3e-6, 1e-5], 2e-5)
"""The relative error of each result: negative arguments cost digits, the more the larger they are."""
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def expected(values: Array, activation: str) -> Array:
    return np.asarray(activate(values.astype(np.float64), ACTIVATIONS[activation]))


def agrees(found: Array, wanted: Array, factor: Array | float = 1.0) -> None:
    """Compare each number by itself: NaN and infinities exactly, others to ``RELATIVE`` or within CUT · factor."""
    found = np.asarray(found, np.float64).reshape(wanted.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        relative = np.resize(RELATIVE, wanted.shape)
        near = np.abs(found - wanted) <= np.maximum(relative * np.abs(wanted), CUT * np.abs(factor))
    inside = np.abs(wanted) < 3.4e38
    right = np.where(inside, near, (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | _beyond(found, wanted))
    wrong = np.flatnonzero(~right)
    shown = [(VALUES[n % len(VALUES)], found.flat[n], wanted.flat[n]) for n in wrong[:8]]
    assert right.all(), f"{len(wrong)} wrong; argument, found, expected: {shown}"


def _beyond(found: Array, wanted: Array) -> Array:
    """Whether a finite number that float32 does not hold became its infinity, or the largest number."""
    return np.asarray(np.isfinite(wanted) & (np.sign(found) == np.sign(wanted)) & (np.abs(found) >= 3.4e38))


@every_activation
def test_published_linear(device: Device, activation: str) -> None:
    one = PublishedDraw(1, 1)
    zeros = np.zeros((len(VALUES), 1), np.float32)
    x, weight, bias = one.input("x", zeros[:1]), one.weight("w", zeros), one.weight("b", VALUES[None])
    one.draw(linear("draw", "draw", x, weight, one.out(1, len(VALUES)), bias=bias, activation=activation))
    found = one.found(device)
    agrees(found, expected(VALUES, activation))
    if activation.startswith("gelu"):
        assert np.array_equal(found[0, VALUES >= 8], VALUES[VALUES >= 8]), "from there on it is the number itself"


@tiered("place", range(len(ACTIVATIONS)), keep=(1, 3))
def test_kernels_of_tensors(dev: TensorDevice, place: int) -> None:
    """The activation alone, a gate, and the finish of a product, in turn by every strategy."""
    activation = list(ACTIVATIONS)[place]
    wanted, gated = expected(VALUES, activation), expected(VALUES, activation) * UP
    with dev.tensor(VALUES) as x, dev.ops.activate(x, activation) as y:
        agrees(y.numpy(), wanted)
        parts = [VALUES, UP] if place % 2 else [np.concatenate([VALUES, UP])]
        with dev.ops.gate(*map(dev.tensor, parts), activation=activation) as z:
            agrees(z.numpy(), gated, UP)
        strategy = list(STRATEGIES)[place % len(STRATEGIES)]
        if strategy == "split_k" and not dev.blends_floats:
            return
        weight = dev.tensor(np.zeros((len(VALUES), 64), np.float32))
        zeros = dev.tensor(np.zeros((1 if strategy == "matvec" else 5, 64), np.float32))
        with dev.ops.linear(zeros, weight, bias=x, activation=activation, strategy=strategy) as y:
            agrees(y.numpy(), np.broadcast_to(wanted, y.shape))


def in_biases(one: BlockDraw, *, gated: bool) -> tuple[Case, Array]:
    """A run over zeros, whose biases are the arguments and, of a gated one, in turn blocks of ``UP``; its columns."""
    outputs = len(VALUES)
    biases = one.arrays["c"]
    biases[:] = 0
    places = np.arange(outputs)
    if gated:
        places = places // BLOCK_FLOATS * 2 * BLOCK_FLOATS + places % BLOCK_FLOATS
        biases[places + BLOCK_FLOATS, -1] = UP
    biases[places, -1] = VALUES
    one.arrays["x"][:] = 0
    return places


@tiered(
    ("activation", "gated"),
    [(activation, (number + turn) % 2 == 1) for turn in range(2) for number, activation in enumerate(ACTIVATIONS)],
    keep=len(ACTIVATIONS),
)
def test_the_ends_of_fused_products(device: Device, activation: str, gated: bool) -> None:
    options: dict[str, Any] = {"activation": activation, "gated": gated}
    wanted = expected(VALUES, activation) * (UP if gated else 1)
    factor = UP if gated else 1.0
    rows = 0 if gated == (activation in ("silu", "gelu")) else 3
    one = product_draw("f32", KERNELS["llvmpipe"], len(VALUES), 4, rows, **options)
    in_biases(one, gated=gated)
    found = one.run(device, *runs_of(one, 3))[0][:3]
    agrees(found, np.broadcast_to(wanted, found.shape), factor)


X = np.concatenate([np.linspace(-30, 30, 61), [-1e-7, -1e-3, -0.2, -0.26, 1e-7, 0, -1e4, 1e4], np.zeros(27)])
"""Inputs of xIELU, among them those near its kink and on both sides of the end of its series."""


@with_kernels("llvmpipe", "mantissa")
def test_xielu_of_rows(device: Device, kernels: KernelOptions) -> None:
    count = kernels.rows_per_draw
    one = over(kernels, 2 * count)[0]
    x = one.interleaved("x", np.tile(X, (2 * count, 1)).astype(np.float32))
    slopes = one.row_weight("slopes", np.array([[0.3, -0.7]], np.float32))
    one.draw(xielu_rows(one.of(), x, slopes, one.deal(OUT, 2, len(X), "cache")))
    check(device, one, first_rows(one, count + 1))


def test_xielu(device: Device) -> None:
    one = OneDraw()
    one.arrays |= {"x": np.tile(X[:-1], (3, 1)).astype(np.float32)}
    one.arrays |= {"positive": np.full((1, 1), 5, np.float32), "negative": np.full((1, 1), -90, np.float32)}
    shapes = [(name, "input", array.shape) for name, array in one.arrays.items()]
    tensors = [
        one.builder.laid_out(name, kind, FlatLayout.of(shape, "rgba32f", 64))
        for name, kind, shape in (*shapes, (OUT, "cache", one.arrays["x"].shape))
    ]
    one.draw(xielu(Pass("draw", KernelOptions()), *tensors))
    check(device, one, Case({}))
