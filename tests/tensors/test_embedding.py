"""Packed weights on the GPU bit for bit, lookups from every format, learned positions, rows by index."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
from flat_draw import FlatPlan, padding
from tiers import tiered

from glinfer.errors import InputError
from glinfer.kernels.flat.lookup import lookup, position_add
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Pass
from glinfer.quant.formats import BLOCK_FORMATS
from glinfer.quant.ggml import dequantize
from glinfer.tensors.device import Device
from qa.kernels.cases.embedding import random_blocks, rows_named, whole_blocks

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
# Half floats: both zeros, the smallest and the largest subnormal, the smallest normal, the largest; none.
EXTREME = [0.0, -0.0, 2.0**-24, -1023 * 2.0**-24, 2.0**-14, 65504.0, -65504.0, np.inf, -np.inf, np.nan, 0.01, -1.3]
# Floats likewise; a subnormal scale of a row is the one thing that OpenGL may take for zero.
EXTREME_ROWS = [0.0, -0.0, 2.0**-126, -3.4e38, np.inf, np.nan, 0.01, -1.3]
ODD = ("BF16", "Q8_ROW", "Q16_ROW")

pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")


def same_bits(found: Array, expected: Array) -> Array:
    """Where two float32 arrays have the same bits, or are both no number."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.float32
    return (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))


def extreme_blocks(name: str, rows: int, inputs: int, seed: int = 0) -> Array:
    return random_blocks(
        np.random.default_rng(seed), name, rows, inputs, EXTREME_ROWS if BLOCK_FORMATS[name].weights == 0 else EXTREME
    )


def as_ggml_has_them(blocks: Array, name: str) -> Array:
    with np.errstate(all="ignore"):
        return dequantize(blocks, name)


def lengths_of(name: str) -> list[tuple[int, int]]:
    """(rows, inputs) that try a format: one block, one row of several, an odd number of them, many rows."""
    block = BLOCK_FORMATS[name].weights
    if name in ODD:
        return [(1, 1), (1, 37), (7, 94), (53, 1003)]
    return [(1, block), (1, 7 * block), (7, 3 * block), (61, 5 * block)]


@tiered("name", BLOCK_FORMATS, keep=[[*BLOCK_FORMATS].index("Q8_0")])
def test_unpacked_weights_are_ggmls_bit_for_bit(dev: Device, name: str) -> None:
    """As llvmpipe does it; every other format in another order, and with the options that GPUs have."""
    on_gpu = [*BLOCK_FORMATS].index(name) % 2 == 1
    dev.kernels = dataclasses.replace(dev.kernels, mantissa=on_gpu, lookup_texture=not on_gpu)
    for rows, inputs in lengths_of(name)[2:]:
        blocks = extreme_blocks(name, rows, inputs)
        with dev.tensor(blocks, name) as table, dev.ops.dequantize(table) as y:
            found, expected = y.numpy(), as_ggml_has_them(blocks, name)
            assert np.argwhere(~same_bits(found, expected)).tolist() == [], f"{rows}×{inputs}"
            assert not padding(y).any(), "padding is not zero"


@pytest.mark.slow
def test_every_half_float_is_read_as_a_scale(dev: Device) -> None:
    blocks = np.empty((256, 256, 34), np.uint8)
    blocks[:, :, :2] = np.arange(65536, dtype="<u2").view(np.uint8).reshape(256, 256, 2)
    blocks[:, :, 2:] = np.arange(32, dtype=np.int8).view(np.uint8) - 16
    blocks = blocks.reshape(256, -1)
    with dev.tensor(blocks, "Q8_0") as table, dev.ops.dequantize(table) as y:
        assert np.argwhere(~same_bits(y.numpy(), as_ggml_has_them(blocks, "Q8_0"))).tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize("mantissa", [False, True], ids=["converted", "mantissa"])
def test_products_read_the_same_weights_and_zeros_behind_them(dev: Device, mantissa: bool) -> None:
    """A product with unit vectors. The row after one that ends inside a group is full of NaN, which may not come in."""
    dev.kernels = dataclasses.replace(dev.kernels, mantissa=mantissa)
    for name, form in BLOCK_FORMATS.items():
        inputs = {"BF16": 69, "Q8_ROW": 35, "Q16_ROW": 45}.get(name, form.weights)
        blocks = random_blocks(np.random.default_rng(1), name, 5, inputs)
        if name in ODD:
            blocks[1::2] = 255
        with (
            dev.tensor(blocks, name) as table,
            dev.ops.linear(dev.tensor(np.eye(inputs, dtype=np.float32)), table) as y,
        ):
            found, expected = y.numpy().T[::2], as_ggml_has_them(blocks, name)[::2]
        assert np.array_equal(found, expected), name


