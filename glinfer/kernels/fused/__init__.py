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
    gates,
    gemm,
    low_rank,
    merge,
    norms,
    per_layer,
    pool,
    sample,
    scan,
    score,
    tiles,
    turn,
    xielu,
)
