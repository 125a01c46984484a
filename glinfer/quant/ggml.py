"""GGML's blocks of weights: packing floats, unpacking, and the words of a texture.

A block holds consecutive weights of a row, as small integers with scales. A file has the blocks in sequence, unaligned;
a texture has them sorted into groups of 32 weights (:mod:`glinfer.quant.groups`). Rows without groups keep their bytes
in order. No bit is lost, so the order is reversible. shaders/common/weights.glsl reads these textures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError, required
from glinfer.quant.block_bytes import Bytes, parts_of
from glinfer.quant.coded import scattered_scales
from glinfer.quant.formats import (
    BLOCK_FORMATS,
    BY_NUMBER,
    SCALE_BYTES,
    TEXEL_BYTES,
    WIDE_NUMBER,
    BlockFormat,
    block_format,
)
from glinfer.quant.groups import Words, blocks_from, float_values, groups_in, groups_of, wide_values, words_of_groups
from glinfer.quant.packing import MAX_WEIGHT, PACKED_HERE, pack_blocks
from glinfer.quant.threads import PIECE_WEIGHTS, in_threads

PACKABLE = tuple(name for name in BLOCK_FORMATS if not name.startswith(("IQ1", "IQ2", "IQ3")))
"""The formats that :func:`pack` supports: all without a grid."""
MAX_EXPONENT = 252
"""The largest exponent of MXFP4 for which every weight fits float32."""


def inputs_of(values: npt.NDArray[Any], name: str) -> int:
    """The number of weights in a row of floats, or of bytes in the format ``name``.

    Raises:
        InputError: the rows are not a whole number of blocks.
    """
    form = block_format(name)
    if values.ndim < 1 or values.size == 0:
        raise InputError(f"found an array {list(values.shape)} for {name}; expected rows of weights")
    length = int(values.shape[-1])
    if values.dtype != np.uint8:
        if form.weights and length % form.weights:
            raise InputError(f"a row of {length} weights is not a whole number of {name} blocks of {form.weights}")
        return length
    if not form.weights:
        inputs, rest = divmod(length - SCALE_BYTES, form.nbytes)
        if inputs < 1 or rest:
            raise InputError(f"a row of {length} bytes is not {name}: integers of {form.nbytes} bytes, then a float32")
        return inputs
    if length % form.nbytes:
        raise InputError(f"a row of {length} bytes is not a whole number of {name} blocks of {form.nbytes} bytes")
    return length // form.nbytes * form.weights


def words_of(values: npt.NDArray[Any], name: str) -> Words:
    """The texture's words [rows, words] of rows of blocks; floats are packed first.

    Raises:
        InputError: the rows are not a whole number of blocks, or :func:`pack` does not support the format.
    """
    form, inputs = block_format(name), inputs_of(values, name)
    blocks = values if values.dtype == np.uint8 else pack(values, name)
    rows = blocks.reshape(-1, blocks.shape[-1])
    found = np.empty((len(rows), TEXEL_BYTES // 4 * sum(form.section_texels(inputs))), dtype=np.uint32)
    _in_pieces(lambda part: _sorted_words(np.ascontiguousarray(part), form, inputs), rows, found, inputs)
    return found


def _in_pieces(
    function: Callable[[Bytes], npt.NDArray[Any]], rows: Bytes, found: npt.NDArray[Any], inputs: int
) -> None:
    """Fill ``found`` with the results of pieces of rows of ``inputs`` weights, in threads."""
    step = max(1, PIECE_WEIGHTS // inputs)

    def fill(start: int) -> None:
        found[start : start + step] = function(rows[start : start + step])

    in_threads(fill, range(0, len(rows), step))


def _sorted_words(rows: Bytes, form: BlockFormat, inputs: int) -> Words:
    """The words of a few rows of blocks."""
    if form.groups is not None:
        return words_of_groups(groups_of(rows, form.name), form.groups)
    numbers, scale = form.section_texels(inputs)
    found = np.zeros((len(rows), TEXEL_BYTES * (numbers + scale)), dtype=np.uint8)
    found[:, : inputs * form.nbytes] = rows[:, : inputs * form.nbytes]
    if scale:
        found[:, TEXEL_BYTES * numbers :][:, :SCALE_BYTES] = rows[:, -SCALE_BYTES:]
    return found.view("<u4").astype(np.uint32, copy=False)


def blocks_of(words: npt.NDArray[Any], name: str, inputs: int) -> Bytes:
    """The rows of blocks [rows, bytes] from a texture's words: the reverse of :func:`words_of`."""
    form = block_format(name)
    if form.groups is not None:
        return blocks_from(groups_in(words, form.groups, inputs), name)
    plain = np.ascontiguousarray(words, dtype="<u4").view(np.uint8).reshape(len(words), -1)
    numbers, scale = form.section_texels(inputs)
    parts = plain[:, : inputs * form.nbytes], plain[:, TEXEL_BYTES * numbers :][:, : SCALE_BYTES * scale]
    return np.concatenate(parts, axis=1)


