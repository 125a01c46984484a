"""Arithmetic with NumPy's broadcasting, activations, and the gates of gated MLPs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from flat_draw import drawn, holds, padding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from subnormals import BEHAVIOUR, CASES, outcomes, renderer_of
from tiers import tiered

from glinfer.errors import InputError, PlanError
from glinfer.kernels.flat.activate import activation as activation_draw
from glinfer.kernels.flat.activate import gate as gate_draw
from glinfer.kernels.flat.elementwise import OPERATIONS, arithmetic, scale
from glinfer.kernels.flat.strided import Axis
from glinfer.kernels.spec import Pass
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device
from glinfer.tensors.ops import Ops
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.activation import expected as activated
from qa.kernels.cases.case import normal
from qa.kernels.cases.elementwise import FUNCTIONS

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]


@st.composite
def shape_pairs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes that broadcast: edges of one, some of which are 1, and some missing in front."""
    whole = draw(st.lists(st.integers(1, 6), max_size=4))
    pair = []
    for _ in range(2):
        edges = [draw(st.sampled_from([1, edge, edge])) for edge in whole]
        pair.append(edges[draw(st.integers(0, len(edges))) :])
    return pair[0], pair[1]


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=shape_pairs(), operation=st.sampled_from(sorted(OPERATIONS)), forms=st.tuples(*[st.booleans()] * 2))
def test_broadcasting(dev: Device, shapes: Any, operation: str, forms: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(3)
    x, y = (
        normal(rng, *shape).astype(np.float16 if half else np.float32)
        for shape, half in zip(shapes, forms, strict=True)
    )
    expected = FUNCTIONS[operation](x, y, dtype=np.float32)
    with dev.tensor(x) as left, dev.tensor(y) as right:
        assert holds(getattr(dev.ops, operation)(left, right), np.asarray(expected))


def test_extremes(dev: Device) -> None:
    """Infinities, NaN, overflow, cancellation, and half floats whose sum and product no half float holds."""
    inf, nan, most = np.inf, np.nan, np.finfo(np.float32).max
    x = np.resize(np.array([inf, inf, nan, most, most, 1.0, -0.0, 16777216.0, 1e-30, 0.0], np.float32), (5, 7))
    y = np.resize(np.array([inf, 1.0, 1.0, most, -most, -1.0, 0.0, 1.0, 1e30, inf], np.float32), (5, 7))
    left, right = dev.tensor(x), dev.tensor(y)
    with np.errstate(all="ignore"):
        for name, function in FUNCTIONS.items():
            with getattr(dev.ops, name)(left, right) as z:
                digits = 1e-6 if name == "divide" else 0.0  # GPUs round quotients less exactly
                assert np.allclose(z.numpy(), function(x, y), rtol=digits, atol=0, equal_nan=True), name
    half = np.array([60000, -60000, 65504, 6e-8], np.float16)
    tensor = dev.tensor(half)
    assert holds(dev.ops.multiply(tensor, tensor), half.astype(np.float32) ** 2)


def test_a_single_column_does_not_fill_the_padding(dev: Device) -> None:
    """A column of infinities: 0 · inf in the padding would be NaN, and spread from there."""
    column = np.full((3, 1), np.inf, np.float32)
    row = np.arange(1, 8, dtype=np.float32)
    assert holds(dev.ops.multiply(dev.tensor(column), dev.tensor(row)), column * row)
    assert holds(dev.ops.subtract(dev.tensor(row), dev.tensor(column)), row - column)
    assert holds(dev.ops.divide(dev.tensor(row), dev.tensor(row)), np.ones(7, np.float32)), "0 / 0 in the padding"
    one = dev.tensor(np.array(7.0, np.float32))
    assert holds(dev.ops.add(one, dev.tensor(np.zeros((2, 6), np.float32))), np.full((2, 6), 7, np.float32))


def test_a_call_is_one_draw_into_out(dev: Device, rng: np.random.Generator) -> None:
    x, y = normal(rng, 4, 6), normal(rng, 6)
    left, right, out = dev.tensor(x), dev.tensor(y), dev.tensor(np.zeros((4, 6), np.float32))
    before, tensors = dev.draws_issued, dev.memory().tensors
    assert dev.ops.add_bias(left, right, out=out) is out
    assert same_bits(out.numpy(), x + y)
    assert dev.ops.scale(left, -1.0, out=out) is out
    assert same_bits(out.numpy(), -x)
    assert (dev.draws_issued, dev.memory().tensors) == (before + 2, tensors)


# Activations and gates


def test_products_beyond_half_precision_stay_finite(dev: Device) -> None:
    """``silu(300) * 60000`` is 1.8e7; a half float ends at 65504."""
    gate = np.array([[300, -300, 65504, 8, 0, 1]], np.float16)
    up = np.array([[60000, 60000, 65504, -65504, 65504, 6e-8]], np.float16)
    wanted = activated(gate, "silu") * up.astype(np.float64)
    with dev.ops.silu_gate(dev.tensor(gate), dev.tensor(up)) as y:
        assert relative_error(y.numpy(), wanted) <= 1e-6
        assert y.numpy().max() > 4e9
    with dev.ops.silu_gate(dev.tensor(np.concatenate([up, gate], 1)), gate_first=False) as y:
        assert relative_error(y.numpy(), wanted) <= 1e-6


def test_gate_without_an_activation_is_a_product(dev: Device, rng: np.random.Generator) -> None:
    gate, up = normal(rng, 3, 6), normal(rng, 3, 6)
    out, before = dev.zeros((3, 6)), dev.draws_issued
    assert dev.ops.gate(dev.tensor(gate), dev.tensor(up), activation="none", out=out) is out
    assert holds(out, gate * up)
    assert dev.draws_issued == before + 1


# In plans


def test_a_plan_scales(dev: Device, rng: np.random.Generator) -> None:
    x = normal(rng, 6, 5)
    found, expected = drawn(dev, lambda a, y: scale(Pass("d", dev.kernels), a, y, factor=0.3), {"x": x}, x.shape)
    assert np.array_equal(found, x * np.float32(0.3))
    assert relative_error(found, expected) <= 1e-6


def test_draws_that_do_not_fit_are_refused(dev: Device) -> None:
    for shapes, operation, axes, message in (
        (((6, 5), (1, 4)), "add", [Axis(6, 1, 0)], r"y is \[1, 4\]; expected \[any, 1\]"),
        (((3, 5), (6, 5)), "add", [Axis(6, 1, 1)], "it reads rows 0 to 5 of x, which has 3"),
        (((6, 5), (6, 5)), "add", [Axis(2, 4, 0), Axis(4, 1, 1)], "output has 6 rows; the axes do not divide them"),
        (((6, 5), (6, 5)), "power", None, "operation 'power'; known: add, subtract, multiply, divide"),
    ):
        options = {"operation": operation, **({"axes": axes} if axes else {})}
        arrays = {name: np.zeros(shape, np.float32) for name, shape in zip("xy", shapes, strict=True)}
        with pytest.raises(PlanError, match=rf"\Adraw d: {message}\Z"):
            drawn(
                dev, lambda *tensors, more=options: arithmetic(Pass("d", dev.kernels), *tensors, **more), arrays, (6, 5)
            )


def test_activations_that_do_not_fit_are_refused(dev: Device) -> None:
    x, d = np.zeros((2, 7), np.float32), Pass("d", dev.kernels)
    options, unknown = {"activation": "silu"}, {"activation": "relu"}
    names = "none, gelu_new, gelu, silu, tanh, relu2"
    for build, arrays, out, message in (
        (lambda a, y: gate_draw(d, a, y, **options), {"x": x}, (2, 3), r"x is \[2, 7\]; expected \[2, 6\]"),
        (
            lambda a, b, y: gate_draw(d, a, y, up=b, **options),
            {"x": x[:1], "up": x},
            (1, 7),
            r"up is \[2, 7\]; expected \[1, 7\]",
        ),
        (lambda a, y: gate_draw(d, a, y, **unknown), {"x": x}, (2, 7), f"activation 'relu'; known: {names}"),
        (lambda a, y: activation_draw(d, a, y, **unknown), {"x": x}, (2, 7), f"activation 'relu'; .*{names}"),
    ):
        with pytest.raises(PlanError, match=rf"\Adraw d: {message}"):
            drawn(dev, build, arrays, out)


# What is refused


REFUSED: list[tuple[Callable[[Any, Tensor, Tensor, Tensor], object], str]] = [
    (
        lambda o, x, y, i: o.add(x, y),
        "add: [2, 3] and [3, 2] do not broadcast; expected equal edges from the last one on, or edges of 1",
    ),
    (lambda o, x, y, i: o.multiply(x, i), "multiply: y is [2, 3] of int32; expected float32 or float16"),
    (lambda o, x, y, i: o.add_bias(x, y), "add_bias: x is [2, 3] and bias is [3, 2]; expected [..., D] and [D]"),
    (lambda o, x, y, i: o.residual_add(x, y), "residual_add: x is [2, 3] and residual is [3, 2]; expected one shape"),
    *(
        (
            lambda o, x, y, i, factor=factor: o.scale(x, factor),
            f"scale: factor is {factor!r}; expected a finite number that float32 holds",
        )
        for factor in (np.inf, float("nan"), 1e39, True, "2", None)
    ),
    (
        lambda o, x, y, i: o.gate(x, y, activation="relu"),
        "gate: there is no activation 'relu'; known: none, gelu_new, gelu, silu, tanh, relu2",
    ),
    (
        lambda o, x, y, i: o.activate(x, "relu"),
        "activate: there is no activation 'relu'; known: none, gelu_new, gelu, silu, tanh, relu2",
    ),
    (lambda o, x, y, i: o.silu_gate(x, y), "silu_gate: x is [2, 3] and up is [3, 2]; expected one shape"),
    (lambda o, x, y, i: o.silu_gate(x, i), "silu_gate: up is [2, 3] of int32; expected float32 or float16"),
    (lambda o, x, y, i: o.silu(i), "silu: x is [2, 3] of int32; expected float32 or float16"),
    (
        lambda o, x, y, i: o.gelu_gate(x),
        "gelu_gate: x is [2, 3]; without up expected [..., 2·N], the gate and the gated values",
    ),
    (
        lambda o, x, y, i: o.gelu_new_gate(y, out=x),
        "gelu_new_gate: out is [2, 3] of float32; the result is [3, 1] of float32",
    ),
]


def test_bad_calls_are_refused(dev: Device) -> None:
    x, y = (dev.tensor(np.zeros(shape, np.float32)) for shape in ((2, 3), (3, 2)))
    whole = dev.tensor(np.zeros((2, 3), np.int32))
    for run, message in REFUSED:
        with pytest.raises(InputError) as raised:
            run(dev.ops, x, y, whole)
        assert str(raised.value) == message
    many, others = dev.zeros((2, 1, 2, 1, 2, 1, 5)), dev.zeros((1, 2, 1, 2, 1, 2, 5))
    message = r"\Aadd: \[2, 1, .*, 5\] and .* broadcast along 6 leading axes .* at most 5 .*\Z"
    with pytest.raises(InputError, match=message):
        dev.ops.add(many, others)


# Results in half floats


MOVES = {"astype"}
"""Kernels whose ``dtype`` is another matter, which tests/tensors/test_movement.py looks at."""
Run = Callable[[Any, Tensor, Tensor, Any], Any]
UNARY = ("silu", "gelu", "gelu_new", "softmax", "log_softmax", "sum")
BINARY = (*OPERATIONS, "residual_add", "gelu_new_gate", "add_rms_norm", "add_positions", "causal_conv")
RUNS: dict[str, Run] = {
    **{name: lambda o, x, y, d, name=name: getattr(o, name)(x, dtype=d) for name in UNARY},
    **{name: lambda o, x, y, d, name=name: getattr(o, name)(x, y, dtype=d) for name in BINARY},
    "add_bias": lambda o, x, y, d: o.add_bias(x, y[0], dtype=d),
    "scale": lambda o, x, y, d: o.scale(x, 1e4, dtype=d),
    "activate": lambda o, x, y, d: o.activate(x, "none", dtype=d),
    "gate": lambda o, x, y, d: o.gate(x, y, activation="gelu", dtype=d),
    "silu_gate": lambda o, x, y, d: o.silu_gate(x[:, :6], dtype=d),
    "gelu_gate": lambda o, x, y, d: o.gelu_gate(x[:, :6], dtype=d),
    "matmul": lambda o, x, y, d: o.matmul(x, o.transpose(y), residual=o.matmul(x, o.transpose(y)), dtype=d),
    "linear": lambda o, x, y, d: o.linear(x, y, activation="silu", dtype=d),
    "dot": lambda o, x, y, d: o.dot(x, o.transpose(y).reshape(1, 7, 5), dtype=d),
    "attention_scores": lambda o, x, y, d: o.attention_scores(x, y, causal=True, dtype=d),
    "attention_values": lambda o, x, y, d: o.attention_values(o.softmax(x[:, :5]), y, dtype=d),
    "attention": lambda o, x, y, d: o.attention(x, y, y, dtype=d),
    "layer_norm": lambda o, x, y, d: o.layer_norm(x, y[0], y[1], dtype=d),
    "rms_norm": lambda o, x, y, d: o.rms_norm(x, y[0], dtype=d),
    "max": lambda o, x, y, d: o.max(x, keepdims=True, dtype=d),
    "cross_entropy": lambda o, x, y, d: o.cross_entropy(x, x.device.tensor([1, 0, 3, 6, 7]), dtype=d),
    "lookup": lambda o, x, y, d: o.lookup(x.device.tensor([5, 0, -1]), y, dtype=d),
    "dequantize": lambda o, x, y, d: o.dequantize(
        x.device.tensor(np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32), "Q8_ROW"), dtype=d
    ),
    "rope": lambda o, x, y, d: o.rope(x[:, :6], dtype=d),
    "gated_delta_rule": lambda o, x, y, d: o.gated_delta_rule(
        *(each.reshape(7, 1, 5) for each in (x, y, x)),
        *(each.reshape(7, 5)[:, :1] for each in (x, y)),
        norm_eps=1e-6,
        dtype=d,
    ),
    "top_k": lambda o, x, y, d: o.top_k(x, 3, dtype=d)[0],
}


