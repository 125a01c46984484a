"""Pack floats as GGML's K formats, IQ4_NL and IQ4_XS, with errors like those of llama.cpp's quantiser.

Squared errors are weighted by the size of the weights, or by their **importance**: the mean square of the input that a
weight is multiplied by. Importance minimises the error of the product instead of the matrix. Each 16 or 32 weights get
a scale by search: several scales around the one that just reaches the largest weight are tried. For each, the numbers
are rounded, and least squares gives the best scale and minimum for these numbers. The scales of a block are quantised
in the same way; then all numbers are rounded again for the quantised scales.

Source of the searches: ggml-quants.c of GGML (``make_qkx2_quants``, ``make_qkx3_quants``, ``make_qx_quants``,
``make_q3_quants``, ``make_qp_quants``, ``quantize_row_iq4_nl_impl``), here vectorised over all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.quant.block_bytes import Bytes
from glinfer.quant.formats import block_format
from glinfer.quant.groups import blocks_of_numbers
from glinfer.quant.tables import IQ4_TABLE

Floats = npt.NDArray[np.float32]
PACKED_HERE = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
"""The formats that :func:`pack_blocks` supports."""
_CHUNK = 1 << 20  # weights searched together
MAX_WEIGHT = 1e9
"""Larger weights fit no format here; fourth powers of smaller ones fit float32."""
_SMALLEST = np.float32(1e-15)  # groups whose largest weight is smaller become zeros


class _Minima(NamedTuple):
    """The search for numbers with a minimum: the largest number, the weights of a group, and the scales to try.

    Scale number n is ``first + step · n`` above the largest number, over the range of the weights.
    """

    largest: int
    group: int
    factor_bits: int
    first: float
    step: float
    tries: int
    absolute: bool = False  # minimise absolute errors instead of squares


_MINIMA = {
    "Q2_K": _Minima(3, 16, 4, -0.5, 0.1, 15, absolute=True),
    "Q4_K": _Minima(15, 32, 6, -1.0, 0.1, 20),
    "Q5_K": _Minima(31, 32, 6, -0.5, 0.1, 15),
}
_WITH_IMPORTANCE = (-0.9, 0.05, 36)  # first, step and number of the scales to try


def pack_blocks(rows: Floats, name: str, importance: Floats | None = None) -> Bytes:
    """Pack finite float32 weights [rows, inputs] to rows of blocks [rows, bytes].

    Args:
        rows: the weights; each row is a whole number of blocks.
        name: the format, one of :data:`PACKED_HERE`.
        importance: weight of the squared error of each input, [inputs], not negative; None to use the weights' size.
    """
    step = max(1, _CHUNK // rows.shape[1])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        parts = [_packed(rows[at : at + step], name, importance) for at in range(0, len(rows), step)]
    return np.concatenate(parts)


def _packed(rows: Floats, name: str, importance: Floats | None) -> Bytes:
    size = block_format(name).weights
    blocks = rows.reshape(-1, size)
    weights = None if importance is None else np.tile(importance.reshape(-1, size), (len(rows), 1))
    if name in _MINIMA:
        numbers, scale, shared = _with_minima(blocks, _MINIMA[name], weights)
    elif name == "Q3_K":
        numbers, scale, shared = _three_bits(blocks, weights)
    elif name == "Q6_K":
        numbers, scale, shared = _six_bits(blocks, weights)
    else:
        numbers, scale, shared = _of_table(blocks, weights)
    shape = len(rows), rows.shape[1]
    return blocks_of_numbers(
        numbers.reshape(shape), scale.reshape(len(rows), -1), shared.reshape(len(rows), -1, 1), name
    )


def _half(values: Floats) -> tuple[npt.NDArray[np.uint32], Floats]:
    """Round values to half floats; return their bits and their values."""
    halves = values.astype("<f2")
    return halves.view("<u2").astype(np.uint32), halves.astype(np.float32)


def _divided(above: Floats, below: Floats) -> Floats:
    """Quotients, 0 where the divisor is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


