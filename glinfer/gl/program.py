"""Compiles shader files into programs: finds, includes, specialises with #defines, and caches them.

Shader files are whole GLSL ES 3.00 sources (version line first) that may contain
``#include "common/x.glsl"``; the same files run in a browser. A compile error names file and line.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import moderngl
import numpy as np

from glinfer.errors import PlanError, ShaderError
from glinfer.gl.context import Device, GLObject
from glinfer.gl.integer_targets import INTEGER_TARGETS, STORED, rewritten
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.gl.raw import GL_SAMPLERS
from glinfer.gl.signals import signals_held

VERTEX_SHADER = "common/triangle.vert"
BLOCKS_SHADER = "common/blocks.vert"
OWN = "own"
"""The file name that stands for the caller's shader in shaders/own.frag."""
DESKTOP_VERSION = "common/desktop_version.glsl"
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$')
# Mesa: "0:12(5): error", NVIDIA: "0(12) : error", ANGLE: "ERROR: 0:12:".
_LOCATION = re.compile(r"\S+:\d+: ")
_LOG_LINE = re.compile(r"\b0[:(](\d+)[:()]")


Formats = tuple[tuple[str, ...], tuple[str, ...]]
"""Format names of the layouts that a draw samples, in the order of its samplers, and of the layouts that it writes."""


