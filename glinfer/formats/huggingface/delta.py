"""Matrices before a delta rule whose rows are grouped by key head, as in Qwen3-Next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.families.huggingface import HuggingFace
from glinfer.formats.packed import GatheredTensor
from glinfer.formats.tensors import StoredTensor
from glinfer.graph.nodes import ModelTensor
from glinfer.quant.parts import Bytes


def is_by_key(stored: StoredTensor, form: HuggingFace) -> bool:
    """Whether a file groups the rows of these matrices by key head."""
    return form.layouts.get(stored.tensors[0].role) == "by key"


def rows_by_part(stored: StoredTensor, config: ModelConfig) -> npt.NDArray[np.intp]:
    """The row indices that reorder a tensor from groups by key head to the tensors that it holds.

    The group of a key head has its queries, its keys, and the values and gates of the value heads that share it; or the
    shares and decays of those heads.
    """
    layer = stored.tensors[0].layer
    assert layer is not None
    rule = config.layer(layer).delta
    assert rule is not None
    shared = rule.heads // rule.key_heads
    sizes = {
        "qkv": (rule.key, rule.key, shared * rule.value),
        "z": (shared * rule.value,),
        "b": (shared,),
        "a": (shared,),
    }
    parts = [size for tensor in stored.tensors for size in sizes[tensor.letter]]
    by_head = np.arange(stored.shape[0]).reshape(rule.key_heads, sum(parts))
    return np.concatenate([part.reshape(-1) for part in np.split(by_head, list(accumulate(parts))[:-1], axis=1)])


def packed_by_part(
    stored: StoredTensor, dtype: str, rows: Bytes, config: ModelConfig
) -> Iterator[tuple[ModelTensor, GatheredTensor]]:
    """The tensors in a packed tensor grouped by key head; rows are gathered on access."""
    for tensor, own in stored.split(rows_by_part(stored, config)):
        shape = tensor.shape[0], tensor.shape[1]

        def gather(asked: slice, own: npt.NDArray[np.intp] = own) -> Bytes:
            return rows[own[asked]]

        yield tensor, GatheredTensor(dtype, shape, gather)
