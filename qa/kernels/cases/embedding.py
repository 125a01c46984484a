"""Lookups, learned positions, and packed tables as floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.quant.block_bytes import Bytes
from glinfer.quant.formats import BLOCK_FORMATS, block_format
from glinfer.quant.ggml import dequantize
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import FLOATS, Check, Found, KernelCase, integers, normal, result, timed

_LARGEST_SCALE = 0.01


def whole_blocks(name: str, cols: int) -> int:
    """Round ``cols`` up to a whole number of blocks; a format without blocks leaves it as it is."""
    weights = BLOCK_FORMATS[name].weights if name in BLOCK_FORMATS else 1
    return -(-cols // weights) * weights if weights else cols


def random_blocks(
    rng: np.random.Generator, name: str, rows: int, inputs: int, scales: Sequence[float] | None = None
) -> Bytes:
    """Rows of random blocks [rows, bytes]; scales are about as large as those of weights, or drawn from ``scales``.

    Raises:
        InputError: there is no such format.
    """
    form = block_format(name)

    def drawn(count: int, dtype: str) -> Array:
        values = rng.uniform(-_LARGEST_SCALE, _LARGEST_SCALE, count) if scales is None else rng.choice(scales, count)
        with np.errstate(over="ignore"):
            return values.astype(dtype)

    blocks = rng.integers(0, 256, (rows, form.row_bytes(inputs)), dtype=np.uint8)
    if name == "BF16":
        halves = (drawn(rows * inputs, "<f4").view("<u4") >> np.uint32(16)).astype("<u2")
        return halves.view(np.uint8).reshape(rows, -1)
    if not form.weights:
        blocks[:, -4:] = drawn(rows, "<f4").view(np.uint8).reshape(rows, -1)
        return blocks
    by_block = blocks.reshape(-1, form.nbytes)
    if name == "MXFP4":  # powers of two that are no subnormal floats
        by_block[:, 0] = rng.integers(*((119, 122) if scales is None else (2, 256)), len(by_block))
        return blocks
    if name == "IQ1_M":  # four bits of the half float in each of four words
        bits = drawn(len(by_block), "<f2").view("<u2")[:, None] >> np.array([0, 4, 8, 12], dtype="<u2")
        words = np.ascontiguousarray(by_block[:, 48:]).view("<u2") & 0xFFF
        by_block[:, 48:] = (words | ((bits & 15) << 12)).astype("<u2").view(np.uint8)
        return blocks
    start, count = form.scales
    halves = drawn(len(by_block) * count, "<f2").view(np.uint8)
    by_block[:, start : start + 2 * count] = halves.reshape(len(by_block), -1)
    return blocks


def table_of(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> tuple[Tensor, Array]:
    """A random table of about [rows, cols] in any type, and its elements in float64."""
    cols = whole_blocks(form, cols)
    if form in BLOCK_FORMATS:
        blocks = random_blocks(rng, form, rows, cols)
        return device.tensor(blocks, form), dequantize(blocks, form).astype(np.float64)
    values = rng.integers(-(2**31), 2**31, (rows, cols)) if form == "int32" else normal(rng, rows, cols)
    values = values.astype(form)
    return device.tensor(values), values.astype(np.float64)


def rows_named(table: Array, ids: Array) -> Array:
    """The rows of a table that ids name; zeros where there is none."""
    there = (ids >= 0) & (ids < len(table))
    return np.where(there[..., None], table[np.where(there, ids, 0)], 0.0)


def _check_rows(call: str) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        table, values = table_of(device, rng, rows, cols, form)
        ids = rng.integers(-1, rows + 1, (2, rows // 2 + 1)).astype(np.int32)
        with table:
            return [(result(device, call, *_ordered(call, ids, table)), rows_named(values, ids))]

    return check


def _ordered(call: str, ids: Any, table: Any) -> tuple[Any, Any]:
    return (ids, table) if call == "lookup" else (table, ids)


def _check_dequantize(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    table, values = table_of(device, rng, rows, cols, form)
    with table:
        return [(result(device, "dequantize", table), values)]


def _check_positions(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
    offset, length = 3, rows // 2 + 1
    x, table = normal(rng, 2, length, cols), normal(rng, offset + length, cols).astype(form)
    expected = x.astype(np.float64) + table[offset:].astype(np.float64)
    return [(result(device, "add_positions", x, table, offset=offset), expected)]


def _rows(call: str, *forms: str) -> KernelCase:
    forms, operands = (*FLOATS, *forms), _ordered(call, integers(8192, 512), (8192, 1024))
    at = "512 rows of 8192×1024, float32"
    return KernelCase(call, "embedding", ("lookup",), forms, _check_rows(call), timed(call, *operands), at, 0.0)


_PACKED = tuple(BLOCK_FORMATS)
CASES = [
    _rows("lookup", *_PACKED),
    _rows("gather_rows", "int32"),
    KernelCase(
        *("add_positions", "embedding", ("position_add",), FLOATS, _check_positions),
        *(timed("add_positions", (512, 1024), (2048, 1024), offset=512), "512×1024", 1e-6),
    ),
    KernelCase(
        *("dequantize", "embedding", ("dequantize",), _PACKED, _check_dequantize),
        timed("dequantize", lambda device, rng: table_of(device, rng, 1024, 2048, "Q4_K")[0]),
        *("1024×2048, Q4_K", 0.0),
    ),
]
