"""Passes with the caller's own fragment shader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.formats.files import decode_text, shown
from glinfer.gl.program import OwnShader
from glinfer.tensors.base import expect_tensor
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import TEXTURE_FORMATS, Shape, Tensor, TensorDevice, type_name

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VERSION = re.compile(r"^[ \t]*#[ \t]*version\b([^\n]*)", re.MULTILINE)
_MAIN = re.compile(r"\bvoid\s+main\s*\(")
_OUTPUT = re.compile(r"\bout\s+(?:(?:low|medium|high)p\s+)?(\w+)\s+(\w+)\s*;")


def own_pass(
    device: TensorDevice,
    shader: str | PathLike[str],
    inputs: Mapping[str, Tensor],
    shape: Shape,
    uniforms: Mapping[str, int | float],
    dtype: npt.DTypeLike,
    out: Tensor | None,
    name: str | None,
) -> Tensor:
    """Draw one pass, see :meth:`glinfer.tensors.device.Device.draw`."""
    wanted = type_name(dtype, TEXTURE_FORMATS)
    whole = wanted == "int32"
    own = _read(shader, name, "ivec4" if whole else "vec4")
    for given, what in ((inputs, "inputs"), (uniforms, "uniforms")):
        if not isinstance(given, Mapping):
            raise InputError(f"{what} is {type(given).__name__}; expected a dict by the names in the shader")
    for sampler, tensor in inputs.items():
        if not str(sampler).isidentifier() or [each.upper() for each in inputs].count(sampler.upper()) > 1:
            raise InputError(f"found the input {sampler!r}; expected names of samplers that differ in more than case")
        expect_tensor(sampler, tensor)
    numbers = [(key, value.item() if isinstance(value, np.generic) else value) for key, value in uniforms.items()]
    for key, value in numbers:
        if not isinstance(value, (int, float)):
            raise InputError(f"uniform {key!r} is {type(value).__name__}; expected a number")
    with Passes(device, f"own.{own.name}") as passes:
        if 0 in shape:
            return passes.zeros(shape, wanted, out, **inputs)
        reads = {sampler: passes.read(sampler, tensor) for sampler, tensor in inputs.items()}
        # GLSL reserves this name, so no sampler has it.
        target = (passes.result if whole else passes.computed)("out", shape, wanted, out)
        sizes = [(f"{sampler.upper()}_ROWS", spec.shape[0]) for sampler, spec in reads.items()]
        sizes += [(f"{sampler.upper()}_COLS", spec.shape[1]) for sampler, spec in reads.items()]
        sizes += [("OUT_ROWS", target.shape[0]), *([("WHOLE", 1)] if whole else [])]
        passes.step("own", reads, [target], defines=sizes, uniforms=numbers, own=own)
        (result,) = passes.run()
        return result


def _read(shader: str | PathLike[str], name: str | None, kind: str) -> OwnShader:
    """Read a shader whose output is of type ``kind``: GLSL as a string of several lines, or the path of a file."""
    text = str(shader)
    if not isinstance(shader, str) or "\n" not in shader:
        try:
            text = decode_text(Path(shader).read_bytes(), f"the shader {shown(shader)}", "GLSL")
        except (OSError, ValueError, TypeError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot read the shader {shown(text)} ({why}); expected GLSL of several lines, or a path"
            ) from None
        name = name or shown(Path(shader).name)
    name, code = name or "pass", _COMMENT.sub(" ", text)
    version, outputs = _VERSION.search(code), _OUTPUT.findall(code)
    if version and version[1].split() != ["300", "es"]:
        raise InputError(f"{name} is written in GLSL{version[1]}; expected 300 es")
    if not _MAIN.search(code):
        raise InputError(f"{name} has no void main(); expected a whole fragment shader")
    if [each for each, _ in outputs] != [kind]:
        found = ", ".join(f"out {' '.join(each)}" for each in outputs) or "no output"
        raise InputError(f"{name} has {found}; expected one output of this type: out {kind} y;")
    return OwnShader(name, _VERSION.sub("", text, count=1), outputs[0][1])