def _error_weights(blocks: Floats, importance: Floats, group: int) -> Floats:
    """The weights of errors [groups, group] by importance, larger for weights that are large in their block."""
    spread = (blocks**2).mean(axis=1, keepdims=True) * 2
    return np.asarray(importance * np.sqrt(spread + blocks**2)).reshape(-1, group)


# Numbers with a scale and a minimum


def _with_minima(blocks: Floats, form: _Minima, importance: Floats | None) -> tuple[Any, Any, Any]:
    groups = blocks.reshape(-1, form.group)
    if importance is not None:
        weights = _error_weights(blocks, importance, form.group)
        form = form._replace(
            first=_WITH_IMPORTANCE[0], step=_WITH_IMPORTANCE[1], tries=_WITH_IMPORTANCE[2], absolute=False
        )
    elif form.group == 16:
        weights = np.abs(groups)
    else:
        weights = np.sqrt((groups**2).mean(axis=1, keepdims=True)) + np.abs(groups)
    scale, least = _range_search(groups, weights, form)
    counts = None if importance is None else weights.sum(axis=1).reshape(len(blocks), -1)
    most = (1 << form.factor_bits) - 1
    factors, d = _factors(scale.reshape(len(blocks), -1), most, counts)
    minima, dmin = _factors(least.reshape(len(blocks), -1), most, counts)
    d_bits, d = _half(d)
    dmin_bits, dmin = _half(dmin)
    whole = (d[:, None] * factors).reshape(-1, 1)
    offset = (dmin[:, None] * minima).reshape(-1, 1)
    numbers = np.rint(_divided(groups + offset, np.broadcast_to(whole, groups.shape))).clip(0, form.largest)
    words = factors.astype(np.uint32) | (minima.astype(np.uint32) << np.uint32(form.factor_bits if most == 15 else 8))
    if form.group == 16:
        pairs = words.reshape(len(blocks), -1, 2)
        words = pairs[..., 0] | (pairs[..., 1] << np.uint32(8))
    return numbers.astype(np.uint8), words, d_bits | (dmin_bits << np.uint32(16))


def _range_search(x: Floats, weights: Floats, form: _Minima) -> tuple[Floats, Floats]:
    """The scale of each group [groups, n] and the value to subtract, neither negative."""
    lowest, highest = np.minimum(x.min(axis=1), 0), x.max(axis=1)
    all_same = highest <= lowest
    sum_w, sum_x = weights.sum(axis=1), (weights * x).sum(axis=1)
    weighted = weights * x

    def tried(numbers: Floats, scale: Floats, least: Floats) -> Floats:
        off = scale[:, None] * numbers + least[:, None] - x
        return np.asarray((weights * (np.abs(off) if form.absolute else off * off)).sum(axis=1))

    least = lowest.copy()
    inverse = _divided(np.full_like(lowest, form.largest), highest - least)
    scale = _divided(np.ones_like(inverse), inverse)
    numbers = np.rint(inverse[:, None] * (x - least[:, None])).clip(0, form.largest)
    best = tried(numbers, scale, least)
    for number in range(form.tries + 1):
        inverse = (form.first + form.step * number + form.largest) / (highest - least)
        numbers = np.rint(inverse[:, None] * (x - least[:, None])).clip(0, form.largest)
        with_weights = weights * numbers
        sum_l, sum_l2 = with_weights.sum(axis=1), (with_weights * numbers).sum(axis=1)
        sum_xl = (weighted * numbers).sum(axis=1)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = new_least > 0
        new_least = np.where(above, 0, new_least).astype(np.float32)
        new_scale = np.where(above, _divided(sum_xl, sum_l2), new_scale).astype(np.float32)
        error = tried(numbers, new_scale, new_least)
        better = (determinant > 0) & (error < best)
        best, scale = np.where(better, error, best), np.where(better, new_scale, scale)
        least = np.where(better, new_least, least)
    return np.where(all_same, 0, scale).clip(0).astype(np.float32), (-least).clip(0).astype(np.float32)


