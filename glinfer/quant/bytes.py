"""The ``q8`` format of key and value caches: int8 with a scale for each group of 32.

A scale is a bfloat16, the upper half of a float32, so it has a float32's range. It is the largest absolute value of
the group divided by 127, rounded up, so that no number exceeds 127. The rule is that of GGML's ``Q8_0`` except for the
format of the scale; shaders/common/bytes.glsl computes the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.quant.formats import GROUP

LARGEST = 127
"""The largest absolute value of a number."""
LEAST = np.float32(1e-30)
"""Groups whose largest absolute value is smaller are stored as zeros."""
NO_NUMBER = 0x7FC0
"""The scale of a group with a value that is not finite; all its values become NaN."""

Numbers = npt.NDArray[np.int8]
Scales = npt.NDArray[np.uint16]


def scales_for(peaks: npt.NDArray[Any]) -> Scales:
    """The bits of the scales for groups' largest absolute values."""
    peaks = np.asarray(peaks, dtype=np.float32)
    bits = np.ascontiguousarray(peaks * np.float32(1 / LARGEST)).view(np.uint32)
    up = np.where(peaks < LEAST, 0, (bits.astype(np.uint64) + 0xFFFF) >> 16)
    return np.where(np.isfinite(peaks), up, NO_NUMBER).astype(np.uint16)


def factors_of(scales: Scales) -> npt.NDArray[np.float32]:
    """The scales as floats, from their bits."""
    return np.ascontiguousarray(scales.astype(np.uint32) << 16).view(np.float32)


def peaks_of(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The largest absolute value of each group of values [..., 32 · groups]; NaN if a value is NaN."""
    return np.asarray(np.abs(values.reshape(*values.shape[:-1], -1, GROUP)).max(axis=-1))


def to_bytes(values: npt.NDArray[Any]) -> tuple[Numbers, Scales]:
    """Numbers [..., 32 · groups] and the bits of their scales [..., groups].

    Values from :func:`from_bytes` give the same bits again.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(values, dtype=np.float32)
        groups = values.reshape(*values.shape[:-1], -1, GROUP)
        peaks = peaks_of(values)
        scales = scales_for(peaks)
        # The largest number of a group is 127, or 126 after a large rounding of the scale.
        for largest in (LARGEST - 1, LARGEST):
            exact = peaks.astype(np.float64) / largest
            bits = np.ascontiguousarray(exact.astype(np.float32)).view(np.uint32)
            known = (bits & 0xFFFF == 0) & (exact.astype(np.float32) == exact) & (peaks >= LEAST) & np.isfinite(peaks)
            whole = groups / np.where(known, exact, 1.0)[..., None]
            scales = np.where(known & (whole == np.rint(whole)).all(axis=-1), bits >> 16, scales).astype(np.uint16)
        factors = factors_of(scales)[..., None]
        usable = np.isfinite(factors) & (factors > 0)
        found = np.floor(np.where(usable, groups, 0) / np.where(usable, factors, np.float32(1)) + np.float32(0.5))
    return np.clip(found, -LARGEST, LARGEST).astype(np.int8).reshape(values.shape), scales


def from_bytes(numbers: Numbers, scales: Scales) -> npt.NDArray[np.float32]:
    """The values [..., 32 · groups] of numbers and the bits of their scales, exactly."""
    with np.errstate(invalid="ignore"):
        groups = numbers.reshape(*scales.shape, GROUP).astype(np.float32) * factors_of(scales)[..., None]
    return groups.reshape(numbers.shape)
