"""Round trip: do the textures hold exactly what the file says, after a run and during one?"""

import sys

import glinfer
from glinfer.inspect.verify.special import verify_special_values

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or the bundled model of Gab's architecture

with glinfer.load(MODEL, plan="reference") as model:
    report = model.verify_textures()  # reads every texel back, and compares it with the file bit for bit
    print(f"{report.checked.textures} textures, {report.checked.bytes:,} bytes: ok {report.ok}")
    found = [model.verify_textures(0.05).ok for _ in model.stream([1, 2, 3], max_tokens=20)]  # 5% after each token
    print(f"{len(found)} comparisons of 5% while it ran, which together see every line: ok {all(found)}")
    print({check.name: check.stored for check in verify_special_values(model.device)})
