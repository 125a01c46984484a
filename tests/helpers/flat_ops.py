"""Which ops draw over tensors of four elements a texel: the kernels of ``device.ops``, in plans or in none."""

from __future__ import annotations

import glinfer.tensors.ops  # noqa: F401 (registers the ops that only kernels draw)
from glinfer.kernels import OPS
from glinfer.kernels.spec import no_oracle

ONLY_IN_PLANS = {"squash", "expert_weight", "xielu"}
"""Ops over such tensors that no kernel draws."""


def flat_ops() -> set[str]:
    """Ops of kernels; qa/tests/test_kernels.py draws each."""
    flat = {name for name, op in OPS.items() if op.oracle.__module__.startswith("glinfer.kernels.flat.")}
    return (flat - ONLY_IN_PLANS) | {name for name, op in OPS.items() if op.oracle is no_oracle}