@lru_cache(maxsize=1)
def shader_root() -> Path:
    """The folder of the shader files: inside the installed package, or next to it in a source checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "shaders", package.parent / "shaders"):
        if (folder / VERTEX_SHADER).is_file():
            return folder
    raise ShaderError(f"the shader files are missing: neither {package}/shaders nor {package.parent}/shaders has them")


@dataclass(frozen=True)
class OwnShader:
    """A caller's fragment shader without its version line, which shaders/own.frag includes, and the output's name."""

    name: str
    text: str
    output: str


@dataclass(frozen=True)
class Source:
    """A shader ready to compile, and the file and line that each of its lines came from."""

    text: str
    origin: tuple[tuple[str, int], ...]


def load_source(
    name: str,
    defines: Mapping[str, int | float | str],
    *,
    api: str,
    root: Path | None = None,
    own: OwnShader | None = None,
) -> Source:
    """Read ``name`` under the shader folder, resolve its includes once each, and add the #defines.

    Raises:
        ShaderError: a file is missing, is not UTF-8 text, leaves the folder, or does not begin with the version
            line.
    """
    # Many programs come from one file of the package, and these files do not change.
    expanded = _expanded_once if root is None and own is None else _expanded
    root = root or shader_root()
    lines, origin = expanded(root, name, own)
    version = lines[:1] if api == "es" else _read(root, DESKTOP_VERSION, name)[1].splitlines()
    header = [f"#define {key} {_literal(value)}" for key, value in sorted(defines.items())]
    header += [] if own is None else [f"#define OWN_OUTPUT {own.output}"]
    text = "\n".join([*version, *header, *lines[1:]]) + "\n"
    return Source(text, (*[origin[0]] * len(version), *[("#define", 0)] * len(header), *origin[1:]))


def integer_form(source: Source, halves: Collection[str], targets: Sequence[str]) -> Source:
    """A fragment shader for renderers that cannot render to floats; see :func:`rewritten`."""
    lines = source.text.splitlines()
    start = next(number for number, line in enumerate(lines) if not line.startswith(("#version", "#extension")))
    common = _read(shader_root(), INTEGER_TARGETS, INTEGER_TARGETS)[1].splitlines()
    locations = [(INTEGER_TARGETS, number) for number in range(1, len(common) + 1)]
    text, after = rewritten("\n".join(lines[start:]), halves, targets)
    origin = (*source.origin[:start], *locations, *source.origin[start:])
    return Source("\n".join([*lines[:start], *common, text, *after]) + "\n", origin)


def _expanded(root: Path, name: str, own: OwnShader | None = None) -> tuple[list[str], list[tuple[str, int]]]:
    """Read a shader with its includes; returns its lines, and the file and line of each."""
    lines: list[str] = []
    origin: list[tuple[str, int]] = []
    seen: set[Path] = set()

    def add(file: str, included_from: str) -> None:
        if file == OWN and own is not None:
            path, text, file = Path(OWN), own.text, own.name
        else:
            path, text = _read(root, file, included_from)
        if path in seen:
            return
        seen.add(path)
        for number, line in enumerate(text.splitlines(), start=1):
            include = _INCLUDE.match(line)
            if include is None:
                lines.append(line)
                origin.append((file, number))
            else:
                add(include[1], f"{file}:{number}")

    add(name, name)
    if not lines or not re.fullmatch(r"#version \d+ es", lines[0].strip()):
        raise ShaderError(f"{name}:1: the first line is not a #version line of GLSL ES")
    return lines, origin


_expanded_once = cache(_expanded)


def _read(root: Path, file: str, wanted_by: str) -> tuple[Path, str]:
    path = (root / file).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_file():
        raise ShaderError(f"{wanted_by}: there is no shader file {file} in {root}")
    try:
        return path, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ShaderError(f"{wanted_by}: shader file {file} in {root} cannot be read ({error})") from None


def _literal(value: int | float | str) -> str:
    return repr(float(value)) if isinstance(value, (float, np.floating)) else str(value)


def explain(log: str, source: Source) -> str:
    """The first error of a driver's compile log, as ``file:line: driver's message``."""
    lines = log.splitlines()
    # Warnings have the same form, and may come first.
    for line in sorted(lines, key=lambda text: "error" not in text.lower()):
        found = _LOG_LINE.search(line)
        if found and 1 <= int(found[1]) <= len(source.origin):
            file, number = source.origin[int(found[1]) - 1]
            return f"{file}:{number}: {line.strip()}"
    return " ".join(log.split())


class Program(GLObject):
    """One compiled shader specialisation, its samplers fixed to texture units 0, 1, … in the given order."""

    kind = "program"

    def __init__(
        self,
        device: Device,
        shader: str,
        defines: Mapping[str, int | float | str],
        samplers: Sequence[str],
        *,
        vertex_shader: str = VERTEX_SHADER,
        root: Path | None = None,
        own: OwnShader | None = None,
        formats: Formats | None = None,
    ) -> None:
        """Compile ``shader`` with ``defines``; any vertex shader but the triangle's gets the defines too.

        Args:
            device, shader, defines, vertex_shader: what to compile.
            samplers: the fragment shader's samplers, in the order of texture units.
            root: a folder to use instead of the shader folder.
            own: the caller's shader that shaders/own.frag includes.
            formats: of its textures, which matter for integer targets; default: float32 for all inputs and one output.

        Raises:
            ShaderError: a file is missing, or the driver refuses the source.
            PlanError: ``samplers`` are not exactly the samplers that the shader uses.
        """
        self.device, self.shader = device, shader if own is None else own.name
        vertex = load_source(
            vertex_shader, {} if vertex_shader == VERTEX_SHADER else defines, api=device.api, root=root
        )
        fragment = load_source(f"{shader}.frag", defines, api=device.api, root=root, own=own)
        if not device.limits.float_targets:
            inputs, targets = formats or ((), ("r32f",))
            halves = {sampler for sampler, form in zip(samplers, inputs, strict=False) if form == "rgba16f"}
            fragment = integer_form(fragment, halves, targets)
        # Current uniform values: GL keeps them in the program, and only glinfer writes them.
        self.values: dict[str, int | float] = {}
        self.vertex_array: Any = None
        try:
            with self._making():
                with signals_held():  # moderngl does not survive a Ctrl-C here
                    self.gl = device.gl.program(vertex_shader=vertex.text, fragment_shader=fragment.text)
                self.vertex_array = device.gl.vertex_array(self.gl, [])
                members = {name: self.gl[name] for name in self.gl}
                uniforms = {name: each for name, each in members.items() if isinstance(each, moderngl.Uniform)}
                self._uniforms: dict[str, Any] = uniforms
                self._fix_samplers(samplers)
                device.check(f"compiling {shader}")
        except moderngl.Error as error:
            device.check(f"compiling {shader}", grave_only=True)
            source = vertex if "vertex_shader" in str(error).splitlines() else fragment
            said = explain(str(error), source)
            raise ShaderError(said if _LOCATION.match(said) else f"{shader}.frag: {said}") from None
        self.uniform_names = frozenset(self._uniforms) - frozenset(samplers)

    def expect_samples(self, sampler: str, format_name: str) -> None:
        """Raise a PlanError if a sampler's type does not suit a texture's format: its values would be undefined."""
        form = (FORMATS if self.device.limits.float_targets else STORED)[format_name]
        wanted = {"f": "sampler2D", "i": "isampler2D", "u": "usampler2D"}[form.kind]
        found = GL_SAMPLERS[self._uniforms[sampler].gl_type]
        if found != wanted:
            raise PlanError(f"shader {self.shader}: {sampler} is a {found}; its tensor needs {wanted}")

    def _fix_samplers(self, samplers: Sequence[str]) -> None:
        found = {name for name, uniform in self._uniforms.items() if uniform.gl_type in GL_SAMPLERS}
        unbound = sorted(found.difference(samplers))
        if unbound:
            raise PlanError(f"shader {self.shader} samples {unbound[0]!r}, which is bound to nothing")
        for unit, name in enumerate(samplers):
            if name not in found:
                raise PlanError(f"shader {self.shader} reads no texture {name!r}")
            self._uniforms[name].value = unit

    def set(self, name: str, value: int | float) -> None:
        """Set one uniform if it does not hold the value yet.

        Raises:
            PlanError: the shader has no such uniform, or ``value`` is not of its type: raw OpenGL would silently
                ignore a float for an int.
        """
        held = self.values.get(name)
        if held == value and type(held) is type(value):
            return
        if name not in self._uniforms:
            raise PlanError(f"shader {self.shader} has no uniform {name!r}")
        self.values.pop(name, None)  # an interrupt must not leave a stale value
        try:
            self._uniforms[name].value = value
        except (struct.error, TypeError, OverflowError):  # moderngl packs the value by the uniform's type
            kind = "an integer of 32 bits" if self._uniforms[name].fmt.endswith(("i", "I")) else "a number"
            raise PlanError(f"shader {self.shader}: uniform {name!r} is {value!r}; expected {kind}") from None
        self.values[name] = value

    def _delete(self) -> None:
        # OpenGL keeps a deleted program alive as long as it is in use.
        self.device.raw.use_program(0)
        if self.vertex_array is not None:
            self.vertex_array.release()
            self.vertex_array = None
        self.gl.release()


MAX_UNUSED_PROGRAMS = 128
"""Limit for unused programs that stay compiled; a software renderer keeps up to 3 MB of code for each."""


class ProgramCache:
    """Programs cached by content: shader names, defines as text, and samplers. Its owner releases it.

    The defines contain the shapes, so every new shape compiles a new program. A user of programs calls :meth:`hold`
    and :meth:`give_back`; the :data:`MAX_UNUSED_PROGRAMS` most recently used programs without a holder stay.
    """

    def __init__(self, device: Device, root: Path | None = None) -> None:
        """An empty cache; ``root`` replaces the shader folder (for trying out changed shaders)."""
        self._device, self._root = device, root
        self._programs: dict[tuple[object, ...], Program] = {}  # least recently used first
        self._holders: Counter[Program] = Counter()

    def __len__(self) -> int:
        """Number of distinct compiled programs."""
        return len(self._programs)

    def get(
        self,
        shader: str,
        defines: Mapping[str, int | float | str] | Iterable[tuple[str, int | float | str]],
        samplers: Sequence[str],
        vertex_shader: str = VERTEX_SHADER,
        own: OwnShader | None = None,
        formats: Formats | None = None,
    ) -> Program:
        """The program, compiled at the first request; arguments as :class:`Program`."""
        if self._device.limits.float_targets:
            formats = None
        defines = dict(defines)
        # By their text: 1 and 1.0 are equal in Python, but two types in GLSL.
        spelt = tuple(sorted((name, _literal(value)) for name, value in defines.items()))
        key = (shader, vertex_shader, spelt, tuple(samplers), own, formats)
        program = self._programs.pop(key, None)
        if program is None:
            program = Program(
                self._device,
                shader,
                defines,
                samplers,
                vertex_shader=vertex_shader,
                root=self._root,
                own=own,
                formats=formats,
            )
        self._programs[key] = program
        return program

    def hold(self, programs: Iterable[Program]) -> None:
        """Keep programs of this cache for one more user."""
        self._holders.update(programs)

    def give_back(self, programs: Iterable[Program]) -> None:
        """Give up one hold on these programs; release the least recently used ones beyond the limit."""
        self._holders.subtract(programs)
        self._holders = +self._holders
        unused = [key for key, program in self._programs.items() if program not in self._holders]
        for key in unused[: max(0, len(unused) - MAX_UNUSED_PROGRAMS)]:
            self._programs.pop(key).release()

    def release(self) -> None:
        """Release every program."""
        for program in self._programs.values():
            program.release()
        self._programs.clear()
        self._holders.clear()
