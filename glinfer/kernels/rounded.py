"""Rows that a norm rounds to 8 bits, as BitNet's matrices read them: 255 levels up to each row's largest element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps

import numpy as np

from glinfer.kernels.spec import Array, Oracle, Params

_LEVELS, _LEAST = 127.0, 1e-5
_NEAR = 2e-4
"""A float32 may be rounded to the other level where float64 is nearer than this to half way between the two."""
Arranged = Callable[[Array, Mapping[str, Array], Params], Array]
"""Puts the rows of a norm in the order of its outputs."""


def rounded_rows(x: Array) -> tuple[Array, Array]:
    """For an oracle: ``round(x · s) / s`` with s = 127 / max|x| of each row, and the error that float32 may have."""
    scale = _LEVELS / np.maximum(np.abs(x).max(axis=1, keepdims=True), _LEAST)
    levels = x * scale
    return np.rint(levels) / scale, (np.abs(levels - np.floor(levels) - 0.5) < _NEAR) / scale


def may_round(norm: Oracle, arranged: Arranged = lambda rows, inputs, params: rows) -> tuple[Oracle, Oracle]:
    """The oracle of a norm whose results are rounded where ROUNDED is set, and that of the errors allowed then."""

    @wraps(norm)
    def oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
        found = norm(inputs, params, size)
        return arranged(rounded_rows(found)[0] if params.get("ROUNDED") else found, inputs, params)

    def allowed(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
        found = norm(inputs, params, size)
        return arranged(rounded_rows(found)[1] if params.get("ROUNDED") else 0 * found, {}, params)

    return oracle, allowed
