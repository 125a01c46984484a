"""Weights kept in blocks, as GGML has them: where a block's parts lie in the words of a texture.

A block holds a number of weights that follow each other in a row, as small integers, and what makes floats of them. A
file has the blocks one after the other, at odd addresses; in a texture the same bytes are sorted by **section**: all
the quants of a row, then all its scales, each section from a whole texel of 16 bytes on. No bit is changed, so the
blocks come back as they were. shaders/common/weights.glsl reads them.

The formats and their names are GGML's (ggml-common.h, ggml-quants.c), but for two that have one float32 scale for a
whole row: ``Q8_ROW`` of 8-bit and ``Q16_ROW`` of 16-bit integers, a row being the integers and then the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError

TEXEL_BYTES = 16
GROUP = 32
"""Weights that a shader unpacks together; every block is a whole number of groups, or a row is padded to them."""

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Section:
    """Bytes [start, start + nbytes) of a block; in a texture each block's take ``stride`` bytes."""

    start: int
    nbytes: int
    stride: int


@dataclass(frozen=True)
class BlockFormat:
    """One format.

    Attributes:
        name: GGML's, or ``Q8_ROW`` or ``Q16_ROW``.
        number: what shaders/common/weights.glsl knows it by.
        weights: how many weights a block holds; 0 for a whole row.
        nbytes: of a block; of a block that is a row, of one weight.
        sections: how a texture has the bytes sorted.
        scales: where a block has half floats, and how many.
    """

    name: str
    number: int
    weights: int
    nbytes: int
    sections: tuple[Section, ...]
    scales: tuple[int, int] = (0, 0)

    def row_bytes(self, inputs: int) -> int:
        """Bytes of a row of so many weights, as a file has them."""
        if not self.weights:
            return inputs * self.nbytes + _SCALE_BYTES
        return inputs // self.weights * self.nbytes

    def section_texels(self, inputs: int) -> list[int]:
        """Texels that each section of a row takes."""
        if not self.weights:
            return [-(-inputs * self.nbytes // TEXEL_BYTES), 1]
        blocks = inputs // self.weights
        return [-(-blocks * section.stride // TEXEL_BYTES) for section in self.sections]

    def defines(self, inputs: int) -> list[tuple[str, int]]:
        """What weights.glsl needs beside the place of the words: the format, and where in a row each section begins."""
        texels = self.section_texels(inputs)
        starts = [sum(texels[:number]) for number in range(len(texels))]
        return [("FORMAT", self.number), *((f"SECTION{number}", start) for number, start in enumerate(starts))]


_SCALE_BYTES = 4


def _format(name: str, number: int, weights: int, scales: tuple[int, int], *sections: tuple[int, int]) -> BlockFormat:
    """A format of sections (start, bytes), the most read first; the stride is the next size that divides a texel."""
    made = tuple(
        Section(start, nbytes, nbytes if nbytes >= TEXEL_BYTES else 1 << (nbytes - 1).bit_length())
        for start, nbytes in sections
    )
    return BlockFormat(name, number, weights, sum(section.nbytes for section in made), made, scales)


BLOCK_FORMATS = {
    made.name: made
    for made in (
        _format("BF16", 1, 1, (0, 0), (0, 2)),
        _format("Q4_0", 2, 32, (0, 1), (2, 16), (0, 2)),
        _format("Q4_1", 3, 32, (0, 2), (4, 16), (0, 4)),
        _format("Q5_0", 4, 32, (0, 1), (6, 16), (2, 4), (0, 2)),
        _format("Q5_1", 5, 32, (0, 2), (8, 16), (4, 4), (0, 4)),
        _format("Q8_0", 6, 32, (0, 1), (2, 32), (0, 2)),
        _format("Q2_K", 7, 256, (80, 2), (16, 64), (0, 16), (80, 4)),
        _format("Q3_K", 8, 256, (108, 1), (32, 64), (0, 32), (96, 14)),
        _format("Q4_K", 9, 256, (0, 2), (16, 128), (0, 16)),
        _format("Q5_K", 10, 256, (0, 2), (48, 128), (16, 32), (0, 16)),
        _format("Q6_K", 11, 256, (208, 1), (0, 128), (128, 64), (192, 16), (208, 2)),
        BlockFormat("Q8_ROW", 12, 0, 1, ()),
        BlockFormat("Q16_ROW", 13, 0, 2, ()),
    )
}
"""Every packed format by its name."""
BY_NUMBER = {form.number: form for form in BLOCK_FORMATS.values()}
"""Every packed format by the number that shaders know it by."""


def block_format(name: str) -> BlockFormat:
    """The format of that name.

    Raises:
        InputError: there is none.
    """
    if name not in BLOCK_FORMATS:
        raise InputError(f"there is no packed format {name!r}; known: {', '.join(BLOCK_FORMATS)}")
    return BLOCK_FORMATS[name]


def inputs_of(values: npt.NDArray[Any], name: str) -> int:
    """How many weights a row of an array has: of floats, or of bytes in that format.

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
        inputs, rest = divmod(length - _SCALE_BYTES, form.nbytes)
        if inputs < 1 or rest:
            raise InputError(f"a row of {length} bytes is no {name}: integers of {form.nbytes} bytes, then a float32")
        return inputs
    if length % form.nbytes:
        raise InputError(f"a row of {length} bytes is no whole number of {name} blocks of {form.nbytes} bytes")
    return length // form.nbytes * form.weights


def words_of(values: npt.NDArray[Any], name: str) -> Words:
    """The words [rows, words] of rows of blocks, as a texture has them; floats are packed first.

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
    """The rows of blocks [rows, bytes] that the words stand for: the reverse of :func:`words_of`."""
    form = block_format(name)
    sorted_bytes = np.ascontiguousarray(words, dtype="<u4").view(np.uint8).reshape(len(words), -1)
    ends = np.cumsum(form.section_texels(inputs)) * TEXEL_BYTES
    parts = np.split(sorted_bytes, ends[:-1], axis=1)
    if not form.weights:
        return np.concatenate([parts[0][:, : inputs * form.nbytes], parts[1][:, :_SCALE_BYTES]], axis=1)
    count = inputs // form.weights
    blocks = np.zeros((len(words), count, form.nbytes), dtype=np.uint8)
    for section, part in zip(form.sections, parts, strict=True):
        by_block = part[:, : count * section.stride].reshape(len(words), count, section.stride)
        blocks[:, :, section.start : section.start + section.nbytes] = by_block[:, :, : section.nbytes]
    return blocks.reshape(len(words), -1)


def dequantize(blocks: Bytes, name: str) -> npt.NDArray[np.float32]:
    """The float32 weights [rows, inputs] of rows of blocks [rows, bytes], by the package ``gguf``: the oracle.

    Raises:
        InputError: the rows are no whole number of blocks, or the package is not installed.
    """
    form, inputs = block_format(name), inputs_of(blocks, name)
    if not form.weights:
        integers = blocks[:, : inputs * form.nbytes].view(f"<i{form.nbytes}").astype(np.float32)
        scales = np.ascontiguousarray(blocks[:, inputs * form.nbytes :]).view("<f4").astype(np.float32, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(integers * scales)
    quants, types = _gguf()
    return np.asarray(quants.dequantize(blocks, types[name]), dtype=np.float32).reshape(len(blocks), inputs)


def table_of(weight: npt.NDArray[Any], number: int, inputs: int) -> npt.NDArray[np.float64]:
    """A table [rows, inputs] in float64, as oracles take it: of words packed in the format ``number``, or 0 for floats.

    Raises:
        InputError: the package gguf, which unpacks GGML's formats, is not installed.
    """
    if not number:
        return np.asarray(weight, dtype=np.float64)
    name = BY_NUMBER[number].name
    return dequantize(blocks_of(weight, name, inputs), name).astype(np.float64)


def pack(weights: npt.NDArray[Any], name: str) -> Bytes:
    """Rows of blocks [..., bytes] of float weights [..., inputs], rounded to nearest.

    GGML's formats are packed by the package ``gguf``, which has no packing for the K formats.

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
    """Which rows of blocks, uint8 [rows, bytes] and contiguous, have a scale or a BF16 weight that is not finite."""
    form = block_format(name)
    if name == "BF16":
        return np.asarray((rows.view("<u2") & 0x7F80 == 0x7F80).any(axis=1))
    if not form.weights:
        return np.asarray(~np.isfinite(np.ascontiguousarray(rows[:, -_SCALE_BYTES:]).view("<f4")).all(axis=1))
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
        raise InputError("the package gguf is not installed; pip install 'glinfer[gguf]'") from None
    return quants, GGMLQuantizationType


def group_count(inputs: int) -> int:
    """Groups of 32 weights in a row, the last one perhaps not full."""
    return math.ceil(inputs / GROUP)
