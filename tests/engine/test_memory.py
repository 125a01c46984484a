"""Loading a large checkpoint: one copy of the file in memory, one in textures, and no more at any moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import tiered

from glinfer.formats import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.gl

MIB = 1 << 20
WEIGHTS = 101_356_064
CACHES = 6 * 2048 * (2 * 512 + 64) * 4  # keys and values of each token, and a line for the queries of one
ACTIVATIONS = 4 * (2 * 2048 * 2048 + 8 * 2048 * 512 + 2048 * 64 + 2048 * 2048 + 2 * 5256)
PYTHON_AND_DRIVER = 180 * MIB  # 125 MiB on Mesa 22.3

# VmHWM is this process's own peak; getrusage would begin with that of the process that started it.
PROGRAM = """
import json, sys
import glinfer
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
with glinfer.load(sys.argv[1], plan=sys.argv[2]) as model:
    told = {"load": peak()}
    model.logits(range(16))
    told.update(forward=peak(), textures=model.plan.texture_bytes(16384))
    print(json.dumps(told))
"""


@tiered(("name", "plan"), [("m.gab", "reference"), ("m.safetensors", "reference"), ("m.gab", "fast")], keep=0)
def test_the_peak_of_loading(full_file: Path, tmp_path: Path, name: str, plan: str) -> None:
    path = full_file
    if name != "m.gab":
        path = tmp_path / name
        save_checkpoint(load_checkpoint(full_file), path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, path, plan], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    computed = ACTIVATIONS if plan == "reference" else CACHES
    assert told["textures"] == pytest.approx(WEIGHTS + computed, rel=0.001 if plan == "reference" else 0.01)
    # The driver's textures are ordinary memory here. One more copy of the weights would break this bound.
    bound = 2 * WEIGHTS + ACTIVATIONS + PYTHON_AND_DRIVER
    assert told["load"] < bound
    assert told["forward"] < bound
