"""Plant a bug in a shader and let the draw-by-draw check name the first pass that it breaks."""

import shutil
import sys
import tempfile
from pathlib import Path

from glinfer.formats import load_checkpoint
from glinfer.gl.context import open_device
from glinfer.gl.program import shader_root
from glinfer.inspect.verify.draws import verify_draws
from glinfer.models.reference.gab import reference_plan

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

broken = Path(tempfile.mkdtemp(prefix="glinfer-")) / "shaders"
shutil.copytree(shader_root(), broken)
shader = broken / "attention_scores.frag"
shader.write_text(shader.read_text().replace("e.y > e.x", "e.y >= e.x"))  # a mask off by one

checkpoint = load_checkpoint(MODEL)
plan = reference_plan(checkpoint.config)
with open_device() as device:
    for root in (None, broken):
        checks = verify_draws(checkpoint, plan, device, [1, 2, 3, 4], shader_root=root)
        wrong = next((check for check in checks if not check.passed), None)
        where = "none" if wrong is None else f"number {wrong.index}, {wrong.name}, shader {wrong.shader}"
        print(f"{len(checks)} draws checked, first wrong one: {where}")
