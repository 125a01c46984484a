"""Ops over tensors of any shape, four elements a texel, for ``glinfer.Device`` and the reference plans."""
# ruff: noqa: F401 (an import registers the ops of its module)

from glinfer.kernels.flat import (
    activate,
    convolve,
    delta,
    elementwise,
    experts,
    lookup,
    matmul,
    movement,
    normalize,
    rotate,
    stats,
)
