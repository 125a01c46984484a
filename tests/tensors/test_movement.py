"""Transpositions, slices, heads, concatenation, other shapes and types: bit for bit as NumPy has them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from flat_draw import FlatPlan, drawn, holds
from tiers import tiered

from glinfer.errors import InputError, PlanError
from glinfer.kernels.flat.movement import concat, repack, strided_copy
from glinfer.kernels.flat.strided import Axis
from glinfer.kernels.spec import DrawSpec, Pass, TensorSpec
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.movement import elements

pytestmark = pytest.mark.gl

ALL = slice(None)


def refused(message: str) -> Any:
    return pytest.raises(InputError, match=rf"\A{message}\Z")


# Against NumPy's own words


def test_tensors_without_axes_and_with_many(dev: Device, rng: np.random.Generator) -> None:
    one = dev.tensor(np.float32(2.5))
    for moved in (dev.ops.transpose(one), dev.ops.slice(one, ...), dev.ops.expand(one, ()), dev.ops.repack(one, ())):
        assert holds(moved, np.float32(2.5))
    assert holds(dev.ops.slice(one, None), np.array([2.5], np.float32))
    x = elements(rng, "float32", 2, 1, 3, 2, 1, 2, 3, 5)
    tensor = dev.tensor(x)
    assert holds(dev.ops.transpose(tensor), x.transpose())
    assert holds(dev.ops.slice(tensor, 1, ..., 2), x[1, ..., 2])


# Bits


@tiered("dtype", ["float32", "int32"])
def test_every_bit_survives_a_move(dev: Device, dtype: str) -> None:
    """Subnormal numbers, both zeros, infinities, quiet and signalling NaNs with payloads: on llvmpipe."""
    special = [0, 0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC01234, 0xFFC00001, 0x7F800001, 0xFF812345]
    x = np.array([*special, 0x00800000, 0x3F800000] * 3, np.uint32).view(dtype).reshape(4, 9)
    tensor = dev.tensor(x)
    assert holds(dev.ops.transpose(tensor), x.T)
    assert holds(dev.ops.slice(tensor, ALL, slice(1, 9)), x[:, 1:9])
    assert holds(dev.ops.repack(tensor, (6, 6)), x.reshape(6, 6))
    assert holds(dev.ops.concat([tensor, tensor], 1), np.concatenate([x, x], 1))


def test_the_bits_of_float16_survive_but_those_of_signalling_nans(dev: Device) -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    quiet = (~np.isnan(x)) | (x.view(np.uint16) & 0x200 != 0)
    if "llvmpipe" not in dev.context.renderer:
        quiet = ~np.isnan(x)  # hardware may have one NaN for all
    x = x[quiet]
    x = x[: len(x) // 257 * 257].reshape(-1, 257)
    assert holds(dev.ops.transpose(dev.tensor(x)), x.T)


def test_floats_become_float16_by_rounding_to_nearest_even(dev: Device) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    exact = np.sort(every[np.isfinite(every)].astype(np.float32))
    ties = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
    x = np.concatenate([exact, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    edges = [65519.996, 65520, -65520, 3e38, np.inf, -np.inf, 1e-45, -1e-45, 2.0**-25, 3 * 2.0**-26, -(2.0**-24)]
    x = np.concatenate([x, np.array(edges, np.float32)])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    assert holds(dev.ops.astype(dev.tensor(x), "float16"), expected)


def test_int32_and_float16_are_converted(dev: Device) -> None:
    whole = np.array([[2**31 - 1, -(2**31), 2**24 + 1, 2**24 + 3, -7]], np.int32)
    assert holds(dev.ops.astype(dev.tensor(whole), np.float32), whole.astype(np.float32))
    halves = np.array([65504, 2049, 2051, -65519, 65519, 5], np.int32)
    assert holds(dev.ops.astype(dev.tensor(halves), "float16"), halves.astype(np.float16))
    assert holds(dev.ops.astype(dev.tensor(whole), "int32"), whole)
    tiny = np.array([[6e-8, -6e-5, 1.0]], np.float16)
    assert holds(dev.ops.astype(dev.tensor(tiny), "float32"), tiny.astype(np.float32))


# Draws, copies and targets


def test_a_result_is_a_copy_even_where_nothing_moves(dev: Device) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = dev.tensor(x)
    copies = [dev.ops.transpose(tensor, (0, 1)), dev.ops.slice(tensor, ...), dev.ops.concat([tensor])]
    dev.ops.scale(dev.tensor(x), 0.0, out=tensor)
    assert not tensor.numpy().any()
    tensor.release()
    assert all(holds(copy, x) for copy in copies)


# In plans


def test_a_plan_slices_at_a_run_value(dev: Device, rng: np.random.Generator) -> None:
    x = elements(rng, "float32", 9, 21)

    def build(source: TensorSpec, out: TensorSpec, col: int = 0) -> DrawSpec:
        axes = [Axis(4, 1, 0), Axis(13, 0, 1)]
        return strided_copy(Pass("s", dev.kernels), source, out, axes, row_offset="row", col_offset=col)

    for row, col in ((0, 0), (3, 5), (5, 8)):
        found, expected = drawn(dev, partial(build, col=col), {"x": x}, (4, 13), values={"row": row})
        assert same_bits(found, expected)
        assert same_bits(found, x[row:, col:][:4, :13].copy())
    with pytest.raises(PlanError, match="draw s: it reads rows 6 to 9 of x, which has 9"):
        drawn(dev, build, {"x": x}, (4, 13), values={"row": 6})


@pytest.mark.slow
def test_draws_agree_with_their_oracles(dev: Device, rng: np.random.Generator) -> None:
    arrays, draw = {name: elements(rng, "float32", 6, 5) for name in "xy"}, Pass("d", dev.kernels)
    axes = [Axis(2, 0, 0), Axis(3, 2, 0), Axis(5, 0, 1)]
    for build, count, out in (
        (lambda a, out: strided_copy(draw, a, out, axes), 1, (6, 5)),
        (lambda a, out: repack(draw, a, out), 1, (5, 6)),
        (lambda a, b, out: concat(draw, [a, b], out), 2, (6, 10)),
        (lambda a, b, out: concat(draw, [a, b], out, groups=2), 2, (12, 5)),
    ):
        found, expected = drawn(dev, build, dict([*arrays.items()][:count]), out)
        assert found.shape == out
        assert same_bits(found, expected)


def test_draws_that_do_not_fit_are_refused(dev: Device) -> None:
    floats, rows, draw = np.zeros((2, 4), np.float32), Axis(6, 1, 0), Pass("d", dev.kernels)
    axes = [Axis(2, 1, 0), Axis(4, 0, 1)]
    for message, x, out, axes_of in (
        (r"axes of sizes \[6, 8\] do not end in 7 columns", (6, 8), (6, 7), [rows, Axis(8, 0, 1)]),
        (r"draw copy: y is \[5, 8\]; its axes have \[6, 8\]", (6, 8), (5, 8), [rows, Axis(8, 0, 1)]),
        ("a copy over 1 axes of rows and 3 .*", (6, 8), (1, 8), [Axis(2, 0, 1), Axis(2, 3, 0), Axis(2, 1, 0)]),
    ):
        plan = FlatPlan(dev.context)
        x, y = plan.scratch("x", *x), plan.scratch("y", *out)
        plan.refuses(partial(strided_copy, draw._replace(name="copy"), x, y, axes_of), rf"\A{message}\Z")
    copied = lambda x, out: strided_copy(draw, x, out, axes)  # noqa: E731
    repacked = lambda x, out: repack(draw, x, out)  # noqa: E731
    joined = lambda x, y, out: concat(draw, [x, y], out)  # noqa: E731
    whole, formats = floats.astype(np.int32), "expected one format"
    for message, build, arrays, out, form in (
        (f"d: x has format rgba32f and out rgba32i; {formats}", copied, [floats], (2, 4), "rgba32i"),
        (f"d: x has format rgba32i and out rgba32f; {formats}", repacked, [whole], (1, 8), "rgba32f"),
        (r"d: x is \[2, 4\] and output \[3, 5\]; expected as many elements", repacked, [floats], (3, 5), "rgba32f"),
        (r"d: output is \[2, 9\]; expected \[2, 8\]", joined, [floats, floats], (2, 9), "rgba32f"),
    ):
        with pytest.raises(PlanError, match=f"draw {message}"):
            drawn(dev, build, dict(zip("xy", arrays, strict=False)), out, form)


# What is refused


SHAPES = {"X": "[2, 3, 8]", "Y": "[2, 3, 7]", "Z": "[3, 8]"}
REFUSED: list[tuple[Callable[[Any, Tensor], object], str]] = [
    (
        lambda o, x: o.transpose(x, (0, 0, 1)),
        "transpose: x is X and the axes are [0, 0, 1]; expected each of [0, 1, 2] once",
    ),
    (lambda o, x: o.transpose(o.slice(x, 0, 0, 0), [0]), "transpose: x is [], which has no axes"),
    (lambda o, x: o.split_heads(x, 3), "split_heads: x is X; expected [..., rows, a multiple of 3 columns]"),
    (lambda o, x: o.merge_heads(o.slice(x, 0)), "merge_heads: x is Z; expected [..., heads, rows, columns of a head]"),
    (lambda o, x: o.split_qkv(x, 2, 2), "split_qkv: x is X; expected [..., rows, a multiple of (2 + 2·2) columns]"),
    (lambda o, x: o.split_qkv(x, 2, 1, 3), "split_qkv: x is X; expected [..., rows, (2 + 2·1)·3 columns]"),
    (lambda o, x: o.concat([]), "concat: found no tensors; expected at least one"),
    (
        lambda o, x: o.concat([x, o.slice(x, ..., slice(7))], 1),
        "concat: found X and Y; expected one shape but for axis 1",
    ),
    (
        lambda o, x: o.concat([x, o.astype(x, "float16")]),
        "concat: found X of float32 and X of float16; expected one type: use astype first",
    ),
    (
        lambda o, x: o.slice(x, 0, 0, 0, 0),
        "slice: x is X and the index [0, 0, 0, 0]; expected at most 3 numbers and slices, and one Ellipsis",
    ),
    (
        lambda o, x: o.slice(x, ALL, 3),
        "slice: x is X and the index [:, 3]; 3 is not a slice, and no whole number from -3 to 2",
    ),
    (
        lambda o, x: o.slice(x, slice(0, 2, 0)),
        "slice: x is X and the index [0:2:0]; 0:2:0 is not a slice of whole numbers: slice step cannot be zero",
    ),
    (lambda o, x: o.expand(x, (3, 8)), "expand: x is X, which does not broadcast to Z"),
    (lambda o, x: o.repack(x, (2, 3, 7)), "repack: x is X of 48 elements, which cannot become Y"),
    (lambda o, x: o.repack(x, 4.8), "repack: found the shape 4.8; expected whole numbers from 0 on"),
    (lambda o, x: o.astype(x, "int32"), "astype: dtype is int32; expected one of float32, float16"),
]


def test_bad_calls_are_refused(dev: Device) -> None:
    x = dev.tensor(np.zeros((2, 3, 8), np.float32))
    for run, message in REFUSED:
        for letter, shape in SHAPES.items():
            message = re.sub(rf"\b{letter}\b", shape, message)
        with pytest.raises(InputError) as raised:
            run(dev.ops, x)
        assert str(raised.value) == message


def test_packed_tensors_and_too_many_axes_are_refused(dev: Device) -> None:
    packed = dev.tensor(np.ones((2, 32), np.float32), "Q8_0")
    message = r"x is \[2, 32\] of Q8_0, whose elements are packed in blocks; dequantize it first"
    for name, run in {
        "transpose": lambda: dev.ops.transpose(packed),
        "concat": lambda: dev.ops.concat([packed, packed]),
        "repack": lambda: dev.ops.repack(packed, (64,)),
        "split_qkv": lambda: dev.ops.split_qkv(packed, 2),
    }.items():
        with refused(f"{name}: {message}"):
            run()
    many = dev.tensor(np.zeros((2,) * 7, np.float32))
    with refused(r"transpose: x is .*: a copy over 6 axes of rows and 1 of columns that no stride joins; at most 5 .*"):
        dev.ops.transpose(many)
    assert dev.memory().textures == 0


def test_brackets_and_numpy_itself_work_on_tensors(dev: Device) -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    tensor = dev.tensor(x)
    for index in (-1, (..., slice(None, None, -2)), (0, slice(None), 2)):
        assert holds(tensor[index], x[index])
    assert [part.shape for part in tensor] == [(4, 5)] * 3
    assert np.array_equal(np.asarray(tensor), x)
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # NumPy 1 means by it: copy where that is needed
        with pytest.raises(ValueError, match="numpy needs a copy"):
            np.array(tensor, copy=False)
    with pytest.raises(InputError, match=r"^x\[index\]: x is \[3, 4, 5\] and the index \[3\]; "):
        tensor[3]


def test_split_qkv_leaves_heads_side_by_side(dev: Device) -> None:
    """The flat form, with fewer heads of keys and values, also where parts begin and end within texels."""
    for shape, heads, kv_heads, width in (
        ((3, 35), 3, 2, 5),
        ((2, 5, 18), 4, 1, 3),
        ((5, 24), 1, 1, 8),
        ((0, 15), 3, 1, 3),
    ):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        q, k, v = np.split(x, [heads * width, (heads + kv_heads) * width], axis=-1)
        for head_dim in (None, width):
            found = dev.ops.split_qkv(dev.tensor(x), heads, kv_heads, head_dim, flat=True)
            for part, expected in zip(found, (q, k, v), strict=True):
                assert holds(part, expected) if expected.size else part.shape == expected.shape
    ids = dev.tensor(np.arange(14).reshape(2, 7))
    q, k, v = (part.numpy() for part in dev.ops.split_qkv(ids, 3, 2, flat=True))  # widths in place of heads
    assert (q.tolist(), k.tolist(), v.tolist()) == ([[0, 1, 2], [7, 8, 9]], [[3, 4], [10, 11]], [[5, 6], [12, 13]])
