"""Blocks of GGML's formats whose weights become four-bit codes, with the number of each code in a table.

GGML's formats of fewer than four bits encode eight or four weights as an index into a grid, and signs, scales and
indices share words. A shader would have to read the grid for every weight, so blocks of 256 weights are converted
without loss when they are loaded: into codes, a signed factor for every 16 weights, and one half float. A weight is
half float · factor · number of the code.

MXFP4 keeps its blocks, with its codes in the order of their numbers. The conversion is reversible, except that some
bytes of TQ1_0 have the same meaning: :func:`canonical`.

Source of the formats: ggml-common.h and ggml-quants.c of GGML; the grids come from the package ``gguf``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.errors import required
from glinfer.quant.block_bytes import Bytes
from glinfer.quant.formats import block_format

_WEIGHTS = 256
_HALVES = _WEIGHTS // 16
_HIGH = np.uint32(0x88888888)
_NEGATIVE = np.uint8(15)  # XOR with the code of a magnitude makes it negative


class Coded(NamedTuple):
    """Decoded blocks.

    Attributes:
        codes: uint8 [blocks, 256].
        factors: int8 [blocks, 16].
        scale: the bits of a half float, uint16 [blocks].
    """

    codes: Bytes
    factors: npt.NDArray[np.int8]
    scale: npt.NDArray[np.uint16]


def decoded(rows: Bytes, name: str) -> Coded:
    """Decode rows of a file's blocks [rows, bytes] of one of :data:`CODED`.

    Raises:
        InputError: the package gguf, which has the grids, is not installed.
    """
    decode, _ = _CODECS[name]
    return decode(np.ascontiguousarray(rows).reshape(-1, block_format(name).nbytes))


def encoded(coded: Coded, name: str) -> Bytes:
    """The blocks [blocks, bytes] of :func:`decoded`; codes that do not occur in files give arbitrary valid blocks."""
    return _CODECS[name][1](coded)


def canonical(rows: Bytes, name: str) -> Bytes:
    """Rows of a file's blocks with a unique form: a byte of TQ1_0 holds five ternary values, some of them twice."""
    return encoded(decoded(rows, name), name).reshape(rows.shape) if name == "TQ1_0" else rows


def scattered_scales(blocks: Bytes, name: str) -> npt.NDArray[np.uint16] | None:
    """The bits of each block's half float if the block [blocks, bytes] scatters them (IQ1_M), else None."""
    return _iq1_m_scale(_words(blocks, 48, 8)) if name == "IQ1_M" else None


