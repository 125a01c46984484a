"""The angles of rotary positions (Su et al. 2021), and their scaling for long contexts.

Sines of large angles lose digits on graphics hardware. So the cosines and sines of all positions are computed in
float64 and uploaded as a table. The scaling for long contexts and the names of its settings follow the Hugging Face
library transformers (modeling_rope_utils.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from glinfer.errors import InputError
from glinfer.families.layer import QUERY_BETA, yarn_attention
from glinfer.kernels.spec import Array

Scaling = Mapping[str, Any]
"""A ``rope_scaling`` dict: ``rope_type`` (or ``type``) and the numbers of that type; other keys are ignored."""
_ORIGINAL = "original_max_position_embeddings"
_LONGEST = "max_position_embeddings"


def _float(number: float) -> float:
    """A number as a float; infinite for an integer beyond all floats."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


class _Settings:
    """Reads the numbers of one scaling dict, and names what is missing."""

    def __init__(self, kind: str, scaling: Scaling) -> None:
        self.kind, self.given = kind, scaling

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value: Any = self.given.get(key)
        if not self.has(key):
            return self._missing(key) if default is None else default
        whole_or_not = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not whole_or_not or not 0 < _float(value) < math.inf:
            raise InputError(f"rope scaling of type {self.kind!r} has {key} {value!r}; expected a number above 0")
        return float(value)

    def has(self, key: str) -> bool:
        """Whether a key is given; configurations write null or 0 for absent ones."""
        value = self.given.get(key)
        return value is not None and not (isinstance(value, (int, float)) and value == 0)

    def _missing(self, key: str) -> NoReturn:
        raise InputError(f"rope scaling of type {self.kind!r} has no {key!r}; add it to the settings")

    def numbers(self, key: str, count: int) -> Array:
        """``count`` numbers above 0."""
        if not self.has(key):
            self._missing(key)
        try:
            found = np.asarray(self.given[key], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            found = np.empty(0)
        if found.shape != (count,) or not (np.isfinite(found) & (found > 0)).all():
            raise InputError(f"rope scaling of type {self.kind!r}: {key} needs {count} numbers above 0, one per pair")
        return found

    def original(self) -> float:
        """The context length of the training."""
        return self.number(_ORIGINAL, self.number(_LONGEST) if self.has(_LONGEST) else None)

    def factor(self) -> float:
        """The factor by which the context grows."""
        longest = self.number(_LONGEST) / self.original() if self.has(_LONGEST) else None
        return self.number("factor", longest)


def _plain(dim: int, theta: float) -> Array:
    """Angle per position of each pair."""
    return np.asarray(theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim))


def _default(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    return _plain(dim, theta), 1.0


def _linear(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    return _plain(dim, theta) / settings.number("factor"), 1.0


def _proportional(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    share = settings.number("partial_rotary_factor", 1.0)
    turns = np.arange(dim // 2) < int(share * dim // 2)  # the other pairs stay
    return _plain(dim, theta) / settings.number("factor", 1.0) * turns, 1.0


def _dynamic(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    factor, original = settings.number("factor"), settings.original()
    if dim < 4:
        raise InputError(f"rope scaling of type 'dynamic' needs rotary_dim of at least 4; found {dim}")
    grown = factor * max(length, original) / original - (factor - 1)
    return _plain(dim, theta * grown ** (dim / (dim - 2))), 1.0


def _llama3(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    factor, original = settings.number("factor"), settings.original()
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if low >= high:
        raise InputError(
            f"rope scaling of type 'llama3' has low_freq_factor {low:g} and high_freq_factor {high:g}; expected the "
            "first to be lower"
        )
    angles = _plain(dim, theta)
    turns = original * angles / (2 * math.pi)  # of a pair within the context
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * angles / factor + smooth * angles, 1.0


def _yarn(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    factor, original = settings.factor(), settings.original()

    def pair_of_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    usual = yarn_attention(factor)
    if settings.has("mscale") and settings.has("mscale_all_dim"):
        above, below = (yarn_attention(factor, settings.number(each)) for each in ("mscale", "mscale_all_dim"))
        usual = above / below
    low = pair_of_turns(settings.number("beta_fast", 32.0))
    high = pair_of_turns(settings.number("beta_slow", 1.0))
    if settings.given.get("truncate", True):  # to whole pairs
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    angles = _plain(dim, theta)
    return angles / factor * ramp + angles * (1 - ramp), settings.number("attention_factor", usual)


def _longrope(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    original, factor = settings.original(), settings.factor()
    by_pair = {key: settings.numbers(key, dim // 2) for key in ("short_factor", "long_factor")}
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    stretched = by_pair["long_factor" if length > original else "short_factor"]
    return _plain(dim, theta) / stretched, settings.number("attention_factor", usual)


_KINDS: Mapping[str, Callable[[_Settings, int, float, int], tuple[Array, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}


def rope_frequencies(length: int, rotary_dim: int, theta: float, scaling: Scaling | None) -> tuple[Array, float]:
    """The angle per position of each pair, float64 [rotary_dim / 2], and the factor of cosines and sines.

    ``length`` is the number of positions of the context; ``dynamic`` and ``longrope`` depend on it.

    Raises:
        InputError: there is no such type, a setting is missing, or a number is out of range.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise InputError(f"rope: rotary_dim is {rotary_dim}; expected an even number, as elements turn in pairs")
    if isinstance(theta, bool) or not isinstance(theta, (int, float, np.number)) or not 1 < _float(theta) < math.inf:
        raise InputError(f"rope: theta is {theta!r}; expected a number above 1, such as 10000.0")
    if scaling is not None and not isinstance(scaling, Mapping):
        raise InputError(
            f"rope: scaling is {scaling!r}; expected settings such as {{'rope_type': 'linear', 'factor': 2}}"
        )
    scaling = scaling or {}
    if scaling.get("rope_theta", theta) != theta:
        raise InputError(
            f"rope: theta is {theta} and the scaling has rope_theta {scaling['rope_theta']}; expected one theta"
        )
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _KINDS:
        raise InputError(f"rope: there is no scaling of type {kind!r}; known: {', '.join(_KINDS)}")
    try:
        angles, factor = _KINDS[kind](_Settings(kind, scaling), rotary_dim, float(theta), length)
    except (OverflowError, ZeroDivisionError, ValueError):
        raise InputError(
            f"rope scaling of type {kind!r}: its settings give no numbers; expected those of the model"
        ) from None
    return np.asarray(angles, dtype=np.float64), float(factor)


def cosines_and_sines(positions: int, frequencies: Array, factor: float | Array) -> Array:
    """float32 [positions, 2 × pairs]: the cosine and the sine of each pair, times ``factor``, computed in float64.

    ``factor`` is one number, or one for each position, [positions, 1].
    """
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    pairs = np.stack([np.cos(angles) * factor, np.sin(angles) * factor], axis=-1)
    return pairs.reshape(positions, -1).astype(np.float32)


def query_scales(positions: int, scaling: Scaling) -> Array:
    """The factor of queries at each position p, float64 [positions]: 1 + beta · log(1 + floor(p / original)).

    As in Llama 4 and Ministral 3; beta is the setting ``llama_4_scaling_beta``.

    Raises:
        InputError: beta or the original context length is missing or out of range.
    """
    settings = _Settings(str(scaling.get("rope_type")), scaling)
    beta, original = settings.number(QUERY_BETA), settings.original()
    return np.asarray(1 + beta * np.log1p(np.arange(positions) // original))