def _factors(values: Floats, most: int, weights: Floats | None) -> tuple[Floats, Floats]:
    """Integers from 0 to ``most`` [blocks, n] for values that are not negative, and the unit [blocks] of each block.

    With ``weights`` of the errors, the unit is searched for; otherwise the largest value becomes ``most``.
    """
    largest = values.max(axis=1)
    inverse = _divided(np.full_like(largest, most), largest)
    numbers = np.rint(inverse[:, None] * values).clip(0, most)
    unit = _divided(largest, np.full_like(largest, most))
    if weights is None:
        return numbers, unit
    best = (weights * (values - unit[:, None] * numbers) ** 2).sum(axis=1)
    for number in range(-4, 5):
        tried = _divided(0.1 * number + np.full_like(largest, most), largest)
        rounded = np.rint(tried[:, None] * values).clip(0, most)
        error = (weights * (values - _divided(np.ones_like(tried), tried)[:, None] * rounded) ** 2).sum(axis=1)
        better = error < best
        best, numbers = np.where(better, error, best), np.where(better[:, None], rounded, numbers)
    return _descended(values, weights, numbers, 0, most)


# Numbers with a sign and a scale


def _descended(x: Floats, weights: Floats, numbers: Floats, low: int, high: int) -> tuple[Floats, Floats]:
    """Change numbers [groups, n] one by one while the error decreases; return them and the best scale [groups]."""
    numbers, weighted = numbers.copy(), weights * x
    sum_xl, sum_l2 = (weighted * numbers).sum(axis=1), (weights * numbers * numbers).sum(axis=1)
    for _ in range(5):
        changes = False
        for column in range(x.shape[1]):
            old, w = numbers[:, column], weights[:, column]
            rest_xl, rest_l2 = sum_xl - weighted[:, column] * old, sum_l2 - w * old * old
            new = np.rint(x[:, column] * rest_l2 / rest_xl).clip(low, high)
            new_xl, new_l2 = rest_xl + weighted[:, column] * new, rest_l2 + w * new * new
            better = (rest_xl > 0) & (rest_l2 > 0) & (new != old) & (new_l2 > 0)
            better &= new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            if better.any():
                changes = True
                numbers[:, column] = np.where(better, new, old)
                sum_xl, sum_l2 = np.where(better, new_xl, sum_xl), np.where(better, new_l2, sum_l2)
        if not changes:
            break
    return numbers, _divided(sum_xl, sum_l2)


def _farthest(x: Floats) -> Floats:
    """The value of each group that is farthest from zero, or 0 if it is negligible."""
    found = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(np.abs(found) < _SMALLEST, 0, found).astype(np.float32)


def _best(x: Floats, weights: Floats, tries: Iterable[Floats]) -> tuple[Floats, Floats]:
    """Of several numbers for groups [groups, n] those with the smallest error at their best scale, and that scale."""
    best, scale = np.full(len(x), -1.0, np.float32), np.zeros(len(x), np.float32)
    numbers, weighted = np.zeros_like(x), weights * x
    for tried in tries:
        sum_xl, sum_l2 = (weighted * tried).sum(axis=1), (weights * tried * tried).sum(axis=1)
        gain = _divided(sum_xl * sum_xl, sum_l2)
        better = gain > best
        np.copyto(best, gain, where=better)
        np.copyto(scale, _divided(sum_xl, sum_l2), where=better)
        np.copyto(numbers, tried, where=better[:, None])
    return numbers, scale


def _stretched(x: Floats, aims: Iterable[float]) -> Iterator[Floats]:
    """Groups [groups, n] scaled so that the value farthest from zero becomes each of ``aims``."""
    peak = _farthest(x)
    return (_divided(np.full_like(peak, aim), peak)[:, None] * x for aim in aims)


def _symmetric(x: Floats, weights: Floats, half: int) -> tuple[Floats, Floats]:
    """Numbers from -half to half - 1 for groups [groups, n], and the best of 19 scales for each group."""
    aims = [-(half + 0.1 * number) for number in (0, *range(-9, 0), *range(1, 10))]
    return _best(x, weights, (np.rint(each).clip(-half, half - 1) for each in _stretched(x, aims)))


