"""The order of a delta rule's value heads, which may differ between an adapter's file and its model.

Where value heads share a key head, Hugging Face files store those heads next to each other, and GGUF files interleave
them (:class:`glinfer.families.layer.DeltaRule`). A model keeps the order of its own file.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.families.layer import DeltaRule
from glinfer.formats.adapters.adapter import LowRank
from glinfer.graph.nodes import ModelTensor


def in_order_of(config: ModelConfig, tensor: ModelTensor, change: LowRank, *, in_turn: bool) -> LowRank:
    """Reorder the update of a tensor, so that a delta rule's value heads are in the model's order.

    Args:
        config: the model's shape.
        tensor: the tensor.
        change: the update, in the order of the file.
        in_turn: whether the file interleaves the value heads that share a key head.
    """
    rule = None if tensor.layer is None else config.layer(tensor.layer).delta
    if rule is None or rule.in_turn == in_turn or tensor.role not in ("delta_in", "delta_out"):
        return change
    order = _order(rule)
    elements = (order[:, None] * rule.value + np.arange(rule.value)).reshape(-1)
    if tensor.role == "delta_out":
        return replace(change, down=np.ascontiguousarray(change.down[:, elements]))
    keys = np.arange(2 * rule.keys)
    rows = {"qkv": np.concatenate([keys, len(keys) + elements]), "z": elements, "a": order, "b": order}
    return replace(change, up=np.ascontiguousarray(change.up[rows[tensor.letter]]))


def _order(rule: DeltaRule) -> npt.NDArray[np.intp]:
    """For each value head of the model, its index in the file, which has the other order."""
    shared = rule.heads // rule.key_heads
    shape = (rule.key_heads, shared) if rule.in_turn else (shared, rule.key_heads)
    return np.arange(rule.heads).reshape(shape).T.reshape(-1)