def dequantize(blocks: Bytes, name: str) -> npt.NDArray[np.float32]:
    """The float32 weights [rows, inputs] of rows of blocks [rows, bytes].

    Raises:
        InputError: the rows are not a whole number of blocks; or a format has a grid, and the package gguf is missing.
    """
    form, inputs = block_format(name), inputs_of(blocks, name)
    if not form.weights:
        integers, scales = integers_and_scales(blocks, name)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(integers.astype(np.float32) * scales[:, None])
    if form.groups is None:  # a bfloat16 is the upper half of a float32
        return (np.ascontiguousarray(blocks).view("<u2").astype("<u4") << np.uint32(16)).view("<f4").astype(np.float32)
    if len(blocks) * inputs <= PIECE_WEIGHTS:
        return float_values(blocks, name)
    found = np.empty((len(blocks), inputs), dtype=np.float32)
    _in_pieces(lambda part: float_values(part, name), blocks, found, inputs)
    return found


def integers_and_scales(rows: Bytes, name: str) -> tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.float32]]:
    """The integers [rows, inputs] and the scales [rows] of rows in ``Q8_ROW`` or ``Q16_ROW``."""
    integers = np.ascontiguousarray(rows[:, :-SCALE_BYTES]).view(f"<i{block_format(name).nbytes}")
    scales = np.ascontiguousarray(rows[:, -SCALE_BYTES:]).view("<f4")[:, 0]
    return integers, scales.astype(np.float32, copy=False)


def table_of(weight: npt.NDArray[Any], number: int, inputs: int) -> npt.NDArray[np.float64]:
    """For a test oracle: a table [rows, inputs] in float64, from words in the format ``number``, or floats if it is 0.

    Raises:
        InputError: the package gguf, which has the grids of some formats, is not installed.
    """
    if not number:
        return np.asarray(weight, dtype=np.float64)
    if number == WIDE_NUMBER:
        return wide_values(weight)
    name = BY_NUMBER[number].name
    return dequantize(blocks_of(weight, name, inputs), name).astype(np.float64)


def pack(weights: npt.NDArray[Any], name: str, importance: npt.NDArray[np.float32] | None = None) -> Bytes:
    """Rows of blocks [..., bytes] of float weights [..., inputs].

    The K formats, IQ4_NL and IQ4_XS are packed with a search for the smallest error (:mod:`glinfer.quant.packing`). The
    package ``gguf`` packs the others, rounded to nearest, except the formats with grids, which it only unpacks.

    Args:
        weights: floats.
        name: the format.
        importance: weight of the squared error of each input, [inputs], in the search; None to use the weights' size.

    Raises:
        InputError: the rows are not a whole number of blocks; the weights are not floats, not finite, or too large for
            the format; or the format cannot be packed.
    """
    form, inputs = block_format(name), inputs_of(weights, name)
    if weights.dtype.kind not in "iuf":
        raise InputError(
            f"found an array of {weights.dtype} to be packed as {name}; expected floats, or blocks as uint8"
        )
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(weights, dtype=np.float32)
    if not np.isfinite(floats).all():
        raise InputError(f"a weight to be packed as {name} is not finite")
    return _pack_rows(floats, form) if not form.weights else _pack_blocks(floats, form, inputs, importance)


