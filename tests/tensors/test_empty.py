"""Tensors without elements, as NumPy has them: made, moved, and through every kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from flat_draw import padding

from glinfer.errors import PlanError
from glinfer.tensors.device import Device, Memory
from glinfer.tensors.ops import Ops
from glinfer.tensors.tensor import TEXTURE_FORMATS

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
SHAPES = [(0,), (0, 5), (3, 0), (2, 0, 4), (0, 0)]


def nothing(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, dtype)


def delta_inputs(tensor: Callable[[Array], Any], tokens: int, value: int) -> list[Any]:
    """q, k, v, g and beta of two heads."""
    return [tensor(np.ones((tokens, 2, last), np.float32)) for last in (3, 3, value)] + [
        tensor(np.ones((tokens, 2), np.float32)) for _ in range(2)
    ]


@pytest.mark.parametrize("dtype", TEXTURE_FORMATS)
def test_a_tensor_without_elements(dev: Device, dtype: str) -> None:
    for shape in SHAPES:
        for x in (dev.tensor(nothing(*shape, dtype=dtype)), dev.zeros(shape, dtype), dev.full(shape, 1, dtype)):
            assert (x.shape, x.size, x.dtype, x.nbytes, len(x)) == (shape, 0, dtype, 0, shape[0])
            found = x.numpy()
            assert (found.shape, found.dtype) == (shape, dtype)
            assert dev.memory().textures == 0
            assert "not uploaded" in repr(x)


def test_what_lists_without_elements_become(dev: Device) -> None:
    for values, shape in (([], (0,)), ([[], []], (2, 0)), ([[]], (1, 0))):
        assert dev.tensor(values).shape == shape


MOVES: list[tuple[tuple[int, ...], Callable[[Any], Any], Callable[[Array], Array]]] = [
    ((0, 5), lambda x: x.reshape(5, 0), lambda a: a.reshape(5, 0)),
    ((0, 5), lambda x: x.reshape(-1, 7), lambda a: a.reshape(-1, 7)),
    ((2, 0, 4), lambda x: x.device.ops.transpose(x, (2, 0, 1)), lambda a: a.transpose(2, 0, 1)),
    ((3, 5), lambda x: x[3:], lambda a: a[3:]),
    ((3, 5), lambda x: x[1, 2:2], lambda a: a[1, 2:2]),
    ((0, 5), lambda x: x[::-1, None], lambda a: a[::-1, None]),
    ((1, 5), lambda x: x.device.ops.expand(x, (0, 5)), lambda a: np.broadcast_to(a, (0, 5))),
    ((3, 0), lambda x: x.device.ops.repack(x, (0, 2)), lambda a: a.reshape(0, 2)),
    ((3, 0), lambda x: x.device.ops.astype(x, "float16"), lambda a: a.astype(np.float16)),
    ((0, 6), lambda x: x.device.ops.split_heads(x, 2), lambda a: a.reshape(2, 0, 3)),
    ((2, 0, 3), lambda x: x.device.ops.merge_heads(x), lambda a: a.reshape(0, 6)),
    ((0, 12), lambda x: x.device.ops.split_qkv(x, 2, 1)[0], lambda a: a.reshape(2, 0, 6)[..., :3]),
    ((0, 12), lambda x: x.device.ops.split_qkv(x, 2, 1)[2], lambda a: a.reshape(1, 0, 6)[..., :3]),
    ((3, 0), lambda x: x.device.ops.concat([x, x], 1), lambda a: np.concatenate([a, a], 1)),
]


def test_moves(dev: Device) -> None:
    before = dev.draws_issued
    for shape, move, expected in MOVES:
        array = np.ones(shape, np.float32)
        wanted = expected(array)
        assert wanted.size == 0
        found = move(dev.tensor(array)).numpy()
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert dev.draws_issued == before


def test_concatenation_leaves_out_what_is_empty(dev: Device) -> None:
    parts = [np.ones((2, width), np.float32) * width for width in (0, 3, 0, 2)]
    with dev.ops.concat([dev.tensor(part) for part in parts], 1) as y:
        assert y.numpy().tolist() == np.concatenate(parts, 1).tolist()


X, ROWS = nothing(0, 4), nothing(3, 0)
ONES, WHOLE = np.ones((3, 4), np.float32), nothing(3, dtype="int32")
UNARY = ("silu", "gelu", "gelu_new", "softmax", "log_softmax", "layer_norm", "rms_norm", "rope")
BINARY = ("add", "subtract", "multiply", "divide", "residual_add")
GATES = ("silu_gate", "gelu_gate", "gelu_new_gate")
KERNELS: dict[str, list[tuple[Callable[[Any, Callable[[Array], Any]], Any], Array]]] = {
    **{name: [(lambda o, t, name=name: getattr(o, name)(t(X)), X)] for name in UNARY},
    **{name: [(lambda o, t, name=name: getattr(o, name)(t(X), t(X)), X)] for name in BINARY},
    **{name: [(lambda o, t, name=name: getattr(o, name)(t(X)), X[:, :2])] for name in GATES},
    "add_bias": [(lambda o, t: o.add_bias(t(X), t(ONES[0])), X)],
    "scale": [(lambda o, t: o.scale(t(ROWS), 2.0), ROWS)],
    "activate": [(lambda o, t: o.activate(t(X), "none"), X)],
    "gate": [(lambda o, t: o.gate(t(X), t(X), activation="silu"), X)],
    "add_rms_norm": [(lambda o, t: o.add_rms_norm(t(X), t(X))[0], X), (lambda o, t: o.add_rms_norm(t(X), t(X))[1], X)],
    "sum": [
        (lambda o, t: o.sum(t(ROWS)), ROWS.sum(1)),
        (lambda o, t: o.sum(t(ROWS), keepdims=True), ROWS.sum(1, keepdims=True)),
    ],
    "max": [(lambda o, t: o.max(t(X)), X.max(1))],
    "argmax": [(lambda o, t: o.argmax(t(X)), X.argmax(1).astype(np.int32))],
    "cross_entropy": [(lambda o, t: o.cross_entropy(t(ROWS), t(WHOLE)), nothing(3))],
    "top_k": [
        (lambda o, t: o.top_k(t(X), 2)[0], X[:, :2]),
        (lambda o, t: o.top_k(t(X), 2)[1], nothing(0, 2, dtype="int32")),
    ],
    "matmul": [
        (lambda o, t: o.matmul(t(ROWS), t(X)), ROWS @ X),
        (lambda o, t: o.matmul(t(ROWS), t(nothing(0))), ROWS @ nothing(0)),
        (lambda o, t: o.matmul(t(nothing(0, 3, 4)), t(ONES.T)), nothing(0, 3, 4) @ ONES.T),
        (lambda o, t: o.matmul(t(nothing(2, 0, 3, 4)), t(ONES.T)), nothing(2, 0, 3, 4) @ ONES.T),
        (lambda o, t: o.matmul(t(ROWS), t(X), bias=t(ONES[0]), residual=t(ONES)), ONES + 1),
    ],
    "linear": [
        (lambda o, t: o.linear(t(X), t(ONES)), X @ ONES.T),
        (lambda o, t: o.linear(t(ROWS), t(ROWS), bias=t(ONES[:, 0]), activation="silu"), None),  # type: ignore[list-item]
    ],
    "dot": [
        (lambda o, t: o.dot(t(ROWS), t(nothing(2, 0, 4))), np.dot(ROWS, nothing(2, 0, 4))),
        (lambda o, t: o.dot(t(nothing(0)), t(nothing(0))), np.asarray(np.dot(nothing(0), nothing(0)))),
    ],
    "attention": [
        (lambda o, t: o.attention(t(X), t(ONES), t(ONES)), X),
        (lambda o, t: o.attention(t(ONES), t(X), t(X)), nothing(3, 4)),
    ],
    "attention_scores": [(lambda o, t: o.attention_scores(t(ROWS), t(ROWS), scale=1.0), nothing(3, 3))],
    "attention_values": [(lambda o, t: o.attention_values(t(ROWS), t(X)), nothing(3, 4))],
    "lookup": [
        (lambda o, t: o.lookup(t(WHOLE[:0]), t(ONES)), X),
        (lambda o, t: o.lookup(t(WHOLE), t(X)), nothing(3, 4)),
    ],
    "gather_rows": [
        (lambda o, t: o.gather_rows(t(nothing(0, 4, dtype="int32")), t(WHOLE)), nothing(3, 4, dtype="int32"))
    ],
    "add_positions": [(lambda o, t: o.add_positions(t(X), t(ONES)), X)],
    "causal_conv": [(lambda o, t: o.causal_conv(t(X), t(nothing(3, X.shape[-1]))), X)],
    "gated_delta_rule": [(lambda o, t: o.gated_delta_rule(*delta_inputs(t, 0, 4)), nothing(0, 2, 4))],
    "embedding_backward": [
        (lambda o, t: o.embedding_backward(t(WHOLE[:0]), t(X), 5)[1], nothing(5, 4)),
        (lambda o, t: o.embedding_backward(t(WHOLE[:0]), t(X), into=t(ONES))[0], ONES),
    ],
}
MOVERS = {"transpose", "slice", "expand", "repack", "astype", "concat", "assign"}
MOVERS |= {"split_heads", "merge_heads", "split_qkv"}
OTHERS = {"dequantize", "explain"}
"""One for packed tensors, and one that draws nothing."""


def test_every_kernel_gives_what_numpy_gives(dev: Device) -> None:
    methods = {name for name, _ in inspect.getmembers(Ops, callable) if not name.startswith("_")}
    assert methods == KERNELS.keys() | MOVERS | OTHERS
    for kernel, cases in KERNELS.items():
        for number, (run, expected) in enumerate(cases):
            wanted = np.full((3, 3), 1 / (1 + np.exp(-1)), np.float32) if expected is None else expected  # silu(1)
            with run(dev.ops, dev.tensor) as y:
                found = y.numpy()
                assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), (kernel, number)
                assert np.allclose(found, wanted, rtol=1e-6, atol=0), (kernel, number)


def test_results_of_half_floats_and_out(dev: Device) -> None:
    x, out = dev.tensor(ROWS), dev.full(3, 7.0)
    assert dev.ops.sum(x, out=out) is out
    assert out.numpy().tolist() == [0, 0, 0]
    assert dev.ops.sum(x, dtype="float16").numpy().dtype == np.float16
    assert dev.ops.softmax(x, dtype="float16").dtype == "float16"
    same = dev.zeros((3, 0))
    assert dev.ops.scale(x, 2.0, out=same) is same
    assert dev.ops.matmul(x, dev.tensor(X), dtype="float16").numpy().dtype == np.float16


# Tensors of one number


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
    for value, expected in ((2, np.int32(2)), (2.5, np.float32(2.5)), (np.nan, np.float32(np.nan))):
        assert same_bits(dev.full([2, 3], value).numpy(), np.full((2, 3), expected)), value


def test_what_no_texture_holds(dev: Device) -> None:
    with pytest.raises(PlanError, match=r"\Azeros: a tensor \[1000000, 1000000\]: .* largest texture"):
        dev.zeros((10**6, 10**6))
