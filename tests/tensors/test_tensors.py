"""Devices and tensors as NumPy has them: bits, shapes, views, who releases what, and what is refused in one line."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import threading
from typing import Any

import numpy as np
import pytest
from agreement import same_bits

from glinfer.errors import ContextError, GlinferError, InputError, PlanError
from glinfer.gl.context import Limits
from glinfer.tensors.device import Device, Memory
from glinfer.tensors.ops import Ops
from glinfer.tensors.tensor import TEXTURE_FORMATS, Tensor

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
SMALL = dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=64)
NOTHING = Memory(0, 0, 0)


def refused(message: str, kind: type[GlinferError] = InputError) -> Any:
    """Expect an error of one line that is exactly this pattern."""
    return pytest.raises(kind, match=rf"\A{message}\Z")


def uploaded(tensor: Tensor) -> Tensor:
    """The same tensor, in a texture."""
    tensor.storage.texture()
    return tensor


def counted(*shape: int, dtype: str = "float32") -> Array:
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


# What a tensor is


@pytest.mark.parametrize("dtype", TEXTURE_FORMATS)
def test_shape_and_type(dev: Device, dtype: str) -> None:
    for shape in ((), (5,), (3, 7), (2, 3, 4, 5), (4097,), (1, 1, 1, 1, 9)):
        array = counted(*shape, dtype=dtype)
        tensor = dev.tensor(array)
        assert (tensor.shape, tensor.ndim, tensor.size, tensor.dtype) == (shape, array.ndim, array.size, dtype)
        assert isinstance(tensor.numpy(), np.ndarray)
        assert same_bits(tensor.numpy(), array), shape
        assert same_bits(uploaded(tensor).numpy(), array), shape
        if shape:
            assert len(tensor) == shape[0]
        else:
            with pytest.raises(TypeError, match="without axes"):
                len(tensor)


def test_shape_and_type_stay(dev: Device) -> None:
    """A shape that was set would no longer be that of the texture."""
    tensor = dev.tensor([[1, 2, 3]])
    for name in ("shape", "dtype"):
        with pytest.raises(AttributeError):
            setattr(tensor, name, (3,))
    assert (tensor.shape, tensor.dtype) == ((1, 3), "int32")


def test_values_become_a_type_that_textures_hold(dev: Device) -> None:
    for values, dtype, expected in (
        (3, None, np.array(3, np.int32)),
        (2.5, None, np.array(2.5, np.float32)),
        ([[1, 2.5]], None, np.array([[1, 2.5]], np.float32)),
        (((1,), (2,)), "float16", np.array([[1], [2]], np.float16)),
        (np.array([1, 2], np.uint8), None, np.array([1, 2], np.int32)),
        (np.array([0.1]), "float32", np.array([0.1], np.float32)),
        (np.float64(0.1), "float32", np.array(0.1, np.float32)),
        (np.array([3, 2], ">f2"), ">f2", np.array([3, 2], np.float16)),
        (np.array([3, -2], ">i4"), None, np.array([3, -2], np.int32)),
        ([1e39, -1e39], "float32", np.array([np.inf, -np.inf], np.float32)),
        (range(3), None, np.array([0, 1, 2], np.int32)),
    ):
        assert same_bits(uploaded(dev.tensor(values, dtype)).numpy(), expected), (values, dtype)


def test_arrays_that_do_not_lie_row_by_row(dev: Device) -> None:
    whole = counted(6, 7)
    views = (whole[::2, 1:], whole.T, whole[::-1, ::-3], np.asfortranarray(whole), whole[:, 2])
    for array in (*views, np.broadcast_to(whole[0], (5, 7))):
        assert same_bits(uploaded(dev.tensor(array)).numpy(), np.ascontiguousarray(array)), array.strides


def test_neither_side_sees_later_changes_of_the_other(dev: Device) -> None:
    for before_the_upload in (True, False):
        array = counted(3, 5)
        tensor = dev.tensor(array)
        if not before_the_upload:
            uploaded(tensor)
        array[:] = -1
        found = tensor.numpy()
        assert same_bits(found, counted(3, 5))
        found[:] = -2
        assert same_bits(tensor.numpy(), counted(3, 5))


# Bits


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_every_number_comes_back_bit_for_bit(dev: Device, dtype: str) -> None:
    """Zeros, denormals, infinities, quiet and signalling NaNs with payloads, extremes, and random patterns."""
    special = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000]
    special += [0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFBFFFFF, 0x7FFFFFFF, 0x3F800001, 0xFFFFFFFF]
    some = np.random.default_rng(1).integers(0, 2**32, 5000, dtype=np.uint32)
    for cols in (1, 6, 5016):
        array = np.concatenate([np.array(special, np.uint32), some]).view(dtype).reshape(-1, cols)
        assert same_bits(uploaded(dev.tensor(array)).numpy(), array), cols


def test_every_float16_comes_back(dev: Device) -> None:
    array = np.arange(2**16, dtype=np.uint16).view(np.float16)
    found = uploaded(dev.tensor(array)).numpy()
    numbers = ~np.isnan(array)
    assert found.dtype == np.float16
    assert same_bits(found[numbers], array[numbers])
    assert np.isnan(found[~numbers]).all()


def test_too_large_for_any_texture(small: Device) -> None:
    for rows, cols in ((1, 16385), (4097, 1), (4097, 4), (16384, 16384)):
        texels = rows * -(-cols // 4)
        array = np.broadcast_to(np.float32(1), (rows, cols))
        said = rf"a tensor \[{rows}, {cols}\]: a {rows}×{cols} matrix takes {texels} texels of four elements; "
        if array.size < 1e6:
            with refused(f"tensor: {said}the largest texture here is 64×64", PlanError):
                small.tensor(array)
        with refused(f"{said}the largest texture here is 64×64", PlanError):
            small.layout((rows, cols), "float32")
    assert small.memory() == NOTHING


# Packed tensors


def test_packed_floats(dev: Device) -> None:
    pytest.importorskip("gguf", reason="the package gguf is not installed (pip install 'glinfer[gguf]')")
    from glinfer.quant.ggml import dequantize, pack

    weights = np.random.default_rng(1).standard_normal((2, 3, 64)).astype(np.float32)
    for name in ("Q8_0", "q4_0", "Q8_ROW"):
        tensor = dev.tensor(weights, name)
        assert (tensor.shape, tensor.dtype, tensor.packed) == ((2, 3, 64), name.upper(), True)
        blocks = pack(weights, name.upper())
        for found in (tensor.numpy(), uploaded(tensor).numpy()):
            assert same_bits(found, blocks), name
        unpacked = dequantize(blocks.reshape(6, -1), name.upper())
        assert np.abs(unpacked - weights.reshape(6, 64)).max() < 0.4, name


def test_packed_bytes_come_back_and_views_keep_their_rows(dev: Device) -> None:
    blocks = np.random.default_rng(1).integers(0, 256, (2, 3, 4 * 144), dtype=np.uint8)
    tensor = dev.tensor(blocks, "Q4_K")
    assert tensor.shape == (2, 3, 1024)
    assert tensor.nbytes >= blocks.nbytes
    view = tensor.reshape(6, 1024)
    assert same_bits(uploaded(view).numpy(), blocks.reshape(6, -1))
    assert dev.memory().textures == 1
    for shape in ((3, 2048), (-1,), (6, 4, 256)):
        with refused(r"reshape: the rows of a Q4_K tensor \[2, 3, 1024\] stay whole; found \[.*\]"):
            tensor.reshape(shape)


# Views


@pytest.mark.parametrize("first", [True, False], ids=["uploaded", "waiting"])
def test_reshape_is_a_view_where_the_texels_stay(dev: Device, first: bool) -> None:
    for shape, to in (((2, 3, 5), (6, 5)), ((2, 3, 5), (1, 6, 1, 5)), ((6, 8), (2, -1)), ((1,), ()), ((), (1, 1))):
        array = counted(*shape)
        tensor = dev.tensor(array)
        if first:
            uploaded(tensor)
        drawn = dev.draws_issued
        view = tensor.reshape(to)
        assert same_bits(view.numpy(), array.reshape(to)), (shape, to)
        assert same_bits(tensor.reshape(*to).numpy(), array.reshape(to))
        assert view.storage is tensor.storage
        assert same_bits(dev.ops.activate(view, "none").numpy(), array.reshape(to))
        assert same_bits(tensor.numpy(), array), "the tensor itself has another shape now"
        assert dev.draws_issued == drawn + 1
        assert view.layout.row_texels * view.layout.rows == tensor.layout.row_texels * tensor.layout.rows


def test_reshape_is_a_copy_where_they_do_not(dev: Device) -> None:
    for shape, to, dtype in (
        ((2, 6), (3, 4), "float32"),
        ((2, 6), (12,), "float16"),
        ((12,), (2, 2, 3), "int32"),
        ((3, 4), (-1, 1), "float32"),
    ):
        array = counted(*shape, dtype=dtype)
        tensor = dev.tensor(array)
        copy = tensor.reshape(to)
        assert copy.storage is not tensor.storage
        tensor.release()
        assert same_bits(copy.numpy(), array.reshape(to)), (shape, to)


# Who releases what


def test_the_last_of_all_views_releases_the_texture(own: Device) -> None:
    dev = own
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


def test_a_released_tensor_has_a_shape(dev: Device) -> None:
    gone = dev.tensor(counted(4))
    gone.release()
    assert (gone.shape, gone.size, gone.dtype) == ((4,), 4, "float32")


def test_nothing_is_uploaded_before_it_is_used(own: Device) -> None:
    dev = own
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


def test_memory_counts_the_padding(dev: Device) -> None:
    for dtype, each in (("float32", 16), ("float16", 8), ("int32", 16)):
        with uploaded(dev.tensor(counted(9, 5, dtype=dtype))) as tensor:
            layout = tensor.layout
            assert layout.width * layout.height >= 9 * 2
            assert dev.memory() == Memory(1, 1, layout.width * layout.height * each), dtype


def test_a_forgotten_tensor_is_released_at_the_next_call(own: Device) -> None:
    dev = own
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


def test_a_tensor_may_be_forgotten_in_another_thread(own: Device) -> None:
    dev = own
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


def test_closing_releases_everything_and_says_so_afterwards() -> None:
    with Device() as dev:
        kept, waiting = uploaded(dev.tensor(counted(9))), dev.tensor(counted(7))
        result = dev.ops.silu(kept)
    assert dev.memory() == NOTHING
    for tensor in (kept, waiting, result):
        with refused("numpy: this tensor was released; its elements are gone"):
            tensor.numpy()
        tensor.release()
    with refused("this device was closed; open or load again", ContextError):
        dev.tensor([1.0])
    dev.close()


def test_a_failing_call_leaves_nothing_behind(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = uploaded(dev.tensor(counted(5, 3)))
    before = dev.memory()

    def fail(*_: object, **__: object) -> None:
        raise PlanError("draw silu: y is [5, 3]; expected [5, 4]")

    monkeypatch.setattr("glinfer.tensors.passes.Session", fail)
    with refused(r"silu: draw silu: y is \[5, 3\]; expected \[5, 4\]"):
        dev.ops.silu(x)
    assert dev.memory() == before
    monkeypatch.undo()
    assert dev.ops.silu(x).shape == (5, 3)


# Results


def test_every_kernel_refuses_what_is_no_tensor(dev: Device) -> None:
    others = {"activation": "silu", "axes": (1, 0), "axis": 0, "factor": 2.0, "shape": (4, 4), "dtype": "float32"}
    for name in (name for name in dir(Ops) if not name.startswith("_")):
        parameters = inspect.signature(getattr(Ops, name)).parameters.values()
        wanted = [each.name for each in parameters if each.default is each.empty and "Tensor" in str(each.annotation)]
        named = {each.name: others.get(each.name, 1) for each in parameters if each.default is each.empty}
        named = {key: value for key, value in named.items() if key not in ("self", "index", *wanted)}
        for given in (None, [1.0], np.ones((4, 4), np.float32)):
            what = given[0] if name == "concat" and isinstance(given, list) else given  # it takes lists of tensors
            kind = type(what).__name__
            with refused(rf"{name}: {wanted[0]} is {kind}; make a tensor of it with device\.tensor\(\w+\)"):
                getattr(dev.ops, name)(**dict.fromkeys(wanted, given), **named)


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
            with refused("silu: x is a tensor of another device; make it on this one"):
                use()
        with refused("silu: out is a tensor of another device; make it on this one"):
            dev.ops.silu(here, out=there)
        here.release()
        assert other.memory().tensors == 2
    assert dev.memory().tensors == 1
    assert same_bits(ours.numpy(), array)


def test_a_device_that_does_not_open_leaves_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ContextError("no derivatives here")

    monkeypatch.setattr("glinfer.tensors.device.default_for", fail)
    with refused("no derivatives here", ContextError):
        Device()  # the audit complains about a context that stays open
    with refused(r"there is no EGL device 63; .*", ContextError):
        Device(63)
