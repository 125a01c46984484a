"""Passes with a shader of the caller's own, the table of draws, and the strategy that a product takes."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_draw import padding

from glinfer.errors import GlinferError, InputError, ShaderError
from glinfer.program.oracle import relative_error
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import Tensor

pytestmark = pytest.mark.gl

EXAMPLE = Path(__file__).parents[2] / "examples" / "14_own_shader.py"
COPY = "uniform sampler2D x;\nout vec4 y;\nvoid main() { ivec2 at = output_place(); y = %s; }\n"
TEXEL = "TEXEL(x, at.x * X_TEXELS + at.y, X_WIDTH, X_HEIGHT)"
PLAIN = COPY % TEXEL
SCALED = (COPY % f"{TEXEL} * scale").replace("out", "uniform float scale;\nout", 1)


def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def test_the_passes_of_the_example_agree_with_numpy(dev: Device, small: Device) -> None:
    """The guide's LayerNorm and matrix product as the example types them in, at sizes that are no multiples of 4."""
    shaders = runpy.run_path(str(EXAMPLE), run_name="shaders")
    for device in (dev, small):
        for rows, inner, cols in ((1, 1, 1), (5, 7, 3), (9, 70, 33)):
            x, gamma, beta, weight = normal(rows, inner), normal(inner), normal(inner) + 1, normal(inner, cols)
            inputs = {"x": device.tensor(x), "gamma": device.tensor(gamma), "beta": device.tensor(beta)}
            exact = x.astype(np.float64)
            spread = exact - exact.mean(1, keepdims=True)
            exact = spread / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * gamma + beta
            normed = device.draw(shaders["LAYER_NORM"], inputs, (rows, inner), {"eps": 1e-5})
            assert relative_error(normed.numpy(), exact) < 1e-5
            found = device.draw(shaders["MATMUL"], {"a": normed, "b": device.tensor(weight)}, (rows, cols))
            assert relative_error(found.numpy(), exact @ weight) < 1e-5


def test_padding_is_zero_whatever_the_shader_writes(dev: Device) -> None:
    """So that kernels that read padding give what they should."""
    ones = dev.draw("out vec4 y;\nvoid main() { y = vec4(1.0); }", {}, (3, 5))
    assert not padding(ones).any()
    assert dev.ops.sum(ones).numpy().tolist() == [5, 5, 5]
    whole = dev.draw("out ivec4 y;\nvoid main() { y = columns_of(output_place().y) - 1; }", {}, (2, 3), dtype="int32")
    assert (whole.dtype, whole.numpy().tolist()) == ("int32", [[-1, 0, 1]] * 2)
    assert not padding(whole).any()


def test_inputs_results_and_sources_of_every_kind(dev: Device, tmp_path: Path) -> None:
    x = normal(2, 3, 5)
    tensor = dev.tensor(x)
    for source in (PLAIN, f"// out vec4 old;\n#version 300 es\n{PLAIN}", f'#include "common/flat.glsl"\n{PLAIN}'):
        assert np.array_equal(dev.draw(source, {"x": tensor}, (2, 3, 5)).numpy(), x)
    path = tmp_path / "copy.frag"
    path.write_text(PLAIN)
    for given in (path, str(path)):
        with dev.draw(given, {"x": tensor}, tensor.shape, dtype="float16") as halves:
            assert np.array_equal(halves.numpy(), x.astype(np.float16))
    out = dev.zeros((30,))
    assert dev.draw(SCALED, {"x": tensor.reshape(1, 30)}, 30, {"scale": np.float32(2)}, out=out) is out
    assert np.array_equal(out.numpy(), 2 * x.reshape(30))
    ids = dev.tensor([[3, -(2**31)]])
    source = PLAIN.replace("sampler2D", "isampler2D").replace("out vec4", "out ivec4")
    assert np.array_equal(dev.draw(source, {"x": ids}, (1, 2), dtype=np.int32).numpy(), ids.numpy())
    words = dev.tensor(np.zeros((2, 32), np.float32), "Q8_ROW")
    source = COPY.replace("sampler2D", "usampler2D") % "vec4(X_ROWS, X_COLS, OUT_ROWS, OUT_COLS)"
    source = source.replace("; }", "* float(TEXEL(x, 0, X_WIDTH, X_HEIGHT).x == 0u); }")
    assert dev.draw(source, {"x": words}, 4).numpy().tolist() == [2, words.layout.cols, 1, 4]
    assert dev.draw(PLAIN, {"x": tensor}, (0, 3)).shape == (0, 3)


