"""Causal convolutions of tensors."""

from __future__ import annotations

import numpy as np
import pytest
from one_draw import normal
from tiers import tiered

from glinfer.errors import InputError
from glinfer.tensors.device import Device
from qa.kernels.cases.convolution import expected

pytestmark = pytest.mark.gl


# Sequences, rows, columns and positions.
@tiered("shape", [(1, 1, 1, 1), (2, 5, 7, 3), (3, 1, 64, 4), (1, 9, 30, 12), (4, 6, 66, 6)], keep=(1,))
def test_each_sequence_begins_with_zeros_before_it(dev: Device, shape: tuple[int, int, int, int]) -> None:
    many, rows, cols, length = shape
    x, taps, bias = normal(1, many, rows, cols), normal(2, length, cols), normal(3, cols)
    tensors = [dev.tensor(array) for array in (x, taps, bias)]
    for given, added in ((tensors[:2], 0.0), (tensors, bias)):
        with dev.ops.causal_conv(*given) as y:
            assert y.shape == x.shape
            assert np.abs(y.numpy() - (expected(x, taps) + added)).max() < 1e-5


def test_what_does_not_fit_is_refused(dev: Device) -> None:
    x, taps = dev.zeros((5, 6)), dev.zeros((3, 6))
    for given, message in (
        (
            (x, dev.zeros((3, 5))),
            r"causal_conv: x is \[5, 6\] and taps is \[3, 5\]; expected \[\.\.\., sequence, D\] and",
        ),
        ((dev.zeros((6,)), taps), r"causal_conv: x is \[6\] and taps is \[3, 6\]"),
        ((x, taps, dev.zeros((5,))), r"causal_conv: bias is \[5\]; expected \[6\]"),
        ((x, dev.zeros((0, 6))), r"taps is \[0, 6\]; expected"),
        ((dev.tensor(np.zeros((5, 6), np.int32)), taps), r"causal_conv: x is \[5, 6\] of int32; expected float32 or"),
    ):
        with pytest.raises(InputError, match=message):
            dev.ops.causal_conv(*given)
