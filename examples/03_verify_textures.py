"""Check that the textures a model draws with hold exactly what its file says, also while it runs."""

import math
import sys

import numpy as np

import glinfer
from glinfer.inspect.verify.special import verify_special_values

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

with glinfer.load(MODEL, plan="reference") as model:
    prompt = [1, 2, 3]
    model.generate(prompt, max_tokens=5)
    report = model.verify_textures()  # every texel, compared with the file, which is read again
    print(f"{report.checked.textures} textures, {report.checked.bytes:,} bytes: ok {report.ok}")

    share, found = 0.05, []  # a few lines after each token, compared with checksums of the upload
    for _ in model.stream(prompt, max_tokens=math.ceil(1 / share)):
        found.append(model.verify_textures(share).ok)
    print(f"{len(found)} comparisons of {share:.0%} while it ran, which together see every line: ok {all(found)}")

    texture = model.bound.texture("lm_head.bias")
    matrix = np.array(texture.read())
    matrix.view(np.uint32)[0, 7] ^= 1  # the lowest bit of one number, too little for any token
    texture.upload(matrix)
    for check in model.verify_textures().different:
        (texel,) = check.texels
        print(f"{check.name}, element [{texel.row}, {texel.col}]: {texel.found:08x}, expected {texel.expected:08x}")
    for special in verify_special_values(model.device):
        print(f"{special.name}: stored {special.stored}, through a draw {special.through_a_draw}")
