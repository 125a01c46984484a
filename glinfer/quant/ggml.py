"""GGML's blocks of weights: packing floats, unpacking, and the order of a block's bytes in a texture.

A block holds weights that follow each other in a row, as small integers with the scales that make floats of them. A
file has the blocks one after the other, at odd addresses; a texture has the same bytes sorted by **section**: all the
quants of a row, then all its scales, and each section begins at a whole texel of 16 bytes. No bit changes, so the
blocks come back as they were. shaders/common/weights.glsl reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError, install_command
from glinfer.quant.formats import BY_NUMBER, SCALE_BYTES, TEXEL_BYTES, BlockFormat, block_format

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


def inputs_of(values: npt.NDArray[Any], name: str) -> int:
    """Weights of a row of an array of floats, or of bytes in the format ``name``.

    Raises:
        InputError: the rows are no whole number of blocks.
    """
    form = block_format(name)
    if values.ndim < 1 or values.size == 0:
        raise InputError(f"found an array {list(values.shape)} for {name}; expected rows of weights")
    length = int(values.shape[-1])
    if values.dtype != np.uint8:
        if form.weights and length % form.weights:
            raise InputError(f"a row of {length} weights is no whole number of {name} blocks of {form.weights}")
        return length
    if not form.weights:
        inputs, rest = divmod(length - SCALE_BYTES, form.nbytes)
        if inputs < 1 or rest:
            raise InputError(f"a row of {length} bytes is no {name}: integers of {form.nbytes} bytes, then a float32")
        return inputs
    if length % form.nbytes:
        raise InputError(f"a row of {length} bytes is no whole number of {name} blocks of {form.nbytes} bytes")
    return length // form.nbytes * form.weights


def words_of(values: npt.NDArray[Any], name: str) -> Words:
    """The words [rows, words] of rows of blocks in a texture; floats are packed first.

    Raises:
        InputError: the rows are no whole number of blocks, or floats cannot be packed into that format here.
    """
    form, inputs = block_format(name), inputs_of(values, name)
    blocks = values if values.dtype == np.uint8 else pack(values, name)
    rows = blocks.reshape(-1, blocks.shape[-1])
    parts = []
    for texels, part in zip(form.section_texels(inputs), _sections_of(rows, form, inputs), strict=True):
        padded = np.zeros((len(rows), texels * TEXEL_BYTES), dtype=np.uint8)
        padded[:, : part.shape[1]] = part
        parts.append(padded)
    return np.concatenate(parts, axis=1).view("<u4").astype(np.uint32, copy=False)


def _sections_of(rows: Bytes, form: BlockFormat, inputs: int) -> list[Bytes]:
    if not form.weights:
        return [rows[:, : inputs * form.nbytes], rows[:, inputs * form.nbytes :]]
    blocks = rows.reshape(len(rows), -1, form.nbytes)
    found = []
    for section in form.sections:
        part = np.zeros((*blocks.shape[:2], section.stride), dtype=np.uint8)
        part[:, :, : section.nbytes] = blocks[:, :, section.start : section.start + section.nbytes]
        found.append(part.reshape(len(rows), -1))
    return found


def blocks_of(words: npt.NDArray[Any], name: str, inputs: int) -> Bytes:
    """The rows of blocks [rows, bytes] of words: the reverse of :func:`words_of`."""
    form = block_format(name)
    sorted_bytes = np.ascontiguousarray(words, dtype="<u4").view(np.uint8).reshape(len(words), -1)
    ends = np.cumsum(form.section_texels(inputs)) * TEXEL_BYTES
    parts = np.split(sorted_bytes, ends[:-1], axis=1)
    if not form.weights:
        return np.concatenate([parts[0][:, : inputs * form.nbytes], parts[1][:, :SCALE_BYTES]], axis=1)
    count = inputs // form.weights
    blocks = np.zeros((len(words), count, form.nbytes), dtype=np.uint8)
    for section, part in zip(form.sections, parts, strict=True):
        by_block = part[:, : count * section.stride].reshape(len(words), count, section.stride)
        blocks[:, :, section.start : section.start + section.nbytes] = by_block[:, :, : section.nbytes]
    return blocks.reshape(len(words), -1)


def dequantize(blocks: Bytes, name: str) -> npt.NDArray[np.float32]:
    """The float32 weights [rows, inputs] of rows of blocks [rows, bytes]; GGML's are unpacked by the package ``gguf``.

    Raises:
        InputError: the rows are no whole number of blocks, or the package is not installed.
    """
    form, inputs = block_format(name), inputs_of(blocks, name)
    if not form.weights:
        integers, scales = integers_and_scales(blocks, name)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(integers.astype(np.float32) * scales[:, None])
    quants, types = _gguf()
    return np.asarray(quants.dequantize(blocks, types[name]), dtype=np.float32).reshape(len(blocks), inputs)


def integers_and_scales(rows: Bytes, name: str) -> tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.float32]]:
    """The integers [rows, inputs] and the scales [rows] of rows in ``Q8_ROW`` or ``Q16_ROW``."""
    integers = np.ascontiguousarray(rows[:, :-SCALE_BYTES]).view(f"<i{block_format(name).nbytes}")
    scales = np.ascontiguousarray(rows[:, -SCALE_BYTES:]).view("<f4")[:, 0]
    return integers, scales.astype(np.float32, copy=False)


def table_of(weight: npt.NDArray[Any], number: int, inputs: int) -> npt.NDArray[np.float64]:
    """For an oracle: a table [rows, inputs] in float64, from words in the format ``number``, or from floats for 0.

    Raises:
        InputError: the package gguf, which unpacks GGML's formats, is not installed.
    """
    if not number:
        return np.asarray(weight, dtype=np.float64)
    name = BY_NUMBER[number].name
    return dequantize(blocks_of(weight, name, inputs), name).astype(np.float64)


def pack(weights: npt.NDArray[Any], name: str) -> Bytes:
    """Rows of blocks [..., bytes] of float weights [..., inputs], rounded to nearest.

    The package ``gguf`` packs GGML's formats, except the K formats, which it only unpacks.

    Raises:
        InputError: the rows are no whole number of blocks; the weights are no numbers, not finite, or too large for
            the format; or there is no packing for it.
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
    return _pack_rows(floats, form) if not form.weights else _pack_blocks(floats, form, inputs)


