"""One module per family of passes; importing this package registers every op."""

from glinfer.ops import embed, norm, rotary
from glinfer.ops.flat import (
    activate,
    attend,
    elementwise,
    lookup,
    matmul,
    movement,
    normalize,
    scatter,
    stats,
    topk,
)
from glinfer.ops.fused import cached, gemm, gemv, sample, score, shortlist, tiles, turn
from glinfer.ops.published import attention, linear, softmax
from glinfer.ops.spec import OPS, DrawSpec, Op, TensorSpec

__all__ = [
    "OPS",
    "DrawSpec",
    "Op",
    "TensorSpec",
    "activate",
    "attend",
    "attention",
    "cached",
    "elementwise",
    "embed",
    "gemm",
    "gemv",
    "linear",
    "lookup",
    "matmul",
    "movement",
    "norm",
    "normalize",
    "rotary",
    "sample",
    "scatter",
    "score",
    "shortlist",
    "softmax",
    "stats",
    "tiles",
    "topk",
    "turn",
]
