"""Shaders that keep only fragments which fetch a texel outside of its texture.

llvmpipe gives zeros or the nearest texel for those, so results do not show them; OpenGL leaves them undefined.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer.gl.program import shader_root
from glinfer.gl.replay import replay
from glinfer.program.session import Session

_CHECK = """
bool is_outside = false;
highp ivec2 looked_up(highp ivec2 texel, highp ivec2 size) {
    if (texel.x < 0 || texel.y < 0 || texel.x >= size.x || texel.y >= size.y) is_outside = true;
    return texel;
}
#define texelFetch(name, texel, level) texelFetch(name, looked_up(texel, textureSize(name, 0)), level)
#define main computed
"""
_ENDS = {
    ".frag": "is_outside = vertex_outside != 0;\n    computed();\n    if (!is_outside) discard;",
    ".vert": "computed();\n    vertex_outside = int(is_outside);",
}


def telling_shaders(folder: Path) -> Path:
    """A copy of the shader files, which draw only fragments with such a fetch, or whose vertex has one."""
    root = Path(shutil.copytree(shader_root(), folder / "shaders"))
    for path in (each for each in root.rglob("*") if each.suffix in _ENDS):
        version, _, rest = path.read_text("utf-8").partition("\n")
        link = f"flat {'in' if path.suffix == '.frag' else 'out'} highp int vertex_outside;"
        end = f"#undef main\nvoid main() {{\n    {_ENDS[path.suffix]}\n}}\n"
        path.write_text("\n".join([version, link, _CHECK, rest, end]), "utf-8")
    fetch = root / "common" / "fetch.glsl"
    fetch.write_text(fetch.read_text("utf-8").replace("#if LOOKUP_TEXTURE", "#if 0"), "utf-8")
    return root


def draws_outside(session: Session, values: Mapping[str, int | float]) -> list[str]:
    """The draws of a run of a session with :func:`telling_shaders` in which such a fragment is kept."""
    query, found = session.device.gl.query(samples=True), list[str]()

    def after(draw: Any) -> None:
        query.mglo.end()
        if query.samples:
            found.append(draw.name)

    replay(session.device, session.draws, session.compiled.plan.values(values), lambda _: query.mglo.begin(), after)
    return found
