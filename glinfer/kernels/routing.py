"""The choice of experts from a router's logits, and their gates: defines of shaders, and oracles."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.families.layer import Experts
from glinfer.kernels.published.linear import activate
from glinfer.kernels.spec import Array, Params, Part, given

_LEAST_TOTAL = 1e-12  # of shares of a softmax whose experts learned numbers choose


def route_defines(experts: Experts) -> list[tuple[str, float]]:
    """The defines of shaders/common/route.glsl."""
    return [
        ("EXPERTS", experts.count),
        ("EXPERT_TEXELS", -(-experts.count // 4)),
        ("USED", experts.used),
        ("NORMALISED", int(experts.normed)),
        *given(SIGMOID=experts.sigmoid, SHARE_EPS=experts.share_eps, BIASED=experts.biased),
        *given(GROUPS=experts.groups, GROUPS_KEPT=experts.kept),
        *given(WEIGHT_SCALE=None if experts.scale == 1.0 else float(experts.scale)),
    ]


def gate_defines(experts: Experts | None) -> list[tuple[str, float]]:
    """The defines of shaders/common/limited_gate.glsl; none for a plain product of gate and up."""
    if experts is None or not experts.limit:
        return []
    return [("GATE_LIMIT", float(experts.limit)), ("GATE_SLOPE", float(experts.slope))]


def experts_read(params: Params) -> Mapping[str, Part]:
    """The parts of the matrices of experts that a draw reads, if no two rows in use choose the same expert."""
    if "EXPERTS" not in params:
        return {}
    share = min(1.0, params["rows"] * params["USED"] / params["EXPERTS"])
    return dict.fromkeys(("weight", "consts"), Part(share=share))


def gated(gate: Array, up: Array, params: Params) -> Array:
    """For an oracle: the product of gate and up, bounded as in the defines."""
    activation = int(params["ACTIVATION"])
    if "GATE_LIMIT" not in params:
        return np.asarray(activate(gate, activation) * up)
    limit, slope = float(params["GATE_LIMIT"]), float(params["GATE_SLOPE"])
    return np.asarray(
        activate(slope * np.minimum(gate, limit), activation) / slope * (np.clip(up, -limit, limit) + 1.0)
    )


def routed(logits: Array, params: Params, bias: Array | None) -> tuple[Array, Array]:
    """For an oracle: the chosen experts [rows, used] of logits [rows, experts], and their weights."""
    scale, sigmoid = params.get("WEIGHT_SCALE", 1.0), bool(params.get("SIGMOID"))
    if sigmoid:
        shares = np.exp(-np.logaddexp(0.0, -logits))
    else:
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    ranks = logits if bias is None else shares + bias
    if groups := int(params.get("GROUPS", 0)):
        best = -np.sort(-ranks.reshape(len(ranks), groups, -1), axis=2)[:, :, : 1 if bias is None else 2]
        order = np.argsort(-best.sum(axis=2), axis=1, kind="stable")
        dropped = np.zeros((len(ranks), groups), dtype=bool)
        np.put_along_axis(dropped, order[:, int(params["GROUPS_KEPT"]) :], values=True, axis=1)
        ranks = np.where(np.repeat(dropped, ranks.shape[1] // groups, axis=1), -np.inf, ranks)
    chosen = np.argsort(-ranks, axis=1, kind="stable")[:, : int(params["USED"])]
    found = np.take_along_axis(shares, chosen, axis=1)
    if params["NORMALISED"]:
        total = found.sum(axis=1, keepdims=True) + params.get("SHARE_EPS", 0.0)
        found = found / (total if sigmoid or bias is None else np.maximum(total, _LEAST_TOTAL))
    return chosen, scale * found
