"""embedding_backward by both methods: sums within rounding, counts exact, nothing added twice or in another place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flat_draw import padding
from tiers import tiered

from glinfer.errors import InputError
from glinfer.tensors.backward import METHODS
from glinfer.tensors.device import Device
from glinfer.tensors.passes import Passes
from qa.kernels.cases.backward import expected
from qa.kernels.cases.case import normal

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
EPSILON = float(np.finfo(np.float32).eps)


def backward(device: Device, ids: Array, grad: Array, vocab: int, method: str | None = None) -> tuple[Array, Array]:
    """Sums and counts, of which nothing stays behind."""
    with device.tensor(ids) as places, device.tensor(grad) as gradients:
        sums, counts = device.ops.embedding_backward(places, gradients, vocab, method=method)
        with sums, counts:
            assert sums.shape == counts.shape == (vocab, grad.shape[-1])
            assert (sums.dtype, counts.dtype) == ("float32", "float32")
            return sums.numpy(), counts.numpy()


def assert_within_rounding(found: tuple[Array, Array], ids: Array, grad: Array, vocab: int) -> None:
    """Sums within n·eps·Σ|g| of float64, counts exact."""
    sums, counts = expected(ids, grad, vocab)
    amounts, _ = expected(ids, np.abs(grad), vocab)
    np.testing.assert_array_equal(found[1], counts)
    assert (np.abs(found[0] - sums) <= counts * EPSILON * amounts).all()


@tiered(("method", "times"), [("scatter", 512), ("gather", 512), ("scatter", 10)])
def test_one_token_many_times(dev: Device, method: str, times: int) -> None:
    ids = np.full(512, 90, np.int32)
    ids[times:] = np.arange(512 - times) % 90
    ids = np.random.default_rng(1).permutation(ids)
    grad = normal(np.random.default_rng(2), 512, 37, offset=0.5)
    found = backward(dev, ids, grad, 97, method)
    assert_within_rounding(found, ids, grad, 97)
    assert (found[1][90] == times).all()
    assert not found[0][91:].any()


@pytest.mark.parametrize("method", METHODS)
def test_integers_add_up_exactly(dev: Device, method: str) -> None:
    """Of ids that have a row; the padding behind the columns stays zero."""
    ids = np.random.default_rng(3).integers(-1, 52, (7, 33)).astype(np.int32)
    ids[0, :2] = -(1 << 31), (1 << 31) - 1
    grad = np.random.default_rng(4).integers(-1000, 1000, (7, 33, 10)).astype(np.float32)
    wanted = expected(ids, grad, 50)
    with dev.tensor(ids) as places, dev.tensor(grad) as gradients:
        for found, exact in zip(dev.ops.embedding_backward(places, gradients, 50, method=method), wanted, strict=True):
            np.testing.assert_array_equal(found.numpy(), exact)
            assert not padding(found).any()


@tiered("method", METHODS)
def test_what_is_not_finite_is_skipped_element_by_element(dev: Device, method: str) -> None:
    ids = np.array([2, 2, 2, 0], np.int32)
    grad = np.ones((4, 5), np.float32)
    grad[0, 1], grad[1, 1], grad[2, 4], grad[3] = np.nan, np.inf, -np.inf, np.nan
    grad[1, 0] = 3e38
    sums, counts = backward(dev, ids, grad, 3, method)
    assert counts.tolist() == [[0] * 5, [0] * 5, [3, 1, 3, 3, 2]]
    np.testing.assert_array_equal(sums, np.float32([[0] * 5, [0] * 5, [3e38, 1, 3, 3, 2]]))
    odd = np.array([0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF, 0x00800000], np.uint32).view(np.float32)[None, :]
    sums, counts = backward(dev, np.array([0], np.int32), odd, 1, method)
    assert counts.tolist() == [[0, 0, 1, 1]]
    assert sums[0, 2:].tolist() == odd[0, 2:].tolist()


def test_a_view_of_a_table_may_take_gradients(dev: Device) -> None:
    table, ids = dev.full((3, 8), 1.0), dev.tensor([5, 5, 0])
    dev.ops.embedding_backward(ids, dev.full((3, 4), 2.0), into=table.reshape(6, 4))
    assert table.numpy().tolist() == [[3.0] * 4 + [1.0] * 4, [1.0] * 8, [1.0] * 4 + [5.0] * 4]


@tiered("vocab", [3001, 1])
def test_every_point_hits_its_texel(dev: Device, vocab: int) -> None:
    ids = np.random.default_rng(6).permutation(vocab).astype(np.int32)
    grad = np.arange(1, vocab * 150 + 1, dtype=np.float32).reshape(vocab, 150)
    sums, counts = backward(dev, ids, grad, vocab, "scatter")
    np.testing.assert_array_equal(sums[ids], grad)
    assert (counts == 1).all()


def test_a_device_that_cannot_blend_gathers(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    step = Passes.step
    monkeypatch.setattr(Passes, "step", lambda passes, op, *a, **k: drawn.append(op) or step(passes, op, *a, **k))
    ids, grad = np.array([1, 1], np.int32), np.ones((2, 3), np.float32)
    dev.blends_floats = True
    backward(dev, ids, grad, 2)
    dev.blends_floats = False
    assert backward(dev, ids, grad, 2)[0].tolist() == [[0, 0, 0], [2, 2, 2]]
    assert drawn == ["scatter_add", "gather_add"]
    with pytest.raises(
        InputError, match="method is 'scatter', but this device cannot blend 32-bit floats; use 'gather'"
    ):
        backward(dev, ids, grad, 2, "scatter")