def test_mistakes_are_one_line_and_leave_nothing(dev: Device) -> None:
    x, ids, held = dev.tensor(normal(5, 7)), dev.tensor([1, 2]), dev.zeros(3)
    held.release()
    kernel = dev.ops.matmul(x, x.reshape(7, 5)).numpy()
    ids.storage.texture()
    before = dev.memory()

    def draw(shader: Any = PLAIN, inputs: Any = None, shape: Any = (5, 7), *given: Any, **named: Any) -> Any:
        return lambda: dev.draw(shader, {"x": x} if inputs is None else inputs, shape, *given, **named)

    for run, message in (
        (draw(SCALED), "draw: draw own.pass, shader own: uniform 'scale': the draw does not set it"),
        (draw(SCALED, None, 3, {"scale": 1, "b": 1}), "draw: draw own.pass, shader own: uniform 'b': the shader does "
         "not use it"),
        (draw(SCALED, None, 3, {"scale": "1"}), "draw: uniform 'scale' is str; expected a number"),
        (draw(SCALED.replace("float", "int").replace("scale;", "scale;", 1).replace("* scale", "* float(scale)"), None,
         3, {"scale": 1.5}), "draw: shader pass: uniform 'scale' is 1.5; expected an integer of 32 bits"),
        (draw(PLAIN, {"z": x}), ShaderError),
        (draw(PLAIN, {"x": x, "z": x}), "draw: shader pass reads no texture 'z'"),
        (draw(PLAIN.replace("x;", "x, z;", 1).replace("y =", "y = texelFetch(z, at, 0) +")), "draw: shader pass "
         "samples 'z', which is bound to nothing"),
        (draw(PLAIN, {"x": ids}), "draw: shader pass: x is a sampler2D; its tensor needs isampler2D"),
        (draw(PLAIN, {"x": x, "X": x}), "draw: found the input 'x'; expected names of samplers that differ in more "
         "than case"),
        (draw(PLAIN, {"2x": x}), "draw: found the input '2x'; expected names of samplers"),
        (draw(PLAIN, {"x": normal(2)}), "draw: x is ndarray; make a tensor of it with device.tensor(x)"),
        (draw(PLAIN, [x]), "draw: inputs is list; expected a dict by the names in the shader"),
        (draw(PLAIN, {"x": held}), "draw: this tensor [3] was released; make it again, or release it later"),
        (draw(PLAIN, {"x": x.reshape(1, 5, 7)}, out=x), "draw: out is read or written by this call already; give it "
         "another tensor"),
        (draw(out=ids), "draw: out is [2] of int32; the result is [5, 7] of float32"),
        (draw(dtype="int32"), "draw: pass has out vec4 y; expected one output of this type: out ivec4 y;"),
        (draw(dtype="float64"), "draw: dtype is float64; expected one of float32, float16, int32"),
        (draw(shape=(5, -1)), "draw: found the shape (5, -1); expected integers of at least 0"),
        (draw(shape=(10**6, 10**6)), "draw: a 1000000×1000000 matrix takes"),
        (draw("none.frag"), "draw: cannot read the shader none.frag (No such file or directory); expected GLSL of "
         "several lines, or a path"),
        (draw("#version 330\n" + PLAIN), "draw: pass is written in GLSL 330; expected 300 es"),
        (draw(PLAIN.replace("main", "many")), "draw: pass has no void main(); expected a whole fragment shader"),
        (draw(PLAIN.replace("out vec4 y", "out vec4 y;\nout vec4 z")), "draw: pass has out vec4 y, out vec4 z; "
         "expected one output of this type: out vec4 y;"),
        (draw('#include "../README.md"\n' + PLAIN), ShaderError),
        (draw(PLAIN, {f"x{i}": x for i in range(dev.context.limits.max_texture_units + 1)}), "draw: draw own.pass "
         f"samples {dev.context.limits.max_texture_units + 1} textures; this renderer allows"),
    ):  # fmt: skip
        with pytest.raises(GlinferError) as raised:
            run()
        said = str(raised.value)
        if message is ShaderError:
            assert isinstance(raised.value, ShaderError), said
            assert said.startswith("pass:"), said
        else:
            assert said.startswith(str(message)), said
            assert isinstance(raised.value, InputError)
    assert dev.memory() == before
    assert np.array_equal(dev.ops.matmul(x, x.reshape(7, 5)).numpy(), kernel)


