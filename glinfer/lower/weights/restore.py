"""Words of a plan's weights taken back to the bits that a file has, where those are kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.formats.packed import F16, PackedTensor
from glinfer.kernels.spec import Array
from glinfer.lower.plain.weights import DecoderWeights
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.lower.weights.recipe import taken
from glinfer.quant.coded import canonical
from glinfer.quant.formats import GROUP_FORMS, WORD_FORMATS
from glinfer.quant.ggml import blocks_of, integers_and_scales


def is_in_file(arrays: Mapping[str, Array], name: str, words: Array) -> bool:
    """Whether the words of a weight, taken back, are the very bits that its file has.

    True too where no bits are kept: of folded and quantised matrices, and of those in several formats, which are made
    of one.

    Args:
        arrays: the weights of a plan.
        name: one of them.
        words: the array, as it was read back.
    """
    if isinstance(arrays, DecoderWeights):
        packed = arrays.packed_tensor(name)
        return packed is None or np.array_equal(_codes(packed), _restored(words, packed.format, packed.shape[1]))
    tensors, recipe = arrays.kept_tensors(name) if isinstance(arrays, FoldedWeights) else ([], None)
    if not tensors:
        return True
    codes = np.concatenate([_codes(each) for each in tensors])
    inputs = tensors[0].shape[1]
    if recipe is None:
        return np.array_equal(codes, _restored(words, tensors[0].format, inputs))
    if recipe.packing in GROUP_FORMS:
        return np.array_equal(taken(codes, recipe.rows), _restored(words, recipe.packing, inputs))
    codes = recipe.ordered(codes)
    return np.array_equal(taken(codes, recipe.rows), _numbers(words, recipe.packing)[:, : codes.shape[1]])


def _codes(tensor: PackedTensor) -> Array:
    """The bits of a file's matrix: an integer for each weight, or bytes where blocks share scales."""
    blocks = np.ascontiguousarray(tensor.blocks)
    if tensor.format in (F16, "BF16"):
        return blocks.view("<u2")
    if tensor.format in GROUP_FORMS:
        return canonical(blocks, tensor.format)
    return integers_and_scales(blocks, tensor.format)[0]


def _restored(words: Array, form: str, inputs: int) -> Array:
    """The bits of a matrix whose words are the file's bytes in another order."""
    if form == F16:
        return np.ascontiguousarray(words).view(np.uint16)
    return _codes(PackedTensor(form, blocks_of(words, form, inputs)))


def _numbers(words: Array, packing: str) -> Array:
    """The integers [rows, inputs] in words of :data:`glinfer.quant.formats.WORD_FORMATS`."""
    bits = WORD_FORMATS[packing].bits
    plain = np.ascontiguousarray(words)
    if plain.dtype == np.float16:
        return plain.view(np.uint16)
    shifts = np.arange(32 - bits, -1, -bits, dtype=np.uint32)
    found = (plain.view(np.uint32)[:, :, None] >> shifts).astype(f"u{bits // 8}").reshape(len(plain), -1)
    return found if packing == "bf16" else found.view(f"i{bits // 8}")
