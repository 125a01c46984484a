"""Which ops draw over tensors of four elements a texel: the kernels of ``device.ops``, in plans or in none."""

from __future__ import annotations

import sys

from glinfer.ops import OPS
from glinfer.ops.flat.draws import flat_draw

ONLY_IN_PLANS = {"squash"}
"""Ops over such tensors that no kernel draws."""


def flat_ops() -> set[str]:
    """Ops of kernels, from the modules that make their draws with flat_draw; qa/tests/test_kernels.py draws each."""
    modules = {
        name: {getattr(part, "__module__", "") for part in (op.check, op.oracle)} & set(sys.modules)
        for name, op in OPS.items()
    }
    return {
        name
        for name, found in modules.items()
        if any(getattr(sys.modules[module], "flat_draw", None) is flat_draw for module in found)
    } - ONLY_IN_PLANS
