"""Check that textures hold exactly the bits that were uploaded, NaN payloads and denormals included."""

import sys

from glinfer.formats import load_checkpoint
from glinfer.gl.context import open_device
from glinfer.inspect.verify.textures import verify_special_values, verify_textures
from glinfer.models.reference.gab import reference_plan

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

checkpoint = load_checkpoint(MODEL)
with open_device() as device:
    checks = verify_textures(checkpoint, reference_plan(checkpoint.config), device)
    for check in checks[:4]:
        print(f"{check.name}: {check.width}×{check.height} {check.format}, identical: {check.identical}")
    print(f"{sum(check.identical for check in checks)} of {len(checks)} textures identical")
    for special in verify_special_values(device):
        print(f"{special.name}: stored {special.stored}, through a draw {special.through_a_draw}")