def test_every_kernel_of_floats_is_here() -> None:
    methods = dict(inspect.getmembers(Ops, inspect.isfunction))
    has = {name for name, method in methods.items() if "dtype" in inspect.signature(method).parameters}
    assert {name for name in has if not name.startswith("_")} == RUNS.keys() | MOVES


@tiered("kernel", RUNS, keep=[[*RUNS].index(name) for name in ("add", "gate", "linear", "softmax", "top_k")])
def test_a_result_in_half_floats_is_the_result_rounded(dev: Device, kernel: str) -> None:
    rng = np.random.default_rng(1)
    x, y = dev.tensor(normal(rng, 5, 7, scale=30.0)), dev.tensor(normal(rng, 5, 7, scale=30.0))
    exact, rounded = (RUNS[kernel](dev.ops, x, y, dtype) for dtype in ("float32", np.float16))
    several = exact if isinstance(exact, tuple) else (exact,)
    for one, other in zip(several, rounded if isinstance(rounded, tuple) else (rounded,), strict=True):
        wanted = one.numpy()
        assert wanted.dtype == np.float32
        with np.errstate(over="ignore"):
            assert same_bits(other.numpy(), wanted.astype(np.float16))
        assert not padding(other).any()


def around_halves() -> Array:
    """Every half float, the places in the middle between two, and their neighbours in float32; infinities and NaN."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = np.append((halves[1:] + halves[:-1]) / 2, np.float32(65520))
    beside = [np.nextafter(middles, np.float32(end)) for end in (0, np.inf)]
    sizes = np.concatenate([halves, middles, *beside, np.float32([1e-8, 1e-40, 7e4, 3e38, np.inf, np.nan])])
    return np.concatenate([sizes, -sizes])


def test_rounding_is_numpys_for_every_half(dev: Device) -> None:
    """A renderer that rounds by itself for a target of half floats may cut off, and stop at 65504."""
    numbers = around_halves()
    with np.errstate(over="ignore"):
        wanted = numbers.astype(np.float16)
    with dev.ops.scale(dev.tensor(numbers), 1.0, dtype="float16") as y:
        found = y.numpy()
    numeric = ~np.isnan(numbers)
    assert np.array_equal(found[numeric].view(np.uint16), wanted[numeric].view(np.uint16))
    assert np.isnan(found[~numeric]).all()


def test_bad_types_are_refused(dev: Device) -> None:
    x = dev.zeros((2, 3))
    for dtype, said in (("int32", "int32"), ("float64", "float64"), ("Q8_ROW", "'Q8_ROW'"), (None, "None")):
        with pytest.raises(InputError) as raised:
            dev.ops.add(x, x, dtype=dtype)
        assert str(raised.value) == f"add: dtype is {said}; expected one of float32, float16"
    with pytest.raises(InputError, match=r"\Aadd: out is \[2, 3\] of float32; the result is \[2, 3\] of float16\Z"):
        dev.ops.add(x, x, out=dev.zeros((2, 3)), dtype="float16")
    assert dev.memory().tensors == 1


# What happens to subnormal float32 numbers in arithmetic, by renderer


DOC = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"


def computed(dev: Device, operation: str, x: Any, y: Any) -> Any:
    with dev.tensor(x) as a, dev.tensor(y) as b, getattr(dev.ops, operation)(a, b) as z:
        return z.numpy()


def test_this_renderer_does_what_the_page_says(dev: Device) -> None:
    found = outcomes({name: computed(dev, case.operation, case.x, case.y) for name, case in CASES.items()})
    known = renderer_of(dev.description)
    assert known is None or found == BEHAVIOUR[known]


def test_the_page_has_the_table() -> None:
    lines = [f"| {name} | {' | '.join(BEHAVIOUR[name].values())} |" for name in BEHAVIOUR]
    heading = f"| renderer | {' | '.join(case.words for case in CASES.values())} |"
    assert "\n".join([heading, "|---" * (len(CASES) + 1) + "|", *lines]) in DOC.read_text("utf-8")
