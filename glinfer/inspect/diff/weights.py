"""Comparison of two checkpoints tensor by tensor: errors, and a guess at what transformed each tensor."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.engine.progress import Progress, no_progress
from glinfer.formats import Checkpoint
from glinfer.models.oracle import relative_error

Floats = npt.NDArray[np.float32]

_EXACT = 1e-6  # error of a scaled or shifted matrix, rounded to float32
_CLOSE = 1e-3  # error of a transposed matrix, rounded to half floats
_IN_BLOCKS = 0.3  # error of the coarsest formats, relative to the largest weight
_ALIKE = 0.99  # correlation of a matrix with its rounding to such a format
_UNRELATED = 0.3
_FEW = 0.25  # share of rows up to which "some rows differ"

IDENTICAL = "identical"


@dataclass(frozen=True)
class TensorDiff:
    """One tensor of two checkpoints.

    Attributes:
        name: name in both.
        kind: ``identical``, ``missing``, ``shape``, ``zero``, ``rounded``, ``digits``, ``transposed``, ``scaled``,
            ``shifted``, ``permuted``, ``rows``, ``format``, ``changed`` or ``unrelated``.
        what: the kind in words, such as ``B is A transposed``.
        largest: largest absolute difference; None without two tensors of one shape.
        relative: the same, relative to the largest weight of A.
    """

    name: str
    kind: str
    what: str
    largest: float | None = None
    relative: float | None = None


@dataclass(frozen=True)
class WeightsDiff:
    """All tensors of two checkpoints, those of A first."""

    tensors: tuple[TensorDiff, ...]

    @property
    def identical(self) -> bool:
        """Whether both have equal tensors."""
        return all(tensor.kind == IDENTICAL for tensor in self.tensors)

    @property
    def groups(self) -> dict[str, list[TensorDiff]]:
        """Tensors that differ, by ``what``, the farthest apart first."""
        found: dict[str, list[TensorDiff]] = {}
        for tensor in self.tensors:
            if tensor.kind != IDENTICAL:
                found.setdefault(tensor.what, []).append(tensor)
        for group in found.values():
            group.sort(key=lambda tensor: -(tensor.relative or 0.0))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; identical tensors are only counted."""
        different = [dataclasses.asdict(tensor) for tensor in self.tensors if tensor.kind != IDENTICAL]
        return {"tensors": len(self.tensors), "identical": len(self.tensors) - len(different), "different": different}


def diff_weights(a: Checkpoint, b: Checkpoint, on_progress: Progress = no_progress) -> WeightsDiff:
    """Compare the tensors of two checkpoints by name, with one of each unpacked at a time.

    ``on_progress`` receives (compared tensors, tensors).

    Raises:
        InputError: a file has GGML blocks, and the package gguf, which unpacks them, is not installed.
    """
    formats_a, formats_b = a.formats(), b.formats()
    names = [*formats_a, *(name for name in formats_b if name not in formats_a)]
    found = []
    for done, name in enumerate(names, start=1):
        if name not in formats_a or name not in formats_b:
            lacking = "A" if name not in formats_a else "B"
            found.append(TensorDiff(name, "missing", f"missing in {lacking}"))
        else:
            formats = formats_a[name], formats_b[name]
            found.append(compared(name, a.floats(name), b.floats(name), formats))
        on_progress(done, len(names))
    return WeightsDiff(tuple(found))


def compared(name: str, a: Floats, b: Floats, formats: tuple[str, str] = ("F32", "F32")) -> TensorDiff:
    """Compare two vectors or matrices; ``formats`` are those of the files."""
    if a.shape != b.shape:
        if a.ndim == 2 and b.shape == a.T.shape and _transposed(a, b):
            return TensorDiff(name, "transposed", "B is A transposed")
        return TensorDiff(name, "shape", f"A is {list(a.shape)}, B is {list(b.shape)}")
    if np.array_equal(a, b):
        return TensorDiff(name, IDENTICAL, IDENTICAL, 0.0, 0.0)
    facts = _Statistics.of(a, b)
    kind, what = _guess(a, b, facts, formats)
    return TensorDiff(name, kind, what, facts.largest, facts.relative)


