"""One module per family of passes; importing this package registers every op."""

from glinfer.ops import attention, cached, embed, gemm, gemv, linear, norm, sample, score, softmax, tiles
from glinfer.ops.spec import OPS, DrawSpec, Op, TensorSpec

__all__ = [
    "OPS",
    "DrawSpec",
    "Op",
    "TensorSpec",
    "attention",
    "cached",
    "embed",
    "gemm",
    "gemv",
    "linear",
    "norm",
    "sample",
    "score",
    "softmax",
    "tiles",
]
