"""Ops over tensors of any shape, four elements a texel, for ``glinfer.Device`` and the reference plans."""

from glinfer.ops.flat import (
    activate,
    attend,
    elementwise,
    lookup,
    matmul,
    movement,
    normalize,
    rotate,
    scatter,
    stats,
    topk,
)

__all__ = [
    "activate",
    "attend",
    "elementwise",
    "lookup",
    "matmul",
    "movement",
    "normalize",
    "rotate",
    "scatter",
    "stats",
    "topk",
]
