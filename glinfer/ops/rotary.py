"""Rotary positions: the angles, computed here, and the draw that turns pairs of elements by them.

Sines of large angles lose digits on graphics hardware, so the cosines and sines of all positions are computed in
float64 and go to the device as a table. How angles are scaled for long contexts, and the names of the settings, are
those of the Hugging Face library transformers (modeling_rope_utils.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from glinfer.errors import InputError
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.flat.draws import Uniform, flat_draw
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register

Scaling = Mapping[str, Any]
"""A ``rope_scaling`` dict: ``rope_type`` (or ``type``) and the numbers of that type; others are ignored."""
_ORIGINAL = "original_max_position_embeddings"
_LONGEST = "max_position_embeddings"


def _float(number: float) -> float:
    """A number as a float; infinite where it is a whole number beyond all floats."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


class _Settings:
    """Reads the numbers of one scaling dict, and names what is missing."""

    def __init__(self, kind: str, scaling: Scaling) -> None:
        self.kind, self._scaling = kind, scaling

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value: Any = self._scaling.get(key)
        if not self.has(key):
            return self._missing(key) if default is None else default
        whole_or_not = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not whole_or_not or not 0 < _float(value) < math.inf:
            raise InputError(f"rope scaling of type {self.kind!r} has {key} {value!r}; expected a number above 0")
        return float(value)

    def has(self, key: str) -> bool:
        """Whether it is given: configurations have null, or 0, for what they leave out."""
        value = self._scaling.get(key)
        return value is not None and not (isinstance(value, (int, float)) and value == 0)

    def _missing(self, key: str) -> NoReturn:
        raise InputError(f"rope scaling of type {self.kind!r} has no {key!r}; add it to the settings")

    def numbers(self, key: str, count: int) -> Array:
        """So many numbers above 0."""
        if not self.has(key):
            self._missing(key)
        try:
            found = np.asarray(self._scaling[key], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            found = np.empty(0)
        if found.shape != (count,) or not (np.isfinite(found) & (found > 0)).all():
            raise InputError(f"rope scaling of type {self.kind!r}: {key} needs {count} numbers above 0, one a pair")
        return found

    def truncates(self) -> bool:
        """Whether the pairs at which a ramp begins and ends are whole numbers."""
        return bool(self._scaling.get("truncate", True))

    def original(self) -> float:
        """The longest context of the training."""
        return self.number(_ORIGINAL, self.number(_LONGEST) if self.has(_LONGEST) else None)

    def factor(self) -> float:
        """By how much the context grows."""
        longest = self.number(_LONGEST) / self.original() if self.has(_LONGEST) else None
        return self.number("factor", longest)


def _plain(dim: int, theta: float) -> Array:
    """Angle per position of each pair."""
    return np.asarray(theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim))


def _default(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    return _plain(dim, theta), 1.0


def _linear(settings: _Settings, dim: int, theta: float, length: int) -> tuple[Array, float]:
    return _plain(dim, theta) / settings.number("factor"), 1.0


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

    def scale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    both = settings.has("mscale") and settings.has("mscale_all_dim")
    usual = scale(settings.number("mscale")) / scale(settings.number("mscale_all_dim")) if both else scale(1.0)
    low = pair_that_turns(settings.number("beta_fast", 32.0))
    high = pair_that_turns(settings.number("beta_slow", 1.0))
    if settings.truncates():
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
}


