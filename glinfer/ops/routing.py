"""The choice of experts by the outputs of a router: the defines of shaders/common/route.glsl, and its oracle."""

from __future__ import annotations

import numpy as np

from glinfer.families.layer import Experts
from glinfer.ops.spec import Array


def route_defines(experts: Experts) -> list[tuple[str, int]]:
    """The defines of shaders/common/route.glsl."""
    return [
        ("EXPERTS", experts.count),
        ("EXPERT_TEXELS", -(-experts.count // 4)),
        ("USED", experts.used),
        ("NORMALISED", int(experts.normed)),
    ]


def routed(logits: Array, used: int, normalised: bool) -> tuple[Array, Array]:
    """For an oracle: the chosen experts [rows, used] of logits [rows, experts], and their weights."""
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :used]
    found = np.exp(np.take_along_axis(logits, chosen, axis=1) - logits.max(axis=1, keepdims=True))
    if normalised:
        return chosen, found / found.sum(axis=1, keepdims=True)
    return chosen, found / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