def not_finite(rows: Bytes, name: str) -> npt.NDArray[np.bool_]:
    """Mask of the rows, uint8 [rows, bytes] and contiguous, with a scale or a BF16 weight that is not finite."""
    form = block_format(name)
    if name == "BF16":
        return np.asarray((rows.view("<u2") & 0x7F80 == 0x7F80).any(axis=1))
    if not form.weights:
        return np.asarray(~np.isfinite(integers_and_scales(rows, name)[1]))
    if name == "MXFP4":
        return _beyond_floats(rows)
    start, count = form.scales
    blocks = rows.reshape(-1, form.nbytes)
    apart = scattered_scales(blocks, name)
    if apart is not None:
        return np.asarray((apart & 0x7C00 == 0x7C00).reshape(len(rows), -1).any(axis=1))
    halves = np.ascontiguousarray(parts_of(rows, start, 2 * count, form.nbytes)).view("<u2")
    bad = halves & 0x7C00 == 0x7C00  # on bits, since NumPy is slow on half floats
    return np.asarray(bad.any(axis=1)) if bad.any() else np.zeros(len(rows), dtype=np.bool_)


def _beyond_floats(rows: Bytes) -> npt.NDArray[np.bool_]:
    """Mask of the rows of MXFP4 with a weight beyond float32, from the largest exponents."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for row in np.flatnonzero((rows.reshape(len(rows), -1, 17)[..., 0] > MAX_EXPONENT).any(axis=1)):
        with np.errstate(over="ignore"):
            found[row] = not np.isfinite(dequantize(rows[row : row + 1], "MXFP4")).all()
    return found


def _pack_rows(floats: npt.NDArray[np.float32], form: BlockFormat) -> Bytes:
    largest = (1 << (8 * form.nbytes - 1)) - 1
    scale = np.abs(floats).max(axis=-1, keepdims=True) / np.float32(largest)
    integers = np.rint(np.divide(floats, scale, out=np.zeros_like(floats), where=scale > 0))
    as_bytes = integers.clip(-largest, largest).astype(f"<i{form.nbytes}").view(np.uint8)
    return np.concatenate([as_bytes, scale.astype("<f4").view(np.uint8)], axis=-1)


def _pack_blocks(
    floats: npt.NDArray[np.float32], form: BlockFormat, inputs: int, importance: npt.NDArray[np.float32] | None
) -> Bytes:
    largest = float(np.abs(floats).max())
    if form.name in PACKED_HERE and largest > MAX_WEIGHT:
        raise _too_large(largest, form.name)
    if form.name in PACKED_HERE:
        blocks = pack_blocks(floats.reshape(-1, inputs), form.name, importance)
    else:
        blocks = _rounded_blocks(floats, form.name)
    if not_finite(blocks.reshape(-1, blocks.shape[-1]), form.name).any():
        raise _too_large(largest, form.name)
    return blocks.reshape(*floats.shape[:-1], form.row_bytes(inputs))


def _too_large(largest: float, name: str) -> InputError:
    return InputError(
        f"a weight of {largest:g} is too large for {name}; scale the weights down, or pack them as Q8_ROW or Q16_ROW"
    )


def _rounded_blocks(floats: npt.NDArray[np.float32], name: str) -> Bytes:
    quants, types = _gguf()
    try:
        with np.errstate(all="ignore"):  # gguf divides blocks of zeros by zero; overflowing scales are refused later
            return np.asarray(quants.quantize(floats, types[name]))
    except NotImplementedError:
        raise InputError(
            f"floats cannot be packed as {name}; give its blocks as bytes, or pack as one of {', '.join(PACKABLE)}"
        ) from None


def _gguf() -> tuple[Any, Any]:
    gguf = required("gguf", "gguf", "GGML's formats need")
    return gguf.quants, gguf.GGMLQuantizationType