def rope_frequencies(length: int, rotary_dim: int, theta: float, scaling: Scaling | None) -> tuple[Array, float]:
    """The angle per position of each pair, float64 [rotary_dim / 2], and what cosines and sines are multiplied with.

    ``length`` is how many positions the context has: ``dynamic`` and ``longrope`` depend on it.

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


def cosines_and_sines(positions: int, frequencies: Array, factor: float) -> Array:
    """float32 [positions, 2 × pairs]: the cosine and the sine of each pair, times ``factor``, computed in float64."""
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return (np.stack([np.cos(angles), np.sin(angles)], axis=-1) * factor).reshape(positions, -1).astype(np.float32)


def rope_table(
    positions: int, rotary_dim: int, theta: float = 10000.0, scaling: Scaling | None = None
) -> tuple[Array, float]:
    """What :func:`rotate` turns by, for positions 0 to ``positions`` − 1, and the attention factor of the scaling.

    The table, float32 [positions, rotary_dim], has (cos, sin) of each pair, already times the attention factor.
    ``dynamic`` and ``longrope`` take ``positions`` for the length of the context.

    Raises:
        InputError: see :func:`rope_frequencies`.
    """
    frequencies, factor = rope_frequencies(positions, rotary_dim, theta, scaling)
    return cosines_and_sines(positions, frequencies, factor), factor


def rotate(
    name: str,
    kind: str,
    x: TensorSpec,
    table: TensorSpec,
    out: TensorSpec,
    *,
    kernels: Kernels,
    heads: int = 1,
    interleaved: bool = False,
    sequence: int | None = None,
    position: Extent = 0,
    positions: TensorSpec | None = None,
    rows: Extent | None = None,
) -> DrawSpec:
    """``out`` = x [R, heads × D] with the pairs of each head turned by their rows' positions.

    Args:
        name: of the draw.
        kind: of the draw.
        x: its rows are sequences of ``sequence`` rows each; left out, one sequence.
        table: of :func:`rope_table`, [positions, rotary_dim].
        out: like x.
        kernels: how passes are shaped.
        heads: how many lie side by side in a row.
        interleaved: turn elements (2i, 2i + 1) of a head, not (i, i + rotary_dim / 2).
        sequence: rows of a sequence.
        position: of the first row of each sequence, a number or a run value's name.
        positions: whole numbers [1, sequence] instead.
        rows: how many are written.

    Raises:
        PlanError: a tensor is laid out in another way.
    """
    dim, rotary = x.shape[1] // heads, table.shape[1]
    inputs = [("x", x), ("table", table)]
    uniforms: list[Uniform] = []
    if table.shape[0] == 1:
        positions = None  # nothing to choose from
    elif positions is not None:
        inputs.append(("positions", positions))
    else:
        uniforms.append(("position", position))
    defines = [
        ("HEADS", heads),
        ("HEAD_DIM", dim),
        ("ROTARY", rotary),
        ("SEQUENCE", x.shape[0] if sequence is None else sequence),
        ("TABLE_ROWS", table.shape[0]),
        ("INTERLEAVED", int(interleaved)),
        ("POSITIONS", int(positions is not None)),
        ("WHOLE", int(dim % 4 == 0 and rotary % (4 if interleaved else 8) == 0)),
    ]
    return flat_draw(
        name,
        kind,
        "rotate",
        inputs,
        [out],
        kernels=kernels,
        rows=rows,
        defines=defines,
        uniforms=uniforms,
    )


def _check(shapes: Shapes, params: Params) -> None:
    heads, dim, rotary, sequence = (int(params[key]) for key in ("HEADS", "HEAD_DIM", "ROTARY", "SEQUENCE"))
    shapes.expect("x", None, heads * dim)
    shapes.expect("output", *shapes.by_name["x"])
    shapes.expect("positions", 1, sequence)
    positions = int(params["TABLE_ROWS"])
    shapes.expect("table", positions, rotary)
    shapes.require(rotary % 2 == 0 and rotary <= dim, f"heads of {dim} elements have no {rotary} that turn in pairs")
    whole = shapes.rows("x") % sequence == 0
    shapes.require(whole, f"{shapes.rows('x')} rows are no whole number of sequences of {sequence}")
    first = params.get("position", 0)
    shapes.require(0 <= first < positions, f"position {first} is not in a table of {positions} positions")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, table = float64(inputs, ["x", "table"])
    rows = size[0]
    places = np.arange(rows) % int(params["SEQUENCE"])
    if params["POSITIONS"]:
        at = np.asarray(inputs["positions"], dtype=np.int64).reshape(-1)[places]
    else:
        at = int(params.get("position", 0)) + places
    turns = table[at.clip(0, int(params["TABLE_ROWS"]) - 1)]
    cos, sin = turns[:, None, 0::2], turns[:, None, 1::2]
    heads = x[:rows].reshape(rows, int(params["HEADS"]), -1)
    return turned_pairs(heads, cos, sin, interleaved=bool(params["INTERLEAVED"])).reshape(size)


def turned_pairs(heads: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Heads [..., D] with their first elements turned in pairs, by cosines and sines [..., pairs]."""
    pairs = cos.shape[-1]
    first = np.arange(0, 2 * pairs, 2) if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    turned = heads.copy()
    turned[..., first] = heads[..., first] * cos - heads[..., second] * sin
    turned[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return turned


register(Op("rotate", ("x", "table"), ("positions",), _check, _oracle, ("positions",)))