def _guess(a: Floats, b: Floats, facts: _Statistics, formats: tuple[str, str]) -> tuple[str, str]:
    """Guess what transformed a tensor; returns (kind, words)."""
    if not facts.peak_b or not facts.peak_a:
        return "zero", f"{'A' if facts.peak_b else 'B'} is zero"
    for name, rounded in (("f16", _to_f16), ("bf16", _to_bf16)):
        if np.array_equal(rounded(a), b):
            return "rounded", f"B is A rounded to {name}"
        if np.array_equal(a, rounded(b)):
            return "rounded", f"A is B rounded to {name}"
    if facts.relative <= _EXACT:
        return "digits", "only the last digits differ"
    if a.ndim == 2 and a.shape[0] == a.shape[1] and _transposed(a, b):
        return "transposed", "B is A transposed"
    if np.abs(a * np.float32(facts.scale) - b).max() <= _EXACT * facts.peak_b:
        return "scaled", f"B is A × {facts.scale:.6g}"
    if np.abs(a + np.float32(facts.shift) - b).max() <= _EXACT * facts.peak_b:
        return "shifted", f"B is A {'+' if facts.shift > 0 else '−'} {abs(facts.shift):.6g}"
    return _permuted(a, b) or _some_rows(a, b) or _apart(facts, formats)


def _apart(facts: _Statistics, formats: tuple[str, str]) -> tuple[str, str]:
    correlation = facts.correlation
    in_a, in_b = formats
    if in_a != in_b and correlation >= _ALIKE and facts.relative <= _IN_BLOCKS:
        if in_a == "F32":
            return "format", f"B is A in {in_b}"
        return "format", f"A is B in {in_a}" if in_b == "F32" else f"A is in {in_a}, B in {in_b}"
    if correlation < _UNRELATED:
        return "unrelated", "B is unrelated to A"
    return "changed", "B is close to A"


@dataclass(frozen=True)
class _Statistics:
    """Statistics of two tensors of one shape.

    ``scale`` and ``shift`` each bring A closest to B without the other; ``largest`` is the largest absolute
    difference, ``peak_a`` and ``peak_b`` are the largest absolute weights.
    """

    largest: float
    peak_a: float
    peak_b: float
    scale: float
    shift: float
    correlation: float

    @property
    def relative(self) -> float:
        return self.largest / self.peak_a if self.peak_a else math.inf

    @classmethod
    def of(cls, a: Floats, b: Floats) -> _Statistics:
        def product(x: Floats, y: Floats) -> float:
            return float(np.einsum("i,i", x.reshape(-1), y.reshape(-1), dtype=np.float64))

        aa, bb, ab = product(a, a), product(b, b), product(a, b)
        both = math.sqrt(aa) * math.sqrt(bb)
        shift = (float(b.sum(dtype=np.float64)) - float(a.sum(dtype=np.float64))) / a.size
        peaks = float(np.abs(a).max()), float(np.abs(b).max())
        return cls(float(np.abs(b - a).max()), *peaks, ab / aa if aa else 0.0, shift, ab / both if both else 0.0)


def _to_f16(array: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def _to_bf16(array: Floats) -> Floats:
    """Round to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)


def _transposed(a: Floats, b: Floats) -> bool:
    return np.array_equal(a.T, b) or relative_error(b, a.T) <= _CLOSE


def _permuted(a: Floats, b: Floats) -> tuple[str, str] | None:
    if a.ndim == 1:
        return ("permuted", "elements permuted") if np.array_equal(np.sort(a), np.sort(b)) else None
    for what, one, other in (("rows", a, b), ("columns", a.T, b.T)):
        if sorted(hash(row.tobytes()) for row in one) == sorted(hash(row.tobytes()) for row in other):
            return "permuted", f"{what} permuted"
    return None


def _some_rows(a: Floats, b: Floats) -> tuple[str, str] | None:
    other = np.flatnonzero((a != b).reshape(len(a), -1).any(axis=1))
    if len(other) > _FEW * len(a):
        return None
    of = "elements" if a.ndim == 1 else "rows"
    return "rows", f"{len(other)} of {len(a)} {of} differ, the first is {int(other[0])}"
