"""The table of allowed tokens for passes over rows of logits, read by shaders/common/allowed.glsl.

Row r of the table, uint32 [rows, words], has token t in bit t mod 32 of word t div 32; bits after the vocabulary are
ignored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import RowLayout
from glinfer.kernels.fused.draws import Defines
from glinfer.kernels.spec import Array, Params, Shapes, TensorSpec

Words = npt.NDArray[np.uint32]

_WORD_BITS, _TEXEL_WORDS = 32, 4


def mask_words(vocab: int) -> int:
    """Words of a row of the table: one bit a token, in whole texels of four words."""
    texel = _WORD_BITS * _TEXEL_WORDS
    return -(-vocab // texel) * _TEXEL_WORDS


def mask_defines(mask: TensorSpec) -> Defines:
    """The defines of a draw that reads the table ``mask``, besides its layout."""
    if not isinstance(mask.layout, RowLayout) or mask.format != "rgba32ui":
        raise PlanError(f"{mask.name} is not a table of allowed tokens")
    return [("MASK", 1)]


def check_mask(shapes: Shapes, params: Params) -> None:
    """Require a row of the table for each row of the table of rows."""
    shapes.expect("mask", shapes.rows("rows"), mask_words(int(params["VOCAB"])))


def allowed_tokens(words: Array, vocab: int) -> npt.NDArray[np.bool_]:
    """Which of ``vocab`` tokens a row of the table allows, bool [vocab]."""
    data = np.ascontiguousarray(words, dtype="<u4").view(np.uint8)
    return np.unpackbits(data, bitorder="little")[:vocab].astype(bool)
