"""Shader files to programs: find, include, specialise with #defines, compile, cache.

Shader files are whole GLSL ES 3.00 sources (version line first) that may say
``#include "common/x.glsl"``; the same files run in a browser. A compile error names file and line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import moderngl

from glinfer.errors import PlanError, ShaderError
from glinfer.gl.context import Device

VERTEX_SHADER = "common/triangle.vert"
DESKTOP_VERSION = "common/desktop_version.glsl"
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$')
# Mesa: "0:12(5): error", NVIDIA: "0(12) : error", ANGLE: "ERROR: 0:12:".
_LOG_LINE = re.compile(r"\b0[:(](\d+)[:()]")


@lru_cache(maxsize=1)
def shader_root() -> Path:
    """The folder of the shader files: inside the installed package, or beside it in a source checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "shaders", package.parent / "shaders"):
        if (folder / VERTEX_SHADER).is_file():
            return folder
    raise ShaderError(f"the shader files are missing: neither {package}/shaders nor {package.parent}/shaders has them")


@dataclass(frozen=True)
class Source:
    """A shader ready to compile, and for every line of it the file and line it came from."""

    text: str
    origin: tuple[tuple[str, int], ...]


def load_source(name: str, defines: Mapping[str, int | float], *, api: str, root: Path | None = None) -> Source:
    """Read ``name`` under the shader folder, resolve its includes once each, and add the #defines.

    Raises:
        ShaderError: a file is missing, leaves the folder, or does not begin with the version line.
    """
    root = root or shader_root()
    lines: list[str] = []
    origin: list[tuple[str, int]] = []
    seen: set[str] = set()

    def add(file: str, included_from: str) -> None:
        path = (root / file).resolve()
        if not path.is_relative_to(root.resolve()) or not path.is_file():
            raise ShaderError(f"{included_from}: there is no shader file {file} in {root}")
        seen.add(file)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            include = _INCLUDE.match(line)
            if include is None:
                lines.append(line)
                origin.append((file, number))
            elif include[1] not in seen:
                add(include[1], f"{file}:{number}")

    add(name, name)
    if not lines or not re.fullmatch(r"#version \d+ es", lines[0].strip()):
        raise ShaderError(f"{name}:1: the first line is not a #version line of GLSL ES")
    version = lines[0] if api == "es" else (root / DESKTOP_VERSION).read_text(encoding="utf-8").strip()
    header = [f"#define {key} {_literal(value)}" for key, value in sorted(defines.items())]
    text = "\n".join([version, *header, *lines[1:]]) + "\n"
    return Source(text, (origin[0], *[("#define", 0)] * len(header), *origin[1:]))


def _literal(value: int | float) -> str:
    return repr(value) if isinstance(value, float) else str(int(value))


def explain(log: str, source: Source) -> str:
    """The first error of a driver's compile log, as ``file:line: what the driver said``."""
    for line in log.splitlines():
        found = _LOG_LINE.search(line)
        if found and 1 <= int(found[1]) <= len(source.origin):
            file, number = source.origin[int(found[1]) - 1]
            return f"{file}:{number}: {line.strip()}"
    return " ".join(log.split())


class Program:
    """One compiled shader specialisation, its samplers fixed to texture units 0, 1, … in the given order."""

    kind = "program"

    def __init__(
        self,
        device: Device,
        shader: str,
        defines: Mapping[str, int | float],
        samplers: Sequence[str],
        *,
        root: Path | None = None,
    ) -> None:
        """Compile ``shader`` with ``defines``.

        Raises:
            ShaderError: a file is missing, or the driver refuses the source.
            PlanError: ``samplers`` are not exactly the samplers that the shader uses.
        """
        self.device, self.shader = device, shader
        vertex = load_source(VERTEX_SHADER, {}, api=device.api, root=root)
        fragment = load_source(f"{shader}.frag", defines, api=device.api, root=root)
        device.activate()
        try:
            self.gl: Any = device.gl.program(vertex_shader=vertex.text, fragment_shader=fragment.text)
        except moderngl.Error as error:
            device.raw.pending_errors()
            source = vertex if "vertex_shader" in str(error) else fragment
            raise ShaderError(explain(str(error), source)) from None
        self.vertex_array: Any = device.gl.vertex_array(self.gl, [])
        device.adopt(self)
        # What each uniform holds now: GL keeps uniform values in the program, and only glinfer writes them.
        self._values: dict[str, int | float] = {}
        self._uniforms: dict[str, Any] = {}
        found = set()
        for name in self.gl:
            member = self.gl[name]
            if isinstance(member, moderngl.Uniform):
                self._uniforms[name] = member
                if name in samplers:
                    member.value = samplers.index(name)
                    found.add(name)
        unused = [name for name in samplers if name not in found]
        if unused:
            raise PlanError(f"shader {shader} reads no texture {unused[0]!r}")
        self.uniform_names = frozenset(self._uniforms) - found
        device.check(f"compiling {shader}")

    def set(self, name: str, value: int | float) -> None:
        """Set one uniform if it does not hold the value yet; int uniforms refuse floats (moderngl packs by type)."""
        if self._values.get(name) != value:
            self._uniforms[name].value = value
            self._values[name] = value

    def release(self) -> None:
        """Release the program and its vertex array."""
        if self.gl is not None:
            self.vertex_array.release()
            self.gl.release()
            self.gl = self.vertex_array = None
            self.device.disown(self)


class ProgramCache:
    """Programs by content: shader name, defines and samplers. Its owner releases it."""

    def __init__(self, device: Device, root: Path | None = None) -> None:
        """An empty cache; ``root`` replaces the shader folder (for trying out changed shaders)."""
        self._device, self._root = device, root
        self._programs: dict[tuple[object, ...], Program] = {}

    def __len__(self) -> int:
        """How many distinct programs were compiled."""
        return len(self._programs)

    def get(self, shader: str, defines: Mapping[str, int | float], samplers: Sequence[str]) -> Program:
        """The compiled program, made at the first request."""
        key = (shader, tuple(sorted(defines.items())), tuple(samplers))
        if key not in self._programs:
            self._programs[key] = Program(self._device, shader, defines, samplers, root=self._root)
        return self._programs[key]

    def release(self) -> None:
        """Release every program."""
        for program in self._programs.values():
            program.release()
        self._programs.clear()
