"""GGML's blocks sorted into groups of 32 weights, so that a shader multiplies integers and scales their sums.

Each row of blocks becomes four arrays of uint32, which keep every bit:

========= ==================== ======================================================================
array     shape                holds
========= ==================== ======================================================================
``low``   [rows, groups, 4]    the lowest four bits of the numbers: weight i in byte i mod 16, those from
                               16 on in the upper half; or [rows, groups, 8], all eight bits, in order
``high``  [rows, groups, 0–2]  the fifth bit of weight 4b + j as bit b of byte j; or the two bits above the
                               fourth, of weight 16k + 4b + j as bits 2b of byte j of word k
``scale`` [rows, groups]       half floats, or 16 bits of small scales, or two half floats; four floats
                               [rows, groups, 4] in the form ``wide``
``shared``[rows, blocks, 0–1]  a half float for scales and one for minima of a block of 256
========= ==================== ======================================================================

The words of a row in a texture are these arrays one after the other, each from a whole texel on; scales of 16 bits are
two a word. shaders/common/weights.glsl reads such rows, and :mod:`glinfer.gl.layouts.grouped` sorts them for products.

Source of the formats: ggml-common.h and ggml-quants.c of GGML.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.quant.block_bytes import Bytes, parts_of
from glinfer.quant.coded import CODED, Coded, codes_in_order, codes_with_signs, decoded, encoded
from glinfer.quant.formats import (
    BLOCK_GROUPS,
    FOUR_BITS,
    GROUP,
    HALF,
    PAIR,
    POWER,
    SIGNED_BYTES,
    SIX_BITS,
    TEXEL_BYTES,
    WIDE,
    GroupForm,
    block_format,
    group_form,
)

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Groups:
    """A matrix sorted into groups; the module's docstring describes the arrays."""

    low: Words
    high: Words
    scale: Words
    shared: Words


def words_of_groups(groups: Groups, form: GroupForm) -> Words:
    """The words [rows, words] of sorted groups in a texture."""
    rows, count = groups.low.shape[:2]
    arrays = groups.low, groups.high, groups.scale.astype(f"<u{form.scale_bytes}"), groups.shared
    texels = form.section_texels(GROUP * count)
    found, at = np.zeros((rows, TEXEL_BYTES * sum(texels)), dtype=np.uint8), 0
    for array, size in zip(arrays, texels, strict=True):
        part = np.ascontiguousarray(array).reshape(rows, -1).view(np.uint8)
        found[:, at : at + part.shape[1]] = part
        at += TEXEL_BYTES * size
    return _words(found)