def codes_in_order(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Convert MXFP4's codes of sign and magnitude m in words to codes 7 - m and 8 + m."""
    return words ^ _flips(words)


def codes_with_signs(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The reverse of :func:`codes_in_order`."""
    return words ^ _flips(~words)


def _flips(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """15 for each code whose highest bit is set, and 8 for the others."""
    high = words & _HIGH
    return np.asarray((high - (high >> np.uint32(3))) | _HIGH)


# Bits and bytes of blocks


def _words(blocks: Bytes, start: int, nbytes: int, dtype: str = "<u2") -> npt.NDArray[Any]:
    """Bytes [start, start + nbytes) of each block as integers."""
    return np.ascontiguousarray(blocks[:, start : start + nbytes]).view(dtype)


def _as_bytes(*parts: npt.NDArray[Any]) -> Bytes:
    """Concatenate the bytes of arrays [blocks, n] of integers."""
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1) for part in parts], axis=1)


def _halved(values: Bytes) -> Bytes:
    """The lower and the upper four bits of bytes [blocks, n], as [blocks, 2n]."""
    return np.stack([values & np.uint8(15), values >> np.uint8(4)], axis=-1).reshape(len(values), -1)


def _joined(values: npt.NDArray[Any]) -> Bytes:
    """The reverse of :func:`_halved`."""
    pairs = values.astype(np.uint8).reshape(len(values), -1, 2)
    return pairs[..., 0] | (pairs[..., 1] << np.uint8(4))


def _fields(words: npt.NDArray[Any], width: int, count: int, bits: int) -> npt.NDArray[Any]:
    """The lower ``bits`` of ``count`` fields of ``width`` bits in each word: [blocks, n] to [blocks, n · count]."""
    shifts = (np.arange(count) * width).astype(words.dtype)
    found = (words[..., None] >> shifts) & words.dtype.type((1 << bits) - 1)
    return np.asarray(found.reshape(len(words), -1))


def _from_fields(values: npt.NDArray[Any], width: int, count: int, dtype: str) -> npt.NDArray[Any]:
    """The reverse of :func:`_fields`; the other bits of a field are 0."""
    shifts = (np.arange(count) * width).astype(dtype)
    return np.asarray(np.bitwise_or.reduce(values.astype(dtype).reshape(len(values), -1, count) << shifts, axis=-1))


def _odd(factors: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """The factors 2n + 1 of numbers n."""
    return (2 * factors.astype(np.int8) + 1).astype(np.int8)


def _even(factors: npt.NDArray[np.int8]) -> Bytes:
    """The reverse of :func:`_odd`."""
    return (factors.view(np.uint8) >> np.uint8(1)).astype(np.uint8)


def _twice(factors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Repeat the factors of groups of 32 for their halves."""
    return np.repeat(factors, 2, axis=1)


# Grids


@dataclass(frozen=True)
class _Grid:
    """One of GGML's grids, with the codes of each index packed in an integer.

    Attributes:
        codes: the codes at each index, as one unsigned integer of 8 or 4 bytes.
        indices: the index for each key of :func:`_key`; 0 for keys that the grid lacks.
        width: weights at an index.
        bits: bits of a number in a key.
    """

    codes: npt.NDArray[Any]
    indices: npt.NDArray[np.uint16]
    width: int
    bits: int

    def numbers_at(self, index: npt.NDArray[Any]) -> Bytes:
        """The codes [blocks, 256] at indices [blocks, 256 / width]."""
        return np.asarray(self.codes[index].view(np.uint8).reshape(len(index), -1))

    def index_of(self, numbers: Bytes) -> npt.NDArray[np.uint16]:
        """The indices of numbers of :attr:`bits` bits [blocks, 256]."""
        return np.asarray(self.indices[_key(numbers.reshape(len(numbers), -1, self.width), self.bits)])


def _key(numbers: Bytes, bits: int) -> npt.NDArray[Any]:
    shifts = (np.arange(numbers.shape[-1]) * bits).astype(np.uint32)
    return np.asarray(np.bitwise_or.reduce((numbers & np.uint8((1 << bits) - 1)).astype(np.uint32) << shifts, axis=-1))


@cache
def _grid(name: str) -> _Grid:
    """The grid of a format, with the code 8 + m for magnitude m, or 4t + 1 for number t of IQ1."""
    source: Any = getattr(required("gguf", "gguf", "GGML's formats need").quants, name)
    source.init_grid()
    values = np.asarray(source.grid).reshape(source.grid_shape)
    numbers = np.searchsorted(np.array(source.grid_map, dtype=values.dtype), values).astype(np.uint8)
    width, bits = values.shape[1], 3 if len(source.grid_map) > 4 else 2
    indices = np.zeros(1 << (width * bits), dtype=np.uint16)
    indices[_key(numbers, bits)] = np.arange(len(numbers))
    codes = 4 * numbers + 1 if name.startswith("IQ1") else numbers + 8
    return _Grid(np.ascontiguousarray(codes.astype(np.uint8)).view(f"<u{width}")[:, 0], indices, width, bits)


@cache
def _sign_masks() -> npt.NDArray[np.uint64]:
    """For each byte of eight signs, the XOR mask that applies them to eight codes."""
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    return np.ascontiguousarray((bits * int(_NEGATIVE)).astype(np.uint8)).view("<u8")[:, 0]


@cache
def _parity() -> Bytes:
    """Extend seven signs to eight with even parity."""
    seven = np.arange(128)
    odd = sum((seven >> bit) & 1 for bit in range(7)) & 1
    return (seven | (odd << 7)).astype(np.uint8)


def _signed(magnitudes: Bytes, signs: Bytes) -> Bytes:
    """Apply signs [blocks, 32] to the codes [blocks, 256] of magnitudes."""
    return (magnitudes.view("<u8") ^ _sign_masks()[signs]).view(np.uint8)


def _magnitudes_and_signs(codes: Bytes) -> tuple[Bytes, Bytes]:
    """The magnitudes [blocks, 256] of codes, and their signs [blocks, 32]."""
    below = (codes < 8).astype(np.uint8)
    magnitudes = (codes ^ (below * _NEGATIVE)) & np.uint8(7)
    return magnitudes, np.packbits(below.reshape(len(codes), -1, 8), axis=-1, bitorder="little")[..., 0]


# Decoder and encoder of each format


def _iq4_xs(blocks: Bytes) -> Coded:
    scales = _halved(blocks[:, 4:8]) | (_fields(_words(blocks, 2, 2), 2, 8, 2) << 4).astype(np.uint8)
    factors = _twice(scales.astype(np.int8) - np.int8(32))
    codes = blocks[:, 8:].reshape(-1, 8, 1, 16)
    both = np.concatenate([codes & np.uint8(15), codes >> np.uint8(4)], axis=2)
    return Coded(both.reshape(-1, _WEIGHTS), factors, _words(blocks, 0, 2)[:, 0])


def _to_iq4_xs(coded: Coded) -> Bytes:
    scales = (coded.factors[:, ::2] + np.int8(32)).view(np.uint8)
    codes = coded.codes.reshape(-1, 8, 2, 16)
    packed = (codes[:, :, 0] | (codes[:, :, 1] << np.uint8(4))).reshape(-1, 128)
    high = _from_fields((scales >> np.uint8(4)) & np.uint8(3), 2, 8, "<u2")
    return _as_bytes(coded.scale.astype("<u2")[:, None], high, _joined(scales & np.uint8(15)), packed)


def _iq2_xxs(blocks: Bytes) -> Coded:
    words = _words(blocks, 2, 64, "<u4").reshape(-1, 8, 2)
    indices = np.ascontiguousarray(words[..., 0]).view(np.uint8).reshape(-1, 32)
    return _with_seven_signs(_grid("IQ2_XXS").numbers_at(indices), words[..., 1], blocks)


def _with_seven_signs(magnitudes: Bytes, words: npt.NDArray[Any], blocks: Bytes) -> Coded:
    """Decode groups whose word has four fields of seven signs, and above them four bits of scale."""
    signs = _parity()[_fields(words, 7, 4, 7)]
    return Coded(_signed(magnitudes, signs), _twice(_odd(words >> 28)), _words(blocks, 0, 2)[:, 0])


def _seven_signs(signs: Bytes, factors: npt.NDArray[np.int8]) -> npt.NDArray[Any]:
    """The reverse: the words [blocks, 8] of signs and factors."""
    scales = _even(factors[:, ::2]).astype("<u4") << 28
    return np.asarray(_from_fields(signs & np.uint8(127), 7, 4, "<u4") | scales)


def _to_iq2_xxs(coded: Coded) -> Bytes:
    magnitudes, signs = _magnitudes_and_signs(coded.codes)
    indices = _grid("IQ2_XXS").index_of(magnitudes).astype(np.uint8)
    words = np.stack([indices.view("<u4"), _seven_signs(signs, coded.factors)], axis=-1).reshape(len(signs), -1)
    return _as_bytes(coded.scale.astype("<u2")[:, None], words)


def _iq2_xs(blocks: Bytes) -> Coded:
    words = _words(blocks, 2, 64)
    magnitudes = _grid("IQ2_XS").numbers_at(words & 511)
    factors = _odd(_halved(blocks[:, 66:]))
    return Coded(_signed(magnitudes, _parity()[words >> 9]), factors, _words(blocks, 0, 2)[:, 0])


def _to_iq2_xs(coded: Coded) -> Bytes:
    magnitudes, signs = _magnitudes_and_signs(coded.codes)
    words = _grid("IQ2_XS").index_of(magnitudes) | ((signs & np.uint8(127)).astype(np.uint16) << 9)
    return _as_bytes(coded.scale.astype("<u2")[:, None], words.astype("<u2"), _joined(_even(coded.factors)))


def _iq2_s(blocks: Bytes) -> Coded:
    indices = blocks[:, 2:34] | (_fields(blocks[:, 66:74], 2, 4, 2).astype(np.uint16) << 8)
    magnitudes = _grid("IQ2_S").numbers_at(indices)
    return Coded(_signed(magnitudes, blocks[:, 34:66]), _odd(_halved(blocks[:, 74:])), _words(blocks, 0, 2)[:, 0])


def _to_iq2_s(coded: Coded) -> Bytes:
    magnitudes, signs = _magnitudes_and_signs(coded.codes)
    indices = _grid("IQ2_S").index_of(magnitudes)
    high = _from_fields(indices >> 8, 2, 4, "u1")
    scales = _joined(_even(coded.factors))
    return _as_bytes(coded.scale.astype("<u2")[:, None], indices.astype(np.uint8), signs, high, scales)


def _iq3_xxs(blocks: Bytes) -> Coded:
    return _with_seven_signs(_grid("IQ3_XXS").numbers_at(blocks[:, 2:66]), _words(blocks, 66, 32, "<u4"), blocks)


def _to_iq3_xxs(coded: Coded) -> Bytes:
    magnitudes, signs = _magnitudes_and_signs(coded.codes)
    indices = _grid("IQ3_XXS").index_of(magnitudes).astype(np.uint8)
    return _as_bytes(coded.scale.astype("<u2")[:, None], indices, _seven_signs(signs, coded.factors))


def _iq3_s(blocks: Bytes) -> Coded:
    indices = blocks[:, 2:66] | (_fields(blocks[:, 66:74], 1, 8, 1).astype(np.uint16) << 8)
    magnitudes = _grid("IQ3_S").numbers_at(indices)
    factors = _twice(_odd(_halved(blocks[:, 106:])))
    return Coded(_signed(magnitudes, blocks[:, 74:106]), factors, _words(blocks, 0, 2)[:, 0])


def _to_iq3_s(coded: Coded) -> Bytes:
    magnitudes, signs = _magnitudes_and_signs(coded.codes)
    indices = _grid("IQ3_S").index_of(magnitudes)
    high, scales = _from_fields(indices >> 8, 1, 8, "u1"), _joined(_even(coded.factors[:, ::2]))
    return _as_bytes(coded.scale.astype("<u2")[:, None], indices.astype(np.uint8), high, signs, scales)


def _lowered(codes: Bytes, below: npt.NDArray[Any]) -> Bytes:
    """Codes of IQ1's grid [blocks, 256], minus one for each eight weights from which an eighth is subtracted."""
    return codes - np.repeat(below.astype(np.uint8), 8, axis=1)


def _iq1_s(blocks: Bytes) -> Coded:
    words = _words(blocks, 34, 16)
    indices = blocks[:, 2:34] | (_fields(words, 3, 4, 3) << 8)
    codes = _lowered(_grid("IQ1_S").numbers_at(indices), np.repeat(words >> 15, 4, axis=1))
    return Coded(codes, _twice(_odd((words >> 12) & 7)), _words(blocks, 0, 2)[:, 0])


def _to_iq1_s(coded: Coded) -> Bytes:
    indices, below = _grid("IQ1_S").index_of(coded.codes >> np.uint8(2)), _below(coded.codes)
    words = _from_fields(indices >> 8, 3, 4, "<u2") | (_even(coded.factors[:, ::2]).astype("<u2") << 12)
    words |= below[:, ::4].astype("<u2") << 15
    return _as_bytes(coded.scale.astype("<u2")[:, None], indices.astype(np.uint8), words)


def _below(codes: Bytes) -> Bytes:
    """For each eight weights, 1 if an eighth is subtracted from them, else 0."""
    return (codes[:, ::8] & np.uint8(1)) ^ np.uint8(1)


def _iq1_m(blocks: Bytes) -> Coded:
    words, high = _words(blocks, 48, 8), _halved(blocks[:, 32:48])
    indices = blocks[:, :32] | ((high & np.uint8(7)).astype(np.uint16) << 8)
    codes = _lowered(_grid("IQ1_M").numbers_at(indices), high >> np.uint8(3))
    return Coded(codes, _odd(_fields(words, 3, 4, 3)), _iq1_m_scale(words))


def _iq1_m_scale(words: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """The half float whose bits are the highest four of each of four words [blocks, 4]."""
    return np.asarray(_from_fields(words >> 12, 4, 4, "<u2")[:, 0].astype(np.uint16))


def _to_iq1_m(coded: Coded) -> Bytes:
    indices = _grid("IQ1_M").index_of(coded.codes >> np.uint8(2))
    high = (indices >> 8).astype(np.uint8) | (_below(coded.codes) << np.uint8(3))
    words = _from_fields(_even(coded.factors), 3, 4, "<u2")
    words |= _fields(coded.scale[:, None], 4, 4, 4).astype("<u2") << 12
    return _as_bytes(indices.astype(np.uint8), _joined(high), words)


_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_FIVES = ((0, 32, 5), (32, 16, 5), (48, 4, 4))  # TQ1_0: first byte, number of bytes, weights a byte


def _tq1_0(blocks: Bytes) -> Coded:
    parts = []
    for start, count, each in _FIVES:
        turned = blocks[:, None, start : start + count] * _POWERS[:each, None]
        parts.append(((turned.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(blocks), -1))
    return Coded(np.concatenate(parts, axis=1), _ones(len(blocks)), _words(blocks, 52, 2)[:, 0])


def _to_tq1_0(coded: Coded) -> Bytes:
    parts, at = [], 0
    for _, count, each in _FIVES:
        digits = coded.codes[:, at : at + count * each].reshape(-1, each, count).astype(np.uint16)
        number = (digits * 3 ** np.arange(4, 4 - each, -1).astype(np.uint16)[:, None]).sum(axis=1)
        parts.append(((number * 256 + 242) // 243).astype(np.uint8))
        at += count * each
    return _as_bytes(*parts, coded.scale.astype("<u2")[:, None])


def _tq2_0(blocks: Bytes) -> Coded:
    packed = blocks[:, :64].reshape(-1, 2, 1, 32)
    codes = (packed >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & np.uint8(3)
    return Coded(codes.reshape(-1, _WEIGHTS), _ones(len(blocks)), _words(blocks, 64, 2)[:, 0])


def _to_tq2_0(coded: Coded) -> Bytes:
    shifted = coded.codes.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    return _as_bytes(np.bitwise_or.reduce(shifted, axis=2).reshape(-1, 64), coded.scale.astype("<u2")[:, None])


def _ones(blocks: int) -> npt.NDArray[np.int8]:
    return np.ones((blocks, _HALVES), dtype=np.int8)


_CODECS: dict[str, tuple[Callable[[Bytes], Coded], Callable[[Coded], Bytes]]] = {
    "IQ4_XS": (_iq4_xs, _to_iq4_xs),
    "IQ3_S": (_iq3_s, _to_iq3_s),
    "IQ3_XXS": (_iq3_xxs, _to_iq3_xxs),
    "IQ2_S": (_iq2_s, _to_iq2_s),
    "IQ2_XS": (_iq2_xs, _to_iq2_xs),
    "IQ2_XXS": (_iq2_xxs, _to_iq2_xxs),
    "IQ1_M": (_iq1_m, _to_iq1_m),
    "IQ1_S": (_iq1_s, _to_iq1_s),
    "TQ1_0": (_tq1_0, _to_tq1_0),
    "TQ2_0": (_tq2_0, _to_tq2_0),
}
"""The decoder of blocks [blocks, bytes] of each format, and the encoder."""
CODED = tuple(_CODECS)
"""The formats with codes in blocks of 256 weights."""
