"""Shader files to programs: includes, defines, messages, samplers and uniforms; and that every shader compiles."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_forms import family_forms
from flat_ops import flat_ops
from one_draw import OneDraw
from published_draw import concat_draw, every_form, values_draw
from reference_compiler import check_with_reference_compiler, sources_of

from glinfer.errors import PlanError, ShaderError
from glinfer.gl.context import Device, open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import (
    Program,
    ProgramCache,
    Source,
    explain,
    integer_form,
    load_source,
    shader_root,
)
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture
from glinfer.kernels import OPS, DrawSpec
from glinfer.program.compiled import shading
from glinfer.program.session import Session
from qa.kernels.measure import all_cases

pytestmark = pytest.mark.gl

PUBLISHED = {"concat_head", "embed", "attention_scores", "attention_values", "linear", "softmax", "layer_norm"}
WRAPPED = {"WRAPPED": 1, "OUT_WIDTH": 7, "OUT_ROWS": 3}
NOT_OPS = {
    "copy",
    "probe_quad",
    "probe_math",
    "self_test",
    "ceiling_fetch",
    "ceiling_alu",
    "own",
}  # shaders that tools run by themselves

HEAD = "#version 300 es\nprecision highp float;\nlayout(location = 0) out float y;\n"


def folder(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """A shader folder with these files beside the real vertex shader and desktop version line."""
    (root / "common").mkdir(parents=True)
    for name in ("common/triangle.vert", "common/desktop_version.glsl"):
        shutil.copy(shader_root() / name, root / name)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def compile_error(message: str) -> Any:
    """Expect a ShaderError of one line that matches from its start."""
    return pytest.raises(ShaderError, match=rf"\A{message}[^\n]*\Z")


# Reading and including


def test_each_file_is_included_once_wherever_it_is_asked_for(tmp_path: Path) -> None:
    root = folder(
        tmp_path,
        {
            "main.frag": '#version 300 es\n#include "a.glsl"\n  #include "b.glsl"  \n#include "a.glsl"\nlast\n',
            "a.glsl": '#include "deep/c.glsl"\na\n',
            "b.glsl": '#include "a.glsl"\n#include "deep/../deep/c.glsl"\n#include "main.frag"\nb\n',
            "deep/c.glsl": '#include "deep/c.glsl"\nc\n',
        },
    )
    source = load_source("main.frag", {}, api="es", root=root)
    assert source.text == "#version 300 es\nc\na\nb\nlast\n"
    assert source.origin == (("main.frag", 1), ("deep/c.glsl", 2), ("a.glsl", 2), ("b.glsl", 4), ("main.frag", 5))


def test_defines_follow_the_version_line_in_order(tmp_path: Path) -> None:
    root = folder(tmp_path, {"main.frag": "#version 300 es\nlast\n"})
    defines = {"B": 2, "A": -1, "E": 1e-5, "F": 1.0, "I": np.int64(7), "S": np.float32(0.5), "D": np.float64(0.1)}
    source = load_source("main.frag", defines, api="es", root=root)
    assert source.text.splitlines() == [
        "#version 300 es",
        "#define A -1",
        "#define B 2",
        "#define D 0.1",
        "#define E 1e-05",
        "#define F 1.0",
        "#define I 7",
        "#define S 0.5",
        "last",
    ]
    assert len(source.origin) == len(source.text.splitlines())
    assert source.origin[-1] == ("main.frag", 2)


@pytest.mark.parametrize("value", [1e-5, 1e30, 16777217.0, -0.17677669529663687])
def test_a_float_define_arrives_as_it_was(device: Device, tmp_path: Path, value: float) -> None:
    root = folder(tmp_path, {"main.frag": f"{HEAD}void main() {{ y = 0.0 -VALUE; }}\n"})
    assert rendered(device, Program(device, "main", {"VALUE": value}, [], root=root)) == np.float32(-value)


def rendered(device: Device, program: Program) -> np.float32:
    """The one number that a shader without inputs computes."""
    target = Texture(device, Layout.of((1, 1), "r32f", 64), "target")
    replay(device, [Draw("draw", program, target.framebuffer)], {})
    return np.float32(target.read()[0, 0])


def test_a_shader_without_its_version_line_or_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for number, content in enumerate(("", "\n#version 300 es\n", "#version 330 core\n", "void main() {}\n")):
        root = folder(tmp_path / str(number), {"main.frag": content})
        with compile_error("main.frag:1: the first line is not a #version line"):
            load_source("main.frag", {}, api="es", root=root)
    root = folder(tmp_path / "bytes", {"main.frag": b"#version 300 es\n// \xff\n"})
    with compile_error(r"main\.frag: shader file main\.frag in .* cannot be read \("):
        load_source("main.frag", {}, api="es", root=root)


def test_a_missing_file_is_named_with_the_line_that_wants_it(tmp_path: Path, device: Device) -> None:
    root = folder(tmp_path, {"main.frag": '#version 300 es\n\n#include "common/none.glsl"\n', "a.frag/x": ""})
    with compile_error(r"main\.frag:3: there is no shader file common/none\.glsl in "):
        load_source("main.frag", {}, api="es", root=root)
    with compile_error(r"a\.frag: there is no shader file a\.frag in "):  # it is a directory
        load_source("a.frag", {}, api="es", root=root)
    with compile_error(r"none\.frag: there is no shader file none\.frag in "):
        Program(device, "none", {}, [], root=root)
    with compile_error(r"common/triangle\.vert: there is no shader file "):
        Program(device, "none", {}, [], root=tmp_path / "nowhere")


@pytest.mark.parametrize("path", ["../secret.glsl", "common/../../secret.glsl", "{root}/../secret.glsl", "link.glsl"])
def test_an_include_that_leaves_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.glsl").write_text("secret\n")
    path = path.replace("{root}", str(tmp_path / "shaders"))
    root = folder(tmp_path / "shaders", {"main.frag": f'#version 300 es\n#include "{path}"\n'})
    (root / "link.glsl").symlink_to(tmp_path / "secret.glsl")
    with compile_error(r"main\.frag:2: there is no shader file "):
        load_source("main.frag", {}, api="es", root=root)


def test_a_folder_without_the_desktop_version_is_refused_on_desktop_alone(tmp_path: Path) -> None:
    root = folder(tmp_path, {"main.frag": "#version 300 es\n"})
    (root / "common" / "desktop_version.glsl").unlink()
    load_source("main.frag", {}, api="es", root=root)
    with compile_error(r"main\.frag: there is no shader file common/desktop_version\.glsl"):
        load_source("main.frag", {}, api="desktop", root=root)


# What the driver says


PLANTED = {
    "main.frag": '#version 300 es\nprecision highp float;\n#include "part.glsl"\nlayout(location = 0) out float y;\n'
    "void main() {\n    y = part(1.0) + MAIN;\n}\n",
    "part.glsl": "// a comment\nfloat part(float x) {\n    return x + PART;\n}\n",
}


@pytest.mark.parametrize("api", ["es", pytest.param("desktop", marks=pytest.mark.desktop)])
@pytest.mark.parametrize(
    ("defines", "place"),
    [({"MAIN": 0.5}, r"part\.glsl:3: .*PART"), ({"PART": 0.5, "A": 1, "B": 2, "C": 3}, r"main\.frag:6: .*MAIN")],
)
def test_a_compile_error_names_file_and_line(tmp_path: Path, api: str, defines: dict[str, float], place: str) -> None:
    root = folder(tmp_path, PLANTED)
    with open_device(api=api) as device:
        with compile_error(place):
            Program(device, "main", defines, [], root=root)
        assert device.raw.pending_errors() == []
        assert not device.live_objects()
        Program(device, "main", {"MAIN": 0.5, "PART": 0.5}, [], root=root)


@pytest.mark.parametrize(
    ("vertex", "body", "message"),
    [
        ("nothing", "void main() { y = 1.0; }", r"common/triangle\.vert:3: .*nothing"),
        ("vec4(0)", "void main() { y = vertex_shader; }", r"main\.frag:4: .*vertex_shader"),
        ("vec4(0)", "in float never;\nvoid main() { y = never; }", ".*never"),
    ],
    ids=["in the vertex shader", "that speaks of one", "of linking"],
)
def test_an_error_names_the_right_shader(tmp_path: Path, device: Device, vertex: str, body: str, message: str) -> None:
    root = folder(tmp_path, {"main.frag": f"{HEAD}{body}\n"})
    (root / "common" / "triangle.vert").write_text(f"#version 300 es\n\nvoid main() {{ gl_Position = {vertex}; }}\n")
    with compile_error(message):
        Program(device, "main", {}, [], root=root)


SOURCE = Source("", (("main.frag", 1), ("#define", 0), ("part.glsl", 7), ("main.frag", 3)))


@pytest.mark.parametrize(
    ("driver", "log"),
    [
        ("Mesa", "0:3(14): error: `foo' undeclared\n0:3(2): error: no matching function"),
        ("NVIDIA", '0(3) : error C1503: undefined variable "foo"\n0(4) : error C1008: undefined'),
        ("ANGLE", "ERROR: 0:3: 'foo' : undeclared identifier\nERROR: 1 compilation errors.  No code generated."),
        ("Mesa, a warning first", "0:4(1): warning: `y' used uninitialized\n0:3(14): error: `foo' undeclared"),
        ("ANGLE, a warning first", "WARNING: 0:1: 'x' : odd\nERROR: 0:3: 'foo' : undeclared identifier\n"),
        ("NVIDIA, a warning first", "0(1) : warning C7050: odd\n0(3) : error C1503: undefined variable"),
        (
            "moderngl around it",
            "GLSL Compiler failed\n\nfragment_shader\n===============\n0:3(14): error: `foo' undeclared\n",
        ),
    ],
)
def test_the_line_is_found_in_every_drivers_log(driver: str, log: str) -> None:
    first = next(line.strip() for line in log.splitlines() if re.search(r"error", line, re.IGNORECASE) and "3" in line)
    assert explain(log, SOURCE) == f"part.glsl:7: {first}"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("error: out of\n  registers \n", "error: out of registers"),
        ("0:99(1): error: beyond the end", "0:99(1): error: beyond the end"),
        ("", ""),
        ("0:2(1): error: bad", "#define:0: 0:2(1): error: bad"),
        ("10:3: error: not a place", "10:3: error: not a place"),
    ],
)
def test_a_log_without_a_place_is_told_whole_in_one_line(log: str, said: str) -> None:
    assert explain(log, SOURCE) == said


# Samplers and uniforms


def test_samplers_that_the_shader_has_not_or_that_nothing_is_bound_to_are_refused(device: Device) -> None:
    for shader, defines, samplers, message in (
        ("copy", {"COLS": 5}, ["x", "extra"], "copy reads no texture 'extra'"),
        ("copy", {"COLS": 5}, [], "copy samples 'x', which is bound to nothing"),
        (
            "linear",
            {"IN": 2, "OUT": 2, "ACTIVATION": 0},
            ["x", "weight", "bias"],
            "linear reads no texture 'bias'",
        ),
        ("softmax", {"STRIDE": 5}, ["x", "cols"], "softmax reads no texture 'cols'"),
    ):
        with pytest.raises(PlanError, match=f"^shader {message}$"):
            Program(device, shader, defines, samplers)
        assert not device.live_objects()


@pytest.mark.parametrize(
    ("value", "expected"), [(2.5, "an integer"), (2.0, "an integer"), (2**31, "an integer"), ("2", "an? ")]
)
def test_an_int_uniform_refuses_what_is_no_int(device: Device, value: Any, expected: str) -> None:
    program = Program(device, "softmax", {"STRIDE": 5}, ["x"])
    program.set("cols", 2)
    with pytest.raises(PlanError, match=rf"^shader softmax: uniform 'cols' is {value!r}; expected {expected}"):
        program.set("cols", value)
    assert program.gl["cols"].value == 2
    with pytest.raises(PlanError, match=r"^shader softmax has no uniform 'rows'$"):
        program.set("rows", 1)


def bind_changed(device: Device, one: OneDraw, **changes: Any) -> None:
    """Bind the plan of one draw with its spec changed after validation."""
    plan = one.plan
    changed = dataclasses.replace(plan, draws=(dataclasses.replace(plan.draws[0], **changes),))
    Session(changed, one.arrays, device)


def test_binding_names_a_uniform_that_is_not_set(device: Device) -> None:
    message = "draw draw, shader attention_values: uniform 'rows': the draw does not set it"
    with pytest.raises(PlanError, match=f"^{message}$"):
        bind_changed(device, values_draw(2, 3, 2, 3, 0), per_run=())
    assert not device.live_objects()


def test_binding_names_a_uniform_that_the_shader_does_not_use(device: Device) -> None:
    one = concat_draw(2, 3, 2, 3, 0, first=True)
    with pytest.raises(PlanError, match=r"^draw draw, shader concat_head: uniform 'tail': the shader does not use it$"):
        bind_changed(device, one, uniforms=(("head", 0), ("tail", 1)))
    with pytest.raises(PlanError, match=r"^draw draw, shader concat_head: uniform 'rows': the shader does not use it$"):
        bind_changed(device, one, per_run=(("rows", "rows"),))
    assert not device.live_objects()


# The cache


def test_one_and_one_point_nought_are_two_programs(device: Device, tmp_path: Path) -> None:
    root = folder(tmp_path, {"half.frag": f"{HEAD}void main() {{ y = float(VALUE / 2); }}\n"})
    cache = ProgramCache(device, root)
    assert rendered(device, cache.get("half", {"VALUE": 1}, [])) == 0.0
    with compile_error(r"half\.frag:4: "):  # 1.0 / 2 has no meaning in GLSL ES, and must reach the compiler to be told
        cache.get("half", {"VALUE": 1.0}, [])


# Every shader


def published_specs() -> list[DrawSpec]:
    return [make().spec for _, make in every_form(rows=2, max_rows=3, heads=2, head_dim=3, other=5, head=1)]


@functools.cache
def plan_specs(*, few: bool) -> list[DrawSpec]:
    return list(family_forms(few=few).values())


def test_every_shader_is_glsl_es_by_the_reference_compiler(tmp_path: Path) -> None:
    """Each pair of shader files with most and with fewest defines; a mistake in GLSL fails too."""
    pairs: dict[tuple[str, str], list[DrawSpec]] = defaultdict(list)
    for spec in (*published_specs(), *plan_specs(few=True)):
        pairs[spec.shader, spec.vertex].append(spec)
    kernels = {shader for case in all_cases() for shader in case.shaders}  # test_kernels.py compiles them
    assert {path.stem for path in shader_root().glob("*.frag")} == {shader for shader, _ in pairs} | NOT_OPS | kernels
    picked = [pick(specs, key=lambda spec: len(spec.defines)) for specs in pairs.values() for pick in (min, max)]
    integers = integer_form(load_source("copy.frag", {"COLS": 5}, api="es"), (), ("rgba16f",))
    check_with_reference_compiler(tmp_path, [*sources_of(picked), ("frag", integers.text)])
    with pytest.raises(AssertionError, match="ERROR: "):
        check_with_reference_compiler(tmp_path, [("frag", f"{HEAD}void main() {{ y = 1.0f * 1; }}\n")])


@pytest.mark.parametrize(
    ("rule", "statement"),
    [
        ("words are shifted by uint amounts", "y = float(word << n);"),
        ("words are shifted by uint amounts", "uint w = word; w >>= n; y = float(w);"),
        ("uint(i) of an int is not shifted directly", "y = float(uint(n) >> 3u);"),
        ("| of ints is not part of an arithmetic expression", "y = float((n | 5) + 3);"),
        ("| of ints is not part of an arithmetic expression", "y = float((n * 3) | 5);"),
        ("structs have no integers", "struct Pair { float x; ivec2 z; }; Pair p; p.x = 1.0; y = p.x;"),
        ("loops test their condition first", "int i = 0; do i++; while (i < n); y = float(i);"),
        ("NaN and infinity are found by their bits", "y = isnan(float(n)) ? 1.0 : 0.0;"),
        ("everything is highp", "mediump float z = float(n); y = z;"),
    ],
)
def test_the_rules_on_forms_that_drivers_compute_wrongly(tmp_path: Path, rule: str, statement: str) -> None:
    head = f"{HEAD}precision highp int;\nuniform int n;\nuniform uint word;\nvoid main() {{"
    good = "y = float(n << 2) + float(word >> 3u) + float((uint(n) | 1u) >> 4u);"
    check_with_reference_compiler(tmp_path, [("frag", f"{head} {good} }}\n")])
    with pytest.raises(AssertionError, match=re.escape(rule)):
        check_with_reference_compiler(tmp_path, [("frag", f"{head} {statement} }}\n")])


@pytest.mark.slow
def test_the_forms_cover_every_op_and_every_if() -> None:
    flat = flat_ops()  # kernels of device.ops are in test_kernels.py
    specs = [*published_specs(), *(spec for spec in plan_specs(few=False) if spec.op not in flat)]
    assert {spec.op for spec in specs} == set(OPS) - flat
    for shader in {spec.shader for spec in specs}:
        text = (shader_root() / f"{shader}.frag").read_text("utf-8")
        seen = [dict(spec.defines) for spec in specs if spec.shader == shader]
        for name in set(re.findall(r"^#(?:ifn?def|(?:el)?if defined\() ?(\w+)", text, re.MULTILINE)):
            assert any(name in names for names in seen), f"{shader} {name}"
            assert any(name not in names for names in seen), f"{shader} {name}"
        for name in set(re.findall(r"^#if !?(\w+)", text, re.MULTILINE)) & set().union(*seen):
            assert len({names.get(name) for names in seen}) > 1, f"{shader} {name}"


@pytest.mark.slow
def test_forms_are_glsl_es_by_the_reference_compiler(tmp_path: Path) -> None:
    check_with_reference_compiler(tmp_path, sources_of(plan_specs(few=False)[::5]))


@pytest.mark.slow
@pytest.mark.parametrize("api", ["es", pytest.param("desktop", marks=pytest.mark.desktop)])
def test_forms_compile_and_use_what_the_op_gives(api: str) -> None:
    """Every form of a published op, also in wrapped textures, and every tenth of other plans."""
    with open_device(api=api) as device:
        for spec in (*published_specs(), *plan_specs(few=False)[::10]):
            given = {uniform for uniform, _ in (*spec.uniforms, *spec.per_run)} | shading(spec)[2]
            wraps = [{}, WRAPPED] if spec.shader in PUBLISHED else [{}]
            for further in wraps:
                vertex, defines, _ = shading(spec)
                samplers = [sampler for sampler, _ in spec.inputs]
                program = Program(device, spec.shader, {**defines, **further}, samplers, vertex_shader=vertex)
                assert program.uniform_names == given, spec
                program.release()
