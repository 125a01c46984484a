"""Heads of values of a delta rule, which files of adapters may have in another order than their model.

Where several heads share keys, those that do follow each other in directories of Hugging Face, and take turns in GGUF
files (:class:`glinfer.families.layer.DeltaRule`). A model has them as its own file does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.families.layer import DeltaRule
from glinfer.formats.adapters.adapter import LowRank
from glinfer.formats.tensors import ModelTensor


def in_order_of(config: ModelConfig, tensor: ModelTensor, change: LowRank, *, in_turn: bool) -> LowRank:
    """What a file adds to a tensor, with the heads of values of a delta rule as the model has them.

    Args:
        config: the model's shape.
        tensor: the tensor.
        change: what is added, in the order of the file.
        in_turn: whether heads of values take turns in the heads of keys in the file.
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
    """The head of the file's order, the other one, for each head of the model's."""
    shared = rule.heads // rule.key_heads
    shape = (rule.key_heads, shared) if rule.in_turn else (shared, rule.key_heads)
    return np.arange(rule.heads).reshape(shape).T.reshape(-1)