@tiered("name", ["Q8_ROW", "float32", "Q4_K"])
def test_ids_may_have_any_shape(dev: Device, name: str) -> None:
    rng = np.random.default_rng(2)
    cols = whole_blocks(name, 37)
    if name == "float32":
        values = given = rng.standard_normal((19, cols)).astype(np.float32)
    else:
        given = random_blocks(rng, name, 19, cols)
        values = dequantize(given, name)
    for shape in ((), (7,), (3, 1, 5)):
        ids = np.asarray(rng.integers(-3, 22, shape), dtype=np.int32)
        y = dev.ops.lookup(dev.tensor(ids), dev.tensor(given, None if name == "float32" else name))
        assert y.shape == (*shape, cols)
        assert np.array_equal(y.numpy(), rows_named(values, ids)), shape
        assert not padding(y).any()


@tiered("name", ["float32", "BF16", "Q8_ROW"])
def test_ids_without_a_row_give_zeros_whatever_the_table_holds(dev: Device, name: str) -> None:
    """No row but zeros may come out, although row 0 and the last one are no numbers."""
    ids = np.array([-1, 2, 3, -(2**31), 2**31 - 1, 1], dtype=np.int32)
    if name == "float32":
        given: Array = np.full((3, 5), np.nan, dtype=np.float32)
        given[1] = 7.0
    else:
        given = np.full((3, BLOCK_FORMATS[name].row_bytes(5)), 255, dtype=np.uint8)
    y = dev.ops.lookup(dev.tensor(ids), dev.tensor(given, None if name == "float32" else name))
    found = y.numpy()
    assert not found[[0, 2, 3, 4]].any()
    assert np.isnan(found[1]).all()
    if name == "float32":
        assert (found[5] == 7.0).all()
    assert not padding(y).any()


def test_ids_are_checked_where_asked_for(dev: Device) -> None:
    table = dev.tensor(np.ones((512, 3), dtype=np.float32))
    good, low, high = (dev.tensor([[0, 1, 2], [3, wrong, 511]]) for wrong in (4, -1, 512))
    assert dev.ops.lookup(good, table, check_ids=True).shape == (2, 3, 3)
    for ids, number in ((low, -1), (high, 512)):
        with pytest.raises(
            InputError, match=rf"^lookup: id {number} at \[1, 1\] has no row; the vocabulary is 512 rows"
        ):
            dev.ops.lookup(ids, table, check_ids=True)
    with pytest.raises(InputError, match=r"^lookup: id 9999 has no row"):
        dev.ops.lookup(dev.tensor(9999), table, check_ids=True)


def test_packed_tensors_keep_their_leading_axes(dev: Device) -> None:
    blocks = random_blocks(np.random.default_rng(5), "Q5_1", 12, 64)
    with dev.tensor(blocks.reshape(2, 3, 2, -1), "Q5_1") as table, dev.ops.dequantize(table) as y:
        assert np.array_equal(y.numpy(), dequantize(blocks, "Q5_1").reshape(2, 3, 2, 64))
    with dev.tensor(blocks[0], "Q5_1") as row, dev.ops.dequantize(row) as y:
        assert np.array_equal(y.numpy(), dequantize(blocks[:1], "Q5_1")[0])


def test_draws_that_do_not_fit_are_refused(dev: Device) -> None:
    draw = Pass("one", KernelOptions())
    for ids, shape, form, message in (
        ((1, 4), (9, 5), None, "ids has 4 elements for 5 rows of the output"),
        ((3, 2), (9, 6), None, r"weight is \[9, 6\]; expected \[9, 5\]"),
        ((5, 1), (9, 4), "Q8_ROW", r"weight is \[9, 4\]; expected \[9, 8\]"),
        ((5, 1), (9, 4), "Q7_K", "there is no packed format 'Q7_K'"),
    ):
        plan = FlatPlan(dev.context)
        numbers, out = plan.flat("input", "rgba32i", "ids", *ids), plan.scratch("out", 5, 5)
        table = plan.flat("input", "rgba32f" if form is None else "rgba32ui", "weight", *shape)
        looked = partial(lookup, draw, numbers, table, out, table_format=form, inputs=5)
        plan.refuses(looked, f"^draw one: {message}")
    for x, shape, offset, message in (
        ((6, 5), (9, 4), 0, r"table is \[9, 4\]; expected \[9, 5\]"),
        ((7, 5), (9, 5), 0, r"x is \[7, 5\]; expected \[6, 5\]"),
        ((6, 5), (9, 5), 7, "positions 7 to 9; table has 0 to 8"),
    ):
        plan = FlatPlan(dev.context)
        rows, table = (plan.flat("input", "rgba32f", name, *size) for name, size in (("x", x), ("table", shape)))
        added = partial(position_add, draw, rows, table, plan.scratch("out", 6, 5), length=3, offset=offset)
        plan.refuses(added, f"^draw one: {message}")
