"""Packed weights on the GPU bit for bit, lookups from every format, learned positions, rows by index."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered

from glinfer.errors import InputError, PlanError
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.program import shader_root
from glinfer.models.oracle import relative_error, run_draw
from glinfer.models.plan import PlanBuilder
from glinfer.models.session import Session
from glinfer.ops import OPS, TensorSpec
from glinfer.ops.flat.draws import flat_draw
from glinfer.ops.flat.lookup import dequantize as dequantize_draw
from glinfer.ops.flat.lookup import lookup, position_add
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Op, RunValue
from glinfer.quant.formats import BLOCK_FORMATS, GROUP
from glinfer.quant.ggml import dequantize, words_of
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import KernelCase
from qa.kernels.cases.embedding import CASES, random_blocks, rows_named, whole_blocks

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


def padding(tensor: Tensor) -> Array:
    """What the texture holds between the last column and the end of each row's last texel."""
    layout = tensor.layout
    texels = tensor.storage.texture().framebuffer.read(0, layout.width, layout.height)
    by_row = texels.reshape(-1, 4)[: layout.rows * layout.row_texels].reshape(layout.rows, -1)
    return by_row[:, layout.cols :]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_kernels_agree_with_numpy(dev: Device, case: KernelCase) -> None:
    for form in case.forms:
        for shape in ((1, 1), (5, 37), (67, 300)):
            _check(dev, case, form, shape)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_kernels_agree_with_numpy_when_wrapped(small: Device, case: KernelCase) -> None:
    for form in ("float16", "BF16", "Q6_K", "Q16_ROW", "int32"):
        if form in case.forms:
            _check(small, case, form, (1, 4001))
            _check(small, case, form, (23, 300))


def test_rows_may_be_longer_than_the_largest_texture(dev: Device) -> None:
    for case in CASES:
        _check(dev, case, case.forms[1], (2, 20011))


def _check(dev: Device, case: KernelCase, form: str, shape: tuple[int, int]) -> None:
    held = dev.memory().tensors
    for found, expected in case.check(dev, np.random.default_rng(sum(shape)), *shape, form):
        assert found.shape == expected.shape
        assert relative_error(found, expected) <= case.tolerance, f"{case.kernel} {form} {shape}"
    assert dev.memory().tensors == held


@tiered("on_gpu", [False, True], ids=["llvmpipe", "gpu"])
@tiered("name", BLOCK_FORMATS, keep=(0, 8))
def test_unpacked_weights_are_ggmls_bit_for_bit(dev: Device, name: str, on_gpu: bool) -> None:
    """As llvmpipe does it, and with what may be faster on a GPU."""
    dev.kernels = dataclasses.replace(dev.kernels, mantissa=on_gpu, lookup_texture=not on_gpu)
    for rows, inputs in lengths_of(name)[2 * on_gpu :]:
        blocks = extreme_blocks(name, rows, inputs)
        with dev.tensor(blocks, name) as table, dev.ops.dequantize(table) as y:
            found, expected = y.numpy(), as_ggml_has_them(blocks, name)
            assert np.argwhere(~same_bits(found, expected)).tolist() == [], f"{rows}×{inputs}"
            assert not padding(y).any(), "padding is not zero"


def test_every_half_float_is_read_as_a_scale(dev: Device) -> None:
    blocks = np.empty((256, 256, 34), np.uint8)
    blocks[:, :, :2] = np.arange(65536, dtype="<u2").view(np.uint8).reshape(256, 256, 2)
    blocks[:, :, 2:] = np.arange(32, dtype=np.int8).view(np.uint8) - 16
    blocks = blocks.reshape(256, -1)
    with dev.tensor(blocks, "Q8_0") as table, dev.ops.dequantize(table) as y:
        assert np.argwhere(~same_bits(y.numpy(), as_ggml_has_them(blocks, "Q8_0"))).tolist() == []


def test_every_bf16_number_is_read(dev: Device) -> None:
    blocks = np.arange(65536, dtype="<u2").view(np.uint8).reshape(256, -1)
    with dev.tensor(blocks, "BF16") as table, dev.ops.dequantize(table) as y:
        assert np.argwhere(~same_bits(y.numpy(), as_ggml_has_them(blocks, "BF16"))).tolist() == []


