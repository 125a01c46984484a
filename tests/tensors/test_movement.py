"""Transpositions, slices, heads, concatenation, other shapes and types: bit for bit as NumPy has them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flat_draw import drawn, holds, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import tiered

from glinfer.errors import InputError, PlanError
from glinfer.models.plan import PlanBuilder
from glinfer.ops.flat.movement import concat, repack, strided_copy
from glinfer.ops.flat.strided import Axis, bounds, collapsed, walk
from glinfer.ops.spec import DrawSpec, TensorSpec
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import TEXTURE_FORMATS, Tensor
from qa.kernels.cases.movement import CASES, elements

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
ALL = slice(None)
few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
DTYPES = sorted(TEXTURE_FORMATS)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def refused(message: str) -> Any:
    return pytest.raises(InputError, match=rf"\A{message}\Z")


# Every kernel, over sizes


@tiered("case", CASES, ids=lambda case: case.kernel, keep=range(0, len(CASES), 3))
@tiered("size", [(1, 1), (5, 1), (1, 67), (257, 36)], keep=(2,), ids=str)
def test_a_kernel_moves_every_bit(dev: Device, rng: np.random.Generator, case: Any, size: tuple[int, int]) -> None:
    for form in case.forms:
        for found, expected in case.check(dev, rng, *size, form):
            assert same_bits(found, expected), form
    assert dev.memory().tensors == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_kernel_with_small_textures(small: Device, rng: np.random.Generator, case: Any) -> None:
    for found, expected in case.check(small, rng, 29, 61, case.forms[0]):
        assert same_bits(found, expected)


@pytest.mark.slow
def test_what_is_timed_releases_its_results(dev: Device, rng: np.random.Generator) -> None:
    for case in CASES:
        once = case.timed(dev, rng)
        once()
        held = dev.memory().tensors
        once()
        assert dev.memory().tensors == held
        del once


# Against NumPy's own words


@st.composite
def arrays(draw: st.DrawFn, axes: int = 4) -> Array:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=axes))
    return elements(np.random.default_rng(draw(st.integers(0, 99))), draw(st.sampled_from(DTYPES)), *shape)


@few
@given(data=st.data(), x=arrays())
def test_slices(dev: Device, data: st.DataObject, x: Array) -> None:
    index: list[Any] = []
    for edge in x.shape:
        ends = st.none() | st.integers(-edge - 1, edge + 1)
        steps = st.none() | st.sampled_from([1, 2, 3, -1, -2])
        slices = st.builds(slice, ends, ends, steps).filter(lambda part, edge=edge: len(range(edge)[part]) > 0)
        index.append(data.draw(slices | st.integers(-edge, edge - 1)))
    taken = data.draw(st.integers(0, len(index)))
    given_index = data.draw(st.sampled_from([tuple(index), (*index[:taken], ...), (None, ..., *index[taken:])]))
    with dev.tensor(x) as tensor:
        assert holds(dev.ops.slice(tensor, *given_index), np.asarray(x[given_index]))


@pytest.mark.slow
@few
@given(data=st.data(), x=arrays(axes=5))
def test_permutations(dev: Device, data: st.DataObject, x: Array) -> None:
    order = data.draw(st.permutations(range(x.ndim)))
    with dev.tensor(x) as tensor:
        assert holds(dev.ops.transpose(tensor, order), x.transpose(order))


@few
@given(data=st.data(), x=arrays(axes=3))
def test_reshapes(dev: Device, data: st.DataObject, x: Array) -> None:
    shape, rest = [], x.size
    for _ in range(data.draw(st.integers(0, 3))):
        shape.append(data.draw(st.sampled_from([edge for edge in range(1, rest + 1) if rest % edge == 0])))
        rest //= shape[-1]
    with dev.tensor(x) as tensor:
        assert holds(dev.ops.repack(tensor, (*shape, rest)), x.reshape(*shape, rest))
        assert same_bits(tensor.reshape(*shape, rest).numpy(), x.reshape(*shape, rest))


@pytest.mark.slow
@few
@given(data=st.data(), x=arrays(axes=3))
def test_concatenations(dev: Device, data: st.DataObject, x: Array) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    edges = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=10))
    parts = [np.take(np.roll(x, edge), np.arange(edge) % x.shape[axis], axis) for edge in edges]
    assert holds(dev.ops.concat([dev.tensor(part) for part in parts], axis), np.concatenate(parts, axis))


def test_tensors_without_axes_and_with_many(dev: Device, rng: np.random.Generator) -> None:
    one = dev.tensor(np.float32(2.5))
    for moved in (dev.ops.transpose(one), dev.ops.slice(one, ...), dev.ops.expand(one, ()), dev.ops.repack(one, ())):
        assert holds(moved, np.float32(2.5))
    assert holds(dev.ops.slice(one, None), np.array([2.5], np.float32))
    assert holds(dev.ops.expand(one, (2, 5)), np.full((2, 5), 2.5, np.float32))
    x = elements(rng, "float32", 2, 1, 3, 2, 1, 2, 3, 5)
    tensor = dev.tensor(x)
    assert holds(dev.ops.transpose(tensor), x.transpose())
    assert holds(dev.ops.slice(tensor, 1, ..., 2), x[1, ..., 2])


@pytest.mark.slow
def test_heads_of_many_axes(dev: Device, rng: np.random.Generator) -> None:
    for width in (8, 3):  # whole texels, and not
        x = elements(rng, "float32", 2, 3, 5, 6 * width)
        tensor = dev.tensor(x)
        heads = x.reshape(2, 3, 5, 6, width).swapaxes(2, 3)
        with dev.ops.split_heads(tensor, 6) as split:
            assert same_bits(split.numpy(), np.ascontiguousarray(heads))
            assert holds(dev.ops.merge_heads(split), x)
        q, k, v = dev.ops.split_qkv(tensor, 4, 1)
        for part, first, count in ((q, 0, 4), (k, 4, 1), (v, 5, 1)):
            assert holds(part, heads[:, :, first : first + count])
        q, k, v = dev.ops.split_qkv(tensor, 2)
        assert q.shape == k.shape == v.shape == (2, 3, 2, 5, width)
        assert holds(v, heads[:, :, 4:])


# Bits


@pytest.mark.slow
def test_the_bits_of_float32_survive(dev: Device) -> None:
    """Subnormal numbers, both zeros, infinities, quiet and signalling NaNs with payloads: as llvmpipe has them."""
    special = [0, 0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC01234, 0xFFC00001, 0x7F800001, 0xFF812345]
    x = np.array([*special, 0x00800000, 0x3F800000] * 3, np.uint32).view(np.float32).reshape(4, 9)
    tensor = dev.tensor(x)
    assert holds(dev.ops.transpose(tensor), x.T)
    assert holds(dev.ops.slice(tensor, ALL, slice(1, 9)), x[:, 1:9])
    assert holds(dev.ops.slice(tensor, ALL, slice(None, None, -1)), x[:, ::-1])
    assert holds(dev.ops.repack(tensor, (6, 6)), x.reshape(6, 6))
    assert holds(dev.ops.concat([tensor, tensor], 0), np.concatenate([x, x]))
    assert holds(dev.ops.concat([tensor, tensor], 1), np.concatenate([x, x], 1))


def test_the_bits_of_float16_survive_but_those_of_signalling_nans(dev: Device) -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    quiet = (~np.isnan(x)) | (x.view(np.uint16) & 0x200 != 0)
    if "llvmpipe" not in dev.context.renderer:
        quiet = ~np.isnan(x)  # hardware may have one NaN for all
    x = x[quiet]
    x = x[: len(x) // 257 * 257].reshape(-1, 257)
    assert holds(dev.ops.transpose(dev.tensor(x)), x.T)


def test_every_bit_of_int32_survives(dev: Device) -> None:
    x = np.array([[-(2**31), 2**31 - 1, -1, 0, 1, 2**24 + 1, 0x7F800001]], np.int32)
    assert holds(dev.ops.concat([dev.tensor(x), dev.tensor(x)], 1), np.concatenate([x, x], 1))
    assert holds(dev.ops.transpose(dev.tensor(x)), x.T)
    assert holds(dev.ops.repack(dev.tensor(x), (7, 1)), x.reshape(7, 1))


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
    with dev.ops.astype(dev.tensor(np.array([np.nan], np.float32)), np.float16) as nothing:
        assert np.isnan(nothing.numpy()).all()


def test_types_become_float32_and_float16(dev: Device, rng: np.random.Generator) -> None:
    whole = np.array([[2**31 - 1, -(2**31), 2**24 + 1, 2**24 + 3, -7]], np.int32)
    assert holds(dev.ops.astype(dev.tensor(whole), np.float32), whole.astype(np.float32))
    halves = np.array([65504, 2049, 2051, -65519, 65519, 5], np.int32)
    assert holds(dev.ops.astype(dev.tensor(halves), "float16"), halves.astype(np.float16))
    assert holds(dev.ops.astype(dev.tensor(whole), "int32"), whole)
    tiny = np.array([[6e-8, -6e-5, 1.0]], np.float16)
    assert holds(dev.ops.astype(dev.tensor(tiny), "float32"), tiny.astype(np.float32))


# Draws, copies and targets


@pytest.mark.slow
def test_how_many_draws_a_call_takes(dev: Device) -> None:
    def draws(run: Callable[[], object]) -> int:
        before = dev.draws_issued
        run()
        return dev.draws_issued - before

    x = dev.tensor(np.arange(24, dtype=np.float32).reshape(4, 6))
    assert draws(lambda: dev.ops.concat([x] * 8)) == 1
    assert draws(lambda: dev.ops.concat([x] * 9)) == 2  # one is left over, and waits
    assert draws(lambda: dev.ops.concat([x] * 65, 0)) == 1 + 8 + 1
    assert draws(lambda: dev.ops.split_qkv(x, 2, 2)) == 3
    assert draws(lambda: x.reshape(2, 2, 6)) == 0
    assert draws(lambda: x.reshape(8, 3)) == 1


def test_a_result_is_a_copy_even_where_nothing_moves(dev: Device) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = dev.tensor(x)
    copies = [dev.ops.transpose(tensor, (0, 1)), dev.ops.slice(tensor, ...), dev.ops.concat([tensor])]
    dev.ops.scale(dev.tensor(x), 0.0, out=tensor)
    assert not tensor.numpy().any()
    tensor.release()
    assert all(holds(copy, x) for copy in copies)


def test_out_is_written_and_given_back(dev: Device, rng: np.random.Generator) -> None:
    x = elements(rng, "int32", 5, 6)
    tensor, out = dev.tensor(x), dev.tensor(np.zeros((6, 5), np.int32))
    assert dev.ops.transpose(tensor, out=out) is out
    assert same_bits(out.numpy(), np.ascontiguousarray(x.T))
    assert dev.ops.repack(tensor, (6, 5), out=out) is out
    assert same_bits(out.numpy(), x.reshape(6, 5))
    with refused(r"transpose: out is \[6, 5\] of int32; the result is \[5, 6\] of int32"):
        dev.ops.transpose(tensor, (0, 1), out=out)
    with refused("transpose: out is read .*; give it another tensor"):
        dev.ops.transpose(tensor, (0, 1), out=tensor)


def copy_spec(x: tuple[int, int], out: tuple[int, int], axes: Sequence[Axis], dev: Device, **offsets: int) -> DrawSpec:
    builder = PlanBuilder("none", 1, [])
    size = dev.context.limits.max_texture_size
    specs = [builder.flat(name, "activation", *shape, "rgba32f", size) for name, shape in (("x", x), ("y", out))]
    return strided_copy("copy", "copy", *specs, axes, kernels=dev.kernels, **offsets)


def test_a_texel_is_fetched_once_where_it_stays_whole(dev: Device) -> None:
    def fetches(x: tuple[int, int], out: tuple[int, int], *axes: Axis, **offsets: int) -> int | float:
        return dict(copy_spec(x, out, axes, dev, **offsets).defines)["FETCHES"]

    rows, columns = Axis(6, 1, 0), Axis(8, 0, 1)
    assert fetches((6, 8), (6, 8), rows, columns) == 1
    assert fetches((6, 9), (6, 8), rows, columns, col_offset=1) == 2
    assert fetches((6, 12), (6, 8), rows, columns, col_offset=4) == 1
    assert fetches((6, 8), (8, 6), columns, rows) == 4
    assert fetches((6, 16), (12, 8), rows, Axis(2, 0, 8), columns) == 1  # heads of whole texels, apart
    assert fetches((12, 8), (6, 16), rows, Axis(2, 6, 0), columns) == 1  # and together
    assert fetches((12, 7), (6, 14), rows, Axis(2, 6, 0), Axis(7, 0, 1)) == 4
    assert fetches((6, 8), (2, 1), Axis(2, 0, 4), Axis(1, 0, 1)) == 1


# In plans


@pytest.mark.parametrize("at", [{"row": 0, "col": 0}, {"row": 3, "col": 5}, {"row": 5, "col": 8}], ids=str)
def test_a_plan_slices_where_the_run_says(dev: Device, rng: np.random.Generator, at: Mapping[str, int]) -> None:
    x = elements(rng, "float32", 9, 21)

    def build(source: TensorSpec, out: TensorSpec) -> DrawSpec:
        axes = [Axis(4, 1, 0), Axis(13, 0, 1)]
        return strided_copy("s", "s", source, out, axes, row_offset="row", col_offset="col", kernels=dev.kernels)

    found, expected = drawn(dev, build, {"x": x}, (4, 13), values=at)
    assert same_bits(found, expected)
    assert same_bits(found, x[at["row"] :, at["col"] :][:4, :13].copy())
    with pytest.raises(PlanError, match="draw s: it reads rows 6 to 9 of x, which has 9"):
        drawn(dev, build, {"x": x}, (4, 13), values={"row": 6, "col": 0})


def test_a_plan_writes_only_its_first_rows(dev: Device, rng: np.random.Generator) -> None:
    x, y = elements(rng, "float32", 6, 5), elements(rng, "float32", 6, 5)
    rows = {"rows": 4, "kernels": dev.kernels}
    for build in (
        lambda a, out: strided_copy("d", "d", a, out, [Axis(2, 0, 0), Axis(3, 2, 0), Axis(5, 0, 1)], **rows),
        lambda a, out: repack("d", "d", a, out, **rows),
    ):
        found, expected = drawn(dev, build, {"x": x}, (6, 5))
        assert expected.shape == (4, 5)
        assert same_bits(found, expected)
    for groups, out in ((None, (6, 10)), (2, (12, 5))):
        found, expected = drawn(
            dev,
            lambda a, b, out, groups=groups: concat("d", "d", [a, b], out, groups=groups, **rows),
            {"x": x, "y": y},
            out,
        )
        assert expected.shape == (4, out[1])
        assert same_bits(found, expected)


@pytest.mark.slow
def test_oracles_say_what_the_shaders_do(dev: Device, rng: np.random.Generator) -> None:
    x = elements(rng, "int32", 12, 7)
    kernels = dev.kernels
    merge = [Axis(4, 1, 0), Axis(3, 4, 0), Axis(7, 0, 1)]
    for out, build in (
        ((4, 21), lambda a, out: strided_copy("d", "d", a, out, merge, kernels=kernels)),
        ((7, 12), lambda a, out: repack("d", "d", a, out, kernels=kernels)),
        ((84, 1), lambda a, out: repack("d", "d", a, out, kernels=kernels)),
    ):
        found, expected = drawn(dev, build, {"x": x}, out, "rgba32i")
        assert same_bits(found, expected)
    for form in ("rgba32f", "rgba16f"):
        axes = [Axis(12, 1, 0), Axis(7, 0, 1)]
        found, expected = drawn(
            dev,
            lambda a, out, axes=axes: strided_copy("d", "d", a, out, axes, kernels=kernels),
            {"x": x >> 16},
            (12, 7),
            form,
        )
        assert np.array_equal(found, expected)


def test_what_no_draw_can_be_built_of(dev: Device) -> None:
    rows, columns = Axis(6, 1, 0), Axis(8, 0, 1)
    for message, x, out, axes in (
        (r"axes of sizes \[6, 8\] do not end in 7 columns", (6, 8), (6, 7), [rows, columns]),
        (r"draw copy: y is \[5, 8\]; its axes have \[6, 8\]", (6, 8), (5, 8), [rows, columns]),
        (
            "a copy over 1 axes of rows and 3 of columns .*",
            (6, 8),
            (1, 8),
            [Axis(2, 0, 1), Axis(2, 3, 0), Axis(2, 1, 0)],
        ),
    ):
        with pytest.raises(PlanError, match=rf"\A{message}\Z"):
            copy_spec(x, out, axes, dev)
    floats, whole = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.int32)
    axes = [Axis(2, 1, 0), Axis(4, 0, 1)]
    with pytest.raises(PlanError, match="draw d: x has format rgba32f and out rgba32i; expected one format"):
        drawn(
            dev,
            lambda x, out: strided_copy("d", "d", x, out, axes, kernels=dev.kernels),
            {"x": floats},
            (2, 4),
            "rgba32i",
        )
    with pytest.raises(PlanError, match="draw d: x has format rgba32i and out rgba32f; expected one format"):
        drawn(dev, lambda x, out: repack("d", "d", x, out, kernels=dev.kernels), {"x": whole}, (1, 8))
    with pytest.raises(PlanError, match=r"draw d: x is \[2, 4\] and output \[3, 5\]; expected as many elements"):
        drawn(dev, lambda x, out: repack("d", "d", x, out, kernels=dev.kernels), {"x": floats}, (3, 5))
    with pytest.raises(PlanError, match=r"draw d: output is \[2, 9\]; expected \[2, 8\]"):
        drawn(
            dev,
            lambda x, y, out: concat("d", "d", [x, y], out, kernels=dev.kernels),
            {"x": floats, "y": floats},
            (2, 9),
        )
    spec = copy_spec((2, 8), (2, 4), axes, dev, col_offset=4)
    moved = dataclasses.replace(spec, outputs=("out",), uniforms=(("row_offset", 0), ("col_offset", 2)))
    with pytest.raises(PlanError, match="draw copy: it begins in column 2, within a texel"):
        drawn(dev, lambda x, out: moved, {"x": np.zeros((2, 8), np.float32)}, (2, 4))


def test_axes_collapse_where_one_continues_the_other() -> None:
    rows = [Axis(3, 20, 0), Axis(1, 7, 7), Axis(4, 5, 0), Axis(5, 1, 0)]
    assert collapsed(rows) == [Axis(60, 1, 0)]
    assert collapsed([Axis(3, 0, 0), Axis(4, 0, 0)]) == [Axis(12, 0, 0)]
    assert collapsed([Axis(1, 3, 4)]) == collapsed([]) == [Axis(1, 0, 0)]
    apart = [Axis(3, 20, 0), Axis(4, 5, 1), Axis(5, -1, 0)]
    assert collapsed(apart) == apart
    assert bounds(apart) == ((-4, 55), (0, 3))
    first, second = walk(apart, 60)
    assert (first.min(), first.max(), second.min(), second.max()) == (-4, 55, 0, 3)
    assert (first[7], second[7]) == (5 - 2, 1)


# What is refused


SHAPES = {"X": "[2, 3, 8]", "Y": "[2, 3, 7]", "Z": "[3, 8]"}
REFUSED: list[tuple[Callable[[Any, Tensor], object], str]] = [
    (
        lambda o, x: o.transpose(x, (0, 0, 1)),
        "transpose: x is X and the axes are [0, 0, 1]; expected each of [0, 1, 2] once",
    ),
    (lambda o, x: o.transpose(x, (0, 1)), "transpose: x is X and the axes are [0, 1]; expected each of [0, 1, 2] once"),
    (lambda o, x: o.transpose(x, (0, 1, 3)), "transpose: axis 3 of x X; expected a whole number from -3 to 2"),
    (lambda o, x: o.transpose(o.slice(x, 0, 0, 0), [0]), "transpose: x is [], which has no axes"),
    (lambda o, x: o.split_heads(x, 3), "split_heads: x is X; expected [..., rows, a multiple of 3 columns]"),
    (lambda o, x: o.split_heads(x, 0), "split_heads: heads is 0; expected a whole number from 1 on"),
    (
        lambda o, x: o.split_heads(o.slice(x, 0, 0), 2),
        "split_heads: x is [8]; expected [..., rows, a multiple of 2 columns]",
    ),
    (lambda o, x: o.merge_heads(o.slice(x, 0)), "merge_heads: x is Z; expected [..., heads, rows, columns of a head]"),
    (lambda o, x: o.split_qkv(x, 2, 2), "split_qkv: x is X; expected [..., rows, a multiple of (2 + 2·2) columns]"),
    (lambda o, x: o.split_qkv(x, 2, 1, 3), "split_qkv: x is X; expected [..., rows, (2 + 2·1)·3 columns]"),
    (lambda o, x: o.split_qkv(x, 2, True), "split_qkv: kv_heads is True; expected a whole number from 1 on"),
    (lambda o, x: o.concat([]), "concat: found no tensors; expected at least one"),
    (
        lambda o, x: o.concat([x, o.slice(x, ..., slice(7))], 1),
        "concat: found X and Y; expected one shape but for axis 1",
    ),
    (lambda o, x: o.concat([x, o.slice(x, 0)]), "concat: found X and Z; expected one shape but for axis 2"),
    (
        lambda o, x: o.concat([x, o.astype(x, "float16")]),
        "concat: found X of float32 and X of float16; expected one type: use astype first",
    ),
    (lambda o, x: o.concat([x], 3), "concat: axis 3 of x X; expected a whole number from -3 to 2"),
    (
        lambda o, x: o.slice(x, 0, 0, 0, 0),
        "slice: x is X and the index [0, 0, 0, 0]; expected at most 3 numbers and slices, and one Ellipsis",
    ),
    (
        lambda o, x: o.slice(x, ..., 0, ...),
        "slice: x is X and the index [..., 0, ...]; expected at most 3 numbers and slices, and one Ellipsis",
    ),
    (
        lambda o, x: o.slice(x, ALL, 3),
        "slice: x is X and the index [:, 3]; 3 is no slice, and no whole number from -3 to 2",
    ),
    (
        lambda o, x: o.slice(x, 1.0),
        "slice: x is X and the index [1.0]; 1.0 is no slice, and no whole number from -2 to 1",
    ),
    (
        lambda o, x: o.slice(x, True),
        "slice: x is X and the index [True]; True is no slice, and no whole number from -2 to 1",
    ),
    (
        lambda o, x: o.slice(x, slice(0, 2, 0)),
        "slice: x is X and the index [0:2:0]; 0:2:0 is no slice of whole numbers: slice step cannot be zero",
    ),
    (
        lambda o, x: o.slice(x, np.zeros((2, 1))),
        "slice: x is X and the index [array([[0.], [0.]])]; array([[0.], [0.]]) is no slice, and no whole number "
        "from -2 to 1",
    ),
    (lambda o, x: o.expand(x, (3, 8)), "expand: x is X, which does not broadcast to Z"),
    (lambda o, x: o.expand(x, (2, 3, 7)), "expand: x is X, which does not broadcast to Y"),
    (lambda o, x: o.expand(x, (2, 3, 0)), "expand: x is X, which does not broadcast to [2, 3, 0]"),
    (lambda o, x: o.repack(x, (2, 3, 7)), "repack: x is X of 48 elements, which cannot become Y"),
    (lambda o, x: o.repack(x, 48), "repack: found the shape 48; expected whole numbers from 0 on"),
    (lambda o, x: o.astype(x, "int32"), "astype: x is X of float32 and dtype is int32; expected float32 or float16"),
    (lambda o, x: o.astype(x, "q9"), "astype: x is X of float32 and dtype is q9; expected float32 or float16"),
]


def test_what_is_refused(dev: Device) -> None:
    x = dev.tensor(np.zeros((2, 3, 8), np.float32))
    for run, message in REFUSED:
        for letter, shape in SHAPES.items():
            message = re.sub(rf"\b{letter}\b", shape, message)
        with pytest.raises(InputError) as raised:
            run(dev.ops, x)
        assert str(raised.value) == message


def test_packed_tensors_and_too_many_axes_are_refused(dev: Device) -> None:
    packed = dev.tensor(np.ones((2, 32), np.float32), "Q8_0")
    message = r"x is \[2, 32\] of Q8_0, whose elements lie in blocks; dequantize it first"
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
    for index in (1, -1, slice(1, None), (0, slice(None), 2), (..., slice(None, None, -2)), (None, 2)):
        assert holds(tensor[index], x[index])
    assert [part.shape for part in tensor] == [(4, 5)] * 3
    assert np.array_equal(np.asarray(tensor), x)
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # NumPy 1 means by it: copy where that is needed
        with pytest.raises(ValueError, match="a copy of them is needed"):
            np.array(tensor, copy=False)
    with pytest.raises(InputError, match=r"^slice: x is \[3, 4, 5\] and the index \[3\]; "):
        tensor[3]
