"""One draw for each way in which the #ifs of its shaders may go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from glinfer.gl.program import load_source
from glinfer.kernels import DrawSpec
from glinfer.program.compiled import shading


def variants(draws: Iterable[DrawSpec]) -> Iterator[tuple[str, str, DrawSpec]]:
    """(shader, vertex shader, draw) of the first draw of each variant of both."""
    seen = set()
    for draw in draws:
        vertex, defines, _ = shading(draw)
        asked = names_asked(f"{draw.shader}.frag") | names_asked(vertex)
        key = draw.shader, vertex, frozenset((name, defines.get(name)) for name in asked)
        if key not in seen:
            seen.add(key)
            yield draw.shader, vertex, draw


@cache
def names_asked(file: str) -> frozenset[str]:
    """Every name in an #if of a shader and of what it includes."""
    lines = re.findall(r"^\s*#(?:el)?if(?:n?def)?\b(.*)$", load_source(file, {}, api="es").text, re.MULTILINE)
    return frozenset(re.findall(r"\b[A-Za-z_]\w*\b", " ".join(lines))) - {"defined"}
