"""Transpositions, slices, heads, concatenation, other shapes and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from glinfer.kernels.spec import Array
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import Check, Found, KernelCase, Timed, normal

FORMS = ("float32", "float16", "int32")
Moves = Callable[[Device, np.random.Generator, int, int, str], Iterator[tuple[Tensor, Array]]]


def elements(rng: np.random.Generator, form: str, *shape: int) -> Array:
    """Random elements of a type; integers use all 32 bits."""
    if form == "int32":
        return rng.integers(-(2**31), 2**31, shape).astype(np.int32)
    return normal(rng, *shape).astype(form)


def _checked(moves: Moves) -> Check:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Sequence[Found]:
        found = []
        for tensor, expected in moves(device, rng, rows, cols, form):
            with tensor:
                found.append((tensor.numpy(), np.ascontiguousarray(expected)))
        return found

    return check


def _transpose(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    x = elements(rng, form, rows, cols)
    with device.tensor(x) as tensor:
        yield device.ops.transpose(tensor), x.T
    x = elements(rng, form, 2, min(rows, 31), 3, min(cols, 37))
    order = [int(axis) for axis in rng.permutation(4)]
    with device.tensor(x) as tensor:
        yield device.ops.transpose(tensor, order), x.transpose(order)


def _split_heads(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    width = -(-cols // 3)
    x = elements(rng, form, 2, rows, 3 * width)
    with device.tensor(x) as tensor:
        yield device.ops.split_heads(tensor, 3), x.reshape(2, rows, 3, width).swapaxes(1, 2)


def _merge_heads(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    width = -(-cols // 3)
    x = elements(rng, form, 2, 3, rows, width)
    with device.tensor(x) as tensor:
        yield device.ops.merge_heads(tensor), x.swapaxes(1, 2).reshape(2, rows, 3 * width)


def _split_qkv(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    heads, kv_heads, width = 4, 2, -(-cols // 8)
    x = elements(rng, form, rows, (heads + 2 * kv_heads) * width)
    each = x.reshape(rows, -1, width).swapaxes(0, 1)
    with device.tensor(x) as tensor:
        parts = device.ops.split_qkv(tensor, heads, kv_heads, width)
    yield from zip(parts, np.split(each, [heads, heads + kv_heads]), strict=True)


def _concat(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    few = [elements(rng, form, rows, edge) for edge in (cols, cols // 2 + 1, 1)]
    many = [elements(rng, form, 2, rows // 9 + 1 + number % 2, cols) for number in range(9)]
    for arrays, axis in ((few, -1), ([part.T for part in few], 0), (many, 1)):
        tensors = [device.tensor(array) for array in arrays]
        yield device.ops.concat(tensors, axis), np.concatenate(arrays, axis)
        for tensor in tensors:
            tensor.release()


def _slice(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Iterator[tuple[Tensor, Array]]:
    x = elements(rng, form, rows, cols)
    with device.tensor(x) as tensor:
        for index in (
            (slice(rows // 2, None), slice(cols // 3, None)),
            (slice(None, None, -2), slice(None, None, -3)),
            (rows // 2,),
            (..., -1),
        ):
            yield device.ops.slice(tensor, *index), x[index]


def _expand(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    for shape, wanted in (((rows, 1), (rows, cols)), ((cols,), (rows, cols)), ((2, 1, cols), (2, 3, cols))):
        x = elements(rng, form, *shape)
        with device.tensor(x) as tensor:
            yield device.ops.expand(tensor, wanted), np.broadcast_to(x, wanted)


def _repack(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    x = elements(rng, form, rows, cols)
    with device.tensor(x) as tensor:
        for shape in ((cols, rows), (rows * cols,), (rows, cols, 1)):
            yield device.ops.repack(tensor, shape), x.reshape(shape)


def _astype(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    x = elements(rng, form, rows, cols)
    if form == "int32":
        x >>= 14  # most are within the range of float16 then, and have more digits than it
    with device.tensor(x) as tensor:
        for wanted in ("float32", "float16"):
            with np.errstate(over="ignore"):
                yield device.ops.astype(tensor, wanted), x.astype(wanted)


def _assign(
    device: Device, rng: np.random.Generator, rows: int, cols: int, form: str
) -> Iterator[tuple[Tensor, Array]]:
    x, row = elements(rng, form, rows, cols), elements(rng, form, cols)
    expected, whole = x.copy(), device.tensor(x)
    expected[rows // 2], expected[rows // 3 :, cols // 4 : cols // 2 + 1] = row, elements(rng, form, 1, 1)[0]
    whole[rows // 2] = row
    whole[rows // 3 :, cols // 4 : cols // 2 + 1] = expected[-1, cols // 4]
    yield whole, expected
    x = elements(rng, form, 2, min(rows, 31), 3, min(cols, 37))
    value = elements(rng, form, *x[:, ::-2, 1:].shape)
    expected, deep = x.copy(), device.tensor(x)
    expected[:, ::-2, 1:] = value
    with device.tensor(value) as tensor:
        deep[:, ::-2, 1:] = tensor
    yield deep, expected


def _timed(run: Callable[[Device, Tensor], Sequence[Tensor]], *shape: int) -> Timed:
    def timed(device: Device, rng: np.random.Generator) -> Callable[[], object]:
        x = device.tensor(normal(rng, *shape))

        def once() -> None:
            for result in run(device, x):
                result.release()

        return once

    return timed


def _case(
    kernel: str,
    shader: str,
    moves: Moves,
    run: Callable[[Device, Tensor], Sequence[Tensor]],
    shape: Sequence[int],
    shown: str = "",
) -> KernelCase:
    size = shown or "×".join(str(edge) for edge in shape)
    shaders = {"repack": ("strided_copy", "repack"), "assign": ("assign", "strided_copy")}.get(shader, (shader,))
    return KernelCase(kernel, "movement", shaders, FORMS, _checked(moves), _timed(run, *shape), size, tolerance=0)


def _half_assigned(device: Device, x: Tensor) -> Sequence[Tensor]:
    device.ops.assign(x, slice(256), 1.0)
    return ()


_HALVES = slice(256, None), slice(1, None)
CASES = [
    _case("transpose", "strided_copy", _transpose, lambda dev, x: [dev.ops.transpose(x)], (512, 2048)),
    _case(
        "split_heads",
        "strided_copy",
        _split_heads,
        lambda dev, x: [dev.ops.split_heads(x, 32)],
        (512, 2048),
        "512×2048, 32 heads",
    ),
    _case("merge_heads", "strided_copy", _merge_heads, lambda dev, x: [dev.ops.merge_heads(x)], (32, 512, 64)),
    _case(
        "split_qkv",
        "strided_copy",
        _split_qkv,
        lambda dev, x: dev.ops.split_qkv(x, 32, 8),
        (512, 3072),
        "512×3072, 32 and 8 heads",
    ),
    _case("concat", "concat", _concat, lambda dev, x: [dev.ops.concat([x, x], 0)], (512, 2048), "twice 512×2048"),
    _case(
        "slice",
        "strided_copy",
        _slice,
        lambda dev, x: [dev.ops.slice(x, *_HALVES)],
        (512, 2048),
        "256×2047 of 512×2048",
    ),
    _case("expand", "strided_copy", _expand, lambda dev, x: [dev.ops.expand(x, (512, 2048))], (2048,), "512×2048"),
    _case(
        "repack",
        "repack",
        _repack,
        lambda dev, x: [dev.ops.repack(x, (2047, 512))],
        (512, 2047),
        "512×2047 to 2047×512",
    ),
    _case("assign", "assign", _assign, _half_assigned, (512, 2048), "256 rows of 512×2048"),
    _case("astype", "strided_copy", _astype, lambda dev, x: [dev.ops.astype(x, "float16")], (512, 2048)),
]
