"""The fused ops of the fast plans, over packed weights, caches and many rows."""

from glinfer.ops.fused import cached, embed, gemm, gemv, norms, sample, score, shortlist, tiles, turn

__all__ = ["cached", "embed", "gemm", "gemv", "norms", "sample", "score", "shortlist", "tiles", "turn"]
