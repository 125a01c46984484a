"""Plant a bug in a shader and let the draw-by-draw check name the first pass that it breaks."""

import shutil
import sys
import tempfile
from pathlib import Path

import glinfer
from glinfer.gl.program import shader_root
from glinfer.inspect.verify.draws import verify_draws

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

broken = Path(tempfile.mkdtemp(prefix="glinfer-")) / "shaders"
shutil.copytree(shader_root(), broken)
shader = broken / "attention_scores.frag"
shader.write_text(shader.read_text().replace("e.y > e.x", "e.y >= e.x"))  # a mask off by one

for root in (None, broken):
    with glinfer.load(MODEL, plan="reference", shader_root=root) as model:
        checks = verify_draws(model.engine, [1, 2, 3, 4])
    wrong = next((check for check in checks if not check.passed), None)
    where = "none" if wrong is None else f"number {wrong.index}, {wrong.name}, shader {wrong.shader}"
    print(f"{len(checks)} draws checked, first wrong one: {where}")
