"""The noise of the tokens 0, 1, … of one step, as the tests compare it with the shader's."""

from __future__ import annotations

from typing import Any

import numpy as np

from glinfer.kernels.noise import gumbel_at, noise_key, random_bits

Array = np.ndarray[Any, Any]


def gumbel(seed: int, step: int, count: int) -> Array:
    return gumbel_of_key(noise_key(seed, step), count)


def gumbel_of_key(key: int, count: int) -> Array:
    return gumbel_at(key, np.arange(count))


def uniform_bits(key: int, count: int) -> Array:
    return random_bits(np.full(1, key, np.uint32), np.arange(count))
