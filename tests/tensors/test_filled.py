"""Tensors of one number: ``dev.zeros`` and ``dev.full``."""

from __future__ import annotations

import numpy as np
import pytest
from flat_draw import padding, same_bits

from glinfer.errors import InputError, PlanError
from glinfer.tensors.device import Device, Memory
from glinfer.tensors.tensor import TEXTURE_FORMATS

pytestmark = pytest.mark.gl


@pytest.mark.parametrize("dtype", TEXTURE_FORMATS)
def test_zeros_and_full_are_numpys(dev: Device, dtype: str) -> None:
    for shape in ((), (5,), (2, 1, 3)):
        assert same_bits(dev.zeros(shape, dtype).numpy(), np.zeros(shape, dtype))
        assert same_bits(dev.zeros(np.int64(4), dtype).numpy(), np.zeros(4, dtype))
        with dev.full(shape, -3, dtype) as x:
            assert same_bits(x.numpy(), np.full(shape, -3, dtype))
            assert dev.memory() == Memory(1, 0, 0), "nothing is uploaded before it is used"
            x.storage.texture()
            assert same_bits(x.numpy(), np.full(shape, -3, dtype))
            assert not padding(x).any()


def test_the_type_is_that_of_the_value_or_dtype(dev: Device) -> None:
    for value, dtype, expected in (
        (2, None, np.int32(2)),
        (2.5, None, np.float32(2.5)),
        (np.float16(0.1), None, np.float16(0.1)),
        (0.1, "float16", np.float16(0.1)),
        (np.inf, None, np.float32(np.inf)),
        (np.nan, np.float16, np.float16(np.nan)),
        (7, "float32", np.float32(7)),
        (1e39, "float32", np.float32(np.inf)),
    ):
        assert same_bits(dev.full([2, 3], value, dtype).numpy(), np.full((2, 3), expected)), (value, dtype)


def test_bad_calls_are_refused(dev: Device) -> None:
    for run, message in (
        (lambda: dev.zeros((2, -1)), "zeros: found the shape (2, -1); expected whole numbers from 0 on"),
        (lambda: dev.zeros(2.5), "zeros: found the shape 2.5; expected whole numbers from 0 on"),
        (lambda: dev.zeros("35"), "zeros: found the shape '35'; expected whole numbers from 0 on"),
        (lambda: dev.full((2,), [1, 2]), "full: found the value [2]; expected one number"),
        (lambda: dev.full((2,), "a"), "full: found an array of <U1; expected numbers: float32, float16, int32"),
        (lambda: dev.full((2,), 1.5, "int32"), "full: found float64 from 1.5 to 1.5; int32 cannot hold that exactly"),
        (
            lambda: dev.full((2,), 2**31),
            "full: found int64 from 2147483648 to 2147483648; int32 cannot hold that exactly",
        ),
    ):
        with pytest.raises(InputError) as raised:
            run()
        assert str(raised.value) == message
    with pytest.raises(InputError, match="zeros: dtype is 'Q8_0'; expected one of float32"):
        dev.zeros((2, 32), "Q8_0")
    with pytest.raises(PlanError, match=r"\Azeros: a tensor \[1000000, 1000000\]: .* largest texture"):
        dev.zeros((10**6, 10**6))