@pytest.fixture
def groups_root(tmp_path: Path) -> Path:
    """The shader files, and the one that reads groups as products do."""
    root = tmp_path / "shaders"
    shutil.copytree(shader_root(), root)
    shutil.copy(Path(__file__).parent / "groups.frag", root)
    return root


def read_groups(
    dev: Device, root: Path, matrix: Array, form: str, defines: list[tuple[str, int | float]], cols: int
) -> Array:
    """What group_weights() gives of every group of a table, groups of so many columns in all."""
    edge = dev.context.limits.max_texture_size
    plan = PlanBuilder("groups", 1, ())
    weight = plan.laid_out("weight", "input", FlatLayout.of(matrix.shape, form, edge))
    out = plan.flat("out", "activation", len(matrix), cols, "rgba32f", edge)
    defines = [*defines, ("OUT_ROWS", len(matrix))]
    plan.draw(
        flat_draw("groups", "groups", "groups", [("weight", weight)], [out], kernels=dev.kernels, defines=defines)
    )
    session = Session(plan.build(), {}, dev.context, shader_root=root)
    try:
        session.write("weight", matrix)
        session.run({})
        return session.read("out")
    finally:
        session.release()


@pytest.mark.slow
@tiered("mantissa", [0, 1], ids=["converted", "mantissa"])
def test_products_read_the_same_weights_and_zeros_behind_them(
    dev: Device, groups_root: Path, monkeypatch: pytest.MonkeyPatch, mantissa: int
) -> None:
    """The row after the one that ends inside a group is full of NaN, none of which may come in."""
    op = Op("groups", ("weight",), (), lambda *_: None, lambda *_: np.zeros(0), either=("weight",))
    monkeypatch.setitem(OPS, "groups", op)
    for name, form in BLOCK_FORMATS.items():
        inputs = {"BF16": 69, "Q8_ROW": 35, "Q16_ROW": 45}.get(name, form.weights * 3)
        blocks = extreme_blocks(name, 5, inputs)
        if name in ODD:
            blocks = random_blocks(np.random.default_rng(1), name, 5, inputs)
            blocks[1::2] = 255
        cols = -(-inputs // GROUP) * GROUP
        defines = [*form.defines(inputs), ("MANTISSA", mantissa)]
        found = read_groups(dev, groups_root, words_of(blocks, name), "rgba32ui", defines, cols)
        assert same_bits(found[:, :inputs], as_ggml_has_them(blocks, name)).all(), name
        assert not found[::2, inputs:].any(), name


@pytest.mark.parametrize(("form", "dtype"), [("rgba32f", np.float32), ("rgba16f", np.float16)], ids=str)
def test_products_read_floats(
    dev: Device, groups_root: Path, monkeypatch: pytest.MonkeyPatch, form: str, dtype: Any
) -> None:
    op = Op("groups", ("weight",), (), lambda *_: None, lambda *_: np.zeros(0), either=("weight",))
    monkeypatch.setitem(OPS, "groups", op)
    table = np.random.default_rng(0).standard_normal((5, 37)).astype(dtype)
    found = read_groups(dev, groups_root, table, form, [("FORMAT", 0)], 40)
    assert np.array_equal(found[:, :37], table.astype(np.float32))
    assert not found[:, 37:].any()


@pytest.mark.parametrize("name", ["float32", "Q8_ROW", "Q4_K"])
@tiered("shape", [(), (1,), (7,), (2, 3), (3, 1, 5), (300,)], keep=(4,), ids=str)
def test_ids_may_have_any_shape(dev: Device, name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    cols = whole_blocks(name, 37)
    if name == "float32":
        values = given = rng.standard_normal((19, cols)).astype(np.float32)
    else:
        given = random_blocks(rng, name, 19, cols)
        values = dequantize(given, name)
    ids = np.asarray(rng.integers(-3, 22, shape), dtype=np.int32)
    y = dev.ops.lookup(dev.tensor(ids), dev.tensor(given, None if name == "float32" else name))
    assert y.shape == (*shape, cols)
    assert np.array_equal(y.numpy(), rows_named(values, ids))
    assert not padding(y).any()


@pytest.mark.parametrize("name", ["float32", "BF16", "Q8_ROW"])
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


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_gathered_rows_keep_their_bits(dev: Device, dtype: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-(2**31), 2**31, (11, 9)).astype(np.int32)
    if dtype == "float32":
        x = np.where(np.isnan(x.view(np.float32)), np.float32(-0.0), x.view(np.float32))
    if dtype == "float16":
        halves = x.astype(np.uint16).view(np.float16)
        x = np.where(np.isnan(halves), np.float16(-0.0), halves)
    ids = rng.integers(0, 11, (3, 7)).astype(np.int32)
    with dev.tensor(x) as table, dev.tensor(ids) as numbers, dev.ops.gather_rows(table, numbers) as y:
        assert y.dtype == dtype
        bits = np.uint16 if dtype == "float16" else np.uint32
        assert np.array_equal(y.numpy().view(bits), x[ids].view(bits))


def test_one_tensor_may_be_both_rows_and_ids(dev: Device) -> None:
    x = np.array([[2, 0], [1, 5], [0, 1]], dtype=np.int32)
    with dev.tensor(x) as both, dev.ops.gather_rows(both, both) as y:
        assert np.array_equal(y.numpy(), np.where((x < 3)[..., None], x[np.minimum(x, 2)], 0))


def test_packed_tensors_keep_their_leading_axes(dev: Device) -> None:
    blocks = random_blocks(np.random.default_rng(5), "Q5_1", 12, 64)
    with dev.tensor(blocks.reshape(2, 3, 2, -1), "Q5_1") as table, dev.ops.dequantize(table) as y:
        assert np.array_equal(y.numpy(), dequantize(blocks, "Q5_1").reshape(2, 3, 2, 64))
    with dev.tensor(blocks[0], "Q5_1") as row, dev.ops.dequantize(row) as y:
        assert np.array_equal(y.numpy(), dequantize(blocks[:1], "Q5_1")[0])


def test_packed_floats_are_looked_up_as_they_were_packed(dev: Device) -> None:
    values = np.random.default_rng(6).standard_normal((9, 64)).astype(np.float32)
    with dev.tensor(values, "q8_0") as table, dev.tensor([8, 0]) as ids, dev.ops.lookup(ids, table) as y:
        assert y.numpy() == pytest.approx(values[[8, 0]], abs=0.02)


@tiered(("shape", "offset"), [((6,), 4), ((1, 6), 0), ((5, 6), 0), ((2, 3, 4, 6), 1)], ids=str, keep=(2,))
def test_positions_are_added_to_every_sequence(dev: Device, shape: tuple[int, ...], offset: int) -> None:
    rng = np.random.default_rng(7)
    x, table = rng.standard_normal(shape).astype(np.float16), rng.standard_normal((5, 6)).astype(np.float32)
    length = shape[-2] if len(shape) > 1 else 1
    expected = x.astype(np.float32) + table[offset : offset + length]
    with dev.ops.add_positions(dev.tensor(x), dev.tensor(table), offset=offset) as y:
        assert y.dtype == "float32"
        assert np.array_equal(y.numpy(), expected.reshape(shape))


def test_results_are_written_where_asked_for(dev: Device) -> None:
    table, ids = dev.tensor(np.eye(3, 5, dtype=np.float32)), dev.tensor([2, 0])
    given = dev.tensor(np.full((2, 5), np.nan, dtype=np.float32))
    rows = dev.ops.lookup(ids, table, out=given)
    assert rows is given
    assert np.array_equal(given.numpy(), np.eye(3, 5)[[2, 0]])
    assert dev.ops.add_positions(dev.ops.gather_rows(table, ids), table, out=given) is given
    assert np.array_equal(given.numpy(), np.eye(3, 5)[[2, 0]] + np.eye(3, 5)[:2])
    packed = dev.tensor(np.ones((2, 5), dtype=np.float32), "Q8_ROW")
    assert dev.ops.dequantize(packed, out=given) is given
    assert given.numpy() == pytest.approx(np.ones((2, 5)))


def test_bad_calls_are_refused_in_one_line(dev: Device) -> None:
    ops = dev.ops
    floats, whole = dev.tensor(np.ones((3, 5), np.float32)), dev.tensor([[1, 2]])
    vector, packed = dev.tensor(np.ones(5, np.float32)), dev.tensor(np.ones((3, 32), np.float32), "Q8_0")
    stack = dev.tensor(np.ones((2, 3, 32), np.float32), "Q8_0")
    calls = [
        (lambda: ops.lookup(floats, floats), r"lookup: ids is \[3, 5\] of float32; expected int32"),
        (lambda: ops.lookup(packed, floats, check_ids=True), r"lookup: ids is \[3, 32\] of Q8_0; expected int32"),
        (lambda: ops.lookup(whole, vector), r"lookup: table is \[5\] of float32; expected \[V, D\] of float32"),
        (lambda: ops.lookup(whole, stack), r"lookup: table is \[2, 3, 32\] of Q8_0; expected \[V, D\]"),
        (lambda: ops.lookup(whole, whole), r"lookup: table is \[1, 2\] of int32; expected \[V, D\]"),
        (lambda: ops.lookup(whole, floats, out=vector), r"lookup: out is \[5\] of float32; the result is \[1, 2, 5\]"),
        (lambda: ops.gather_rows(packed, whole), r"gather_rows: x is \[3, 32\] of Q8_0; expected \[R, D\].*look its"),
        (lambda: ops.gather_rows(vector, whole), r"gather_rows: x is \[5\] of float32; .*reshape it first"),
        (lambda: ops.gather_rows(floats, floats), r"gather_rows: ids is \[3, 5\] of float32; expected int32"),
        (lambda: ops.dequantize(floats), r"dequantize: table is \[3, 5\] of float32; expected a packed tensor"),
        (lambda: ops.add_positions(packed, floats), "add_positions: x is .* of Q8_0; .*dequantize it first"),
        (lambda: ops.add_positions(floats, whole), r"add_positions: table is \[1, 2\] of int32; expected float32"),
        (lambda: ops.add_positions(floats, vector), r"add_positions: x is \[3, 5\] and table is \[5\]; expected"),
        (lambda: ops.add_positions(floats, floats, offset=1), "add_positions: offset is 1 for 3 rows; table has 3"),
        (lambda: ops.add_positions(floats, floats, offset=-1), "add_positions: offset is -1 for 3 rows"),
        (lambda: ops.add_positions(vector, floats, offset=0.0), "add_positions: offset is 0.0 for 1 rows; .*0 to 2$"),
        (lambda: ops.add_positions(dev.tensor(np.ones((4, 5), np.float32)), floats), "x has 4 rows; table has only 3"),
    ]
    for call, message in calls:
        with pytest.raises(InputError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_plan_looks_up_and_adds_positions_row_by_row(device: Any) -> None:
    """The first rows of each target, at a position of the run, against the float64 oracles."""
    rng = np.random.default_rng(8)
    edge, kernels = device.limits.max_texture_size, KernelOptions(lookup_texture=True)
    values = (RunValue("rows", 1, 7, at=lambda tokens: tokens), RunValue("position", 0, 9))
    plan = PlanBuilder("embed", 7, values)
    words = words_of(random_blocks(rng, "Q2_K", 11, 512), "Q2_K")
    table = rng.standard_normal((16, 512)).astype(np.float32)
    given = {"ids": np.array([[3, 10, 11, -1, 0, 7, 5]], np.int32), "words": words, "positions": table}
    forms = {"ids": "rgba32i", "words": "rgba32ui", "positions": "rgba32f"}
    ids, weight, positions = (
        plan.laid_out(name, "input", FlatLayout.of(given[name].shape, form, edge)) for name, form in forms.items()
    )
    token, hidden = (plan.flat(name, "activation", 7, 512, "rgba32f", edge) for name in ("token", "hidden"))
    plan.draw(
        lookup("token", "embed", ids, weight, token, table_format="Q2_K", inputs=512, kernels=kernels, rows="rows"),
        position_add(
            "hidden", "embed", token, positions, hidden, length=7, offset="position", kernels=kernels, rows="rows"
        ),
    )
    session = Session(plan.build(), {}, device)
    try:
        for name, matrix in given.items():
            session.write(name, matrix)
        for run in ({"rows": 7, "position": 9}, {"rows": 3, "position": 0}):
            session.run(run)
            state: dict[str, Array] = dict(given)
            for draw in session.plan.draws:
                state[draw.outputs[0]] = run_draw(draw, state, run)
                found = session.read(draw.outputs[0], run["rows"])
                assert found.shape == state[draw.outputs[0]].shape
                assert relative_error(found, state[draw.outputs[0]]) <= (0.0 if draw.name == "token" else 1e-6)
    finally:
        session.release()


def tensor(name: str, rows: int, cols: int, form: str = "rgba32f", kind: str = "input") -> TensorSpec:
    return TensorSpec(name, (rows, cols), kind, form, FlatLayout.of((rows, cols), form, 2048))


def built(draw: Any, *tensors: TensorSpec) -> None:
    plan = PlanBuilder("one", 1, ())
    for spec in tensors:
        plan._declare(spec)
    plan.draw(draw)
    plan.build()


@pytest.mark.parametrize(
    ("ids", "weight", "form", "message"),
    [
        ((1, 4), (9, 5), None, "ids has 4 elements for 5 rows of the output"),
        ((3, 2), (9, 6), None, r"weight is \[9, 6\]; expected \[9, 5\]"),
        ((5, 1), (9, 4), "Q8_ROW", r"weight is \[9, 4\]; expected \[9, 8\]"),
        ((5, 1), (9, 4), "Q4_K", "a row of 5 weights is no whole number of Q4_K blocks of 256"),
        ((5, 1), (9, 4), "Q7_K", "there is no packed format 'Q7_K'"),
    ],
)
def test_a_lookup_that_does_not_fit_is_no_plan(
    ids: tuple[int, int], weight: tuple[int, int], form: str | None, message: str
) -> None:
    numbers = tensor("ids", *ids, form="rgba32i")
    table = tensor("weight", *weight, form="rgba32f" if form is None else "rgba32ui")
    out = tensor("out", 5, 5, kind="activation")
    with pytest.raises(PlanError, match=f"^draw one: {message}"):
        built(
            lookup("one", "one", numbers, table, out, table_format=form, inputs=5, kernels=KernelOptions()),
            numbers,
            table,
            out,
        )


def test_an_unpacking_that_does_not_fit_is_no_plan() -> None:
    out = tensor("out", 5, 64, kind="activation")
    for rows, words, message in ((4, 16, r"weight is \[4, 16\]; expected \[5, 12\]"), (5, 16, r"expected \[5, 12\]")):
        table = tensor("weight", rows, words, form="rgba32ui")
        with pytest.raises(PlanError, match=message):
            built(
                dequantize_draw("one", "one", table, out, table_format="Q4_0", inputs=64, kernels=KernelOptions()),
                table,
                out,
            )


@pytest.mark.parametrize(
    ("x", "table", "offset", "message"),
    [
        ((6, 5), (9, 4), 0, r"table is \[9, 4\]; expected \[9, 5\]"),
        ((7, 5), (9, 5), 0, r"x is \[7, 5\]; expected \[6, 5\]"),
        ((6, 5), (9, 5), 7, "positions 7 to 9; table has 0 to 8"),
        ((6, 5), (9, 5), -1, "positions -1 to 1; table has 0 to 8"),
    ],
)
def test_positions_that_do_not_fit_are_no_plan(
    x: tuple[int, int], table: tuple[int, int], offset: int, message: str
) -> None:
    source, positions, out = tensor("x", *x), tensor("table", *table), tensor("out", 6, 5, kind="activation")
    draw = position_add("one", "one", source, positions, out, length=3, offset=offset, kernels=KernelOptions())
    with pytest.raises(PlanError, match=f"^draw one: {message}"):
        built(draw, source, positions, out)