def _three_bits(blocks: Floats, importance: Floats | None) -> tuple[Any, Any, Any]:
    groups = blocks.reshape(-1, 16)
    if importance is None:
        numbers = np.rint(next(_stretched(groups, [-4]))).clip(-4, 3)
        _, scales = _descended(groups, groups**2, numbers, -4, 3)
        return _of_factors(groups, *_signed_factors(scales.reshape(len(blocks), -1), 32), 4)
    weights = _error_weights(blocks, importance, 16)
    _, scales = _symmetric(groups, weights, 4)
    sums = weights.sum(axis=1).reshape(len(blocks), -1)
    return _of_factors(groups, *_symmetric(scales.reshape(len(blocks), -1), sums, 32), 4)


def _six_bits(blocks: Floats, importance: Floats | None) -> tuple[Any, Any, Any]:
    groups = blocks.reshape(-1, 16)
    weights = groups**2 if importance is None else importance.reshape(-1, 16)
    _, scales = _symmetric(groups, weights, 32)
    return _of_factors(groups, *_signed_factors(scales.reshape(len(blocks), -1), 128), 32)


def _signed_factors(scales: Floats, half: int) -> tuple[Floats, Floats]:
    """Integers from -half to half - 1 for the scales of a block [blocks, n], and the unit [blocks]."""
    factors = np.rint(next(_stretched(scales, [-half]))).clip(-half, half - 1)
    return factors, _farthest(scales) / np.float32(-half)


def _of_factors(groups: Floats, factors: Floats, d: Floats, half: int) -> tuple[Any, Any, Any]:
    """The numbers of groups plus ``half``, rounded again for the factors [blocks, n] of the units d [blocks]."""
    bits, d = _half(d)
    whole = np.broadcast_to((d[:, None] * factors).reshape(-1, 1), groups.shape)
    numbers = np.rint(_divided(groups, whole)).clip(-half, half - 1) + half
    return numbers.astype(np.uint8), _factor_pairs(factors), bits


def _factor_pairs(factors: Floats) -> npt.NDArray[np.uint32]:
    """The scale of each group of a block: the signed factors of its halves."""
    return factors.astype(np.int8).view("<u2").astype(np.uint32)


# Numbers from a table

_VALUES = IQ4_TABLE.numbers.astype(np.float32)
_TWICE_BETWEEN = _VALUES[1:] + _VALUES[:-1]
_CODES = np.searchsorted(_TWICE_BETWEEN, np.arange(-256, 256) + 0.5).astype(np.uint8)
"""Entry n is the code of the number nearest to a value whose double is from n - 256 to n - 255."""
_LOWEST = range(-134, -119)
_AIMS, _AIMS_WITH_IMPORTANCE = (127, *_LOWEST), (*_LOWEST, *range(106, 129, 2))
"""The values to try for the weight farthest from zero: near the lowest number of the table, or the highest."""


def _of_table(blocks: Floats, importance: Floats | None) -> tuple[Any, Any, Any]:
    groups = blocks.reshape(-1, 32)
    weights = groups**2 if importance is None else _error_weights(blocks, importance, 32)
    aims = _AIMS if importance is None else _AIMS_WITH_IMPORTANCE
    _, scale = _best(groups, weights, (_VALUES[_codes(each)] for each in _stretched(groups, aims)))
    none = np.zeros((len(blocks), 0), np.uint32)
    if blocks.shape[1] == 32:
        bits, whole = _half(scale)
        return _nearest(groups, whole), bits, none
    factors, d = _signed_factors(scale.reshape(len(blocks), -1), 32)
    bits, d = _half(d)
    return _nearest(groups, (d[:, None] * factors).reshape(-1)), _factor_pairs(np.repeat(factors, 2, axis=1)), bits


def _nearest(groups: Floats, scales: Floats) -> Bytes:
    """The codes of the numbers of the table that are nearest to scaled groups."""
    inverse = _divided(np.ones_like(scales), scales)
    return _codes(inverse[:, None] * groups)


def _codes(values: Floats) -> Bytes:
    """The codes of the numbers of the table that are nearest to values."""
    return np.asarray(_CODES[(np.floor(2 * values) + 256).clip(0, 511).astype(np.int16)])
