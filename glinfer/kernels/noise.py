"""Stateless Gumbel noise from (seed, step, token), the same in NumPy and in a fragment shader.

Adding independent Gumbel noise to the logits and taking the largest sum draws a token with exactly its softmax
probability (the Gumbel-max trick; Gumbel 1954, Maddison et al. 2014). The noise of a token depends on the seed, the
step and the token's id alone, so every fragment computes its own.

``shaders/common/noise.glsl`` computes the same numbers; the two files must change together. All integers are
unsigned, of 32 bits, wrap around, and agree to the last bit everywhere; so does u. The logarithm is written out in
float32 additions and multiplications. GLSL's own may be wrong by some 2**-22 just below 1, the source of the largest
noise, which decides: drivers were off by 0.01 there, and by 2 at the very end. A renderer may only choose whether to
round a product before it adds to it. That changes the last bit or two of the noise, by 2e-6 at most, and so a choice
only if the two best sums are that close.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError

Bits = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
FoldedSeed = tuple[int, int]
Drawn = tuple[int, float] | None
"""(noise key, 1 / temperature) of a token that is drawn; None for the likeliest token."""

_MASK = 0xFFFFFFFF
# 2**32 divided by the golden ratio: a start other than 0, which mix() would not change.
_START = 0x9E3779B9
# float32 nearest below sqrt(1/2), as an integer: from there on a mantissa belongs to the next power of two.
_ROOT_HALF = 0x3F3504F3
_LOG_SERIES = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)


def mix(h: Bits) -> Bits:
    """Scramble 32-bit numbers, one to one, so that every input bit flips about half of the output bits.

    ``lowbias32`` of Chris Wellons, "Prospecting for Hash Functions" (2018).
    """
    h = h ^ (h >> np.uint32(16))
    h = h * np.uint32(0x7FEB352D)
    h = h ^ (h >> np.uint32(15))
    h = h * np.uint32(0x846CA68B)
    return h ^ (h >> np.uint32(16))


def noise_key(seed: int, step: int) -> int:
    """The number from 0 to 2**32 - 1 that names the noise of one step: the shader's uniform ``noise_key``.

    The seed's 32-bit words, lowest first, are folded into two words, so any integer will do. Two words are
    kept because with one, two seeds could easily give the same noise a few steps apart. With one seed, 2**32 steps
    have 2**32 different keys.

    Args:
        seed: 0 or more, of any size.
        step: 0 or more; taken modulo 2**32.

    Raises:
        InputError: one of them is not an integer, or negative.
    """
    return int(noise_keys([fold_seed(seed)], [_integer("step", step) & _MASK])[0])


def noise_keys(folded: Sequence[FoldedSeed], steps: Sequence[int]) -> Bits:
    """:func:`noise_key` of several seeds, folded by :func:`fold_seed`, at a step each: uint32 [n]."""
    low, high = np.array(folded, dtype=np.uint32).T
    return mix(mix((np.array(steps) & _MASK).astype(np.uint32) + low) ^ high)


def fold_seed(seed: int) -> FoldedSeed:
    """The two words that all words of a seed are folded into.

    Raises:
        InputError: it is not an integer, or negative.
    """
    seed = _integer("seed", seed)
    low = high = _START
    while True:
        low = _mix_one(low ^ (seed & _MASK))
        high = _mix_one((high + low) & _MASK)
        seed >>= 32
        if seed == 0:
            return low, high


def _mix_one(h: int) -> int:
    """:func:`mix` of a plain number, for which NumPy takes ten times as long."""
    h = (h ^ (h >> 16)) * 0x7FEB352D & _MASK
    h = (h ^ (h >> 15)) * 0x846CA68B & _MASK
    return h ^ (h >> 16)


def random_bits(keys: Bits, tokens: npt.NDArray[np.integer]) -> Bits:
    """32 random bits of token n for key n: uint32 [n] for ids [n] and keys [n], or one key [1].

    Tokens are scrambled before the key is mixed in. Without that, two keys that differ only in low bits would give
    the same numbers to neighbouring tokens.
    """
    return mix(mix(tokens.astype(np.uint32)) ^ keys)


def gumbel_at(key: int, tokens: npt.NDArray[np.integer]) -> Floats:
    """Standard Gumbel noise of some tokens at one step: float32 [n] for ids [n], from -2.9 to 16.7.

    ``key`` is that of the step, from :func:`noise_key`; ids are from 0 to 2**32 - 1.

    Raises:
        InputError: the key is not an integer from 0 to 2**32 - 1.
    """
    return gumbel_of_keys(np.full(1, _integer("noise key", key, _MASK), np.uint32), tokens)


def gumbel_of_keys(keys: Bits, tokens: npt.NDArray[np.integer]) -> Floats:
    """The noise of token n at the step of key n: float32 [n] for ids [n] and keys [n], or one key [1]."""
    return _gumbel_of(random_bits(keys, tokens))


def _gumbel_of(bits: Bits) -> Floats:
    # The middles of 2**23 equal parts of (0, 1); 24 bits, so nothing is rounded and neither 0 nor 1 is reached.
    u = ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return -_natural_log(-_natural_log(u))


def _natural_log(x: Floats) -> Floats:
    """The natural logarithm of normal positive numbers: ``logf`` of Moshier's Cephes library.

    x is split into 2**e × (1 + f) with 1 + f from sqrt(1/2) to sqrt(2); ln 2 is split in two so that e times
    its larger part is exact. Right to one unit in the last place or so, also close to 1.
    """
    bits = x.view(np.int32)
    exponent = (bits - np.int32(_ROOT_HALF)) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - np.float32(1.0)
    e = exponent.astype(np.float32)
    z = f * f
    p = np.full_like(f, _LOG_SERIES[0])
    for factor in _LOG_SERIES[1:]:
        p = p * f + np.float32(factor)
    p = p * f * z
    p = p - np.float32(2.12194440e-4) * e
    p = p - np.float32(0.5) * z
    logarithm: Floats = (f + p) + np.float32(0.693359375) * e
    return logarithm


def _integer(name: str, value: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        found = f"of type {type(value).__name__}"
    elif value < 0:
        found = "negative"
    elif most is not None and value > most:
        found = "too large"
    else:
        return int(value)
    limits = "of at least 0" if most is None else f"from 0 to {most}"
    raise InputError(f"the {name} is {found}; expected an integer {limits}")
