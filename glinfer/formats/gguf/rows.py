"""How the rows of tensors in GGUF files differ from glinfer's.

Source: convert_hf_to_gguf.py of llama.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.formats.gguf.config import form_of
from glinfer.formats.tensors import Tensor

Rows = npt.NDArray[Any]


def rows_from_file(config: ModelConfig, tensor: Tensor, rows: Rows) -> Rows:
    """Rows (or numbers) of a tensor as glinfer has them, out of those of a file.

    Files have what norms multiply with, glinfer has that less the family's offset. Of some architectures, the rows of a
    head of queries or keys have the elements of each rotary pair side by side; glinfer has the first elements of all
    pairs, then the second ones.
    """
    offset, heads = np.float32(config.family.norm_offset), _heads_in_pairs(config, tensor)
    if tensor.is_gain and offset:
        rows = rows - offset
    return halves_apart(rows, heads) if heads else rows


def rows_for_file(config: ModelConfig, tensor: Tensor, rows: Rows) -> Rows:
    """The reverse of :func:`rows_from_file`."""
    offset, heads = np.float32(config.family.norm_offset), _heads_in_pairs(config, tensor)
    if tensor.is_gain and offset:
        rows = rows + offset
    return halves_together(rows, heads) if heads else rows


def _heads_in_pairs(config: ModelConfig, tensor: Tensor) -> int:
    if not form_of(config.family).pairs_together or tensor.role != "projection" or tensor.letter == "v":
        return 0
    return config.num_attention_heads if tensor.letter == "q" else config.num_key_value_heads


def halves_apart(rows: Rows, heads: int) -> Rows:
    """Rows (or numbers) with pairs side by side, put in the order in which glinfer has them; a copy."""
    by_pair = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(rows.shape)


def halves_together(rows: Rows, heads: int) -> Rows:
    """The reverse of :func:`halves_apart`; llama.cpp's converter calls it ``permute``."""
    by_half = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return by_half.swapaxes(1, 2).reshape(rows.shape)
