"""Devices and tensors as NumPy has them: bits, shapes, views, who releases what, and what is refused in one line."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import glinfer
from glinfer.errors import ContextError, GlinferError, InputError, PlanError
from glinfer.gl.context import Limits
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.ops.spec import DrawSpec
from glinfer.tensors.device import Device, Memory
from glinfer.tensors.ops import Ops
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import TEXTURE_FORMATS, Tensor

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
SMALL = dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=64)
NOTHING = Memory(0, 0, 0)


@pytest.fixture
def dev() -> Iterator[Device]:
    with Device() as opened:
        yield opened


@pytest.fixture
def small() -> Iterator[Device]:
    """Textures of at most 64 texels a side: no more than 16384 elements in one of them."""
    with Device(limits=SMALL) as opened:
        yield opened


def refused(message: str, kind: type[GlinferError] = InputError) -> Any:
    """Expect an error of one line that is exactly this pattern."""
    return pytest.raises(kind, match=rf"\A{message}\Z")


def uploaded(tensor: Tensor) -> Tensor:
    """The same tensor, in a texture."""
    tensor.storage.texture()
    return tensor


def same_bits(found: Array, expected: Array) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def counted(*shape: int, dtype: str = "float32") -> Array:
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


# What a tensor is


def test_the_package_offers_both() -> None:
    assert glinfer.Device is Device
    assert glinfer.Tensor is Tensor
    assert {"Device", "Tensor"} <= set(glinfer.__all__)
    assert {"Device", "Tensor", "load"} <= set(dir(glinfer))
    with pytest.raises(AttributeError, match=r"^module 'glinfer' has no attribute 'Divice'$"):
        glinfer.Divice  # noqa: B018


@tiered("shape", [(), (1,), (5,), (1, 1), (3, 7), (2, 1, 5), (2, 3, 4, 5), (4097,), (1, 1, 1, 1, 9)], keep=(0, 4, 7))
@pytest.mark.parametrize("dtype", TEXTURE_FORMATS)
def test_shape_and_type(dev: Device, shape: tuple[int, ...], dtype: str) -> None:
    array = counted(*shape, dtype=dtype)
    tensor = dev.tensor(array)
    assert (tensor.shape, tensor.ndim, tensor.size, tensor.dtype) == (shape, array.ndim, array.size, dtype)
    assert isinstance(tensor.numpy(), np.ndarray)
    assert same_bits(tensor.numpy(), array)
    assert same_bits(uploaded(tensor).numpy(), array)
    if shape:
        assert len(tensor) == shape[0]
    else:
        with pytest.raises(TypeError, match="without axes"):
            len(tensor)


def test_what_it_says_of_itself(dev: Device) -> None:
    tensor = dev.tensor([[1, 2, 3]])
    assert repr(tensor) == "Tensor(shape=(1, 3), dtype=int32, not uploaded yet)"
    assert repr(uploaded(tensor)) == "Tensor(shape=(1, 3), dtype=int32, uploaded)"
    tensor.release()
    assert repr(tensor) == "Tensor(shape=(1, 3), dtype=int32, released)"
    assert "OpenGL" in dev.description


@pytest.mark.parametrize("name", ["shape", "dtype"])
def test_shape_and_type_stay(dev: Device, name: str) -> None:
    """A shape that was set would no longer be that of the texture."""
    tensor = dev.tensor([[1, 2, 3]])
    with pytest.raises(AttributeError):
        setattr(tensor, name, (3,))
    assert (tensor.shape, tensor.dtype) == ((1, 3), "int32")


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (3, None, np.array(3, np.int32)),
        (2.5, None, np.array(2.5, np.float32)),
        ([1, 2], None, np.array([1, 2], np.int32)),
        ([[1, 2.5]], None, np.array([[1, 2.5]], np.float32)),
        (((1,), (2,)), "float16", np.array([[1], [2]], np.float16)),
        (np.array([1, 2], np.uint8), None, np.array([1, 2], np.int32)),
        (np.array([1, -2], np.int64), None, np.array([1, -2], np.int32)),
        (np.array([0.1]), "float32", np.array([0.1], np.float32)),
        (np.array([0.1]), np.float16, np.array([0.1], np.float16)),
        (np.float64(0.1), "float32", np.array(0.1, np.float32)),
        (np.array([1, 2], np.float16), "float32", np.array([1, 2], np.float32)),
        (np.array([3, 2], ">f4"), None, np.array([3, 2], np.float32)),
        (np.array([3, 2], ">f2"), ">f2", np.array([3, 2], np.float16)),
        (np.array([3, -2], ">i4"), None, np.array([3, -2], np.int32)),
        ([1e39, -1e39], "float32", np.array([np.inf, -np.inf], np.float32)),
        (range(3), None, np.array([0, 1, 2], np.int32)),
    ],
)
def test_what_values_become(dev: Device, values: Any, dtype: Any, expected: Array) -> None:
    assert same_bits(uploaded(dev.tensor(values, dtype)).numpy(), expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[::2, 1:],
        lambda array: array.T,
        lambda array: array[::-1, ::-3],
        lambda array: np.asfortranarray(array),
        lambda array: np.broadcast_to(array[0], (5, 7)),
        lambda array: array[:, 2],
    ],
)
def test_arrays_that_do_not_lie_row_by_row(dev: Device, view: Callable[[Array], Array]) -> None:
    array = view(counted(6, 7))
    assert same_bits(uploaded(dev.tensor(array)).numpy(), np.ascontiguousarray(array))


@pytest.mark.parametrize("when", ["before the upload", "after it"])
def test_neither_side_sees_later_changes_of_the_other(dev: Device, when: str) -> None:
    array = counted(3, 5)
    tensor = dev.tensor(array)
    if when == "after it":
        uploaded(tensor)
    array[:] = -1
    found = tensor.numpy()
    assert same_bits(found, counted(3, 5))
    found[:] = -2
    assert same_bits(tensor.numpy(), counted(3, 5))


# Bits


def float32_bits() -> Array:
    """Zeros, denormals, infinities, quiet and signalling NaNs with payloads, extremes, and random patterns."""
    special = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000]
    special += [0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFBFFFFF, 0x7FFFFFFF, 0x3F800001]
    some = np.random.default_rng(1).integers(0, 2**32, 5000, dtype=np.uint32)
    return np.concatenate([np.array(special, np.uint32), some]).view(np.float32)


@pytest.mark.parametrize("cols", [1, 5, 5015])
def test_every_float32_comes_back_bit_for_bit(dev: Device, cols: int) -> None:
    array = float32_bits().reshape(-1, cols)
    assert same_bits(uploaded(dev.tensor(array)).numpy(), array)


def test_every_float16_comes_back(dev: Device) -> None:
    array = np.arange(2**16, dtype=np.uint16).view(np.float16)
    found = uploaded(dev.tensor(array)).numpy()
    numbers = ~np.isnan(array)
    assert found.dtype == np.float16
    assert same_bits(found[numbers], array[numbers])
    assert np.isnan(found[~numbers]).all()


def test_every_kind_of_int32_comes_back(dev: Device) -> None:
    extremes = [0, 1, -1, 2**31 - 1, -(2**31), 2**24 + 1, -(2**24) - 1, 0x7FC00000, 0x00000001 - 2**31]
    array = np.concatenate([np.array(extremes), np.random.default_rng(1).integers(-(2**31), 2**31, 4000)])
    assert same_bits(uploaded(dev.tensor(array)).numpy(), array.astype(np.int32))


@pytest.mark.parametrize("shape", [(3, 1031), (1, 16384), (331, 5), (16384,), (2, 3, 515), (4096, 1)])
def test_more_than_an_edge_of_a_texture(small: Device, shape: tuple[int, ...]) -> None:
    for dtype in TEXTURE_FORMATS:
        array = np.random.default_rng(1).integers(-999, 999, shape).astype(dtype)
        tensor = uploaded(small.tensor(array))
        assert max(tensor.layout.width, tensor.layout.height) <= 64
        assert same_bits(tensor.numpy(), array)


@pytest.mark.parametrize("shape", [(1, 16385), (4097, 1), (4097, 4), (16384, 16384)])
def test_too_large_for_any_texture(small: Device, shape: tuple[int, ...]) -> None:
    rows, cols = shape
    texels = rows * -(-cols // 4)
    array = np.broadcast_to(np.float32(1), shape)
    said = rf"a tensor \[{rows}, {cols}\]: a {rows}×{cols} matrix takes {texels} texels of four elements; "
    if array.size < 1e6:
        with refused(f"{said}the largest texture here is 64×64", PlanError):
            small.tensor(array)
    with refused(f"{said}the largest texture here is 64×64", PlanError):
        small.layout(shape, "float32")
    assert small.memory() == NOTHING


def test_a_result_too_large_for_any_texture_names_the_call(small: Device) -> None:
    passes = Passes(small, "widen")
    for make in (passes.result, lambda name, shape: passes.scratch(name, *shape)):
        with refused("widen: a 4097×1 matrix takes 4097 texels of four elements; the largest texture here is 64×64"):
            make("y", (4097, 1))
    assert small.memory() == NOTHING


# What is no tensor


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        (np.zeros(3), None, "found an array of float64, which no texture holds; say dtype='float32' to round it"),
        (np.float64(1), None, "found an array of float64, which no texture holds; say dtype='float32' to round it"),
        (np.zeros(3, ">f8"), None, "found an array of float64, which no texture holds; say dtype='float32' .*"),
        (np.zeros(3, np.longdouble), None, r"found an array of \w+, which no texture holds; say dtype='float32' .*"),
        (
            [2**31],
            None,
            "found int64 from 2147483648 to 2147483648; int32 cannot hold that exactly",
        ),
        ([-(2**31) - 1, 5], None, "found int64 from -2147483649 to 5; int32 cannot hold that exactly"),
        (np.array([2**64 - 1], np.uint64), None, "found uint64 from 18446744073709551615 to .*; int32 cannot .*"),
        ([1.0], "int32", r"found float64 from 1.0 to 1.0; int32 cannot hold that exactly"),
        ([2**70], None, r"found an array of object; expected numbers: float32, float16, int32"),
        (np.zeros((0, 32), np.float32), "Q8_0", r"found an array \[0, 32\] without elements; .*"),
        ([[1, 2], [3]], None, r"found no rectangle of numbers \(.*\); expected an array, or lists of one length"),
        ([[1, 2], [3]], "Q8_0", r"found no rectangle of numbers \(.*\); expected an array, or lists of one length"),
        ("text", None, "found an array of <U4; expected numbers: float32, float16, int32"),
        (["1.5"], "float32", "found an array of <U3; expected numbers: .*"),
        ([["x"] * 32], "Q8_0", "found an array of <U1; expected numbers: .*"),
        ([True, False], None, "found an array of bool; expected numbers: .*"),
        (np.zeros(2, np.complex64), None, "found an array of complex64; expected numbers: .*"),
        (np.zeros((2, 32), np.complex64), "Q8_0", "found an array of complex64; expected numbers: .*"),
        (None, None, "found an array of object; expected numbers: .*"),
        ({"a": 1}, None, "found an array of object; expected numbers: .*"),
        ([1.0], "float64", "dtype is float64; expected one of float32, float16, int32, BF16, .*"),
        ([1], np.int64, "dtype is int64; expected one of float32, .*"),
        ([1], "Q9_0", "dtype is 'Q9_0'; expected one of float32, .*"),
        ([1], 5, "dtype is 5; expected one of float32, .*"),
        (1.0, "Q8_0", r"found an array \[\] for Q8_0; expected rows of weights"),
        (np.zeros((2, 33), np.float32), "Q8_0", "a row of 33 weights is no whole number of Q8_0 blocks of 32"),
        (np.zeros((2, 33), np.uint8), "Q8_0", "a row of 33 bytes is no whole number of Q8_0 blocks of 34 bytes"),
    ],
)
def test_values_that_are_refused(dev: Device, values: Any, dtype: Any, message: str) -> None:
    with refused(message):
        dev.tensor(values, dtype)
    assert dev.memory() == NOTHING


def test_a_tensor_is_no_array(dev: Device) -> None:
    tensor = dev.tensor([1.0])
    with refused(r"found a tensor; use it as it is, or on another device its copy: tensor\.numpy\(\)"):
        dev.tensor(tensor)  # type: ignore[arg-type]


# Packed tensors


@pytest.mark.parametrize("name", ["Q8_0", "q4_0", "Q8_ROW"])
def test_packed_floats(dev: Device, name: str) -> None:
    pytest.importorskip("gguf", reason="the package gguf is not installed (pip install 'glinfer[gguf]')")
    from glinfer.quant.ggml import dequantize, pack

    weights = np.random.default_rng(1).standard_normal((2, 3, 64)).astype(np.float32)
    tensor = dev.tensor(weights, name)
    assert (tensor.shape, tensor.dtype, tensor.packed) == ((2, 3, 64), name.upper(), True)
    blocks = pack(weights, name.upper())
    for found in (tensor.numpy(), uploaded(tensor).numpy()):
        assert same_bits(found, blocks)
    unpacked = dequantize(blocks.reshape(6, -1), name.upper())
    assert np.abs(unpacked - weights.reshape(6, 64)).max() < 0.4


def test_packed_bytes_come_back_and_views_keep_their_rows(dev: Device) -> None:
    blocks = np.random.default_rng(1).integers(0, 256, (2, 3, 4 * 144), dtype=np.uint8)
    tensor = dev.tensor(blocks, "Q4_K")
    assert tensor.shape == (2, 3, 1024)
    assert tensor.nbytes >= blocks.nbytes
    view = tensor.reshape(6, 1024)
    assert same_bits(uploaded(view).numpy(), blocks.reshape(6, -1))
    assert dev.memory().textures == 1
    for shape in ((3, 2048), (-1,), (6, 4, 256)):
        with refused(r"the rows of a Q4_K tensor \[2, 3, 1024\] stay whole; found \[.*\]"):
            tensor.reshape(shape)


# Views


@tiered(
    ("shape", "to"),
    [
        ((2, 3, 5), (6, 5)),
        ((2, 3, 5), (1, 6, 1, 5)),
        ((6, 8), (48,)),
        ((6, 8), (12, 4)),
        ((6, 8), (2, -1)),
        ((5,), (1, 5)),
        ((1,), ()),
        ((), (1, 1)),
        ((), (-1,)),
        ((7, 1), (7, 1, 1)),
    ],
    keep=(0, 3, 6),
)
@pytest.mark.parametrize("first", [True, False], ids=["uploaded", "waiting"])
def test_reshape_is_a_view_where_the_texels_stay(
    dev: Device, shape: tuple[int, ...], to: tuple[int, ...], first: bool
) -> None:
    array = counted(*shape)
    tensor = dev.tensor(array)
    if first:
        uploaded(tensor)
    drawn = dev.draws_issued
    view = tensor.reshape(to)
    assert same_bits(view.numpy(), array.reshape(to))
    assert same_bits(tensor.reshape(*to).numpy(), array.reshape(to))
    assert view.storage is tensor.storage
    assert same_bits(dev.ops.activate(view, "none").numpy(), array.reshape(to))
    assert same_bits(tensor.numpy(), array), "the tensor itself has another shape now"
    assert dev.draws_issued == drawn + 1
    assert view.layout.row_texels * view.layout.rows == tensor.layout.row_texels * tensor.layout.rows


@tiered(("shape", "to"), [((2, 6), (3, 4)), ((2, 6), (12,)), ((12,), (2, 2, 3)), ((3, 4), (-1, 1))], keep=(0, 3))
@pytest.mark.parametrize("dtype", TEXTURE_FORMATS)
def test_reshape_is_a_copy_where_they_do_not(
    dev: Device, shape: tuple[int, ...], to: tuple[int, ...], dtype: str
) -> None:
    array = counted(*shape, dtype=dtype)
    tensor = dev.tensor(array)
    copy = tensor.reshape(to)
    assert copy.storage is not tensor.storage
    tensor.release()
    assert same_bits(copy.numpy(), array.reshape(to))


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ((5, 5), r"a tensor \[4, 6\] of 24 elements cannot become \[5, 5\]"),
        ((-1, 5), r"a tensor \[4, 6\] of 24 elements cannot become \[-1, 5\]"),
        ((-1, -1), r"a tensor \[4, 6\] of 24 elements cannot become \[-1, -1\]"),
        ((-2, 12), r"a tensor \[4, 6\] of 24 elements cannot become \[-2, 12\]"),
        ((-2, -12), r"a tensor \[4, 6\] of 24 elements cannot become \[-2, -12\]"),
        ((0, -1), r"a tensor \[4, 6\] of 24 elements cannot become \[0, -1\]"),
        ((), r"a tensor \[4, 6\] of 24 elements cannot become \[\]"),
        ((4.0, 6), r"found the shape \(4\.0, 6\); expected whole numbers, one of which may be -1"),
        (("4", 6), r"found the shape \('4', 6\); expected whole numbers, one of which may be -1"),
        ((None,), r"found the shape \(None,\); expected whole numbers, one of which may be -1"),
    ],
)
def test_a_shape_that_it_cannot_have(dev: Device, to: tuple[Any, ...], message: str) -> None:
    with refused(message):
        dev.tensor(counted(4, 6)).reshape(to)


@pytest.mark.parametrize(
    ("shape", "to"), [((2, 8), (4, 4)), ((4, 4), (2, 8)), ((3, 5), (1, 3, 5)), ((1, 4096), (1024, 4))]
)
def test_writing_into_a_view_writes_into_the_tensor(dev: Device, shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    tensor = dev.tensor(counted(*shape))
    view = tensor.reshape(to)
    values = counted(*to) + np.float32(0.5)
    assert dev.ops.activate(dev.tensor(values), "none", out=view) is view
    assert same_bits(tensor.numpy(), values.reshape(shape))
    assert same_bits(view.numpy(), values)


# Who releases what


def test_the_last_of_all_views_releases_the_texture(dev: Device) -> None:
    tensor = uploaded(dev.tensor(counted(4, 8)))
    views = [tensor.reshape(8, 4), tensor.reshape(32).reshape(2, 16)]
    assert dev.memory() == Memory(1, 1, tensor.nbytes)
    tensor.release()
    tensor.release()
    views.pop().release()
    assert dev.memory().textures == 1
    assert same_bits(views[0].numpy(), counted(8, 4))
    views[0].release()
    assert dev.memory() == NOTHING
    assert not dev.context.live_objects()


def test_a_with_block_releases_even_when_it_fails(dev: Device) -> None:
    with dev.tensor(counted(3, 3)) as x, dev.ops.silu(x) as y:
        assert dev.memory().textures == 2
    for tensor in (x, y):
        with refused(r"this tensor \[3, 3\] was released; make it again, or release it later"):
            tensor.numpy()
    with pytest.raises(ZeroDivisionError), uploaded(dev.tensor([1.0])):
        raise ZeroDivisionError
    assert dev.memory() == NOTHING


@pytest.mark.parametrize(
    "use",
    [
        lambda dev, gone: gone.numpy(),
        lambda dev, gone: gone.reshape(1, 4),
        lambda dev, gone: gone.reshape(2, 2),
        lambda dev, gone: gone.layout,
        lambda dev, gone: gone.nbytes,
        lambda dev, gone: dev.ops.silu(gone),
        lambda dev, gone: dev.ops.silu(dev.tensor(counted(4)), out=gone),
    ],
)
def test_a_released_tensor_says_so(dev: Device, use: Callable[[Device, Tensor], object]) -> None:
    gone = dev.tensor(counted(4))
    gone.release()
    with refused(r"this tensor \[4\] was released; make it again, or release it later"):
        use(dev, gone)
    assert (gone.shape, gone.size, gone.dtype) == ((4,), 4, "float32")


def test_nothing_is_uploaded_before_it_is_used(dev: Device) -> None:
    tensor = dev.tensor(counted(100, 7))
    assert dev.memory() == Memory(1, 0, 0)
    tensor.numpy()
    tensor.reshape(10, 10, 7).numpy()
    assert dev.memory() == Memory(1, 0, 0)
    assert not dev.context.live_objects()
    dev.ops.silu(tensor).release()
    assert dev.memory() == Memory(1, 1, tensor.nbytes)
    tensor.release()
    assert dev.memory() == NOTHING


@pytest.mark.parametrize(("dtype", "each"), [("float32", 16), ("float16", 8), ("int32", 16)])
def test_memory_counts_the_padding(dev: Device, dtype: str, each: int) -> None:
    tensor = uploaded(dev.tensor(counted(9, 5, dtype=dtype)))
    layout = tensor.layout
    assert layout.width * layout.height >= 9 * 2
    assert dev.memory() == Memory(1, 1, layout.width * layout.height * each)
    assert FORMATS[TEXTURE_FORMATS[dtype]].bytes_per_texel == each


def test_a_forgotten_tensor_is_released_at_the_next_call(dev: Device) -> None:
    first = uploaded(dev.tensor(counted(5)))
    second = uploaded(dev.tensor(counted(8)))
    view = second.reshape(2, 4)
    del first, second
    gc.collect()
    assert dev.memory().tensors == 1, "the view keeps what it shows"
    del view
    gc.collect()
    assert dev.context.live_objects() == {"texture": 1}, "not before the next call"
    dev.tensor([1]).release()
    assert not dev.context.live_objects()


def test_a_tensor_may_be_forgotten_in_another_thread(dev: Device) -> None:
    held = [uploaded(dev.tensor(counted(50))) for _ in range(20)]
    problems: list[BaseException] = []

    def forget() -> None:
        try:
            while held:
                held.pop()
            gc.collect()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=forget)
    thread.start()
    thread.join()
    assert not problems
    assert dev.context.live_objects()["texture"] == 20, "released by a thread that has no context"
    assert dev.memory() == NOTHING
    assert not dev.context.live_objects()


def test_another_thread_may_not_use_the_device(dev: Device) -> None:
    said: list[str] = []
    tensor = dev.tensor(counted(5))

    def use() -> None:
        for call in (lambda: dev.tensor([1.0]), lambda: dev.ops.silu(tensor)):
            try:
                call()
            except ContextError as error:
                said.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(said) == 2
    assert all("belongs to the thread that opened it" in line for line in said)


def test_closing_releases_everything_and_says_so_afterwards() -> None:
    with Device() as dev:
        kept, waiting = uploaded(dev.tensor(counted(9))), dev.tensor(counted(7))
        result = dev.ops.silu(kept)
    assert dev.memory() == NOTHING
    for tensor in (kept, waiting, result):
        with refused("this tensor was released; its elements are gone"):
            tensor.numpy()
        tensor.release()
    with refused("this device was closed; open or load again", ContextError):
        dev.tensor([1.0])
    dev.close()


def test_a_failing_call_leaves_nothing_behind(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = uploaded(dev.tensor(counted(5, 3)))
    before = dev.memory()

    def fail(*_: object, **__: object) -> None:
        raise PlanError("draw activate: y is [5, 3]; expected [5, 4]")

    monkeypatch.setattr("glinfer.tensors.passes.Session", fail)
    with refused(r"activate: draw activate: y is \[5, 3\]; expected \[5, 4\]"):
        dev.ops.silu(x)
    assert dev.memory() == before
    monkeypatch.undo()
    assert dev.ops.silu(x).shape == (5, 3)


# Results


def test_out_takes_the_result(dev: Device) -> None:
    x = dev.tensor(np.array([[-1.0, 0.0, 30.0]], np.float32))
    out = dev.tensor(np.full((1, 3), np.nan, np.float32))
    with dev.ops.silu(x) as fresh:
        expected = fresh.numpy()
    textures = dev.memory()
    assert dev.ops.silu(x, out=out) is out
    assert same_bits(out.numpy(), expected)
    assert dev.memory().tensors == textures.tensors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda dev, x: dev.tensor(counted(3, 4)),
            r"activate: out is \[3, 4\] of float32; the result is \[4, 3\] of float32",
        ),
        (lambda dev, x: dev.tensor(counted(12)), r"activate: out is \[12\] of float32; the result is \[4, 3\] of .*"),
        (
            lambda dev, x: dev.tensor(counted(4, 3, dtype="float16")),
            r"activate: out is \[4, 3\] of float16; the result is \[4, 3\] of float32",
        ),
        (lambda dev, x: dev.tensor(counted(4, 3, dtype="int32")), r"activate: out is \[4, 3\] of int32; .*"),
        (
            lambda dev, x: x,
            "activate: out is read or written by this call already; give it another tensor",
        ),
        (
            lambda dev, x: x.reshape(2, 2, 3).reshape(4, 3),
            "activate: out is read or written by this call already; give it another tensor",
        ),
        (
            lambda dev, x: counted(4, 3),
            r"silu: out is a ndarray; make a tensor of it with device\.tensor\(out\)",
        ),
    ],
)
def test_an_out_that_does_not_fit(dev: Device, make: Callable[[Device, Tensor], Any], message: str) -> None:
    x = dev.tensor(counted(4, 3))
    with refused(message):
        dev.ops.silu(x, out=make(dev, x))
    assert same_bits(x.numpy(), counted(4, 3))


def test_what_is_written_first_may_not_be_read_either(dev: Device) -> None:
    out = dev.tensor(counted(8))
    passes = Passes(dev, "twice")
    passes.result("y", (8,), out=out)
    with refused("twice: out is read by this call, as x; give it another tensor"):
        passes.read("x", out.reshape(2, 4))
    with refused("twice: out is read or written by this call already; give it another tensor"):
        passes.result("z", (8,), out=out)


@pytest.mark.parametrize("given", [counted(3), [1.0, 2.0], 5.0])
def test_an_array_is_no_tensor(dev: Device, given: Any) -> None:
    with refused(rf"silu: x is a {type(given).__name__}; make a tensor of it with device\.tensor\(x\)"):
        dev.ops.silu(given)
    x = dev.tensor([[1.0, 2.0]])
    with refused(rf"matmul: y is a {type(given).__name__}; make a tensor of it with device\.tensor\(y\)"):
        dev.ops.matmul(x, given)
    with refused(rf"layer_norm: weight is a {type(given).__name__}; make a tensor of it with .*"):
        dev.ops.layer_norm(x, weight=given)
    with refused(rf"concat: tensors is a {type(given).__name__}; make a tensor of it with .*"):
        dev.ops.concat([x, given])
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        dev.ops.silu()  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [name for name in dir(Ops) if not name.startswith("_")])
@tiered("given", [None, [1.0], np.ones((4, 4), np.float32)], ids=["none", "list", "array"], keep=(2,))
def test_every_kernel_refuses_what_is_no_tensor(dev: Device, name: str, given: Any) -> None:
    parameters = inspect.signature(getattr(Ops, name)).parameters.values()
    wanted = [each.name for each in parameters if each.default is each.empty and "Tensor" in str(each.annotation)]
    others = {"activation": "silu", "axes": (1, 0), "axis": 0, "factor": 2.0, "shape": (4, 4), "dtype": "float32"}
    named = {each.name: others.get(each.name, 1) for each in parameters if each.default is each.empty}
    named = {key: value for key, value in named.items() if key not in ("self", "index", *wanted)}
    what = given[0] if name == "concat" and isinstance(given, list) else given  # it takes lists of tensors
    with refused(rf"{name}: {wanted[0]} is a {type(what).__name__}; make a tensor of it with device\.tensor\(\w+\)"):
        getattr(dev.ops, name)(**dict.fromkeys(wanted, given), **named)


def test_float16_gives_float32_and_padding_stays_zero(dev: Device) -> None:
    array = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float16)
    y = dev.ops.activate(dev.tensor(array), "none")
    assert y.dtype == "float32"
    assert same_bits(y.numpy(), array.astype(np.float32))
    texels = y.storage.texture().framebuffer.read(0, y.layout.width, y.layout.height).reshape(-1, 4)[:10]
    assert (texels.reshape(5, 8)[:, 7] == 0).all()


# Two devices


def test_two_devices_at_once(dev: Device) -> None:
    array = counted(3, 5)
    with Device(limits=SMALL) as other:
        here, there = dev.tensor(array), other.tensor(-array)
        for _ in range(3):  # in turns, each on its own context
            ours, theirs = dev.ops.activate(here, "none"), other.ops.activate(there, "none")
            assert same_bits(ours.numpy(), array)
            assert same_bits(theirs.numpy(), -array)
        assert dev.context.limits.max_texture_size > other.context.limits.max_texture_size == 64
        for use in (lambda: dev.ops.silu(there), lambda: other.ops.silu(here)):
            with refused("activate: x is a tensor of another device; make it on this one"):
                use()
        with refused("activate: out is a tensor of another device; make it on this one"):
            dev.ops.silu(here, out=there)
        here.release()
        assert other.memory().tensors == 2
    assert dev.memory().tensors == 1
    assert same_bits(ours.numpy(), array)


def test_programs_are_kept_from_call_to_call(dev: Device) -> None:
    x = dev.tensor(counted(5, 3))
    dev.ops.silu(x).release()
    programs, drawn = len(dev.programs), dev.draws_issued
    for _ in range(3):
        dev.ops.silu(x).release()
    assert len(dev.programs) == programs
    assert dev.draws_issued == drawn + 3
    objects = dev.context.live_objects()
    dev.ops.silu(x).release()
    assert dev.context.live_objects() == objects


def test_a_device_that_does_not_open_leaves_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ContextError("no derivatives here")

    monkeypatch.setattr("glinfer.tensors.device.default_for", fail)
    with refused("no derivatives here", ContextError):
        Device()  # the audit complains about a context that stays open
    with refused(r"there is no EGL device 63; .*", ContextError):
        Device(63)


def test_fewer_targets_where_a_renderer_has_fewer(dev: Device, small: Device) -> None:
    assert small.kernels.rows_per_draw == 4
    assert dev.kernels.rows_per_draw <= dev.context.limits.max_draw_buffers
    assert isinstance(dev.blends_floats, bool)


def test_the_draws_of_a_call_are_specs(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """One op is one draw: what a call issues is what it has described."""
    described: list[DrawSpec] = []
    draw = Passes.draw

    def note(passes: Passes, *draws: DrawSpec) -> None:
        described.extend(draws)
        draw(passes, *draws)

    monkeypatch.setattr(Passes, "draw", note)
    before = dev.draws_issued
    dev.ops.gelu(dev.tensor(counted(2, 2)))
    assert dev.draws_issued - before == len(described) == 1
    assert described[0].op == "activation"
