"""The fused ops of the fast plans, over packed weights, caches and many rows."""
# ruff: noqa: F401 (an import registers the ops of its module)

from glinfer.kernels.fused import (
    cached,
    choice,
    convolve,
    delta,
    embed,
    expert_groups,
    experts,
    gemm,
    low_rank,
    norms,
    per_layer,
    rowwise,
    sample,
    scan,
    score,
    tiles,
    turn,
)