def test_a_shader_that_does_not_compile_names_its_own_line(dev: Device, tmp_path: Path) -> None:
    path = tmp_path / "broken.frag"
    path.write_text("#version 300 es\n// two\n// three\n" + PLAIN.replace("y = ", "y = nothing + "))
    with pytest.raises(ShaderError, match=r"^broken\.frag:6: .*nothing"):
        dev.draw(path, {"x": dev.zeros(3)}, 3)
    with pytest.raises(ShaderError, match=r"^mine:3: .*nothing"):
        dev.draw(PLAIN.replace("y = ", "y = nothing + "), {"x": dev.zeros(3)}, 3, name="mine")


def test_one_name_may_be_given_to_several_shaders(own: Device) -> None:
    x = own.tensor(normal(4))
    for factor in (1, 2, 1):
        with own.draw(COPY % f"{TEXEL} * {factor}.0", {"x": x}, 4, name="matmul") as y:
            assert np.array_equal(y.numpy(), factor * x.numpy())
    assert len(own.programs) == 2
    with own.ops.matmul(x.reshape(1, 4), x.reshape(4, 1)) as product:
        assert product.numpy() == pytest.approx(np.square(x.numpy()).sum())
    assert {row.kind for row in own.draws.rows} >= {"own.matmul", "matmul"}


def test_draws_are_counted_by_kernel_and_timed_when_asked(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = own.tensor(normal(5, 7))
    before = own.draws_issued
    assert (own.draws.total, own.draws.rows) == (0, ())
    own.ops.softmax(x)
    own.draw(PLAIN, {"x": x}, (5, 7), name="mine")
    own.ops.gelu(x)

    with monkeypatch.context() as untimed:
        untimed.delattr("glinfer.tensors.device.timer_for")
        own.ops.gelu(own.draw(PLAIN, {"x": x}, (5, 7), name="mine"))
    table = own.draws
    counts = {row.kind: (row.count, row.shader, row.rows, row.cols) for row in table.rows}
    assert counts == {
        "softmax": (2, "row_stats, normalize", 5, 7),
        "own.mine": (2, "own", 5, 7),
        "gelu": (2, "activation", 5, 7),
    }
    assert table.total == own.draws_issued - before == int(table)
    assert sum(row.share for row in table.rows) == pytest.approx(1)
    assert not table.milliseconds
    own.timed = True
    own.ops.softmax(x)
    own.timed = False
    own.ops.softmax(x)
    assert own.draws.milliseconds.keys() == {"softmax"}
    assert own.draws.milliseconds["softmax"] > 0
    assert "softmax 6 in " in repr(own.draws)
    assert "10 draws of the device" in own.draws._repr_html_()
    assert not table.milliseconds, "a table does not change"


def test_the_strategy_of_a_product_and_why(dev: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What explain says is what the product takes."""
    taken: list[str] = []
    from glinfer.tensors import matmul as module

    draws = module.matmul_draws
    monkeypatch.setattr(module, "matmul_draws", lambda *a, **k: taken.append(k["strategy"].name) or draws(*a, **k))
    dev.kernels = dataclasses.replace(dev.kernels, product_table="llvmpipe")
    packed = dev.tensor(normal(64, 32), "Q8_ROW")
    for x, y, linear in (
        (normal(3, 4), normal(4, 5), False),
        (normal(1, 16384), normal(16384, 4), False),
        (normal(2, 1, 3, 1, 4, 8), normal(3, 1, 2, 8, 3), False),
        (normal(33, 70), normal(70), False),
        (normal(1, 4096), normal(16, 4096), True),
        (normal(40, 32), packed, True),
    ):
        left, right = dev.tensor(x), y if isinstance(y, Tensor) else dev.tensor(y)
        said = dev.ops.explain(left, right, linear=linear)
        (dev.ops.linear if linear else dev.ops.matmul)(left, right)
        assert said.startswith(taken[-1]), (said, taken)
        assert "; the llvmpipe map for " in said
    assert "reduce" in taken
    dev.kernels = dataclasses.replace(dev.kernels, product_table="gpu")
    dev.blends_floats = False
    assert dev.ops.explain(dev.zeros((1, 4096)), dev.zeros((4096, 4))).endswith("which is impossible or slower here")
    assert dev.ops.explain(dev.zeros((0, 4)), dev.zeros((4, 4))) == "no strategy; the result has no elements"
