"""Damage a texture and a shader, and let the checks name the element and the first pass that are wrong."""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import glinfer
from glinfer.gl.program import shader_root
from glinfer.inspect.verify.draws import verify_draws

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

with glinfer.load(MODEL, plan="reference") as model:
    texture = model.bound.texture("lm_head.bias")
    matrix = np.array(texture.read())
    matrix.view(np.uint32)[0, 7] ^= 1  # the lowest bit of one number: no token changes
    texture.upload(matrix)
    for check in model.verify_textures().different:
        (texel,) = check.texels
        print(f"{check.name}, element [{texel.row}, {texel.col}]: {texel.found:08x}, expected {texel.expected:08x}")

broken = Path(tempfile.mkdtemp(prefix="glinfer-")) / "shaders"
shutil.copytree(shader_root(), broken)
shader = broken / "attention_scores.frag"
shader.write_text(shader.read_text().replace("e.y > e.x", "e.y >= e.x"))  # a mask off by one

for root in (None, broken):
    with glinfer.load(MODEL, plan="reference", shader_root=root) as model:
        checks = verify_draws(model.engine, [1, 2, 3, 4])
    wrong = next((check for check in checks if not check.passed), None)
    where = "none" if wrong is None else f"{wrong.index + 1} of {len(checks)}, {wrong.name}, shader {wrong.shader}"
    print(f"{len(checks)} draws checked, first wrong one: {where}")
