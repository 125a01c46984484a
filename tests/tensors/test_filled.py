"""Tensors of one number: ``dev.zeros`` and ``dev.full``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flat_draw import padding, same_bits

from glinfer.errors import ContextError, InputError, PlanError
from glinfer.tensors.device import Device, Memory
from glinfer.tensors.tensor import TEXTURE_FORMATS

pytestmark = pytest.mark.gl


@pytest.mark.parametrize("dtype", TEXTURE_FORMATS)
@pytest.mark.parametrize("shape", [(), (5,), (3, 6), (2, 1, 3)])
def test_numpys_of_the_same_name(dev: Device, shape: tuple[int, ...], dtype: str) -> None:
    assert same_bits(dev.zeros(shape, dtype).numpy(), np.zeros(shape, dtype))
    x = dev.full(shape, -3, dtype)
    assert same_bits(x.numpy(), np.full(shape, -3, dtype))
    assert dev.memory() == Memory(1, 0, 0)  # nothing is uploaded before it is used
    x.storage.texture()
    assert same_bits(x.numpy(), np.full(shape, -3, dtype))
    assert not padding(x).any()


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2, None, np.int32(2)),
        (2.5, None, np.float32(2.5)),
        (np.float16(0.1), None, np.float16(0.1)),
        (0.1, "float16", np.float16(0.1)),
        (np.inf, None, np.float32(np.inf)),
        (np.nan, np.float16, np.float16(np.nan)),
        (7, "float32", np.float32(7)),
        (1e39, "float32", np.float32(np.inf)),
    ],
)
def test_the_type_is_that_of_the_value_or_the_one_that_is_asked_for(
    dev: Device, value: Any, dtype: Any, expected: Any
) -> None:
    assert same_bits(dev.full([2, 3], value, dtype).numpy(), np.full((2, 3), expected))


def test_a_number_is_one_edge(dev: Device) -> None:
    assert dev.zeros(3).shape == (3,)
    assert dev.zeros(np.int64(4), np.int32).shape == (4,)
    assert dev.zeros([2, 0]).shape == (2, 0)


def test_what_is_refused(dev: Device) -> None:
    for run, message in (
        (lambda: dev.zeros((2, -1)), "found the shape (2, -1); expected whole numbers from 0 on"),
        (lambda: dev.zeros(2.5), "found the shape 2.5; expected whole numbers from 0 on"),
        (lambda: dev.zeros("35"), "found the shape '35'; expected whole numbers from 0 on"),
        (lambda: dev.full((2,), [1, 2]), "found the value [2]; expected one number"),
        (lambda: dev.full((2,), "a"), "found an array of <U1; expected numbers: float32, float16, int32"),
        (lambda: dev.full((2,), 1.5, "int32"), "found float64 from 1.5 to 1.5; int32 cannot hold that exactly"),
        (lambda: dev.full((2,), 2**31), "found int64 from 2147483648 to 2147483648; int32 cannot hold that exactly"),
    ):
        with pytest.raises(InputError) as raised:
            run()
        assert str(raised.value) == message
    with pytest.raises(InputError, match="dtype is 'Q8_0'; expected one of float32"):
        dev.zeros((2, 32), "Q8_0")
    with pytest.raises(PlanError, match=r"\Aa tensor \[1000000, 1000000\]: .* largest texture"):
        dev.zeros((10**6, 10**6))
    dev.close()
    with pytest.raises(ContextError):
        dev.zeros(3)
