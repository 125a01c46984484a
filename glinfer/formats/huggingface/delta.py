"""Delta-rule layers: settings as in transformers' Qwen3_5TextConfig, and Qwen3-Next's rows grouped by key head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import DELTA, FULL, LONGEST_PERIOD, ModelConfig, every, shortest_pattern
from glinfer.families.record import HuggingFace
from glinfer.formats.huggingface.around import listed_kinds
from glinfer.formats.json_files import Settings
from glinfer.formats.packed import GatheredTensor
from glinfer.formats.tensors import StoredTensor
from glinfer.graph.nodes import ModelTensor
from glinfer.quant.parts import Bytes

_SIZES = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_PERIOD = "full_attention_interval"


def delta_fields(settings: Settings, layers: int) -> dict[str, Any]:
    """The layers with the delta rule, and its sizes.

    Raises:
        FormatError: a setting is invalid.
    """
    kinds = listed_kinds(settings, layers, DELTA)
    if kinds is not None:
        pattern = shortest_pattern(kinds)
    else:
        pattern = every(settings.whole(_PERIOD, 4, most=LONGEST_PERIOD), layers, DELTA, FULL)
    if DELTA not in pattern:
        return {}
    return {"layer_types": pattern, **{name: settings.whole(name, usual) for name, usual in _SIZES.items()}}


def is_by_key(stored: StoredTensor, form: HuggingFace) -> bool:
    """Whether a file groups the rows of these matrices by key head."""
    return form.delta_by_key and stored.tensors[0].role == "delta_in"


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
