"""Transpositions, slices, heads, concatenation, other shapes and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from glinfer.tensors.ops import Ops
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import FLOATS, Check, Found, KernelCase, Timed, normal, result, timed

Make = Callable[..., Array]
"""Makes elements of a shape, in the type that is checked."""
Moves = Callable[[Device, Make, int, int], Iterator[Found]]


def elements(rng: np.random.Generator, form: str, *shape: int) -> Array:
    """Random elements of a type; integers use all 32 bits."""
    if form == "int32":
        return rng.integers(-(2**31), 2**31, shape).astype(np.int32)
    return normal(rng, *shape).astype(form)


def _checked(moves: Moves) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        found = moves(device, partial(elements, rng, form), rows, cols)
        return [(array, np.ascontiguousarray(expected)) for array, expected in found]

    return check


def _transpose(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    x, deep = make(rows, cols), make(2, min(rows, 31), 3, min(cols, 37))
    order = np.random.default_rng([rows, cols]).permutation(4).tolist()
    yield result(device, "transpose", x), x.T
    yield result(device, "transpose", deep, order), deep.transpose(order)


def _split_heads(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    width = -(-cols // 3)
    x = make(2, rows, 3 * width)
    yield result(device, "split_heads", x, 3), x.reshape(2, rows, 3, width).swapaxes(1, 2)


def _merge_heads(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    width = -(-cols // 3)
    x = make(2, 3, rows, width)
    yield result(device, "merge_heads", x), x.swapaxes(1, 2).reshape(2, rows, 3 * width)


def _split_qkv(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    heads, kv_heads, width = 4, 2, -(-cols // 8)
    x = make(rows, (heads + 2 * kv_heads) * width)
    each = np.split(x.reshape(rows, -1, width).swapaxes(0, 1), [heads, heads + kv_heads])
    yield from zip(result(device, "split_qkv", x, heads, kv_heads, width), each, strict=True)


def _concat(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    few = [make(rows, edge) for edge in (cols, cols // 2 + 1, 1)]
    many = [make(2, rows // 9 + 1 + number % 2, cols) for number in range(9)]
    for arrays, axis in ((few, -1), ([part.T for part in few], 0), (many, 1)):
        tensors = [device.tensor(array) for array in arrays]
        yield result(device, "concat", tensors, axis), np.concatenate(arrays, axis)
        for tensor in tensors:
            tensor.release()


def _slice(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    x = make(rows, cols)
    back, part = (slice(None, None, -2), slice(None, None, -3)), (slice(rows // 2, None), slice(cols // 3, None))
    indices: tuple[tuple[Any, ...], ...] = (part, back, (rows // 2,), (..., -1))
    for index in indices:
        yield result(device, "slice", x, *index), x[index]


def _expand(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    for shape, wanted in (((rows, 1), (rows, cols)), ((cols,), (rows, cols)), ((2, 1, cols), (2, 3, cols))):
        x = make(*shape)
        yield result(device, "expand", x, wanted), np.broadcast_to(x, wanted)


def _repack(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    x = make(rows, cols)
    for shape in ((cols, rows), (rows * cols,), (rows, cols, 1)):
        yield result(device, "repack", x, shape), x.reshape(shape)


def _astype(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    x = make(rows, cols)
    if x.dtype == np.int32:
        x >>= 14  # most are within the range of float16 then, and have more digits than it
    for wanted in FLOATS:
        with np.errstate(over="ignore"):
            yield result(device, "astype", x, wanted), x.astype(wanted)


def _assign(device: Device, make: Make, rows: int, cols: int) -> Iterator[Found]:
    x, row = make(rows, cols), make(cols)
    expected = x.copy()
    expected[rows // 2], expected[rows // 3 :, cols // 4 : cols // 2 + 1] = row, make(1, 1)[0]
    with device.tensor(x) as whole:
        whole[rows // 2] = row
        whole[rows // 3 :, cols // 4 : cols // 2 + 1] = expected[-1, cols // 4]
        yield whole.numpy(), expected
    x = make(2, min(rows, 31), 3, min(cols, 37))
    value = make(*x[:, ::-2, 1:].shape)
    expected = x.copy()
    expected[:, ::-2, 1:] = value
    with device.tensor(value) as tensor, device.tensor(x) as deep:
        deep[:, ::-2, 1:] = tensor
        yield deep.numpy(), expected


def _timed(run: Callable[[Ops, Tensor], object]) -> Timed:
    def prepared(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        x = device.tensor(normal(rng, 512, 2048))
        return lambda: run(device.ops, x)

    return prepared


def _case(kernel: str, moves: Moves, time: Timed, at: str, *shaders: str) -> KernelCase:
    shaders = shaders or ("strided_copy",)
    return KernelCase(kernel, "movement", shaders, (*FLOATS, "int32"), _checked(moves), time, at, tolerance=0)


_AT, _HALVES = (512, 2048), (slice(256, None), slice(1, None))
CASES = [
    _case("transpose", _transpose, timed("transpose", _AT), "512×2048"),
    _case("split_heads", _split_heads, timed("split_heads", _AT, heads=32), "512×2048, 32 heads"),
    _case("merge_heads", _merge_heads, timed("merge_heads", (32, 512, 64)), "32×512×64"),
    _case("split_qkv", _split_qkv, timed("split_qkv", (512, 3072), heads=32, kv_heads=8), "512×3072, 32 and 8 heads"),
    _case("concat", _concat, _timed(lambda ops, x: ops.concat([x, x], 0).release()), "twice 512×2048", "concat"),
    _case("slice", _slice, _timed(lambda ops, x: ops.slice(x, *_HALVES).release()), "256×2047 of 512×2048"),
    _case("expand", _expand, timed("expand", (2048,), shape=_AT), "512×2048"),
    _case("repack", _repack, timed("repack", (512, 2047), shape=(2047, 512)), "512×2047 to 2047×512",
          "strided_copy", "repack"),
    _case("assign", _assign, _timed(lambda ops, x: ops.assign(x, slice(256), 1.0)), "256 rows of 512×2048",
          "assign", "strided_copy"),
    _case("astype", _astype, timed("astype", _AT, dtype="float16"), "512×2048"),
]  # fmt: skip