def groups_in(words: npt.NDArray[Any], form: GroupForm, inputs: int) -> Groups:
    """The sorted groups of rows of ``inputs`` weights: the reverse of :func:`words_of_groups`."""
    plain = np.ascontiguousarray(words, dtype="<u4").view(np.uint8).reshape(len(words), -1)
    count, at, found = -(-inputs // GROUP), 0, []
    shapes = [(count, form.low_words), (count, form.high_words), (count, form.scale_words)]
    shapes.append((count // BLOCK_GROUPS, int(form.shared)))
    each_bytes = 4, 4, form.scale_bytes, 4
    for shape, nbytes, size in zip(shapes, each_bytes, form.section_texels(inputs), strict=True):
        part = np.ascontiguousarray(plain[:, at : at + shape[0] * shape[1] * nbytes]).view(f"<u{nbytes}")
        found.append(part.astype(np.uint32, copy=False).reshape(len(words), *shape))
        at += TEXEL_BYTES * size
    low, high, scale, shared = found
    return Groups(low, high, scale if form.scale_words > 1 else scale[..., 0], shared)


def wide_words(rows: Bytes, name: str) -> Words:
    """Convert rows of blocks of any format to the words of the form ``wide`` without loss.

    A group has signed bytes, and four float32: the scales and the offsets of its halves. A weight is
    number · scale + offset.
    """
    numbers, scales = _numbers_and_scales(rows, name)
    none = np.zeros((*numbers.shape[:2], 0), dtype=np.uint32)
    return words_of_groups(Groups(_words(numbers), none, scales.view(np.uint32), none), group_form(WIDE))


def float_values(rows: Bytes, name: str) -> npt.NDArray[np.float32]:
    """The weights [rows, inputs] of rows of blocks, uint8 [rows, bytes], rounded once or twice as in GGML.

    Raises:
        InputError: the package gguf, which has the grids of some formats, is not installed.
    """
    form = group_form(name)
    parts = 2 if form.scales in (FOUR_BITS, SIGNED_BYTES) else 1  # of a group, with their own scales
    with np.errstate(all="ignore"):  # scales may be infinite
        numbers, scales = _numbers_and_scales(rows, name)
        found = numbers.astype(np.float32).reshape(*numbers.shape[:2], parts, -1)
        found *= scales[..., :parts, None]
        if form.scales in (PAIR, SIX_BITS, FOUR_BITS):
            found += scales[..., 2 : 2 + parts, None]
    return np.asarray(found.reshape(len(rows), -1))


def _numbers_and_scales(rows: Bytes, name: str) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """The signed numbers [rows, groups, 32] of blocks, and the scales and the offsets of both halves of a group."""
    form, (numbers, scale, shared) = group_form(name), _apart(rows, name)
    if name == "MXFP4":
        numbers = codes_in_order(_words(numbers)).view(np.uint8) & np.uint8(15)
    if form.table is not None:
        signed = form.table.numbers[numbers]
    else:
        signed = numbers.view(np.int8) if form.low_bits == 8 else numbers.view(np.int8) - np.int8(form.offset)
    return signed, _float_scales(scale, shared, form)


def _float_scales(scale: Words, shared: Words, form: GroupForm) -> npt.NDArray[np.float32]:
    """The scales and the offsets of both halves of each group, [rows, groups, 4]."""

    def halves(words: Words) -> npt.NDArray[np.float32]:
        return (words & np.uint32(0xFFFF)).astype("<u2").view(np.float16).astype(np.float32)

    if form.scales == POWER:
        d = (scale << np.uint32(16)).view(np.float32)
        return np.stack([d, d, np.zeros_like(d), np.zeros_like(d)], axis=-1)
    if form.scales == SIGNED_BYTES:
        unit = np.float32(1.0 if form.table is None else form.table.unit)
        d, none = halves(np.repeat(shared[..., 0], 8, axis=1)) * unit, np.zeros(scale.shape, np.float32)
        one, other = ((scale >> np.uint32(shift)).astype(np.uint8).view(np.int8) for shift in (0, 8))
        return np.stack([d * one.astype(np.float32), d * other.astype(np.float32), none, none], axis=-1)
    if form.shared:
        by_group = np.repeat(shared[..., 0], 8, axis=1)
        d, least = halves(by_group), -halves(by_group >> np.uint32(16))
        bits, at = (6, 8) if form.scales == SIX_BITS else (4, 4)
        low = (scale & np.uint32((1 << bits) - 1)).astype(np.float32)
        high = ((scale >> np.uint32(at)) & np.uint32((1 << bits) - 1)).astype(np.float32)
        second = [low, high]
        if form.scales == FOUR_BITS:
            second = [((scale >> np.uint32(shift)) & np.uint32(15)).astype(np.float32) for shift in (8, 12)]
        return np.stack([d * low, d * second[0], least * high, least * second[1]], axis=-1)
    d, added = halves(scale), np.zeros(scale.shape, np.float32)
    if form.scales == PAIR:
        added = halves(scale >> np.uint32(16))
    return np.stack([d, d, added, added], axis=-1)


def wide_values(words: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The weights [rows, inputs] of :func:`wide_words`, in float64."""
    form = group_form(WIDE)
    groups = groups_in(words, form, GROUP * words.shape[1] // (form.low_words + form.scale_words))
    numbers = _numbers_from(groups, form).view(np.int8).reshape(*groups.low.shape[:2], 2, GROUP // 2)
    scales = groups.scale.view(np.float32).astype(np.float64)
    found = numbers * scales[..., :2, None] + scales[..., 2:, None]
    return np.asarray(found.reshape(len(words), -1))


def groups_of(rows: Bytes, name: str) -> Groups:
    """Rows of blocks, uint8 [rows, bytes], sorted into groups.

    Raises:
        InputError: the package gguf, which has the grids of some formats, is not installed.
    """
    form = group_form(name)
    if len(form.planes) == 1 and form.planes[0].chunks == 1 and form.planes[0].bits == form.low_bits:
        blocks, plane = _blocks(rows, name), form.planes[0]  # whose order is that of the low words
        low = _words(_copied(blocks, plane.start, plane.nbytes))
        low = codes_in_order(low) if name == "MXFP4" else low
        return Groups(low, np.zeros((*low.shape[:2], 0), dtype=np.uint32), *_scales(blocks, form))
    numbers, *scales = _apart(rows, name)
    return Groups(_low(numbers, form), _high(numbers, form), *scales)


def _apart(rows: Bytes, name: str) -> tuple[Bytes, Words, Words]:
    """The numbers or codes [rows, groups, 32] of blocks as they are in the file, and the scales of :class:`Groups`."""
    if name in CODED:
        codes, factors, shared = decoded(rows, name)
        scale = factors.view("<u2").astype(np.uint32).reshape(len(rows), -1)
        return codes.reshape(len(rows), -1, GROUP), scale, shared.astype(np.uint32).reshape(len(rows), -1, 1)
    form, blocks = group_form(name), _blocks(rows, name)
    return _numbers(blocks, form).reshape(len(rows), -1, GROUP), *_scales(blocks, form)


def _blocks(rows: Bytes, name: str) -> Bytes:
    return np.ascontiguousarray(rows).reshape(len(rows), -1, block_format(name).nbytes)


def blocks_from(groups: Groups, name: str) -> Bytes:
    """The rows of blocks from sorted groups: the reverse of :func:`groups_of`."""
    if name == "MXFP4":
        groups = replace(groups, low=codes_with_signs(groups.low))
    numbers = _numbers_from(groups, group_form(name)).reshape(len(groups.low), -1)
    return blocks_of_numbers(numbers, groups.scale, groups.shared, name)


def blocks_of_numbers(numbers: Bytes, scale: Words, shared: Words, name: str) -> Bytes:
    """The rows of blocks from numbers or codes [rows, inputs], with ``scale`` and ``shared`` as in :class:`Groups`."""
    form, block = group_form(name), block_format(name)
    rows, count = len(numbers), numbers.shape[1] // block.weights
    if name in CODED:
        factors = scale.astype("<u2").view(np.int8).reshape(rows * count, -1)
        coded = Coded(numbers.reshape(rows * count, -1), factors, shared.astype(np.uint16).reshape(-1))
        return encoded(coded, name).reshape(rows, -1)
    blocks = np.zeros((rows, count, block.nbytes), dtype=np.uint8)
    numbers = numbers.reshape(rows, count, block.weights)
    for plane in form.planes:
        width, steps = plane.nbytes // plane.chunks, 8 // plane.bits
        part = (numbers >> np.uint8(plane.position)) & np.uint8((1 << plane.bits) - 1)
        part = part.reshape(rows, count, plane.chunks, steps, width)
        shifts = np.arange(0, 8, plane.bits, dtype=np.uint8)[:, None]
        made = np.bitwise_or.reduce(part << shifts, axis=3)
        blocks[:, :, plane.start : plane.start + plane.nbytes] = made.reshape(rows, count, plane.nbytes)
    _put_scales(blocks, scale, shared, form)
    return blocks.reshape(rows, -1)


def _numbers(blocks: Bytes, form: GroupForm) -> Bytes:
    found: Any = None
    for plane in form.planes:
        width, steps = plane.nbytes // plane.chunks, 8 // plane.bits
        # Shift and mask whole arrays, and move whole runs: NumPy is slow on the few bytes of each block.
        held, run = _copied(blocks, plane.start, plane.nbytes), f"V{width}"
        part = np.empty((*blocks.shape[:2], plane.chunks, steps * width), dtype=np.uint8)
        for step in range(steps):
            bits = (held >> np.uint8(step * plane.bits)) & np.uint8((1 << plane.bits) - 1)
            if plane.position:
                bits <<= np.uint8(plane.position)
            part.view(run)[..., step] = bits.view(run)
        part = part.reshape(*blocks.shape[:2], -1)
        found = part if found is None else found | part
    return np.asarray(found)


def _copied(blocks: Bytes, start: int, nbytes: int) -> Bytes:
    """A copy of bytes [start, start + nbytes) of each block, [rows, blocks, nbytes]."""
    return np.ascontiguousarray(parts_of(blocks, start, nbytes, blocks.shape[2])).view(np.uint8)


def _words(values: npt.NDArray[Any]) -> Words:
    """View bytes [..., 4 · n] as words [..., n]."""
    return np.ascontiguousarray(values).view("<u4").astype(np.uint32, copy=False)


def _low(numbers: Bytes, form: GroupForm) -> Words:
    if form.low_bits == 8:
        return _words(numbers)
    return _words((numbers[..., :16] & np.uint8(15)) | (numbers[..., 16:] << np.uint8(4)))


def _high(numbers: Bytes, form: GroupForm) -> Words:
    if not form.high_words:
        return np.zeros((*numbers.shape[:2], 0), dtype=np.uint32)
    bits = form.high_words
    upper = (numbers >> np.uint8(4)).reshape(*numbers.shape[:2], bits, 8 // bits, 4)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return _words(np.bitwise_or.reduce(upper << shifts, axis=3).reshape(*numbers.shape[:2], -1))


def _numbers_from(groups: Groups, form: GroupForm) -> Bytes:
    rows, count = groups.low.shape[:2]
    as_bytes = np.ascontiguousarray(groups.low, dtype="<u4").view(np.uint8).reshape(rows, count, -1)
    if form.low_bits == 8:
        return as_bytes
    numbers = np.concatenate([as_bytes & np.uint8(15), as_bytes >> np.uint8(4)], axis=-1)
    if form.high_words:
        bits = form.high_words
        high = np.ascontiguousarray(groups.high, dtype="<u4").view(np.uint8).reshape(rows, count, bits, 1, 4)
        parts = (high >> np.arange(0, 8, bits, dtype=np.uint8)[:, None]) & np.uint8((1 << bits) - 1)
        numbers = numbers | (parts.reshape(rows, count, GROUP) << np.uint8(4))
    return np.asarray(numbers)


def _scales(blocks: Bytes, form: GroupForm) -> tuple[Words, Words]:
    rows, count = blocks.shape[:2]
    none = np.zeros((rows, count, 0), dtype=np.uint32)
    if form.scales == POWER:
        exponents = blocks[:, :, form.scale_start].astype(np.uint32)
        # The smallest two are subnormal.
        return np.where(exponents < 2, 0x20 << exponents, (exponents - 1) << 7).astype(np.uint32), none
    factors = blocks[:, :, form.factor_start :]
    if form.scales in (HALF, SIGNED_BYTES):
        first = _copied(blocks, form.scale_start, 2).view("<u2").astype(np.uint32)
        if form.scales == HALF:
            return first[..., 0], none
        signed = factors[..., :16] if form.high_words else _six_bits(factors[..., :12]) - np.uint8(32)
        return np.ascontiguousarray(signed).view("<u2").astype(np.uint32).reshape(rows, -1), first
    halves = _copied(blocks, form.scale_start, 4)
    if form.scales == PAIR:
        return _words(halves)[..., 0], none
    if form.scales == FOUR_BITS:
        pairs = np.ascontiguousarray(factors[..., :16]).view("<u2").astype(np.uint32)
        return pairs.reshape(rows, -1), _words(halves)
    scale, least, both = (factors[..., start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate([scale & 63, (both & 15) | ((scale >> 2) & 48)], axis=-1).astype(np.uint32)
    minima = np.concatenate([least & 63, (both >> 4) | ((least >> 2) & 48)], axis=-1).astype(np.uint32)
    return (scales | (minima << np.uint32(8))).reshape(rows, -1), _words(halves)


def _six_bits(packed: Bytes) -> Bytes:
    """Sixteen six-bit factors: eight bytes have the lower four bits of two each, four the upper two bits of four."""
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    high = (packed[..., None, 8:] >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & 3
    return np.asarray(low | (high.reshape(*packed.shape[:2], 16) << 4)).astype(np.uint8)


def _put_scales(blocks: Bytes, scale: Words, shared: Words, form: GroupForm) -> None:
    rows, count = blocks.shape[:2]
    start, at = form.scale_start, form.factor_start
    by_block = scale.reshape(rows, count, -1)

    def put(first: int, values: npt.NDArray[Any], dtype: str) -> None:
        as_bytes = np.ascontiguousarray(values.astype(dtype)).view(np.uint8).reshape(rows, count, -1)
        blocks[:, :, first : first + as_bytes.shape[-1]] = as_bytes

    if form.scales == HALF:
        put(start, by_block, "<u2")
    elif form.scales == POWER:
        put(start, np.where(by_block < 1 << 7, by_block >> 6, (by_block >> 7) + 1), "u1")
    elif form.scales == PAIR:
        put(start, by_block, "<u4")
    elif form.scales == SIGNED_BYTES:
        put(start, shared, "<u2")
        factors = np.ascontiguousarray(by_block.astype("<u2")).view(np.uint8).reshape(rows, count, 16)
        if form.high_words:
            blocks[:, :, at : at + 16] = factors
        else:
            factors = factors + np.uint8(32)
            blocks[:, :, at : at + 8] = (factors[..., :8] & 15) | (factors[..., 8:] << 4)
            upper = (factors >> 4).reshape(rows, count, 4, 4) << np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
            blocks[:, :, at + 8 : at + 12] = np.bitwise_or.reduce(upper, axis=2)
    else:
        put(start, shared, "<u4")
        if form.scales == FOUR_BITS:
            put(at, by_block, "<u2")
            return
        scales, minima = (by_block & 63).astype(np.uint8), ((by_block >> 8) & 63).astype(np.uint8)
        blocks[:, :, at : at + 4] = scales[..., :4] | ((scales[..., 4:] & 48) << 2)
        blocks[:, :, at + 4 : at + 8] = minima[..., :4] | ((minima[..., 4:] & 48) << 2)
        blocks[:, :, at + 8 : at + 12] = (scales[..., 4:] & 15) | (minima[..., 4:] << 4)
