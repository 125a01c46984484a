"""Weights in words for shaders/common/unpack.glsl, from a float32 matrix or the integers of a file.

==== ================================================= ======================
name contents of a word                                scale
==== ================================================= ======================
f32  one float32                                       none
f16  one IEEE half float, in 16 bits                   none
q16  two 16-bit integers, the first in the high bits   one a row and group
q8   four 8-bit integers, the first in the high bits   one a row and group
bf16 two bfloat16, the first in the high bits          none
i16  two 16-bit integers of a file, the same order     one a row
i8   four 8-bit integers of a file, the same order     one a row
==== ================================================= ======================

A group is one of four sets of inputs, ``(input div 4) mod 4`` (see :class:`glinfer.gl.layouts.packing.ConstantLayout`).

The shader reads integer n of a word as ``float(int(word << (bits · n)))``: one shift and one conversion, without a
mask. The integers after it in the word therefore add a fraction of its last bit. The encoder rounds against that
fraction, from the last integer to the first, so the error stays half a step. The scale includes the power of two that
undoes the shift. Integers of a file keep their bits: for i16 and i8 the shader masks the integers after the one that
it reads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.quant.formats import WORD_FORMATS

FloatMatrix = npt.NDArray[np.float32]
Words = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint32]
FILE_INTEGERS = tuple(name for name, form in WORD_FORMATS.items() if form.scaled and form.keeps)
"""The packings of a file's integers."""
ENCODINGS = tuple(name for name in WORD_FORMATS if name not in FILE_INTEGERS)
"""The packings that floats can be encoded in."""
GROUPS = 4
_ROUND = 4 * GROUPS  # the groups repeat after this number of inputs
_ROUNDS = np.float32(3 << 22)  # a small float plus this is rounded to an integer, which is in the lowest bits


def encode(weights: FloatMatrix, name: str) -> tuple[Words, FloatMatrix | None]:
    """Encode a float32 matrix [outputs, inputs] to words [outputs, words], and scales [outputs, 4] for integers.

    Inputs are padded with zeros to a multiple of 4.

    Raises:
        PlanError: the format does not exist, or a weight is too large for it.
    """
    if name not in ENCODINGS:
        raise PlanError(f"there is no weight format {name!r}; expected one of {', '.join(ENCODINGS)}")
    padding = -weights.shape[1] % 4
    if padding:
        weights = np.pad(weights, ((0, 0), (0, padding)))
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    if name == "f32":
        return weights, None
    if name == "f16":
        with np.errstate(over="ignore"):
            halves = weights.astype(np.float16)
        if not np.isfinite(halves).all():
            raise PlanError(f"a weight of {np.abs(weights).max():.3g} is beyond float16's 65504; use f32 or q16")
        return halves, None
    if name == "bf16":
        upper = bfloat16_bits(weights).reshape(len(weights), -1, 2)
        return (upper[..., 0] << np.uint32(16)) | upper[..., 1], None
    return _encode_integers(weights, WORD_FORMATS[name].bits)


def bfloat16_bits(weights: FloatMatrix) -> npt.NDArray[np.uint32]:
    """The bits of the nearest bfloat16 numbers, ties to even: uint32 of the shape of ``weights``."""
    bits = weights.view(np.uint32)
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


def _encode_integers(weights: FloatMatrix, bits: int) -> tuple[Words, FloatMatrix]:
    per_word, largest = 32 // bits, (1 << (bits - 1)) - 1
    by_word = weights.reshape(len(weights), -1, per_word).transpose(2, 0, 1)
    numbers = np.ascontiguousarray(by_word)  # a copy is fast: NumPy is slow on every second or fourth number
    step = _peaks(numbers) / np.float32(largest)
    inverse = np.divide(1.0, step, out=np.zeros_like(step), where=step >= np.finfo(np.float32).tiny)
    words, up = numbers.shape[2], np.uint32(32 - bits)
    numbers *= np.tile(np.repeat(inverse, 4 // per_word, axis=1), (1, -(-words * per_word // _ROUND)))[:, :words]
    found = (numbers[-1] + _ROUNDS).view(np.uint32) << up
    for number in numbers[-2::-1]:
        # The shader reads the lower bits, which are already in the word, as part of the next integer.
        found >>= np.uint32(bits)
        number -= np.multiply(found.view(np.int32), np.float32(2.0 ** (bits - 32)), dtype=np.float32)
        number += _ROUNDS
        found |= number.view(np.uint32) << up
    return found, step * np.float32(2.0 ** (bits - 32))


def _peaks(numbers: FloatMatrix) -> FloatMatrix:
    """The largest magnitude of each row in each group of inputs, [outputs, 4], of weights [numbers, outputs, words]."""
    sizes = np.abs(numbers).max(axis=0)
    if len(numbers) == 2:
        sizes = np.maximum(sizes[:, ::2], sizes[:, 1::2])
    if sizes.shape[1] % GROUPS:
        sizes = np.pad(sizes, ((0, 0), (0, -sizes.shape[1] % GROUPS)))
    each = np.dtype((np.void, sizes.itemsize * GROUPS))  # whole rounds move and compare faster than numbers along a row
    rounds = np.ascontiguousarray(sizes.view(each).T).view(np.float32)
    return np.asarray(rounds.max(axis=0).reshape(len(sizes), GROUPS))


def integer_words(numbers: npt.NDArray[np.integer], scales: FloatMatrix, name: str) -> tuple[Words, FloatMatrix]:
    """The words of a file's integers [outputs, inputs], bits unchanged, and scales [outputs, 4] from one a row.

    Args:
        numbers: 16-bit integers for ``i16``, 8-bit for ``i8``; padded with zeros to a multiple of 4 inputs.
        scales: [outputs].
        name: one of :data:`FILE_INTEGERS`.
    """
    bits = WORD_FORMATS[name].bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % 4))).astype(np.int32).view(np.uint32)
    by_word = padded.reshape(len(numbers), -1, 32 // bits) & np.uint32((1 << bits) - 1)
    shifts = (32 - bits * np.arange(1, 32 // bits + 1)).astype(np.uint32)
    words = np.bitwise_or.reduce(by_word << shifts, axis=2)
    return words, np.repeat((scales * np.float32(2.0 ** (bits - 32)))[:, None], GROUPS, axis=1)


def decode(words: Words, scales: FloatMatrix | None, name: str, inputs: int) -> npt.NDArray[np.float64]:
    """The weights [outputs, inputs] of words, in float64, for test oracles."""
    if name in ("f32", "f16"):
        return words[:, :inputs].astype(np.float64)
    if name == "bf16":
        bits = words.view(np.uint32)
        halves = np.stack([bits >> np.uint32(16), bits & np.uint32(0xFFFF)], axis=-1).astype(np.uint32)
        floats = (halves << np.uint32(16)).view(np.float32).reshape(len(words), -1)
        return np.asarray(floats[:, :inputs].astype(np.float64))
    if scales is None:
        raise PlanError(f"weights in {name} need their scales")
    width = WORD_FORMATS[name].bits
    shifts = (np.arange(32 // width) * width).astype(np.uint32)
    shifted = words.view(np.uint32)[:, :, None] << shifts
    if name in FILE_INTEGERS:
        shifted &= np.uint32((1 << width) - 1 << (32 - width))
    numbers = shifted.view(np.int32).astype(np.float64)
    weights = numbers.reshape(words.shape[0], -1)
    group = (np.arange(weights.shape[1]) // 4) % GROUPS
    return np.asarray((weights * scales.astype(np.float64)[:, group])[:, :inputs])
