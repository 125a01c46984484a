"""The table of rotary angles of a model, as a test or a kernel reads it."""

from __future__ import annotations

from typing import Any

import numpy as np

from glinfer.kernels.rotary import Scaling, cosines_and_sines, rope_frequencies

Array = np.ndarray[Any, Any]


def rope_table(
    positions: int, rotary_dim: int, theta: float = 10000.0, scaling: Scaling | None = None
) -> tuple[Array, float]:
    """float32 [positions, rotary_dim], (cos, sin) of each pair times the attention factor, and the factor."""
    frequencies, factor = rope_frequencies(positions, rotary_dim, theta, scaling)
    return cosines_and_sines(positions, frequencies, factor), factor
