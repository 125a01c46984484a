"""Rows that a norm rounds to 8 bits, as BitNet's matrices read them: 255 levels up to each row's largest element."""

from __future__ import annotations

import numpy as np

from glinfer.kernels.spec import Array

_LEVELS, _LEAST = 127.0, 1e-5
_NEAR = 2e-4
"""A float32 may be rounded to the other level where float64 is nearer than this to half way between the two."""


def rounded_rows(x: Array) -> tuple[Array, Array]:
    """For an oracle: ``round(x · s) / s`` with s = 127 / max|x| of each row, and the error that float32 may have.

    x [.., cols] is the result of a draw with the define ROUNDED.
    """
    scale = _LEVELS / np.maximum(np.abs(x).max(axis=-1, keepdims=True), _LEAST)
    levels = x * scale
    return np.rint(levels) / scale, (np.abs(levels - np.floor(levels) - 0.5) < _NEAR) / scale