def not_finite(rows: Bytes, name: str) -> npt.NDArray[np.bool_]:
    """Mask of the rows, uint8 [rows, bytes] and contiguous, with a scale or a BF16 weight that is not finite."""
    form = block_format(name)
    if name == "BF16":
        return np.asarray((rows.view("<u2") & 0x7F80 == 0x7F80).any(axis=1))
    if not form.weights:
        return np.asarray(~np.isfinite(integers_and_scales(rows, name)[1]))
    start, count = form.scales
    halves = rows.reshape(len(rows), -1, form.nbytes)[:, :, start : start + 2 * count]
    return np.asarray(~np.isfinite(np.ascontiguousarray(halves).view("<f2")).all(axis=(1, 2)))


def _pack_rows(floats: npt.NDArray[np.float32], form: BlockFormat) -> Bytes:
    largest = (1 << (8 * form.nbytes - 1)) - 1
    scale = np.abs(floats).max(axis=-1, keepdims=True) / np.float32(largest)
    integers = np.rint(np.divide(floats, scale, out=np.zeros_like(floats), where=scale > 0))
    as_bytes = integers.clip(-largest, largest).astype(f"<i{form.nbytes}").view(np.uint8)
    return np.concatenate([as_bytes, scale.astype("<f4").view(np.uint8)], axis=-1)


def _pack_blocks(floats: npt.NDArray[np.float32], form: BlockFormat, inputs: int) -> Bytes:
    quants, types = _gguf()
    try:
        with np.errstate(all="ignore"):  # blocks of zeros are divided by zero; scales beyond a half are refused below
            blocks = np.asarray(quants.quantize(floats, types[form.name]))
    except NotImplementedError:
        raise InputError(
            f"nothing here packs floats as {form.name}; give its blocks as bytes, or pack as one of Q4_0, Q4_1, Q5_0, "
            "Q5_1, Q8_0, BF16, Q8_ROW, Q16_ROW"
        ) from None
    if not_finite(blocks.reshape(-1, blocks.shape[-1]), form.name).any():
        raise InputError(
            f"a weight of {np.abs(floats).max():g} is too large for {form.name}; scale the weights down, "
            "or pack them as Q8_ROW or Q16_ROW"
        )
    return blocks.reshape(*floats.shape[:-1], form.row_bytes(inputs))


def _gguf() -> tuple[Any, Any]:
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        raise InputError(f"the package gguf is not installed; {install_command('gguf')}") from None
    return quants, GGMLQuantizationType
