"""Float textures as textures of integers, for renderers that cannot render to floats.

WebGL2 and OpenGL ES 3.0 render to floats only with EXT_color_buffer_float, but always to integers. So float textures
hold the bits of their numbers there, and fragment shaders are rewritten when they are loaded: a fetch turns bits into
numbers, and outputs turn into bits after main. Numbers stay the same, NaN included; arithmetic may flush denormals, as
it may with float textures. web/glinfer/integer_targets.js does the same in browsers; the two must change together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from glinfer.gl.layouts.matrix import FORMATS, TexelFormat

INTEGER_TARGETS = "common/integer_targets.glsl"
"""The shader file that the rewritten shaders begin with."""
STORED: Mapping[str, TexelFormat] = {
    **FORMATS,
    "r32f": TexelFormat("r32ui", np.uint32),
    "rgba32f": FORMATS["rgba32ui"],
    "rgba16f": TexelFormat("rgba16i", np.int16, 4),
}
"""The format that a texture has for each format of a layout."""
_BITS = {
    "r32f": ("uvec4", "floatBitsToUint"),
    "rgba32f": ("uvec4", "floatBitsToUint"),
    "rgba16f": ("ivec4", "halves_of_floats"),
}
_OUTPUT = re.compile(r"(?:layout\(location = (\w+)\) )?\bout (vec4|float|ELEMENTS) (\w+);")
_UNIFORMS = re.compile(r"\buniform (highp )?(\w*SAMPLER|sampler2D) ([\w, ]+);")
_WORDS = {
    r"\bsampler2D\b": "usampler2D[1]",
    r"(precision \w+ usampler2D)\[1\]": r"\1",
    r"\btexelFetch\(": "FETCHED(",
    r"\btexture\(": "LOOKED_UP(",
    r"\btextureSize\(": "SIZE_OF(",
    r"\bmain\b": "computed",
}


def rewritten(text: str, halves: Collection[str], targets: Sequence[str]) -> tuple[str, list[str]]:
    """Rewrite a fragment shader for integer targets.

    Args:
        text: the shader with its includes, without its version line.
        halves: its samplers of half floats.
        targets: format names of the layouts of its outputs, by location.

    Returns:
        The shader, line by line instead of ``text``, and the lines to put after it.
    """

    def declared(found: re.Match[str]) -> str:
        names = found[3].split(", ")
        # Samplers that common/each_row.glsl declares in a macro have the names x0, x1, … for X.
        apart = [name for name in names if name in halves or f"{name.lower()}0" in halves]
        rest = [name for name in names if name not in apart]
        kinds = (("isampler2D[1]", apart), (found[2], rest))
        return " ".join(f"uniform {kind} {', '.join(group)};" for kind, group in kinds if group)

    # Its targets have the names y0, y1, …
    names = {str(index): f"y{index}" for index in range(len(targets))}
    names |= {location or "0": name for location, _, name in _OUTPUT.findall(text)}
    text = _OUTPUT.sub(r"\2 \3;", _UNIFORMS.sub(declared, text))
    for word, other in _WORDS.items():
        text = re.sub(word, other, text)
    floats = [(index, names[str(index)], *_BITS[form]) for index, form in enumerate(targets) if form in _BITS]
    return text, [
        *(f"layout(location = {index}) out {kind} bits{index};" for index, _, kind, _ in floats),
        "void main() {",
        "    computed();",
        *(f"    bits{index} = {to_bits}(vec4({name}));" for index, name, _, to_bits in floats),
        "}",
    ]
